"""Which RDMA ports of a node carry the training's data, and why the others don't."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from . import gids
from .nic_settings import NicSettings
from .profile import Netdev, NodeProfile, Port, Verbs
from .recording import natural

LISTABLE = re.compile(r"[A-Za-z0-9._-]+")  # a name that RCCL's and UCX's lists, which know ',' ':' '=' '^', can hold
MOST = 32  # MAX_IB_DEVS of RCCL's net_ib.cc
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
    gid: gids.Choice | None = None  # None on InfiniBand

    @property
    def name(self) -> str:
        return f"{self.device}:{self.port}"


@dataclass(frozen=True)
class Excluded:
    """A port that is not used. `matters`: it should have been."""

    name: str
    why: str
    matters: bool = False


@dataclass(frozen=True)
class _Candidate:
    hca: Hca
    table: Port
    rows: tuple[gids.Choice, ...]
    rail: bool
    bases: tuple[str, ...]  # its network devices


def choose(
    profile: NodeProfile, nic: NicSettings, subnets: Sequence[gids.Network] = ()
) -> tuple[tuple[Hca, ...], tuple[Excluded, ...]]:
    """The ports to use, in the order of the GPUs they are nearest to, and the rest with its reasons."""
    out: list[Excluded] = []
    found: list[_Candidate] = []
    for device in sorted(profile.verbs, key=lambda device: natural(device.name)):
        for port in sorted(device.ports, key=lambda port: port.number):
            candidate = _candidate(profile, device, port, subnets)
            why = _unfit(profile, nic, device, port)
            if why:
                out.append(_excluded(candidate, why))
            else:
                found.append(candidate)
    for step in (_by_address, _by_default_route, _by_speed, _by_family):
        found, dropped = step(profile, found, subnets)
        out += dropped
    hcas = sorted((c.hca for c in found), key=lambda hca: (not hca.gpus, hca.gpus, natural(hca.device), hca.port))
    out += [Excluded(hca.name, f"RCCL knows {MOST} ports at most", True) for hca in hcas[MOST:]]
    return tuple(hcas[:MOST]), tuple(sorted(out, key=lambda excluded: natural(excluded.name.replace(":", " "))))


def _candidate(profile: NodeProfile, device: Verbs, port: Port, subnets: Sequence[gids.Network]) -> _Candidate:
    known = _netdevs(profile)
    vlans = [name for name, netdev in known.items() if netdev.kind == "vlan"]
    bases = tuple(name for name in device.netdevs if name not in vlans)
    rows = tuple(gids.usable(port, bases, vlans, subnets))
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


def _excluded(candidate: _Candidate, why: str) -> Excluded:
    near = candidate.hca.gpus
    lost = f"; GPU {', '.join(map(str, near))} has no nearer one" if near else ""
    return Excluded(candidate.hca.name, why + lost, bool(near))


def _unfit(profile: NodeProfile, nic: NicSettings, device: Verbs, port: Port) -> str | None:
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
    _: NodeProfile, found: list[_Candidate], subnets: Sequence[gids.Network]
) -> tuple[list[_Candidate], list[Excluded]]:
    why = f"no {gids.V2} GID" + (f" in {', '.join(map(str, subnets))}" if subnets else " on its own network device")
    return _split(found, [c for c in found if not c.rows and c.hca.link_layer == ETHERNET], why)


def _by_default_route(
    profile: NodeProfile, found: list[_Candidate], _: Sequence[gids.Network]
) -> tuple[list[_Candidate], list[Excluded]]:
    """A card that leads out of the cluster is for management, where there are others and no GPU sits beside it."""
    defaults = sorted((r.metric, r.netdev) for r in profile.routes if r.to == "0.0.0.0/0")
    out = {defaults[0][1]} if defaults else set()
    out |= {netdev.name for netdev in profile.netdevs if netdev.master in out and netdev.master is not None}
    leads = [c for c in found if out & set(c.bases) and not c.rail]
    names = ", ".join(sorted(out & {name for c in leads for name in c.bases}))
    return _split(found, leads if len(leads) < len(found) else [], f"holds the default route ({names}): management")


def _by_speed(
    _: NodeProfile, found: list[_Candidate], __: Sequence[gids.Network]
) -> tuple[list[_Candidate], list[Excluded]]:
    """A slower card is for management, unless a GPU sits beside it: then its link is what is wrong."""
    fastest = max((c.hca.speed for c in found if c.hca.speed), default=0)
    slow = [c for c in found if c.hca.speed and c.hca.speed < fastest and not c.rail]
    return _split(found, slow, f"slower than the fastest ({fastest} Mb/s): management")


def _by_family(
    _: NodeProfile, found: list[_Candidate], __: Sequence[gids.Network]
) -> tuple[list[_Candidate], list[Excluded]]:
    """All of a node's RoCE ports speak the same family, the best one that any of them has."""
    families = {row.family for c in found if c.hca.link_layer == ETHERNET for row in c.rows}
    best = min(families, key=gids.FAMILIES.index, default=gids.IPV4)
    without = [c for c in found if c.hca.link_layer == ETHERNET and not _rows(c, best)]
    kept, dropped = _split(found, without, f"no {gids.V2} GID with an {best} address, which the other ports have")
    return [replace(c, hca=replace(c.hca, gid=next(iter(_rows(c, best)), None))) for c in kept], dropped


def _rows(candidate: _Candidate, family: str) -> list[gids.Choice]:
    return [row for row in candidate.rows if row.family == family and candidate.hca.link_layer == ETHERNET]


def _split(found: list[_Candidate], without: list[_Candidate], why: str) -> tuple[list[_Candidate], list[Excluded]]:
    return [c for c in found if c not in without], [_excluded(c, why) for c in without]


def _netdevs(profile: NodeProfile) -> Mapping[str, Netdev]:
    return {netdev.name: netdev for netdev in profile.netdevs}
