"""The slow node, found by comparing nodes with each other: a threshold finds a bad cluster, this finds the bad node
in a good one. Pure.

A node is flagged where it is worse than the median by more than both `SHARE` of it and `SPREADS` times the scaled
median absolute deviation of all nodes, so neither equal values nor common noise are. Medians don't move with the
one value that is looked for (Rousseeuw and Croux 1993, "Alternatives to the Median Absolute Deviation").
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from rocstack.base.text import count
from rocstack.verify.result import CheckResult, Run, SlowNode

ENOUGH = 4  # nodes, from which on a median tells which one is unlike the others
SHARE = 0.15  # of the median, that a node may be worse
SPREADS = 3.0  # median absolute deviations, likewise (Leys et al. 2013: "very conservative")
NORMAL = 1.4826  # makes the deviation that of a normal distribution
RATIO = 2.0  # with fewer nodes: so many times worse than the best is said, without saying who is to blame
# A difference below this is no one's concern: the resolution of a clock, or of a person.
LEAST: dict[str, float] = {"s": 0.1, "ms": 1.0, "us": 1.0, "µs": 1.0, "ns": 100.0}


def sign(unit: str) -> int:
    """1 where more of it is better, as of rates; -1 where less is, as of times; 0 where neither is so."""
    return -1 if unit in LEAST else int(unit.endswith("/s") or unit.lower().endswith("flops"))


def find(run: Run) -> tuple[SlowNode, ...]:
    """The worst first. Of a few virtual nodes, which share a machine, nothing is said."""
    virtual = {node.name for node in run.nodes if node.virtual}
    slow_nodes = [
        SlowNode(
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
        for result in run.results
        for unit, measured in values(result).items()
        for node, share, usual, sure in compare(measured, unit)
        if sure or node not in virtual
    ]
    return tuple(sorted(slow_nodes, key=lambda each: (not each.sure, -each.share)))


def text(slow: SlowNode) -> str:
    """ "n5: 50 % below the median of 16 nodes (24 GB/s, not 48)"."""
    by = f"{slow.share:.0%}".replace("%", " %") + (" below" if sign(slow.unit) > 0 else " above")
    pair = f"({slow.value:.4g} {slow.unit}, not {slow.usual:.4g})" + (", virtual" if slow.virtual else "")
    if slow.sure:
        return f"{slow.node}: {by} the median of {slow.nodes} nodes {pair}"
    few = f"of fewer than {ENOUGH} nodes it can't be told which is unusual"
    return f"{slow.node}: {by} the best of {count(slow.nodes, 'node')} {pair}; {few}"


def values(result: CheckResult) -> dict[str, dict[str, float]]:
    """Unit -> node -> its value: the median of what was measured there, and of its pairs that of the better half, as a
    slow peer spoils a good node's pair."""
    return {
        unit: {node: middle(each, unit) for node, each in nodes.items() if node}
        for unit, nodes in numbers(result).items()
    }


def numbers(result: CheckResult) -> dict[str, dict[str, list[float]]]:
    """Unit -> node, or "" for the cluster -> what was measured there, in the check's order."""
    values_of: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for measure in result.measures:
        value = measure.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not measure.unit:
            continue
        for node in {measure.node, measure.peer or measure.node}:
            values_of[measure.unit][node].append(float(value))
    return values_of


def middle(each: Sequence[float], unit: str) -> float:
    """The median; of an even number the better of the two in the middle."""
    return sorted(each, reverse=sign(unit) < 0)[len(each) // 2]


def compare(measured: Mapping[str, float], unit: str) -> Iterator[tuple[str, float, float, bool]]:
    """(node, by what share it is worse, than what, whether that is sure) of those that are."""
    if not sign(unit) or len(measured) < 2:
        return
    least = LEAST.get(unit, 0.0)
    if len(measured) < ENOUGH:
        best = (max if sign(unit) > 0 else min)(measured.values())
        for node, value in measured.items():
            low, high = sorted((best, value))
            if low > 0 and high / low >= RATIO and high - low >= least:
                yield node, abs(value - best) / best, best, False
        return
    usual = median(measured.values())
    spread = NORMAL * median(abs(value - usual) for value in measured.values())
    for node, value in measured.items():
        worse = (usual - value) * sign(unit)
        if usual > 0 and worse > SHARE * usual and worse > SPREADS * spread and worse >= least:
            yield node, worse / usual, usual, True
