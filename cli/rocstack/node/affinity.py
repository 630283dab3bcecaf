"""Which NIC is nearest to each GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .profile import Affinity, Gpu, Netdev, Nic

NEAR = ("switch", "root", "numa", "system")  # the nearest first


def affinity(gpus: Sequence[Gpu], nics: Sequence[Nic], netdevs: Sequence[Netdev] = ()) -> tuple[Affinity, ...]:
    """By the longest way that both share from the root; where several NICs are equally near, each is used as often
    as the others, in the order of PCI addresses."""
    choices = _candidates(nics, netdevs)
    used: Counter[str] = Counter()
    found = []
    for gpu in gpus:
        nearest = min(choices, key=lambda nic: (*_distance(gpu, nic), used[nic.pci], nic.pci), default=None)
        if nearest is not None:
            used[nearest.pci] += 1
            name = nearest.verbs or nearest.netdevs[0]
            found.append(Affinity(gpu.index, name, NEAR[_distance(gpu, nearest)[0]]))
    return tuple(found)


def _candidates(nics: Sequence[Nic], netdevs: Sequence[Netdev]) -> list[Nic]:
    """Cards for training: of a NIC profile before others, with RDMA before those without, no bonds if there are
    others. A card in a bond carries the management network as a rule."""
    named = [nic for nic in nics if nic.verbs or (nic.nic and nic.netdevs)]
    bonded = {netdev.name for netdev in netdevs if netdev.master}
    for better in (
        [nic for nic in named if nic.nic],
        [nic for nic in named if nic.verbs],
        [nic for nic in named if not bonded.intersection(nic.netdevs)],
    ):
        named = [nic for nic in named if nic in better] or named
    return named


def _distance(gpu: Gpu, nic: Nic) -> tuple[int, int]:
    """Rank of NEAR, then the shared steps, most first."""
    shared = 0
    for ours, theirs in zip(gpu.path[:-1], nic.path[:-1]):  # noqa: B905
        if ours != theirs:
            break
        shared += 1
    if shared:
        return 0, -shared
    if gpu.path and nic.path and _root(gpu.path[0]) == _root(nic.path[0]):
        return 1, 0
    return (2, 0) if gpu.numa is not None and gpu.numa == nic.numa else (3, 0)


def _root(port: str) -> str:
    """A root port sits on its root complex's own bus."""
    return port.rpartition(":")[0]
