"""How fast every two nodes are with each other, judged: pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from statistics import median_high, median_low
from typing import NamedTuple

from rocstack.verify.recorder import Recorder
from rocstack.verify.result import Measure

MANY = 64  # pairs, from which on only the worst of a node is a measure of its own
ENOUGH = 3  # nodes, to tell a slow link by the others
TIMES = 2.0  # a pair may be worse than is usual, on one kind of hardware
FINE = {"mpi-latency": 50.0, "mpi-rdma-latency": 10.0}  # us: nobody minds so much, whatever the others have
BETTER = {"latency": "low", "bandwidth": "high"}
UNITS = {"latency": "us", "bandwidth": "GB/s"}
QUANTITIES = {  # over what there is, over RDMA
    "latency": ("mpi-latency", "mpi-rdma-latency"),
    "bandwidth": ("mpi-bandwidth", "mpi-rdma-bandwidth"),
}


class Pair(NamedTuple):
    """`value` is None where there is none."""

    node: str
    peer: str
    value: float | None
    wrong: int = 0


def usual(pairs: Iterable[Pair], better: str) -> float | None:
    """What most nodes have with most others: one bad node among three changes it no more than noise does. None where
    there are too few."""
    middle = median_high if better == "high" else median_low
    of_node: dict[str, list[float]] = defaultdict(list)
    for pair in pairs:
        for name in (pair.node, pair.peer) if pair.value is not None else ():
            of_node[name].append(pair.value or 0.0)
    return middle(middle(values) for values in of_node.values()) if len(of_node) >= ENOUGH else None


def told(pairs: Sequence[Pair], better: str) -> list[Pair]:
    """All, or of many the worst of each node, and those without a value or with another than was sent."""
    if len(pairs) <= MANY:
        return sorted(pairs)
    sign = 1 if better == "high" else -1
    worst: dict[str, Pair] = {}
    for pair in sorted((pair for pair in pairs if pair.value is not None), key=lambda pair: sign * (pair.value or 0)):
        worst.setdefault(pair.node, pair)
        worst.setdefault(pair.peer, pair)
    return sorted({*worst.values(), *(pair for pair in pairs if pair.wrong or pair.value is None)})


def judge(
    record: Recorder,
    pairs: Sequence[Pair],
    what: str,
    over_rdma: Collection[str] = (),
    others: Collection[str] = (),
) -> None:
    """By the threshold, and by what is usual: that only where each node is a machine of its own.

    Args:
        over_rdma: nodes all of whose ways to others are RDMA's.
        others: nodes on which others' jobs ran meanwhile: a pair with one of them is not to blame for being slow.
    """
    unit, better = UNITS[what], BETTER[what]
    real = not any(node.virtual for node in record.nodes)
    most = usual(pairs, better) if real else None
    quiet = [pair for pair in pairs if not {pair.node, pair.peer} & {*others}]
    for pair in sorted([*told(quiet, better), *told([*{*pairs} - {*quiet}], better)]):
        quantity = QUANTITIES[what][{pair.node, pair.peer} <= {*over_rdma}]
        slow = most is not None and pair.value is not None and (
            pair.value < most / TIMES if better == "high" else pair.value > max(most * TIMES, FINE[quantity])
        )  # fmt: skip
        if pair.wrong:
            record.failed(pair.node, f"{pair.wrong} messages arrived changed", pair.value, unit, peer=pair.peer)
            continue
        if slow:
            why = f"{pair.value:.4g} {unit}, and the median pair has {most:.4g}"
            record.failed(pair.node, why, pair.value, unit, peer=pair.peer)
        else:
            record.judge(pair.node, pair.value, quantity, peer=pair.peer)
        record.measures.append(excused(record.measures.pop(), others))


def excused(measure: Measure, others: Collection[str]) -> Measure:
    """A slow pair proves nothing, if jobs of `others` may have had the network or the CPUs; that there is no value at
    all they don't explain."""
    names = [name for name in (measure.node, measure.peer) if name in others]
    if measure.state != "failed" or measure.value is None or not names:
        return measure
    why = f"{measure.why}; other users' jobs ran on {' and '.join(names)} meanwhile"
    return measure.model_copy(update={"state": "measured", "why": why})
