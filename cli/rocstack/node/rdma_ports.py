"""Which RDMA ports of a node carry the training's data, with which row of their GID table, and why the others don't.

A GID table's order depends on the driver and on the order in which addresses came and went: a ConnectX lists every
address as v1 and v2 (IPv4 v2 is 3), a card with v2 only has it at 1, and a deleted address leaves a hole. So no
index is right everywhere.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Union

from .nic_settings import NicSettings
from .profile import NodeProfile, Port, Verbs
from .recording import natural_key

IpAddress = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]  # noqa: UP007 (evaluated on Python 3.8)
IpNetwork = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]  # noqa: UP007

ROCE_V2 = "RoCE v2"
IPV4, IPV6, LINK_LOCAL = "IPv4", "IPv6", "IPv6 link-local"
FAMILIES = (IPV4, IPV6, LINK_LOCAL)  # in order of preference


@dataclass(frozen=True)
class GidChoice:
    """A row that may be used."""

    index: int
    address: str
    family: str
    netdev: str | None = None


def gid_address(gid: str) -> IpAddress | None:
    """The IP address in a GID; None where the row is empty or unreadable."""
    try:
        address = ipaddress.IPv6Address(int(gid.replace(":", ""), 16))
    except ValueError:
        return None
    if int(address) == 0 or address == ipaddress.IPv6Address("fe80::"):  # a prefix without an interface
        return None
    return address.ipv4_mapped or address


def address_family(address: IpAddress) -> str:
    if isinstance(address, ipaddress.IPv4Address):
        return IPV4
    return LINK_LOCAL if address.is_link_local else IPV6


def usable_gids(
    port: Port, netdevs: Collection[str], vlans: Collection[str], subnets: Sequence[IpNetwork]
) -> list[GidChoice]:
    """The rows that may carry data, best first: RoCE v2, an address, the device's own network device and not one on
    top of it. A VLAN counts where a data subnet asks for its address.

    Args:
        netdevs: the RDMA device's network devices; where they could not be read, any.
        vlans: the node's VLAN devices.
        subnets: of the data network; without any, every address will do.
    """
    rows = []
    for row in port.gids:
        address = gid_address(row.gid)
        if row.type != ROCE_V2 or address is None or (subnets and not _within(address, subnets)):
            continue
        vlan = row.netdev in vlans
        own = row.netdev is None or row.netdev in netdevs or not (netdevs or vlan)
        if own or (vlan and subnets):
            rank = (FAMILIES.index(address_family(address)), vlan, row.index)
            rows.append((rank, GidChoice(row.index, str(address), address_family(address), row.netdev)))
    return [choice for _, choice in sorted(rows, key=lambda row: row[0])]


def rccl_gid(port: Port, family: str, subnet: IpNetwork | None = None) -> int:
    """The row that RCCL from 2.21 on takes while NCCL_IB_GID_INDEX is unset: ncclIbGetGidIndex of net_ib.cc, with
    NCCL_IB_ROCE_VERSION_NUM=2, NCCL_IB_ADDR_FAMILY by `family` and NCCL_IB_ADDR_RANGE by `subnet`."""
    types = {row.index: row.type for row in port.gids}
    addresses = {row.index: gid_address(row.gid) for row in port.gids}

    def is_ipv4(index: int) -> bool:
        return isinstance(addresses.get(index), ipaddress.IPv4Address)

    def is_v2(index: int) -> bool:
        address = addresses.get(index)
        return types.get(index) == ROCE_V2 and address is not None and address_family(address) != LINK_LOCAL

    current = 0
    for index in range(1, max(types, default=0) + 1):
        if is_ipv4(index) != (family == IPV4) or (subnet and not _within(addresses.get(index), [subnet])):
            continue
        if is_ipv4(index) != is_ipv4(current) or (is_v2(index) and not is_v2(current)):
            current = index
    return current


def ucx_gid(port: Port) -> int:
    """The row that UCX takes while UCX_IB_GID_INDEX is auto: uct_ib_device_select_gid of ib_device.c."""
    rows = usable_gids(port, (), (), ())
    return rows[0].index if rows else 0


def _within(address: IpAddress | None, subnets: Sequence[IpNetwork]) -> bool:
    return address is not None and any(address.version == subnet.version and address in subnet for subnet in subnets)


LISTABLE = re.compile(r"[A-Za-z0-9._-]+")  # a name that RCCL's and UCX's lists, which know ',' ':' '=' '^', can hold
MOST_PORTS = 32  # MAX_IB_DEVS of RCCL's net_ib.cc
ETHERNET, INFINIBAND = "Ethernet", "InfiniBand"
OWN_GPU = "switch"  # the card hangs on the same PCIe switch as a GPU: it is there for that GPU's data


@dataclass(frozen=True)
class Hca:
    """A port that is used. `gpus` are those it is nearest to."""

    device: str
    port: int
    link_layer: str
    netdev: str | None = None
    speed: int | None = None
    mtu: int | None = None
    gpus: tuple[int, ...] = ()
    gid: GidChoice | None = None  # None on InfiniBand

    @property
    def name(self) -> str:
        return f"{self.device}:{self.port}"


@dataclass(frozen=True)
class ExcludedPort:
    """A port that is not used. `matters`: it should have been."""

    name: str
    why: str
    matters: bool = False


@dataclass(frozen=True)
class _Candidate:
    hca: Hca
    rows: tuple[GidChoice, ...]
    rail: bool
    bases: tuple[str, ...]  # its network devices

    def of_family(self, family: str) -> list[GidChoice]:
        return [row for row in self.rows if row.family == family and self.hca.link_layer == ETHERNET]


def choose_ports(
    profile: NodeProfile, nic: NicSettings, subnets: Sequence[IpNetwork] = ()
) -> tuple[tuple[Hca, ...], tuple[ExcludedPort, ...]]:
    """The ports to use, in the order of the GPUs they are nearest to, and the rest with its reasons."""
    out: list[ExcludedPort] = []
    left: list[_Candidate] = []

    def drop(without: Sequence[_Candidate], why: str) -> None:
        for candidate in without:
            near = candidate.hca.gpus
            lost = f"; GPU {', '.join(map(str, near))} has no nearer one" if near else ""
            out.append(ExcludedPort(candidate.hca.name, why + lost, bool(near)))
        left[:] = [candidate for candidate in left if candidate not in without]

    for device in profile.verbs:
        for port in device.ports:
            left.append(_candidate(profile, device, port, subnets))
            why = _unusable(profile, nic, device, port)
            if why:
                drop(left[-1:], why)
    where = f" in {', '.join(map(str, subnets))}" if subnets else " on its own network device"
    drop([c for c in left if not c.rows and c.hca.link_layer == ETHERNET], f"no {ROCE_V2} GID{where}")
    # A card that leads out of the cluster is for management, where there are others and no GPU sits beside it.
    defaults = sorted((route.metric, route.netdev) for route in profile.routes if route.to == "0.0.0.0/0")
    leading = {netdev for _, netdev in defaults[:1]}
    leading |= {netdev.name for netdev in profile.netdevs if netdev.master in leading}
    leads = [c for c in left if leading.intersection(c.bases) and not c.rail]
    if len(leads) < len(left):
        names = ", ".join(sorted(leading.intersection(name for c in leads for name in c.bases)))
        drop(leads, f"holds the default route ({names}): management")
    # A slower card is for management, unless a GPU sits beside it: then its link is what is wrong.
    fastest = max((c.hca.speed for c in left if c.hca.speed), default=0)
    slow = [c for c in left if c.hca.speed and c.hca.speed < fastest and not c.rail]
    drop(slow, f"slower than the fastest ({fastest} Mb/s): management")
    # All of a node's RoCE ports speak the same family, the best one that any of them has.
    ethernet = [c for c in left if c.hca.link_layer == ETHERNET]
    best = min((row.family for c in ethernet for row in c.rows), key=FAMILIES.index, default=IPV4)
    without = [c for c in ethernet if not c.of_family(best)]
    drop(without, f"no {ROCE_V2} GID with an {best} address, which the other ports have")
    hcas = sorted(
        (replace(c.hca, gid=next(iter(c.of_family(best)), None)) for c in left),
        key=lambda hca: (not hca.gpus, hca.gpus, natural_key(hca.device), hca.port),
    )
    out += [ExcludedPort(hca.name, f"RCCL knows {MOST_PORTS} ports at most", True) for hca in hcas[MOST_PORTS:]]
    excluded = sorted(out, key=lambda port: natural_key(port.name.replace(":", " ")))
    return tuple(hcas[:MOST_PORTS]), tuple(excluded)


def _candidate(profile: NodeProfile, device: Verbs, port: Port, subnets: Sequence[IpNetwork]) -> _Candidate:
    known = {netdev.name: netdev for netdev in profile.netdevs}
    vlans = [name for name, netdev in known.items() if netdev.kind == "vlan"]
    bases = tuple(name for name in device.netdevs if name not in vlans)
    rows = tuple(usable_gids(port, bases, vlans, subnets))
    netdev = known.get((rows[0].netdev if rows else None) or (bases[0] if bases else ""))
    speeds = [known[name].speed for name in bases if name in known]
    near = [link for link in profile.affinity if link.nic == device.name]
    hca = Hca(
        device=device.name,
        port=port.number,
        link_layer=INFINIBAND if port.link_layer == INFINIBAND else ETHERNET,
        netdev=netdev.name if netdev else (bases[0] if bases else None),
        speed=port.rate or max((speed for speed in speeds if speed and speed > 0), default=None),
        mtu=netdev.mtu if netdev else None,
        gpus=tuple(sorted({link.gpu for link in near})),
    )
    return _Candidate(hca, rows, any(link.via == OWN_GPU for link in near), bases)


def _unusable(profile: NodeProfile, nic: NicSettings, device: Verbs, port: Port) -> str | None:
    """What rules a port out by itself."""
    if not LISTABLE.fullmatch(device.name):
        return "its name holds characters that a list of devices can't"
    by_card = any(
        card.device in nic.pci and (card.verbs == device.name or card.pci == device.pci is not None)
        for card in profile.nics
    )
    if not (by_card if device.driver is None else device.driver in nic.modules):
        return f"driver {device.driver or 'unknown'}: not of the image's NIC profile, {nic.nic}"
    known = {netdev.name: netdev for netdev in profile.netdevs}
    own = [known[name] for name in device.netdevs if name in known]
    masters = [known[netdev.master] for netdev in own if netdev.master and netdev.master in known]
    if "bond" in device.name or any(netdev.kind == "bond" for netdev in [*own, *masters]):
        return "a bond; if it is the data network, name it in NCCL_IB_HCA"
    if device.device_node is False:
        return f"no /dev/infiniband/{device.uverbs or 'uverbs*'}: `modprobe ib_uverbs`"
    if port.state != "ACTIVE":
        return f"port is {port.state}" if port.state else "the port's state could not be read"
    return None
