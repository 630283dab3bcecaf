"""Rails: whether NIC i of each node goes where NIC i of the others goes. Pure.

A place is what a NIC is on its node: the one in that PCI slot or, where nodes differ in slots, the one beside GPU i.
An end is what it goes to: a switch or a subnet. Many switches may serve one rail, and one switch several: an end has
its usual places.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from rocstack.doctor.rdma_states import data_ports
from rocstack.node.profile import NodeProfile, Port, Verbs
from rocstack.node.rdma_ports import OWN_GPU

Ends = Mapping[str, Mapping[str, str]]  # node -> place -> end
FEW = 4  # nodes: of fewer the plan can't be told from its mistakes
ORDER = 0.75  # of the NICs are where most have them, else nobody planned it


@dataclass(frozen=True)
class Rails:
    """`wrong`: node -> why, of each of its NICs that is elsewhere than most nodes' or where none is like another.
    `alike`: node -> how many of its NICs go where another node's go, too."""

    wrong: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    alike: Mapping[str, int] = field(default_factory=dict)


def places(profiles: Mapping[str, NodeProfile]) -> dict[str, dict[str, tuple[Verbs, Port]]]:
    """Node -> place -> its port of the data network; nothing where it can't be told which card is which."""
    ports = {name: data_ports(profile) for name, profile in profiles.items()}
    for by in (_slot, _gpu):
        known = {name: [by(profiles[name], *port) for port in own] for name, own in ports.items()}
        sound = all("" not in own and len({*own}) == len(own) for own in known.values())
        if sound and (by is _gpu or len({frozenset(own) for own in known.values() if own}) == 1):
            return {name: dict(zip(known[name], ports[name], strict=True)) for name in ports}
    return {}


def _gpu(profile: NodeProfile, device: Verbs, port: Port) -> str:
    near = [link.gpu for link in profile.affinity if link.nic == device.name and link.via == OWN_GPU]
    return f"NIC of GPU {min(near)}" if near else ""


def _slot(profile: NodeProfile, device: Verbs, port: Port) -> str:
    return f"port {port.number} of NIC {device.pci}" if device.pci else ""


def compare(ends: Ends, kind: str) -> Rails:
    """A node whose NICs all go to one end has no rails."""
    railed = {node: own for node, own in ends.items() if len({*own.values()}) > 1}
    users: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for node, own in railed.items():
        for place, end in own.items():
            users[end].append((node, place))
    wrong: dict[str, list[str]] = defaultdict(list)
    alike: Counter[str] = Counter()
    for end, all_there in users.items():
        nodes = {node for node, _ in all_there}
        if len(nodes) == 1:
            continue
        alike.update(node for node, _ in all_there)
        times = Counter(place for _, place in all_there)
        usual = sorted(place for place, count in times.items() if count * 2 > len(nodes))
        for node, place in all_there:
            if place not in usual:
                others = usual or sorted(f"{each} of {name}" for name, each in all_there if name != node)[:2]
                who = "most nodes have" if usual else "there is"
                wrong[node].append(f"{place} is on {kind} {end}, where {who} {' and '.join(others)}")
    odd = sum(map(len, wrong.values()))
    if len(railed) >= FEW and odd > (1 - ORDER) * alike.total():
        return Rails()
    return Rails({node: tuple(sorted(whys)) for node, whys in wrong.items()}, alike)
