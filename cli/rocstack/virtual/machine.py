"""One virtual node as a value: the model's machine with every device by its address, before it becomes files."""

from collections import deque
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv4Network

from rocstack.virtual.model import Gpus, ModelPcie, Nics, NodeModel, counted

MANAGEMENT = "10.0.0.0/24"  # where nobody says otherwise
ONBOARD = "f0"  # the bus of what hangs on no switch


@dataclass(frozen=True)
class MachineFunction:
    """A PCI function. `path`: the bridges above it, root port first; `width`: the lanes with which it runs."""

    address: str
    id: str
    numa: int
    path: tuple[str, ...]
    pcie: ModelPcie
    width: int


@dataclass(frozen=True)
class VirtualPort:
    """A network card with its network device, and its verbs device where it has one."""

    netdev: str
    pci: MachineFunction
    spec: Nics
    mac: str
    address: IPv4Interface | None
    verbs: str | None
    kernel_abi: int
    driver: str | None
    firmware: str | None
    mtu: int
    cxi: str | None = None
    up: bool = True
    device_node: bool = True
    gids: tuple[tuple[str, str] | None, ...] = ()  # GID (eight groups of four hex digits) and type

    @property
    def interface(self) -> str:
        """The network device that carries the address."""
        return self.spec.bond or self.netdev

    @property
    def carries_data(self) -> bool:
        return self.spec.nic is not None and not self.spec.management


@dataclass(frozen=True)
class Machine:
    model: NodeModel
    node: int
    gpus: dict[int, MachineFunction]  # slot among the model's GPUs ->; what counts the present ones is the order
    ports: tuple[VirtualPort, ...]
    kernel: str
    cmdline: str
    amdgpu: str | None
    gateway: str | None = None
    faults: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        return f"n{self.node}"

    @property
    def address(self) -> str:
        """In the management network."""
        return str(next(port.address.ip for port in self.ports if port.spec.management and port.address))


def expand(model: NodeModel, node: int = 1, address: str | None = None, gateway: str | None = None) -> Machine:
    """Node number `node` of this kind, without faults. `address` is that of the management network, with its
    prefix length."""
    own = IPv4Interface(address) if address else _host(IPv4Network(MANAGEMENT), node)
    places, gpus = _places(model)
    ports: list[VirtualPort] = []
    rail = 0
    for spec in model.nics:
        verbs = counted(spec.verbs, spec.count) if spec.verbs else []
        cxi = counted(spec.cxi, spec.count) if spec.cxi else []
        for index, netdev in enumerate(counted(spec.netdev, spec.count)):
            mac = f"02:{node >> 8:02x}:{node & 255:02x}:00:00:{len(ports):02x}"
            address_of_port = own if spec.management and index == 0 else None
            if spec.network:
                address_of_port = _host(list(IPv4Network(spec.network).subnets(new_prefix=24))[rail], node)
                rail += 1
            has_verbs = bool(verbs) and not (spec.bond and index)
            ports.append(
                VirtualPort(
                    netdev=netdev,
                    pci=replace(places[netdev], id=pci_id(spec, spec.kernel_abi)),
                    spec=spec,
                    mac=mac,
                    address=address_of_port,
                    verbs=verbs[index] if has_verbs else None,
                    kernel_abi=spec.kernel_abi,
                    driver=spec.drivers.get(str(spec.kernel_abi)),
                    firmware=spec.firmware,
                    mtu=spec.mtu,
                    cxi=cxi[index] if cxi else None,
                    gids=gid_table(mac, address_of_port, spec.gids) if has_verbs else (),
                )
            )
    return Machine(
        model=model,
        node=node,
        gpus=gpus,
        ports=tuple(ports),
        kernel=model.system.kernel,
        cmdline=model.system.cmdline,
        amdgpu=model.gpus.driver if model.gpus else None,
        gateway=gateway or str(own.network.network_address + 1),
    )


def pci_id(spec: Nics, kernel_abi: int) -> str:
    return spec.inbox_pci if spec.inbox_pci and kernel_abi == 1 else spec.pci


def gid_table(mac: str, address: IPv4Interface | None, kinds: str) -> tuple[tuple[str, str], ...]:
    """The kernel's rows: link-local first, then the address; RoCE v1 before v2 where the driver does both."""
    octets = [int(part, 16) for part in mac.split(":")]
    eui = [octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]]
    gids = ["fe80:0000:0000:0000:" + _groups(bytes(eui))]
    if address:
        gids.append("0000:0000:0000:0000:0000:ffff:" + _groups(address.ip.packed))
    types = ("IB/RoCE v1", "RoCE v2") if kinds == "v1+v2" else ("RoCE v2",)
    return tuple((gid, kind) for gid in gids for kind in types)


def _groups(data: bytes) -> str:
    return ":".join(data[i : i + 2].hex() for i in range(0, len(data), 2))


def _host(network: IPv4Network, node: int) -> IPv4Interface:
    return IPv4Interface(f"{network.network_address + node}/{network.prefixlen}")


def _places(model: NodeModel) -> tuple[dict[str, MachineFunction], dict[int, MachineFunction]]:
    """Addresses of all devices: those on switches, in the order of GPUs; the rest on root ports of their own.

    A switch is `root port / upstream port / downstream port / device`, and a GPU has two bridges of its own card in
    between, as AMD's guide shows it: 00:01.1/01:00.0/02:00.0/03:00.0/04:00.0/05:00.0 (system-acceptance docs,
    network/topology-mapping).
    """
    found: dict[str, MachineFunction] = {}
    gpus: dict[int, MachineFunction] = {}
    specs = {name: spec for spec in model.nics for name in counted(spec.netdev, spec.count)}

    def function(spec: Gpus | Nics, address: str, numa: int, *path: str) -> MachineFunction:
        return MachineFunction(f"0000:{address}", spec.pci, numa, path, spec.pcie, spec.pcie.width)

    for switch in model.switches:
        base = int(switch.bus, 16)
        above = (f"0000:{base:02x}:01.1", f"0000:{base + 1:02x}:00.0")
        bus, slot = base + 3, 0
        for index in switch.gpus:
            assert model.gpus  # the model's own check: GPUs hang on switches only where it has some
            card = (f"0000:{base + 2:02x}:{slot:02x}.0", f"0000:{bus:02x}:00.0", f"0000:{bus + 1:02x}:00.0")
            gpus[index] = function(model.gpus, f"{bus + 2:02x}:00.0", switch.numa, *above, *card)
            bus, slot = bus + 3, slot + 1
        for name in switch.nics:
            port = f"0000:{base + 2:02x}:{slot:02x}.0"
            found[name] = function(specs[name], f"{bus:02x}:00.0", switch.numa, *above, port)
            bus, slot = bus + 1, slot + 1
    base = int(ONBOARD, 16)
    for number, spec in enumerate(model.nics):
        for index, name in enumerate(n for n in counted(spec.netdev, spec.count) if n not in found):
            address = f"{base + 1 + number:02x}:{index // 8:02x}.{index % 8}"
            found[name] = function(spec, address, spec.numa, f"0000:{base:02x}:{number + 1:02x}.1")
    return found, dict(sorted(gpus.items()))


def hops(spec: Gpus) -> dict[tuple[int, int], int]:
    """Between each two GPUs of the hive, the fewest xGMI links on the way."""
    everyone = range(spec.count)
    if spec.xgmi == "all":
        return {(a, b): 1 for a in everyone for b in everyone if a != b}
    near = {a: {b for pair in spec.xgmi for b in pair if a in pair and b != a} for a in everyone}
    out: dict[tuple[int, int], int] = {}
    for start in everyone:
        seen, queue = {start: 0}, deque([start])
        while queue:
            at = queue.popleft()
            for after in near[at] - seen.keys():
                seen[after] = seen[at] + 1
                queue.append(after)
        out.update({(start, end): links for end, links in seen.items() if end != start})
    return out
