"""The slow node, found by comparing nodes with each other: a threshold finds a bad cluster, this finds the bad node
in a good one. Pure.

A node is flagged where it is worse than the median by more than both `SHARE` of it and `SPREADS` times the scaled
median absolute deviation of all nodes, so neither equal values nor common noise are. Medians don't move with the
one value that is looked for (Rousseeuw and Croux 1993, "Alternatives to the Median Absolute Deviation").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from rocstack.summary import count
from rocstack.verify.result import CheckResult, Measure, Run

ENOUGH = 4  # nodes, from which on a median tells which one is unlike the others
SHARE = 0.15  # of the median, that a node may be worse
SPREADS = 3.0  # median absolute deviations, likewise (Leys et al. 2013: "very conservative")
NORMAL = 1.4826  # makes the deviation that of a normal distribution
RATIO = 2.0  # with fewer nodes: so many times worse than the best is said, without saying who is to blame
# A difference below this is no one's concern: the resolution of a clock, or of a person.
LEAST: dict[str, float] = {"s": 0.1, "ms": 1.0, "us": 1.0, "µs": 1.0, "ns": 100.0}
Better = Literal["high", "low"]


@dataclass(frozen=True)
class Finding:
    """`share` is by how much of `usual` the node is worse; `sure` whether there are nodes enough to tell."""

    check: str
    node: str
    value: float
    usual: float
    unit: str
    share: float
    nodes: int
    sure: bool = True
    virtual: bool = False

    @property
    def text(self) -> str:
        low = better(self.unit) == "high"
        by = f"{self.share:.0%}".replace("%", " %")
        pair = f"({self.value:.4g} {self.unit}, not {self.usual:.4g})"
        if self.sure:
            text = f"{self.node}: {by} {'below' if low else 'above'} the median of {self.nodes} nodes {pair}"
        else:
            text = f"{self.node}: {by} {'below' if low else 'above'} the best of {count(self.nodes, 'node')} {pair}; "
            text += f"of fewer than {ENOUGH} nodes it can't be told which is unusual"
        return text + (", virtual" if self.virtual else "")


def better(unit: str) -> Better | None:
    """Whether more of it is better: rates are, times aren't; None where neither is so."""
    if unit in LEAST:
        return "low"
    return "high" if unit.endswith("/s") or unit.lower().endswith("flops") else None


def find(run: Run) -> tuple[Finding, ...]:
    """The worst first."""
    found = [finding for result in run.results for finding in _of_check(result)]
    return tuple(sorted(found, key=lambda each: (not each.sure, -each.share)))


def values(result: CheckResult) -> dict[str, dict[str, float]]:
    """Unit -> node -> its value: the median of what was measured there, and of its pairs that of the better half, as a
    slow peer spoils a good node's pair."""
    numbers: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for measure in result.measures:
        value = measure.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not measure.node or not measure.unit:
            continue
        for node in {measure.node, measure.peer} - {""}:
            numbers[measure.unit][node].append(float(value))
    return {
        unit: {node: _middle(each, better(unit)) for node, each in nodes.items()} for unit, nodes in numbers.items()
    }


def compare(measured: Mapping[str, float], unit: str) -> Iterator[tuple[str, float, float, bool]]:
    """(node, by what share it is worse, than what, whether that is sure) of those that are."""
    sign = {"high": 1.0, "low": -1.0}.get(better(unit) or "")
    if sign is None or len(measured) < 2:
        return
    least = LEAST.get(unit, 0.0)
    if len(measured) < ENOUGH:
        best = (max if sign > 0 else min)(measured.values())
        for node, value in measured.items():
            low, high = sorted((best, value))
            if low > 0 and high / low >= RATIO and high - low >= least:
                yield node, abs(value - best) / best, best, False
        return
    usual = median(measured.values())
    spread = NORMAL * median(abs(value - usual) for value in measured.values())
    for node, value in measured.items():
        worse = (usual - value) * sign
        if usual > 0 and worse > SHARE * usual and worse > SPREADS * spread and worse >= least:
            yield node, worse / usual, usual, True


def _of_check(result: CheckResult) -> Iterator[Finding]:
    virtual = _virtual(result.measures)
    for unit, measured in values(result).items():
        for node, share, usual, sure in compare(measured, unit):
            yield Finding(
                check=result.check.name,
                node=node,
                value=measured[node],
                usual=usual,
                unit=unit,
                share=share,
                nodes=len(measured),
                sure=sure,
                virtual=node in virtual,
            )


def _virtual(measures: Iterable[Measure]) -> set[str]:
    return {name for measure in measures if measure.virtual for name in (measure.node, measure.peer)}


def _middle(each: list[float], good: Better | None) -> float:
    """The median; of an even number the better of the two in the middle."""
    ordered = sorted(each, reverse=good == "low")
    return ordered[len(ordered) // 2]
