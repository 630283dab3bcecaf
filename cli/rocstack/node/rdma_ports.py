"""Which RDMA ports of a node carry the training's data, with which row of their GID table, and why the others don't.

A GID table's order depends on the driver and on the order in which addresses came and went: a ConnectX lists every
address as v1 and v2 (IPv4 v2 is 3), a card with v2 only has it at 1, and a deleted address leaves a hole. So no
index is right everywhere.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Union

from .nic_settings import NicSettings
from .profile import Gid, Netdev, NodeProfile, Port, Verbs
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
    NCCL_IB_ROCE_VERSION_NUM=2, NCCL_IB_ADDR_FAMILY by `wanted` and NCCL_IB_ADDR_RANGE by `subnet`."""
    table = {row.index: row for row in port.gids}
    current = 0
    for index in range(1, max(table, default=0) + 1):
        have, candidate = table.get(current), table.get(index)
        fits = subnet is None or (candidate is not None and _within(gid_address(candidate.gid), [subnet]))
        if _is_ipv4(candidate) != (family == IPV4) or not fits:
            continue
        improves = have is None or have.type != ROCE_V2 or not _valid(have)
        v2 = candidate is not None and candidate.type == ROCE_V2 and _valid(candidate)
        if _is_ipv4(candidate) != _is_ipv4(have) or (v2 and improves):
            current = index
    return current


def ucx_gid(port: Port) -> int:
    """The row that UCX takes while UCX_IB_GID_INDEX is auto: uct_ib_device_select_gid of ib_device.c."""
    rows = usable_gids(port, (), (), ())
    return rows[0].index if rows else 0


def _within(address: IpAddress | None, subnets: Sequence[IpNetwork]) -> bool:
    return address is not None and any(address.version == subnet.version and address in subnet for subnet in subnets)


def _is_ipv4(row: Gid | None) -> bool:
    return row is not None and isinstance(gid_address(row.gid), ipaddress.IPv4Address)


def _valid(row: Gid | None) -> bool:
    address = gid_address(row.gid) if row else None
    return address is not None and address_family(address) != LINK_LOCAL


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
    table: Port
    rows: tuple[GidChoice, ...]
    rail: bool
    bases: tuple[str, ...]  # its network devices


def choose_ports(
    profile: NodeProfile, nic: NicSettings, subnets: Sequence[IpNetwork] = ()
) -> tuple[tuple[Hca, ...], tuple[ExcludedPort, ...]]:
    """The ports to use, in the order of the GPUs they are nearest to, and the rest with its reasons."""
    out: list[ExcludedPort] = []
    candidates: list[_Candidate] = []
    for device in sorted(profile.verbs, key=lambda device: natural_key(device.name)):
        for port in sorted(device.ports, key=lambda port: port.number):
            candidate = _candidate(profile, device, port, subnets)
            why = _unusable(profile, nic, device, port)
            if why:
                out.append(_exclude(candidate, why))
            else:
                candidates.append(candidate)
    for step in (_by_address, _by_default_route, _by_speed, _by_family):
        candidates, dropped = step(profile, candidates, subnets)
        out += dropped
    hcas = sorted(
        (c.hca for c in candidates), key=lambda hca: (not hca.gpus, hca.gpus, natural_key(hca.device), hca.port)
    )
    out += [ExcludedPort(hca.name, f"RCCL knows {MOST_PORTS} ports at most", True) for hca in hcas[MOST_PORTS:]]
    return tuple(hcas[:MOST_PORTS]), tuple(
        sorted(out, key=lambda excluded: natural_key(excluded.name.replace(":", " ")))
    )


def _candidate(profile: NodeProfile, device: Verbs, port: Port, subnets: Sequence[IpNetwork]) -> _Candidate:
    known = _netdevs(profile)
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
    return _Candidate(hca, port, rows, any(link.via == OWN_GPU for link in near), bases)


def _exclude(candidate: _Candidate, why: str) -> ExcludedPort:
    near = candidate.hca.gpus
    lost = f"; GPU {', '.join(map(str, near))} has no nearer one" if near else ""
    return ExcludedPort(candidate.hca.name, why + lost, bool(near))


def _unusable(profile: NodeProfile, nic: NicSettings, device: Verbs, port: Port) -> str | None:
    """What rules a port out by itself."""
    known = _netdevs(profile)
    if not LISTABLE.fullmatch(device.name):
        return "its name holds characters that a list of devices can't"
    if not _belongs(profile, nic, device):
        return f"driver {device.driver or 'unknown'}: not of the image's NIC profile, {nic.nic}"
    own = [known[name] for name in device.netdevs if name in known]
    masters = [known[netdev.master] for netdev in own if netdev.master and netdev.master in known]
    bonded = any(netdev.kind == "bond" for netdev in [*own, *masters])
    if "bond" in device.name or bonded:
        return "a bond; if it is the data network, name it in NCCL_IB_HCA"
    if device.device_node is False:
        return f"no /dev/infiniband/{device.uverbs or 'uverbs*'}: `modprobe ib_uverbs`"
    if port.state != "ACTIVE":
        return f"port is {port.state}" if port.state else "the port's state could not be read"
    return None


def _belongs(profile: NodeProfile, nic: NicSettings, device: Verbs) -> bool:
    if device.driver is not None:
        return device.driver in nic.modules
    return any(
        card.device in nic.pci and (card.verbs == device.name or card.pci == device.pci is not None)
        for card in profile.nics
    )


def _by_address(
    _: NodeProfile, candidates: list[_Candidate], subnets: Sequence[IpNetwork]
) -> tuple[list[_Candidate], list[ExcludedPort]]:
    why = f"no {ROCE_V2} GID" + (f" in {', '.join(map(str, subnets))}" if subnets else " on its own network device")
    return _split(candidates, [c for c in candidates if not c.rows and c.hca.link_layer == ETHERNET], why)


def _by_default_route(
    profile: NodeProfile, candidates: list[_Candidate], _: Sequence[IpNetwork]
) -> tuple[list[_Candidate], list[ExcludedPort]]:
    """A card that leads out of the cluster is for management, where there are others and no GPU sits beside it."""
    defaults = sorted((r.metric, r.netdev) for r in profile.routes if r.to == "0.0.0.0/0")
    out = {defaults[0][1]} if defaults else set()
    out |= {netdev.name for netdev in profile.netdevs if netdev.master in out and netdev.master is not None}
    leads = [c for c in candidates if out & set(c.bases) and not c.rail]
    names = ", ".join(sorted(out & {name for c in leads for name in c.bases}))
    return _split(
        candidates, leads if len(leads) < len(candidates) else [], f"holds the default route ({names}): management"
    )


def _by_speed(
    _: NodeProfile, candidates: list[_Candidate], __: Sequence[IpNetwork]
) -> tuple[list[_Candidate], list[ExcludedPort]]:
    """A slower card is for management, unless a GPU sits beside it: then its link is what is wrong."""
    fastest = max((c.hca.speed for c in candidates if c.hca.speed), default=0)
    slow = [c for c in candidates if c.hca.speed and c.hca.speed < fastest and not c.rail]
    return _split(candidates, slow, f"slower than the fastest ({fastest} Mb/s): management")


def _by_family(
    _: NodeProfile, candidates: list[_Candidate], __: Sequence[IpNetwork]
) -> tuple[list[_Candidate], list[ExcludedPort]]:
    """All of a node's RoCE ports speak the same family, the best one that any of them has."""
    families = {row.family for c in candidates if c.hca.link_layer == ETHERNET for row in c.rows}
    best = min(families, key=FAMILIES.index, default=IPV4)
    without = [c for c in candidates if c.hca.link_layer == ETHERNET and not _family_gids(c, best)]
    kept, dropped = _split(candidates, without, f"no {ROCE_V2} GID with an {best} address, which the other ports have")
    return [replace(c, hca=replace(c.hca, gid=next(iter(_family_gids(c, best)), None))) for c in kept], dropped


def _family_gids(candidate: _Candidate, family: str) -> list[GidChoice]:
    return [row for row in candidate.rows if row.family == family and candidate.hca.link_layer == ETHERNET]


def _split(
    candidates: list[_Candidate], without: list[_Candidate], why: str
) -> tuple[list[_Candidate], list[ExcludedPort]]:
    return [c for c in candidates if c not in without], [_exclude(c, why) for c in without]


def _netdevs(profile: NodeProfile) -> Mapping[str, Netdev]:
    return {netdev.name: netdev for netdev in profile.netdevs}
