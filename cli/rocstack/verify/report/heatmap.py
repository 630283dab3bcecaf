"""All pairs of nodes as a map: the stronger the colour, the worse. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rocstack.verify.report.drawings import Quantity
from rocstack.verify.report.matrix import number

TILES = 48  # on a side; of more nodes each tile is the worst of its pairs
NUMBERS = 16  # nodes, up to which values stand in the tiles
STEPS = 9  # of colour
SIDE = 480.0  # units that the map is wide
# The strongest colour is at least this far from the best value, so that noise doesn't look like a fault.
SPAN = 0.5
MOST = 5  # pairs that are listed


@dataclass(frozen=True)
class Tile:
    """`step` is None where nothing was measured."""

    x: float
    y: float
    step: int | None
    text: str
    title: str


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Heatmap:
    """`best` and `worst` are the ends of the colours; `pairs` the worst pairs, the worst first."""

    name: str
    unit: str
    better: str
    side: float
    tiles: tuple[Tile, ...]
    ticks: tuple[Tick, ...]
    numbers: bool
    nodes: int
    tiled: int  # nodes in a tile's side
    missing: int  # pairs that were not measured
    best: str
    worst: str
    pairs: tuple[tuple[str, str, str], ...]


def heatmap(quantity: Quantity) -> Heatmap | None:
    """None where nothing was measured at all."""
    pairs = list(_pairs(quantity))
    known = [value for *_, value in pairs if value is not None]
    if not known:
        return None
    low = quantity.better == "low"
    sign = 1.0 if low else -1.0
    best, worst = (min(known), max(known)) if low else (max(known), min(known))
    span = max(abs(worst - best), SPAN * abs(best)) or 1.0
    count = len(quantity.nodes)
    block = -(-count // TILES)
    across = -(-count // block)
    side = SIDE / across
    cells: dict[tuple[int, int], tuple[int, int, float | None]] = {}
    for i, j, value in pairs:
        old = cells.get((i // block, j // block))
        # A pair that couldn't be measured is worse than any that could.
        if old is None or (old[2] is not None and (value is None or (value - old[2]) * sign > 0)):
            cells[i // block, j // block] = (i, j, value)
    tiles = []
    for (row, column), (i, j, value) in cells.items():
        step = None if value is None else min(int(abs(value - best) / span * STEPS), STEPS - 1)
        names = f"{quantity.nodes[i]} to {quantity.nodes[j]}"
        said = "not measured" if value is None else f"{number(value)} {quantity.unit}"
        text = "×" if value is None else number(value)
        tiles.append(
            Tile(round(column * side, 2), round(row * side, 2), step, text, f"{names}: {said}" if block == 1 else "")
        )
    ordered = sorted(((value * sign, i, j) for i, j, value in pairs if value is not None), reverse=True)
    return Heatmap(
        name=quantity.name,
        unit=quantity.unit,
        better=quantity.better,
        side=round(side, 2),
        tiles=tuple(tiles),
        ticks=tuple(_ticks(quantity.nodes, block, side)),
        numbers=count <= NUMBERS,
        nodes=count,
        tiled=block,
        missing=sum(value is None for *_, value in pairs),
        best=number(best),
        worst=number(max(best + sign * span, 0.0)),
        pairs=tuple(
            (quantity.nodes[i], quantity.nodes[j], f"{number(value * sign)} {quantity.unit}")
            for value, i, j in ordered[:MOST]
        ),
    )


def _pairs(quantity: Quantity) -> Iterator[tuple[int, int, float | None]]:
    for i, row in enumerate(quantity.values[: len(quantity.nodes)]):
        for j, value in enumerate(row[: len(quantity.nodes)]):
            if i != j:
                yield i, j, value


def _ticks(nodes: tuple[str, ...], block: int, side: float) -> Iterator[Tick]:
    """As many names as can be read."""
    every = max(-(-len(nodes) // 24), block)
    every = -(-every // block) * block
    for i in range(0, len(nodes), every):
        yield Tick(round((i // block + 0.5) * side, 2), nodes[i])
