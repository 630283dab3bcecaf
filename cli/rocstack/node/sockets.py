"""Which network device carries a node's control traffic: RCCL's and Gloo's bootstrap, UCX's wire-up."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from .nic_settings import NicSettings
from .profile import NodeProfile
from .rdma_ports import LISTABLE
from .recording import natural_key

_INNER = re.compile(
    r"lo|(?:docker|podman|virbr|veth|cni|flannel|cali|cilium|kube|lxc|tunl|dummy|ifb).*|br-[0-9a-f]{12}"
)
_DOWN = ("down", "lowerlayerdown", "notpresent")
_DEFAULT = "0.0.0.0/0"


def control_device(profile: NodeProfile, control_address: str | None = None) -> tuple[str | None, str]:
    """The network device towards `control_address`, and why it is that one.

    Raises:
        ValueError: `control_address` is no IP address.
    """
    routes = sorted(
        (r for r in profile.routes if _length(r.to) >= 0 and usable_device(profile, r.netdev)),
        key=lambda r: (-_length(r.to), r.metric, r.netdev),
    )
    if control_address is not None:
        aim = ipaddress.ip_address(control_address)
        if isinstance(aim, ipaddress.IPv4Address):
            for route in routes:
                if aim in ipaddress.ip_network(route.to, strict=False):
                    what = "the default route" if route.to == _DEFAULT else route.to
                    return route.netdev, f"the route to the control node {aim}, by {what}"
    for route in routes:
        if route.to == _DEFAULT:
            towards = f"; no IPv4 route is known to {control_address}" if control_address else ""
            return route.netdev, f"holds the default route{towards}"
    alone = sorted({a.netdev for a in profile.addresses if usable_device(profile, a.netdev)}, key=natural_key)
    if len(alone) == 1:
        return alone[0], "the only network device with an address"
    return None, "no route to the control node and no default route" if control_address else "no default route"


def nic_devices(profile: NodeProfile, nic: NicSettings) -> tuple[str, ...]:
    """The network devices of the NIC profile's own cards (hsn0 ...), those that can be used."""
    return tuple(name for name in _of_cards(profile, nic) if usable_device(profile, name))


def missing_devices(profile: NodeProfile, nic: NicSettings) -> list[str]:
    """What a NIC profile without verbs lacks on this node, as sentences."""
    if not nic.modules:  # plain TCP
        return []
    down = [name for name in _of_cards(profile, nic) if not usable_device(profile, name)]
    sentences = [f"{name} is left out: it is down" for name in down]
    if not nic_devices(profile, nic):
        sentences.append(f"no usable network device of a {nic.nic} card, for which the image is built")
    if not profile.cxi:
        sentences.append("no /dev/cxi*: libfabric can't reach the card")
    return sentences


def _of_cards(profile: NodeProfile, nic: NicSettings) -> list[str]:
    cards = [card for card in profile.nics if card.nic == nic.nic or card.device in nic.pci]
    return sorted({name for card in cards for name in card.netdevs}, key=natural_key)


def usable_device(profile: NodeProfile, netdev: str) -> bool:
    """Not the loopback, not of containers or virtual machines, not down, and with a name that a list can hold."""
    down = any(device.name == netdev and device.state in _DOWN for device in profile.netdevs)
    return bool(LISTABLE.fullmatch(netdev)) and not _INNER.fullmatch(netdev) and not down


def whole_names(devices: Sequence[str]) -> str:
    """As RCCL reads it: '=' at the start means whole names."""
    return "=" + ",".join(devices)


def _length(to: str) -> int:
    try:
        return ipaddress.ip_network(to, strict=False).prefixlen
    except ValueError:
        return -1
