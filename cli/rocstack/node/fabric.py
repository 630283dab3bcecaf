"""The environment of a node's fabric, computed from its profile: which ports, which GID, which network device, and
why. No published constant is taken where the node can be asked (GID index 1, 3, HCA names), and what vendors
disagree on is left alone. Pure.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import rdma_ports, sockets
from .nic_settings import FabricSetting, NicSettings, condition_names, holds, missing_plugin
from .profile import Affinity, NodeProfile, Port
from .rdma_ports import ETHERNET, ExcludedPort, Hca, choose_ports

NET_IB = "RCCL, src/transport/net_ib.cc"
NCCL_DOC = "NCCL user guide, environment variables"
UCX_CONFIG = "UCX, src/uct/ib/base"
CHOOSES = "2.21"  # the first RCCL that chooses a GID by itself; before it the default is index 0
PORTS = "hca"  # in the conditions of settings: how many RDMA ports are used; absent where none is
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class FabricVariable:
    """One variable. `source` is empty where the reason says all."""

    name: str
    value: str
    reason: str
    source: str = ""


@dataclass(frozen=True)
class Fabric:
    """What a node's fabric.env holds and what a person should know about it."""

    node: str
    nic: str
    lines: tuple[FabricVariable, ...]
    hcas: tuple[Hca, ...] = ()
    excluded: tuple[ExcludedPort, ...] = ()
    affinity: tuple[Affinity, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    virtual: str | None = None

    @property
    def env(self) -> dict[str, str]:
        return {line.name: line.value for line in self.lines}


class _Draft:
    """Variables, notes and warnings while they come together."""

    def __init__(self) -> None:
        self.lines: dict[str, FabricVariable] = {}
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def set(self, name: str, value: str, reason: str, source: str = "") -> None:
        self.lines[name] = FabricVariable(name, value, reason, source)


def fabric(
    profile: NodeProfile,
    nic: NicSettings,
    *,
    control_address: str | None = None,
    data_subnets: Sequence[str] = (),
    versions: Mapping[str, str] | None = None,
    overrides: Mapping[str, str | None] | None = None,
    dscp: int | None = None,
) -> Fabric:
    """The environment of one node with an image of one NIC profile.

    Args:
        control_address: IP address of the control node; decides the network device for sockets.
        data_subnets: of the data network, such as 10.1.0.0/16; without them every address counts.
        versions: of the image's components, by name; `rccl` as ncclGetVersion says it.
        overrides: the user's own lines, which win; None takes a line away.
        dscp: of RoCE traffic, where the site's switches want another than the NIC's own.

    Raises:
        ValueError: an address, a subnet, a DSCP or a variable's name or value that is none.
    """
    if dscp is not None and not 0 <= dscp <= 63:
        raise ValueError(f"DSCP {dscp}: it is a number from 0 to 63")
    subnets = tuple(ipaddress.ip_network(subnet) for subnet in data_subnets)
    hcas, excluded = choose_ports(profile, nic, subnets) if nic.provider else ((), ())
    known = {**(versions or {}), **({PORTS: str(len(hcas))} if hcas else {})}
    draft = _Draft()
    _ports(draft, profile, nic, hcas, excluded)
    _gid(draft, profile, hcas, known, subnets)
    _traffic_class(draft, nic, hcas, dscp)
    _settings(draft, nic.env, known)
    draft.warnings += missing_plugin(nic, versions or {})
    _sockets(draft, profile, nic, hcas, control_address)
    _overrides(draft, overrides or {})
    return Fabric(
        node=profile.name,
        nic=nic.nic,
        lines=tuple(draft.lines.values()),
        hcas=hcas,
        excluded=excluded,
        affinity=tuple(sorted(profile.affinity, key=lambda link: (link.gpu, link.nic))),
        warnings=tuple(draft.warnings),
        notes=tuple(draft.notes),
        virtual=profile.virtual,
    )


def likely(profile: NodeProfile, known: Sequence[NicSettings]) -> NicSettings | None:
    """The NIC profile that a node's own hardware suggests, where no image says: the one with the most usable ports,
    else one whose cards are there without verbs (Slingshot)."""
    ports = [(len(choose_ports(profile, nic)[0]), nic) for nic in known if nic.provider]
    most = max((count for count, _ in ports), default=0)
    if most:
        return next(nic for count, nic in ports if count == most)
    cards = {card.nic for card in profile.nics if card.nic}
    return next((nic for nic in known if not nic.provider and nic.nic in cards), None)


def _ports(
    draft: _Draft, profile: NodeProfile, nic: NicSettings, hcas: Sequence[Hca], excluded: Sequence[ExcludedPort]
) -> None:
    draft.warnings += [f"{port.name} is left out: {port.why}" for port in excluded if port.matters]
    if not nic.provider:
        draft.warnings += sockets.missing_devices(profile, nic)
        return
    if not hcas:
        draft.warnings.append(
            f"no usable RDMA port, though the image is built for {nic.nic}: "
            "RCCL would fall back to TCP silently, at about a tenth of the speed"
        )
        return
    draft.set(
        "NCCL_IB_HCA",
        sockets.whole_names([hca.name for hca in hcas]),
        f"the {_count(len(hcas), 'active port')} of the data network in the order of their GPUs; '=' means whole names",
        f"{NET_IB}; {NCCL_DOC}",
    )
    draft.set("NCCL_IB_DISABLE", "0", "RDMA ports are there; some launchers export 1, which means TCP", NCCL_DOC)
    slow = sorted({hca.speed for hca in hcas if hca.speed})
    if len(slow) > 1:
        late = [hca.name for hca in hcas if hca.speed and hca.speed < slow[-1]]
        draft.warnings.append(f"{', '.join(late)}: slower than {slow[-1]} Mb/s; look at the link, or exclude it")
    mtus = sorted({hca.mtu for hca in hcas if hca.mtu})
    if len(mtus) > 1:
        draft.warnings.append(f"the ports' MTUs differ: {', '.join(map(str, mtus))}")


def _gid(
    draft: _Draft,
    profile: NodeProfile,
    hcas: Sequence[Hca],
    versions: Mapping[str, str],
    subnets: Sequence[rdma_ports.IpNetwork],
) -> None:
    chosen = {hca.name: hca.gid for hca in hcas if hca.gid}
    if not chosen:
        if hcas:
            draft.notes.append("InfiniBand: no GID index and no traffic class are needed")
        return
    family = next(iter(chosen.values())).family
    if family == rdma_ports.LINK_LOCAL:
        draft.warnings.append("the ports have link-local addresses only: they don't reach beyond one layer-2 network")
    indexes = {hca.gid.index if hca.gid else None for hca in hcas}
    if len(indexes) == 1:
        index = str(next(iter(chosen.values())).index)
        reason = f"{rdma_ports.ROCE_V2} with an {family} address: index {index} in the GID table of every port used"
        draft.set("NCCL_IB_GID_INDEX", index, reason, NCCL_DOC)
        draft.set("UCX_IB_GID_INDEX", index, reason, f"{UCX_CONFIG}/ib_md.c")
        return
    rows = ", ".join(f"{hca.name} {hca.gid.index if hca.gid else 'InfiniBand'}" for hca in hcas)
    draft.notes.append(
        f"NCCL_IB_GID_INDEX and UCX_IB_GID_INDEX are not set, since no one index is right everywhere: {rows}"
    )
    tables = {f"{device.name}:{port.number}": port for device in profile.verbs for port in device.ports}
    _by_itself(draft, {name: (tables[name], gid) for name, gid in chosen.items()}, family, versions, subnets)


def _by_itself(
    draft: _Draft,
    chosen: Mapping[str, tuple[Port, rdma_ports.GidChoice]],
    family: str,
    versions: Mapping[str, str],
    subnets: Sequence[rdma_ports.IpNetwork],
) -> None:
    """RCCL and UCX choose per port; here is said what they go by, and whether they arrive at the same indexes."""
    able = holds(f"rccl>={CHOOSES}", versions)
    remedy = "give all ports the same index (one address each, added in the same order)"
    if able is False:
        draft.warnings.append(
            f"RCCL {versions['rccl']} can't choose a GID per port and takes index 0 everywhere ({CHOOSES} of ROCm 6.3 "
            f"is the first that can): {remedy}, or use ROCm 6.3 or newer"
        )
        return
    if able is None:
        draft.warnings.append(
            f"RCCL must be {CHOOSES} (ROCm 6.3) or newer to choose a GID per port; it is not known here"
        )
    draft.set("NCCL_IB_ROCE_VERSION_NUM", "2", "by it RCCL chooses each port's GID", NET_IB)
    if family != rdma_ports.IPV4:
        draft.set("NCCL_IB_ADDR_FAMILY", "AF_INET6", "the data network has no IPv4 addresses", NET_IB)
    ranges: list[rdma_ports.IpNetwork | None] = [
        None,
        *(s for s in subnets if (s.version == 4) == (family == rdma_ports.IPV4)),
    ]
    wrong: dict[str, int] = {}
    for subnet in ranges:
        own = {name: rdma_ports.rccl_gid(port, family, subnet) for name, (port, _) in chosen.items()}
        wrong = {name: own[name] for name, (_, gid) in chosen.items() if own[name] != gid.index}
        if not wrong:
            if subnet:
                draft.set("NCCL_IB_ADDR_RANGE", str(subnet), "without it RCCL would choose other addresses", NET_IB)
            break
    else:
        texts = (f"{name} {row} instead of {chosen[name][1].index}" for name, row in wrong.items())
        draft.warnings.append(f"RCCL would choose other GID indexes by itself ({', '.join(texts)}): {remedy}")
    texts = (
        f"{name} {rdma_ports.ucx_gid(port)} instead of {gid.index}"
        for name, (port, gid) in chosen.items()
        if rdma_ports.ucx_gid(port) != gid.index
    )
    others = ", ".join(texts)
    if others:
        draft.warnings.append(f"UCX would choose other GID indexes by itself ({others}): {remedy}")


def _traffic_class(draft: _Draft, nic: NicSettings, hcas: Sequence[Hca], dscp: int | None) -> None:
    if not any(hca.link_layer == ETHERNET for hca in hcas):
        return
    value, source = (nic.dscp, nic.dscp_source or "") if dscp is None else (dscp, "set by rocstack.yml")
    if value is None:
        draft.notes.append(
            f"NCCL_IB_TC is not set: NIC profile {nic.nic} names no DSCP; set `dscp` to the one the switches protect"
        )
        return
    reason = f"DSCP {value} x 4, the byte in the IP header by which NIC and switch know RoCE traffic"
    draft.set("NCCL_IB_TC", str(value * 4), reason, source)
    draft.set("UCX_IB_TRAFFIC_CLASS", str(value * 4), "as NCCL_IB_TC", f"{UCX_CONFIG}/ib_iface.c")


def _settings(draft: _Draft, settings: Sequence[FabricSetting], versions: Mapping[str, str]) -> None:
    for name in dict.fromkeys(setting.name for setting in settings):
        same = [setting for setting in settings if setting.name == name]
        first = next((setting for setting in same if holds(setting.when, versions)), None)
        if first:
            draft.set(name, first.value, first.why, first.source)
            continue
        whens = [setting.when for setting in same if setting.when]
        part_names = dict.fromkeys(part for when in whens for part in condition_names(when))
        if PORTS in part_names and PORTS not in versions:  # said already
            continue
        have = ", ".join(f"{part} is {versions.get(part, 'not known')}" for part in part_names)
        draft.notes.append(f"{name} is not set: it is for {' or '.join(whens)} ({have})")


def _sockets(
    draft: _Draft, profile: NodeProfile, nic: NicSettings, hcas: Sequence[Hca], control_address: str | None
) -> None:
    netdev, why = sockets.control_device(profile, control_address)
    data = () if nic.provider or not nic.modules else sockets.nic_devices(profile, nic)
    if data:
        draft.set("NCCL_SOCKET_IFNAME", sockets.whole_names(data), f"the node's {nic.nic} network devices", NCCL_DOC)
    elif netdev:
        draft.set("NCCL_SOCKET_IFNAME", sockets.whole_names([netdev]), why, NCCL_DOC)
    if netdev:
        draft.set("GLOO_SOCKET_IFNAME", netdev, why, "PyTorch, ProcessGroupGloo: whole names, no '='")
    else:
        draft.warnings.append(
            f"no network device was chosen for sockets: {why}; RCCL and Gloo take the first they find"
        )
    devices = [*(hca.name for hca in hcas), *data, *([netdev] if netdev and netdev not in data else [])]
    if netdev and devices:
        reason = "the same ports, and the sockets' device for the first contact" if hcas else "no other device is used"
        draft.set(
            "UCX_NET_DEVICES", ",".join(devices), reason, "UCX, ucx_info -f: a list of <device>:<port> or <netdev>"
        )


def _overrides(draft: _Draft, overrides: Mapping[str, str | None]) -> None:
    for name, value in overrides.items():
        if not _NAME.fullmatch(name) or (value is not None and not value.isprintable()):
            raise ValueError(f"{name!r} = {value!r} is no environment variable of one line")
        before = draft.lines.get(name)
        was = f"; computed was {before.value}: {before.reason}" if before else ""
        if value is not None:
            draft.set(name, value, "set by rocstack.yml" + was)
        elif draft.lines.pop(name, None):
            draft.notes.append(f"{name} is not set, as rocstack.yml says{was}")
    if "NCCL_IB_HCA" in overrides:
        draft.notes.append("GID index and UCX_NET_DEVICES were computed for the ports that rocstack chose")
    if "NCCL_IB_TC" in overrides:
        draft.notes.append("UCX_IB_TRAFFIC_CLASS does not follow NCCL_IB_TC; `dscp` sets both")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


ENV_PATH = "/etc/rocstack/fabric.env"
_BARE = re.compile(r"[A-Za-z0-9_.,:/=@%^+-]*")


def render_env(fabric: Fabric, *, shell: bool = True) -> str:
    """The file's text: what is to know as comments, then each variable under its reason."""
    head = [f"Environment of {fabric.node}'s fabric for NIC profile {fabric.nic}, computed from the node's profile."]
    if fabric.virtual:
        head.append(f"Virtual node, model {fabric.virtual}: the hardware is simulated.")
    head += [f"GPU {link.gpu}: {link.nic} ({link.via})" for link in fabric.affinity]
    head += [f"{port.name} is left out: {port.why}" for port in fabric.excluded if not port.matters]
    head += [f"Note: {note}" for note in fabric.notes]
    head += [f"WARNING: {warning}" for warning in fabric.warnings]
    text = [_comment(line) for line in head]
    for line in fabric.lines:
        value = shlex.quote(line.value) if shell and not _BARE.fullmatch(line.value) else line.value
        text += ["", _comment(line.reason + (f" [{line.source}]" if line.source else "")), f"{line.name}={value}"]
    return "\n".join(text) + "\n"


def parse_env(text: str) -> dict[str, str]:
    """The variables of the shell's form.

    Raises:
        ValueError: a line that is neither a comment nor one variable.
    """
    env = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        words = shlex.split(line)
        name, equals, value = words[0].partition("=")
        if len(words) != 1 or not equals:
            raise ValueError(f"line {number} is no variable: {line}")
        env[name] = value
    return env


def _comment(text: str) -> str:
    """One line of comment, whatever a node's names hold."""
    return "# " + "".join(letter if letter.isprintable() else "?" for letter in text)
