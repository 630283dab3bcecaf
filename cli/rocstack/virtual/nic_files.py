"""The network of a virtual node: PCI functions, network devices, verbs devices with their GIDs, Slingshot devices."""

from rocstack.node.recording import RecordedAnswer
from rocstack.virtual.machine import Machine, VirtualPort
from rocstack.virtual.tree_builder import TreeBuilder

_CLASS = 0x020000  # Ethernet controller
_ROWS = 16  # of a GID table
_RATES = {100_000: "100 Gb/sec (4X EDR)", 200_000: "200 Gb/sec (4X HDR)", 400_000: "400 Gb/sec (4X NDR)"}
_NO_GID = ":".join(["0000"] * 8)


def add(tree: TreeBuilder, machine: Machine) -> None:
    loopback = "/sys/devices/virtual/net/lo"
    tree.put(loopback, {"operstate": "unknown", "mtu": 65536, "type": 772, "address": "00:00:00:00:00:00"})
    tree.links["/sys/class/net/lo"] = loopback
    uverbs = 0
    for port in machine.ports:
        home = tree.function(port.pci, _CLASS, port.spec.module)
        tree.module(port.spec.module, port.driver)
        _netdev(tree, machine, port, home)
        if port.verbs:
            _verbs(tree, machine, port, port.verbs, home, uverbs)
            uverbs += 1
        if port.cxi:
            number = int(port.cxi.removeprefix("cxi"))
            tree.put(f"{home}/cxi/{port.cxi}", {"dev": f"240:{number}"})
            tree.links[f"{home}/cxi/{port.cxi}/device"] = home
            tree.links[f"/sys/class/cxi/{port.cxi}"] = f"{home}/cxi/{port.cxi}"
            tree.char(f"/dev/{port.cxi}", 240, number, mode=0o666)
    if uverbs:
        tree.put("/sys/class/infiniband_verbs", {"abi_version": 6})  # of uverbs itself, IB_USER_VERBS_ABI_VERSION
        for module in ("ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm"):
            tree.module(module, None)
        tree.char("/dev/infiniband/rdma_cm", 10, 58, mode=0o666)
    for bond in dict.fromkeys(port.spec.bond for port in machine.ports if port.spec.bond):
        _bond(tree, bond, [port for port in machine.ports if port.spec.bond == bond])


def _netdev(tree: TreeBuilder, machine: Machine, port: VirtualPort, home: str) -> None:
    netdev = f"{home}/net/{port.netdev}"
    tree.put(netdev, {
        "operstate": "up" if port.up else "down", "speed": port.spec.speed if port.up else -1, "mtu": port.mtu,
        "address": port.mac, "carrier": int(port.up), "type": 1, "dev_port": 0, "flags": "0x1003",
        "uevent": f"INTERFACE={port.netdev}",
    })  # fmt: skip
    tree.links[f"{netdev}/device"] = home
    tree.links[f"/sys/class/net/{port.netdev}"] = netdev
    # A driver without a version of its own gives the kernel's (net/ethtool/ioctl.c).
    answers = {
        "driver": port.spec.module, "version": port.driver or machine.kernel,
        "firmware-version": port.firmware or "", "bus-info": port.pci.address,
    }  # fmt: skip
    answer = "".join(f"{key}: {value}\n" for key, value in answers.items())
    tree.commands[f"ethtool -i {port.netdev}"] = RecordedAnswer(0, answer)


def _bond(tree: TreeBuilder, name: str, ports: list[VirtualPort]) -> None:
    home = f"/sys/devices/virtual/net/{name}"
    up = any(port.up for port in ports)
    speed = sum(port.spec.speed for port in ports if port.up) if up else -1
    tree.put(home, {
        "operstate": "up" if up else "down", "speed": speed, "mtu": ports[0].mtu, "address": ports[0].mac, "type": 1,
        "uevent": f"DEVTYPE=bond\nINTERFACE={name}", "bonding/mode": "802.3ad 4",
        "bonding/slaves": " ".join(port.netdev for port in ports),
    })  # fmt: skip
    tree.links[f"/sys/class/net/{name}"] = home
    for port in ports:
        tree.links[f"{tree.links[f'/sys/class/net/{port.netdev}']}/master"] = home


def _verbs(tree: TreeBuilder, machine: Machine, port: VirtualPort, name: str, home: str, number: int) -> None:
    module = port.spec.verbs_module or ""
    device, uverbs = f"{home}/infiniband/{name}", f"{home}/infiniband_verbs/uverbs{number}"
    guid = f"0200:00{machine.node & 255:02x}:{number:04x}:0000"
    tree.put(device, {
        "node_type": "1: CA", "node_guid": guid, "sys_image_guid": guid, "node_desc": f"{machine.host} {name}",
        "hca_type": port.spec.name, "fw_ver": port.firmware or "",
    })  # fmt: skip
    tree.put(f"{device}/ports/1", {
        "state": "4: ACTIVE" if port.up else "1: DOWN", "phys_state": "5: LinkUp" if port.up else "3: Disabled",
        "link_layer": "Ethernet", "rate": _RATES.get(port.spec.speed, f"{port.spec.speed // 1000} Gb/sec (4X)"),
        "lid": "0x0", "sm_lid": "0x0", "lid_mask_count": 0, "cap_mask": "0x04010000", "pkeys/0": "0xffff",
    })  # fmt: skip
    for row in range(max(_ROWS, len(port.gids))):
        entry = port.gids[row] if row < len(port.gids) else None
        tree.put(f"{device}/ports/1/gids", {str(row): entry[0] if entry else _NO_GID})
        if entry:
            tree.put(f"{device}/ports/1/gid_attrs", {f"types/{row}": entry[1], f"ndevs/{row}": port.interface})
    tree.put(uverbs, {"ibdev": name, "abi_version": port.kernel_abi, "dev": f"231:{192 + number}"})
    for path, kind in ((device, "infiniband"), (uverbs, "infiniband_verbs")):
        tree.links[f"{path}/device"] = home
        tree.links[f"/sys/class/{kind}/{path.rpartition('/')[2]}"] = path
    part = f"{home}/{port.spec.module}.rdma.{number}"  # the auxiliary device that the verbs module drives
    tree.module(module, port.driver)
    tree.driver("auxiliary", f"{module}.rdma", module, part)
    if port.device_node:
        tree.char(f"/dev/infiniband/uverbs{number}", 231, 192 + number, mode=0o666)
