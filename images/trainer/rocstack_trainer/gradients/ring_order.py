"""The nodes in a ring, so that its slowest link is as fast as can be. Pure functions of a matrix of speeds: from row
to column, in any unit; the diagonal is not looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np

EXACT_NODES = 9  # 8! rings are tried in half a second


def best(speeds: Sequence[Sequence[float]]) -> list[int]:
    """The order whose slowest link, in ring direction, is fastest; of several, the one with the smallest sum of times.

    Exact for up to EXACT_NODES nodes. For more: rings from nearest neighbour to nearest neighbour, in which stretches
    are turned round (2-opt) and nodes moved as long as that helps.
    """
    n = len(speeds)
    times = 1 / np.asarray(speeds, dtype=np.float64)
    if n <= EXACT_NODES:
        return min(([0, *rest] for rest in permutations(range(1, n))), key=lambda order: _cost(times, order))
    starts = range(0, n, max(1, n * n // 64))
    return min((_improved(times, _nearest(times, start)) for start in starts), key=lambda order: _cost(times, order))


def slowest(speeds: Sequence[Sequence[float]], order: Sequence[int]) -> float:
    """The speed of a ring's slowest link."""
    return min(speeds[a][b] for a, b in zip(order, [*order[1:], order[0]], strict=True))


def _cost(times: np.ndarray, order: Sequence[int]) -> tuple[float, float]:
    taken = times[order, [*order[1:], order[0]]]
    return taken.max(), taken.sum()


def _nearest(times: np.ndarray, start: int) -> list[int]:
    order, left = [start], [node for node in range(len(times)) if node != start]
    while left:
        order.append(min(left, key=lambda node: times[order[-1], node]))
        left.remove(order[-1])
    return order


def _improved(times: np.ndarray, order: list[int]) -> list[int]:
    cost, better = _cost(times, order), True
    while better:
        better = False
        for trial in _changes(order):
            if (found := _cost(times, trial)) < cost:
                order, cost, better = trial, found, True
                break
    return order


def _changes(order: list[int]) -> Iterator[list[int]]:
    """The node at 0 stays: rings have no beginning."""
    for i in range(1, len(order)):
        for j in range(i + 1, len(order)):
            yield order[:i] + order[i : j + 1][::-1] + order[j + 1 :]
            yield [*order[:i], *order[i + 1 : j + 1], order[i], *order[j + 1 :]]
            yield [*order[:i], order[j], *order[i:j], *order[j + 1 :]]
