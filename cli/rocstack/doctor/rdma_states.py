"""What can be wrong with one node's RDMA devices, their libraries and their network. Rules as in states.py."""

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache

from rocstack.base.finding_texts import registering
from rocstack.base.text import listed
from rocstack.doctor.states import Rule, Values, differing, grouped, some
from rocstack.node import rdma_ports
from rocstack.node.profile import Library, Netdev, NodeProfile, Port, Verbs
from rocstack.stack import component
from rocstack.stack.component import CardFirmware

RULES: dict[str, Rule] = {}
rule = registering(RULES)
MTU = 4200  # bytes: RDMA's largest packet of 4096 and its headers fit
_DOWN = ("down", "lowerlayerdown", "notpresent", "dormant")  # of a network device's operstate
_PROVIDERS = {"bnxt_re": "bnxt_re", "mlx5_ib": "mlx5", "ionic_rdma": "ionic", "rdma_rxe": "rxe"}  # by kernel module


def by_driver(node: NodeProfile) -> dict[str, list[Verbs]]:
    """The RDMA devices of each provider that the probe looks for."""
    devices_by_driver: dict[str, list[Verbs]] = defaultdict(list)
    for device in node.verbs:
        if device.driver in _PROVIDERS:
            devices_by_driver[_PROVIDERS[device.driver]].append(device)
    return dict(devices_by_driver)


def data_ports(node: NodeProfile) -> list[tuple[Verbs, Port]]:
    """The ports of the data network, up or down: no bond, and, unless a GPU sits beside it, not the card with the
    default route nor one that is slower than the fastest. Those are for management; the rest where all are."""
    known = {netdev.name: netdev for netdev in node.netdevs}
    ports = [
        (device, port)
        for device in node.verbs
        for port in device.ports
        if "bond" not in device.name and not any(_in_bond(known, name) for name in device.netdevs)
    ]
    routes = sorted((route.metric, route.netdev) for route in node.routes if route.to == "0.0.0.0/0")
    beside = {link.nic for link in node.affinity if link.via == "switch"}
    fastest = max((port.rate or 0 for _, port in ports if port.state == "ACTIVE"), default=0)
    used = [
        (device, port)
        for device, port in ports
        if device.name in beside
        or (
            not (routes and routes[0][1] in device.netdevs)
            and (port.state != "ACTIVE" or not port.rate or port.rate >= fastest)
        )
    ]
    return used or ports


def _in_bond(known: Mapping[str, Netdev], name: str) -> bool:
    netdev = known.get(name)
    return netdev is not None and (netdev.kind == "bond" or netdev.master in known)


def active(node: NodeProfile) -> Iterator[tuple[Verbs, Port]]:
    """The ports of the data network that are up."""
    return ((device, port) for device, port in data_ports(node) if port.state == "ACTIVE")


def slingshot(node: NodeProfile) -> list[Netdev]:
    """The network devices of Slingshot cards, which are no verbs devices."""
    names = {name for nic in node.nics if nic.nic == "slingshot" for name in nic.netdevs}
    return [netdev for netdev in node.netdevs if netdev.name in names]


def gid_rows(node: NodeProfile) -> Iterator[tuple[Verbs, list[rdma_ports.GidChoice]]]:
    """Every active Ethernet port's device, and the rows of its GID table that may carry data, best first."""
    vlans = [netdev.name for netdev in node.netdevs if netdev.kind == "vlan"]
    for device, port in active(node):
        if port.link_layer == "Ethernet":
            yield device, rdma_ports.usable_gids(port, device.netdevs, vlans, ())


def _takes(library: Library, abi: int) -> bool:
    return library.kernel_abi is not None and library.kernel_abi[0] <= abi <= library.kernel_abi[1]


def _speaking(node: NodeProfile) -> Iterator[tuple[str, str, int, list[Library]]]:
    """Driver, its devices' names, their kernel ABI and the provider libraries found for it."""
    for driver, devices in by_driver(node).items():
        own = [library for library in node.libraries if library.driver == driver]
        for abi in sorted({d.kernel_abi for d in devices if d.kernel_abi is not None}):
            yield driver, listed(d.name for d in devices if d.kernel_abi == abi), abi, own


@rule
def no_provider(node: NodeProfile) -> Iterator[Values]:
    for driver, devices, abi, own in _speaking(node):
        if not own and not any("libibverbs" in item.what for item in node.unread):
            yield {"driver": driver, "devices": devices, "abi": abi}


@rule
def provider_kernel_abi(node: NodeProfile) -> Iterator[Values]:
    for driver, devices, abi, own in _speaking(node):
        if own and all(library.kernel_abi for library in own) and not any(_takes(library, abi) for library in own):
            ranges = ", ".join(f"{lib.kernel_abi[0]}-{lib.kernel_abi[1]} ({lib.path})" for lib in own if lib.kernel_abi)
            nic = next((nic.nic for nic in node.nics if nic.nic and nic.verbs in devices.split(", ")), "NIC")
            yield {"driver": driver, "devices": devices, "abi": abi, "ranges": ranges, "nic": nic}


@rule
def no_driver_file(node: NodeProfile) -> Iterator[Values]:
    """libibverbs loads the providers that a file in /etc/libibverbs.d names, and no other."""
    if node.driver_files is not None:
        named = {name.rpartition("/")[2].removeprefix("lib") for name in node.driver_files}
        for driver, devices, abi, own in _speaking(node):
            fits = next((library.path for library in own if _takes(library, abi)), None)
            if fits and driver not in named:
                yield {"path": fits, "driver": driver, "devices": devices}


@rule
def provider_shadowed(node: NodeProfile) -> Iterator[Values]:
    for _, _, abi, own in _speaking(node):
        first = next((lib for lib in own if "/libibverbs/" in lib.path), None)
        fits = next((lib for lib in own if _takes(lib, abi)), None)
        if first and fits and first.kernel_abi and not _takes(first, abi):
            low, high = first.kernel_abi
            yield {"path": first.path, "low": low, "high": high, "fits": fits.path, "abi": abi}


@rule
def provider_private_abi(node: NodeProfile) -> Iterator[Values]:
    has = next((lib.private_abi for lib in node.libraries if lib.driver is None), None)
    used = by_driver(node)
    for library in node.libraries:
        if has and library.driver in used and library.private_abi and library.private_abi != has:
            yield {"path": library.path, "wants": library.private_abi, "has": has}


@rule
def qp_bug(node: NodeProfile) -> Iterator[Values]:
    for driver, _, abi, own in _speaking(node):
        for library in own:
            release = re.match(r"(\d{1,9})\.\d+(?![\d.]*\.\d+\.\d+)", library.version or "")
            if driver == "bnxt_re" and abi == 1 and _takes(library, 1) and release and int(release[1]) < 63:
                yield {"path": library.path, "version": library.version}


@rule
def no_rdma_device(node: NodeProfile) -> Iterator[Values]:
    """A bond has one device, which the kernel hangs at the first of its cards."""
    modules = {"broadcom": "bnxt_re", "mellanox": "mlx5_ib", "ainic": "ionic_rdma"}
    lacking: dict[str, list[str]] = defaultdict(list)
    bonds = {netdev.name for netdev in node.netdevs if netdev.kind == "bond"}
    bonded = {netdev.name: netdev.master for netdev in node.netdevs if netdev.master in bonds}
    served = {bonded[name] for nic in node.nics if nic.verbs for name in nic.netdevs if name in bonded}
    for nic in node.nics:
        if nic.nic in modules and nic.verbs is None and not any(bonded.get(name) in served for name in nic.netdevs):
            lacking[nic.nic].append(nic.netdevs[0] if nic.netdevs else nic.pci)
    for name, cards in lacking.items():
        yield {"cards": f"{len(cards)} {name} NIC{'s' * (len(cards) > 1)} ({listed(cards)})", "module": modules[name]}


@rule
def gpu_without_nic(node: NodeProfile) -> Iterator[Values]:
    """Where most GPUs have a card of their own on their switch, one without has lost it."""
    lacking = [f"GPU {link.gpu}" for link in node.affinity if link.via != "switch"]
    if 0 < len(lacking) < len(node.affinity) / 2:
        yield {"gpus": listed(lacking), "others": len(node.affinity) - len(lacking)}


@rule
def firmware_mixed(node: NodeProfile) -> Iterator[Values]:
    cards = (
        (f"{nic.nic} {nic.device}", nic.firmware, nic.verbs or next(iter(nic.netdevs), nic.pci))
        for nic in node.nics
        if nic.nic and nic.firmware
    )
    for model, groups in differing(cards):
        yield {"model": model, "which": grouped(groups)}


@cache
def _firmware() -> dict[str, CardFirmware]:
    return {card: each for nic in component.nic_profiles() for card, each in nic.firmware.items()}


@rule
def firmware_ibgda(node: NodeProfile) -> Iterator[Values]:
    """Of what is newer than all known good releases, or lies between them, nothing is known. Without GPUs none of
    them starts a transfer."""
    cards = defaultdict(list)
    for nic in node.nics if node.gpus else ():
        if nic.device in _firmware() and nic.firmware:
            cards[nic.nic, nic.device, nic.firmware].append(nic.verbs or nic.pci)
    for (name, device, firmware), devices in cards.items():
        good = _firmware()[device].known_good
        if _numbers(firmware) < min(map(_numbers, good)):
            model = f"{name} {device}"
            yield {"model": model, "firmware": firmware, "devices": listed(devices), "good": " or ".join(good)}


def _numbers(firmware: str) -> tuple[int, ...]:
    """1, 117, 5, 45 of 1.117.5-a-45."""
    return tuple(map(int, re.findall(r"[0-9]{1,9}", firmware)))


@rule
def no_uverbs(node: NodeProfile) -> Iterator[Values]:
    lacking = (device.name for device in node.verbs if device.uverbs is None or device.device_node is False)
    yield from some("devices", lacking)


@rule
def port_down(node: NodeProfile) -> Iterator[Values]:
    """A port that is down where cards of the same model carry data, or where none does: a spare card of another
    model that nobody cabled is no fault."""
    models = {nic.verbs: nic.device for nic in node.nics}
    working = {models.get(device.name) for device, _ in active(node)}
    down = [
        f"{device.name} port {port.number} ({port.state}{f', {port.physical}' if port.physical else ''})"
        for device, port in data_ports(node)
        if port.state not in (None, "ACTIVE") and (models.get(device.name) in working or not working)
    ]
    down += [f"{netdev.name} ({netdev.state})" for netdev in slingshot(node) if netdev.state in _DOWN]
    yield from some("ports", down)


def data_mtu(node: NodeProfile) -> dict[str, int]:
    """MTU of every network device that an active RoCE port stands on."""
    data = {name for device, port in active(node) if port.link_layer == "Ethernet" for name in device.netdevs}
    return {netdev.name: netdev.mtu for netdev in node.netdevs if netdev.name in data and netdev.mtu}


@rule
def mtu_small(node: NodeProfile) -> Iterator[Values]:
    small: dict[int, list[str]] = defaultdict(list)
    for name, mtu in data_mtu(node).items():
        if mtu < MTU:
            small[mtu].append(name)
    for mtu, names in small.items():
        yield {"mtu": mtu, "netdevs": listed(names)}


@rule
def mtu_differs(node: NodeProfile) -> Iterator[Values]:
    for _, groups in differing(("MTU", str(mtu), name) for name, mtu in data_mtu(node).items()):
        yield {"which": grouped(groups)}


@rule
def gid_none(node: NodeProfile) -> Iterator[Values]:
    yield from some("devices", (device.name for device, rows in gid_rows(node) if not rows))


@rule
def gid_no_ipv4(node: NodeProfile) -> Iterator[Values]:
    best = ((device.name, rows[0]) for device, rows in gid_rows(node) if rows)
    yield from some("devices", (name for name, row in best if row.family != rdma_ports.IPV4))


@rule
def gid_index_differs(node: NodeProfile) -> Iterator[Values]:
    best = (("index", str(rows[0].index), device.name) for device, rows in gid_rows(node) if rows)
    for _, groups in differing(best):
        yield {"which": grouped(groups)}


@rule
def arp_flux(node: NodeProfile) -> Iterator[Values]:
    """Data interfaces of one subnet, without the setting that makes each answer only for itself."""
    data = {name for device, _ in active(node) for name in device.netdevs}
    subnets: dict[str, list[str]] = defaultdict(list)
    for item in node.addresses:
        if item.netdev not in data:
            continue
        with suppress(ValueError):  # in a file of profiles it may be any text
            subnets[str(ipaddress.ip_interface(item.address).network)].append(item.netdev)
    value = node.sysctl.get("net.ipv4.conf.all.arp_ignore")
    for subnet, names in subnets.items():
        if len(set(names)) > 1 and value == "0":
            yield {"netdevs": listed(dict.fromkeys(names)), "subnet": subnet, "value": value}


@rule
def nics_mixed(node: NodeProfile) -> Iterator[Values]:
    working = {device.name for device, _ in active(node)}
    cards = (("maker", nic.nic, nic.verbs or "") for nic in node.nics if nic.nic and nic.verbs in working)
    for _, makers in differing(cards):
        yield {"makers": grouped(makers)}
