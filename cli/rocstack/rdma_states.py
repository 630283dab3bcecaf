"""What can be wrong with one node's RDMA devices, their libraries and their network. Rules as in states.py."""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterator

from rocstack.diagnosis import few, registering
from rocstack.node.profile import Gid, Library, NodeProfile, Port, Verbs
from rocstack.states import Rule, Values, grouped

RULES: dict[str, Rule] = {}
rule = registering(RULES)
MTU = 4200  # bytes: RDMA's largest packet of 4096 and its headers fit
_PROVIDER = {"mlx5_core": "mlx5", "mlx5_ib": "mlx5", "ionic_rdma": "ionic", "rdma_rxe": "rxe", "bnxt_en": "bnxt_re"}


def by_driver(node: NodeProfile) -> dict[str, list[Verbs]]:
    """The RDMA devices of each kernel driver that has a provider of that name."""
    found: dict[str, list[Verbs]] = defaultdict(list)
    for device in node.verbs:
        if device.driver:
            found[_PROVIDER.get(device.driver, device.driver)].append(device)
    return dict(found)


def active(node: NodeProfile) -> Iterator[tuple[Verbs, Port]]:
    return ((device, port) for device in node.verbs for port in device.ports if port.state == "ACTIVE")


def roce_v2(gid: Gid) -> bool:
    return gid.type == "RoCE v2"


def ipv4(gid: Gid) -> bool:
    return gid.gid.startswith("0000:0000:0000:0000:0000:ffff:")


def gid_index(port: Port) -> int | None:
    """The first RoCE v2 entry of an IPv4 address."""
    return next((gid.index for gid in port.gids if roce_v2(gid) and ipv4(gid)), None)


def _takes(library: Library, abi: int) -> bool:
    return library.kernel_abi is not None and library.kernel_abi[0] <= abi <= library.kernel_abi[1]


def _speaking(node: NodeProfile) -> Iterator[tuple[str, str, int, list[Library]]]:
    """Driver, its devices' names, their kernel ABI and the provider libraries found for it."""
    for driver, devices in by_driver(node).items():
        own = [library for library in node.libraries if library.driver == driver]
        for abi in sorted({d.kernel_abi for d in devices if d.kernel_abi is not None}):
            yield driver, few(d.name for d in devices if d.kernel_abi == abi), abi, own


@rule
def no_provider(node: NodeProfile) -> Iterator[Values]:
    for driver, devices, abi, own in _speaking(node):
        if not own and not any(item.what.endswith((".so", "libibverbs")) for item in node.unread):
            yield {"driver": driver, "devices": devices, "abi": abi}


@rule
def provider_kernel_abi(node: NodeProfile) -> Iterator[Values]:
    for driver, devices, abi, own in _speaking(node):
        if own and all(library.kernel_abi for library in own) and not any(_takes(library, abi) for library in own):
            ranges = ", ".join(f"{lib.kernel_abi[0]}-{lib.kernel_abi[1]} ({lib.path})" for lib in own if lib.kernel_abi)
            yield {"driver": driver, "devices": devices, "abi": abi, "ranges": ranges}


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
            release = re.match(r"(\d+)\.\d+(?![\d.]*\.\d+\.\d+)", library.version or "")
            if driver == "bnxt_re" and abi == 1 and _takes(library, 1) and release and int(release[1]) < 63:
                yield {"path": library.path, "version": library.version}


@rule
def no_rdma_device(node: NodeProfile) -> Iterator[Values]:
    modules = {"broadcom": "bnxt_re", "mellanox": "mlx5_ib", "ainic": "ionic_rdma"}
    lacking: dict[str, list[str]] = defaultdict(list)
    for nic in node.nics:
        if nic.nic in modules and nic.verbs is None:
            lacking[nic.nic].append(nic.netdevs[0] if nic.netdevs else nic.pci)
    for name, cards in lacking.items():
        yield {"cards": f"{len(cards)} {name} NIC{'s' * (len(cards) > 1)} ({few(cards)})", "module": modules[name]}


@rule
def no_uverbs(node: NodeProfile) -> Iterator[Values]:
    lacking = [device.name for device in node.verbs if device.uverbs is None or device.device_node is False]
    if lacking:
        yield {"devices": few(lacking)}


@rule
def port_down(node: NodeProfile) -> Iterator[Values]:
    """A port that is down where cards of the same driver carry data, or where none does: a spare card of another
    make that nobody cabled is no fault."""
    working = {device.driver for device, _ in active(node)}
    down = [
        f"{device.name} port {port.number} ({port.state}{f', {port.physical}' if port.physical else ''})"
        for device in node.verbs
        for port in device.ports
        if port.state not in (None, "ACTIVE") and (device.driver in working or not working)
    ]
    if down:
        yield {"ports": few(down)}


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
        yield {"mtu": mtu, "netdevs": few(names)}


@rule
def mtu_differs(node: NodeProfile) -> Iterator[Values]:
    groups: dict[str, list[str]] = defaultdict(list)
    for name, mtu in data_mtu(node).items():
        groups[str(mtu)].append(name)
    if len(groups) > 1:
        yield {"which": grouped(groups)}


@rule
def gid_none(node: NodeProfile) -> Iterator[Values]:
    yield from _ports_without(node, lambda port: any(map(roce_v2, port.gids)))


@rule
def gid_no_ipv4(node: NodeProfile) -> Iterator[Values]:
    yield from _ports_without(node, lambda port: gid_index(port) is not None or not any(map(roce_v2, port.gids)))


def _ports_without(node: NodeProfile, good: Callable[[Port], bool]) -> Iterator[Values]:
    bad = [device.name for device, port in active(node) if port.link_layer == "Ethernet" and not good(port)]
    if bad:
        yield {"devices": few(bad)}


@rule
def gid_index_differs(node: NodeProfile) -> Iterator[Values]:
    groups: dict[str, list[str]] = defaultdict(list)
    for device, port in active(node):
        if (index := gid_index(port)) is not None:
            groups[str(index)].append(device.name)
    if len(groups) > 1:
        yield {"which": grouped(groups)}


@rule
def arp_flux(node: NodeProfile) -> Iterator[Values]:
    """Data interfaces of one subnet, without the setting that makes each answer only for itself."""
    data = {name for device, _ in active(node) for name in device.netdevs}
    subnets: dict[str, list[str]] = defaultdict(list)
    for item in node.addresses:
        if item.netdev in data:
            subnets[str(ipaddress.ip_interface(item.address).network)].append(item.netdev)
    value = node.sysctl.get("net.ipv4.conf.all.arp_ignore")
    for subnet, names in subnets.items():
        if len(set(names)) > 1 and value == "0":
            yield {"netdevs": few(dict.fromkeys(names)), "subnet": subnet, "value": value}


@rule
def nics_mixed(node: NodeProfile) -> Iterator[Values]:
    makers: dict[str, list[str]] = defaultdict(list)
    working = {device.name for device, _ in active(node)}
    for nic in node.nics:
        if nic.nic and nic.verbs in working:
            makers[nic.nic].append(nic.verbs or "")
    if len(makers) > 1:
        yield {"makers": grouped(makers)}
