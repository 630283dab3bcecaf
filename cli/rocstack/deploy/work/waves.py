"""In which order nodes are replaced, and when to stop: a canary, then waves, within a budget of failures. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil

Share = int | str  # a number of nodes, or "25%" of them
_PERCENT = re.compile(r"(100|[0-9]{1,2})\s*%")


def share(value: Share, total: int) -> int:
    """How many of `total` nodes `value` is; a percentage is rounded up.

    Raises:
        ValueError: neither a number from 0 nor a percentage.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return min(value, total)
    text = str(value).strip()
    if text.isdecimal():
        return min(int(text), total)
    percent = _PERCENT.fullmatch(text)
    if not percent:
        raise ValueError(f"{value!r} is neither a number of nodes nor a percentage such as 25%")
    return ceil(int(percent[1]) * total / 100)


def split(
    nodes: Iterable[str], *, canary: Share = 1, wave: Share = "25%", groups: Mapping[str, str] | None = None
) -> tuple[tuple[str, ...], ...]:
    """The canary, then waves of at least one node; every node once.

    Of each group (rack, partition) a wave takes its part, so that none is gone at once; in a group the given order
    stays. Without canary (0) there are waves only.

    Raises:
        ValueError: as `share`.
    """
    order = _spread(tuple(nodes), groups or {})
    first, size = share(canary, len(order)), max(1, share(wave, len(order)))
    rest = order[first:]
    waves = [order[:first], *(rest[at : at + size] for at in range(0, len(rest), size))]
    return tuple(each for each in waves if each)


@dataclass(frozen=True)
class RolloutState:
    """Where an update stands. `budget` is how many nodes may fail before it stops."""

    waves: tuple[tuple[str, ...], ...]
    budget: int
    canary: bool = False  # the first wave is one: if any of it fails, nothing else is touched
    done: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()

    @classmethod
    def begin(
        cls,
        nodes: Iterable[str],
        *,
        canary: Share = 1,
        wave: Share = "25%",
        budget: Share = "10%",
        groups: Mapping[str, str] | None = None,
        done: Iterable[str] = (),
    ) -> RolloutState:
        """`nodes` are all of the update; `done` those that an interrupted one has finished, so it goes on where that
        stopped.

        Raises:
            ValueError: as `share`.
        """
        order = tuple(nodes)
        allowed = share(budget, len(order))
        waves = split(order, canary=canary, wave=wave, groups=groups)
        return cls(waves, allowed, canary=share(canary, len(order)) > 0, done=frozenset(done))

    def note(self, *, done: Iterable[str] = (), failed: Iterable[str] = ()) -> RolloutState:
        """With what became of nodes; who failed is not tried again in this rollout."""
        lost = self.failed | frozenset(failed)
        return replace(self, done=(self.done | frozenset(done)) - lost, failed=lost)

    def next(self) -> tuple[str, ...]:
        """The next nodes to replace; none when all are through or it has stopped."""
        if self.stopped:
            return ()
        through = self.done | self.failed
        rest = (tuple(node for node in wave if node not in through) for wave in self.waves)
        return next(filter(None, rest), ())

    @property
    def stopped(self) -> str:
        """Why it goes no further; empty while it may, and when there is nothing left to do."""
        if not self.untouched:
            return ""
        if self.canary and (lost := [node for node in self.waves[0] if node in self.failed]):
            return f"the canary failed: {', '.join(lost)}"
        if len(self.failed) > self.budget:
            return f"{len(self.failed)} nodes failed, {self.budget} may"
        return ""

    @property
    def untouched(self) -> tuple[str, ...]:
        """Nodes that stay as they were."""
        return tuple(node for wave in self.waves for node in wave if node not in self.done | self.failed)


def _spread(nodes: tuple[str, ...], groups: Mapping[str, str]) -> tuple[str, ...]:
    """By how far each node is through its own group: any run of neighbours holds about the same part of each."""
    sizes = Counter(groups.get(node, "") for node in nodes)
    seen: Counter[str] = Counter()
    place: dict[str, float] = {}
    for node in nodes:
        group = groups.get(node, "")
        place[node] = (seen[group] + 0.5) / sizes[group]
        seen[group] += 1
    return tuple(sorted(nodes, key=place.__getitem__))
