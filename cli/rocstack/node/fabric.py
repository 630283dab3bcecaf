"""The environment of a node's fabric, computed from its profile: which ports, which GID, which network device, and
why. No published constant is taken where the node can be asked (GID index 1, 3, HCA names), and what vendors
disagree on is left alone. Pure.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from . import rdma_ports
from .nic_settings import PLUGIN, NicSettings, condition_names, holds
from .profile import Affinity, NodeProfile, Port
from .rdma_ports import ETHERNET, LISTABLE, ExcludedPort, Hca, choose_ports
from .recording import natural_key

NET_IB = "RCCL, src/transport/net_ib.cc"
NCCL_DOC = "NCCL user guide, environment variables"
UCX_CONFIG = "UCX, src/uct/ib/base"
CHOOSES = "2.21"  # the first RCCL that chooses a GID by itself; before it the default is index 0
PORTS = "hca"  # in the conditions of settings: how many RDMA ports are used; absent where none is
_INNER = re.compile(  # network devices that lead nowhere outside
    r"lo|(?:docker|podman|virbr|veth|cni|flannel|cali|cilium|kube|lxc|tunl|dummy|ifb).*|br-[0-9a-f]{12}"
)
_DOWN = ("down", "lowerlayerdown", "notpresent")
_DEFAULT = "0.0.0.0/0"
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


def fabric(
    profile: NodeProfile,
    nic: NicSettings,
    *,
    control_address: str | None = None,
    data_subnets: Sequence[str] = (),
    versions: Mapping[str, str] | None = None,
    overrides: Mapping[str, str | None] | None = None,
) -> Fabric:
    """The environment of one node with an image of one NIC profile.

    Args:
        control_address: IP address of the control node; decides the network device for sockets.
        data_subnets: of the data network, such as 10.1.0.0/16; without them every address counts.
        versions: of the image's components, by name; `rccl` as ncclGetVersion says it.
        overrides: the user's own lines, which win; None takes a line away.

    Raises:
        ValueError: an address, a subnet or a variable's name or value that is none.
    """
    draft = _Draft(profile, nic, tuple(map(ipaddress.ip_network, data_subnets)), versions or {})
    draft.ports()
    draft.gid()
    draft.traffic_class()
    draft.settings()
    draft.sockets(control_address)
    draft.override(overrides or {})
    return Fabric(
        node=profile.name,
        nic=nic.nic,
        lines=tuple(draft.lines.values()),
        hcas=draft.hcas,
        excluded=draft.excluded,
        affinity=tuple(sorted(profile.affinity, key=lambda link: (link.gpu, link.nic))),
        warnings=tuple(draft.warnings),
        notes=tuple(draft.notes),
        virtual=profile.virtual,
    )


def likely(profile: NodeProfile, known: Sequence[NicSettings]) -> NicSettings | None:
    """The NIC profile that a node's own hardware suggests, where no image says: the one with the most usable ports,
    else one whose cards are there without verbs (Slingshot)."""
    ports = [(len(choose_ports(profile, nic)[0]), nic) for nic in known if nic.provider]
    most, best = max(ports, key=lambda each: each[0], default=(0, None))
    if most:
        return best
    cards = {card.nic for card in profile.nics if card.nic}
    return next((nic for nic in known if not nic.provider and nic.nic in cards), None)


class _Draft:
    """Variables, notes and warnings of one node while they come together. `known` are the versions of the image's
    parts and, where ports are used, how many."""

    def __init__(
        self,
        profile: NodeProfile,
        nic: NicSettings,
        subnets: Sequence[rdma_ports.IpNetwork],
        versions: Mapping[str, str],
    ) -> None:
        self.profile, self.nic, self.subnets, self.versions = profile, nic, subnets, versions
        self.hcas, self.excluded = choose_ports(profile, nic, subnets) if nic.provider else ((), ())
        cards = [card for card in profile.nics if card.nic == nic.nic or card.device in nic.pci]
        self.netdevs = sorted({name for card in cards for name in card.netdevs}, key=natural_key)
        self.known = {**versions, **({PORTS: str(len(self.hcas))} if self.hcas else {})}
        self.lines: dict[str, FabricVariable] = {}
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def set(self, name: str, value: str, reason: str, source: str = "") -> None:
        self.lines[name] = FabricVariable(name, value, reason, source)

    def ports(self) -> None:
        self.warnings += [f"{port.name} is left out: {port.why}" for port in self.excluded if port.matters]
        if not self.nic.provider:
            if self.nic.modules:  # else plain TCP
                self.warnings += [f"{name} is left out: it is down" for name in self.netdevs if not self.usable(name)]
                if not any(map(self.usable, self.netdevs)):
                    what = f"no usable network device of a {self.nic.nic} card"
                    self.warnings.append(f"{what}, for which the image is built")
                if not self.profile.cxi:
                    self.warnings.append("no /dev/cxi*: libfabric can't reach the card")
            return
        if not self.hcas:
            self.warnings.append(
                f"no usable RDMA port, though the image is built for {self.nic.nic}: "
                "RCCL would fall back to TCP silently, at about a tenth of the speed"
            )
            return
        count = f"{len(self.hcas)} active port{'' if len(self.hcas) == 1 else 's'}"
        self.set(
            "NCCL_IB_HCA",
            "=" + ",".join(hca.name for hca in self.hcas),
            f"the {count} of the data network in the order of their GPUs; '=' means whole names",
            f"{NET_IB}; {NCCL_DOC}",
        )
        self.set("NCCL_IB_DISABLE", "0", "RDMA ports are there; some launchers export 1, which means TCP", NCCL_DOC)
        fastest = max((hca.speed for hca in self.hcas if hca.speed), default=0)
        late = [hca.name for hca in self.hcas if hca.speed and hca.speed < fastest]
        if late:
            self.warnings.append(f"{', '.join(late)}: slower than {fastest} Mb/s; look at the link, or exclude it")
        mtus = sorted({hca.mtu for hca in self.hcas if hca.mtu})
        if len(mtus) > 1:
            self.warnings.append(f"the ports' MTUs differ: {', '.join(map(str, mtus))}")

    def gid(self) -> None:
        chosen = {hca.name: hca.gid for hca in self.hcas if hca.gid}
        if not chosen:
            if self.hcas:
                self.notes.append("InfiniBand: no GID index and no traffic class are needed")
            return
        first = next(iter(chosen.values()))
        if first.family == rdma_ports.LINK_LOCAL:
            self.warnings.append(
                "the ports have link-local addresses only: they don't reach beyond one layer-2 network"
            )
        if len({hca.gid.index if hca.gid else None for hca in self.hcas}) == 1:
            row = f"index {first.index} in the GID table of every port used"
            reason = f"{rdma_ports.ROCE_V2} with an {first.family} address: {row}"
            self.set("NCCL_IB_GID_INDEX", str(first.index), reason, NCCL_DOC)
            self.set("UCX_IB_GID_INDEX", str(first.index), reason, f"{UCX_CONFIG}/ib_md.c")
            return
        rows = ", ".join(f"{hca.name} {hca.gid.index if hca.gid else 'InfiniBand'}" for hca in self.hcas)
        self.notes.append(
            f"NCCL_IB_GID_INDEX and UCX_IB_GID_INDEX are not set, since no one index is right everywhere: {rows}"
        )
        tables = {f"{device.name}:{port.number}": port for device in self.profile.verbs for port in device.ports}
        self._by_itself({name: (tables[name], gid.index) for name, gid in chosen.items()}, first.family)

    def _by_itself(self, chosen: Mapping[str, tuple[Port, int]], family: str) -> None:
        """RCCL and UCX choose per port; here is said what they go by, and whether they arrive at the same indexes."""
        able = holds(f"rccl>={CHOOSES}", self.known)
        remedy = "give all ports the same index (one address each, added in the same order)"
        if able is False:
            self.warnings.append(
                f"RCCL {self.known['rccl']} can't choose a GID per port and takes index 0 everywhere ({CHOOSES} of "
                f"ROCm 6.3 is the first that can): {remedy}, or use ROCm 6.3 or newer"
            )
            return
        if able is None:
            newer = f"RCCL must be {CHOOSES} (ROCm 6.3) or newer to choose a GID per port"
            self.warnings.append(f"{newer}; it is not known here")
        self.set("NCCL_IB_ROCE_VERSION_NUM", "2", "by it RCCL chooses each port's GID", NET_IB)
        if family != rdma_ports.IPV4:
            self.set("NCCL_IB_ADDR_FAMILY", "AF_INET6", "the data network has no IPv4 addresses", NET_IB)

        def others(own: Callable[..., int], *how: object) -> str:
            rows = ((name, own(port, *how), index) for name, (port, index) in chosen.items())
            return ", ".join(f"{name} {row} instead of {index}" for name, row, index in rows if row != index)

        subnets = [each for each in self.subnets if (each.version == 4) == (family == rdma_ports.IPV4)]
        texts = {subnet: others(rdma_ports.rccl_gid, family, subnet) for subnet in (None, *subnets)}
        right = [subnet for subnet, text in texts.items() if not text]
        if not right:
            last = list(texts.values())[-1]
            self.warnings.append(f"RCCL would choose other GID indexes by itself ({last}): {remedy}")
        elif right[0]:
            self.set("NCCL_IB_ADDR_RANGE", str(right[0]), "without it RCCL would choose other addresses", NET_IB)
        by_ucx = others(rdma_ports.ucx_gid)
        if by_ucx:
            self.warnings.append(f"UCX would choose other GID indexes by itself ({by_ucx}): {remedy}")

    def traffic_class(self) -> None:
        if not any(hca.link_layer == ETHERNET for hca in self.hcas):
            return
        dscp = self.nic.dscp
        if dscp is None:
            unset = f"NCCL_IB_TC is not set: NIC profile {self.nic.nic} names no DSCP"
            self.notes.append(f"{unset}; set `dscp` to the one the switches protect")
            return
        reason = f"DSCP {dscp} x 4, the byte in the IP header by which NIC and switch know RoCE traffic"
        self.set("NCCL_IB_TC", str(dscp * 4), reason, self.nic.dscp_source or "")
        self.set("UCX_IB_TRAFFIC_CLASS", str(dscp * 4), "as NCCL_IB_TC", f"{UCX_CONFIG}/ib_iface.c")

    def settings(self) -> None:
        for name in dict.fromkeys(setting.name for setting in self.nic.env):
            same = [setting for setting in self.nic.env if setting.name == name]
            first = next((setting for setting in same if holds(setting.when, self.known)), None)
            if first:
                self.set(name, first.value, first.why, first.source)
                continue
            whens = [setting.when for setting in same if setting.when]
            parts = dict.fromkeys(part for when in whens for part in condition_names(when))
            if PORTS in parts and PORTS not in self.known:  # said already
                continue
            have = ", ".join(f"{part} is {self.known.get(part, 'not known')}" for part in parts)
            self.notes.append(f"{name} is not set: it is for {' or '.join(whens)} ({have})")
        plugin, versions = self.nic.plugin, self.versions  # without versions no image is known
        if plugin and versions and PLUGIN not in versions and holds(plugin.when, versions) is not False:
            text = f"the image has no {plugin.name}, RCCL's plugin for {self.nic.nic}: {plugin.without}"
            self.warnings.append(f"{text}; `rocstack build --nic-plugin` compiles it in")

    def usable(self, netdev: str) -> bool:
        """Not the loopback, not of containers or virtual machines, not down, and with a name that a list can hold."""
        down = any(device.name == netdev and device.state in _DOWN for device in self.profile.netdevs)
        return bool(LISTABLE.fullmatch(netdev)) and not _INNER.fullmatch(netdev) and not down

    def control_device(self, control_address: str | None) -> tuple[str | None, str]:
        """The network device towards `control_address`, and why it is that one: for RCCL's and Gloo's bootstrap, and
        UCX's wire-up."""
        routes = []
        for route in self.profile.routes:
            with contextlib.suppress(ValueError):  # no network
                if self.usable(route.netdev):
                    routes.append((ipaddress.ip_network(route.to, strict=False), route))
        routes.sort(key=lambda each: (-each[0].prefixlen, each[1].metric, each[1].netdev))
        if control_address is not None:
            aim = ipaddress.ip_address(control_address)
            for network, route in routes:
                if isinstance(aim, ipaddress.IPv4Address) and aim in network:
                    what = "the default route" if route.to == _DEFAULT else route.to
                    return route.netdev, f"the route to the control node {aim}, by {what}"
        for _, route in routes:
            if route.to == _DEFAULT:
                towards = f"; no IPv4 route is known to {control_address}" if control_address else ""
                return route.netdev, f"holds the default route{towards}"
        alone = {address.netdev for address in self.profile.addresses if self.usable(address.netdev)}
        if len(alone) == 1:
            return alone.pop(), "the only network device with an address"
        return None, "no route to the control node and no default route" if control_address else "no default route"

    def sockets(self, control_address: str | None) -> None:
        netdev, why = self.control_device(control_address)
        # Slingshot's own (hsn0 ...)
        data = [] if self.nic.provider or not self.nic.modules else list(filter(self.usable, self.netdevs))
        if data:
            reason = f"the node's {self.nic.nic} network devices"
            self.set("NCCL_SOCKET_IFNAME", "=" + ",".join(data), reason, NCCL_DOC)
        elif netdev:
            self.set("NCCL_SOCKET_IFNAME", f"={netdev}", why, NCCL_DOC)
        if not netdev:
            self.warnings.append(
                f"no network device was chosen for sockets: {why}; RCCL and Gloo take the first they find"
            )
            return
        self.set("GLOO_SOCKET_IFNAME", netdev, why, "PyTorch, ProcessGroupGloo: whole names, no '='")
        names = ",".join(dict.fromkeys([*(hca.name for hca in self.hcas), *data, netdev]))
        source = "UCX, ucx_info -f: a list of <device>:<port> or <netdev>"
        why = (
            "the same ports, and the sockets' device for the first contact" if self.hcas else "no other device is used"
        )
        self.set("UCX_NET_DEVICES", names, why, source)

    def override(self, overrides: Mapping[str, str | None]) -> None:
        for name, value in overrides.items():
            if not _NAME.fullmatch(name) or (value is not None and not value.isprintable()):
                raise ValueError(f"{name!r} = {value!r} is no environment variable of one line")
            before = self.lines.get(name)
            was = f"; computed was {before.value}: {before.reason}" if before else ""
            if value is not None:
                self.set(name, value, "set by rocstack.yml" + was)
            elif self.lines.pop(name, None):
                self.notes.append(f"{name} is not set, as rocstack.yml says{was}")
        if "NCCL_IB_HCA" in overrides:
            self.notes.append("GID index and UCX_NET_DEVICES were computed for the ports that rocstack chose")
        if "NCCL_IB_TC" in overrides:
            self.notes.append("UCX_IB_TRAFFIC_CLASS does not follow NCCL_IB_TC; `dscp` sets both")


ENV_PATH = "/etc/rocstack/fabric.env"
_BARE = re.compile(r"[A-Za-z0-9_.,:/=@%^+-]*")


def render_env(fabric: Fabric) -> str:
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
        value = line.value if _BARE.fullmatch(line.value) else shlex.quote(line.value)
        text += ["", _comment(line.reason + (f" [{line.source}]" if line.source else "")), f"{line.name}={value}"]
    return "\n".join(text) + "\n"


def parse_env(text: str) -> dict[str, str]:
    """The variables of the shell's form. Their names are no more than that: they become words of other shells.

    Raises:
        ValueError: a line that is neither a comment nor one variable.
    """
    env = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        words = shlex.split(line)
        name, equals, value = words[0].partition("=")
        if len(words) != 1 or not equals or not _NAME.fullmatch(name):
            raise ValueError(f"line {number} is no variable: {line}")
        env[name] = value
    return env


def _comment(text: str) -> str:
    """One line of comment, whatever a node's names hold."""
    return "# " + "".join(letter if letter.isprintable() else "?" for letter in text)
