"""All pairs of nodes as a map: the stronger the colour, the worse. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from rocstack.verify.report.drawings import Quantity

TILES = 48  # on a side; of more nodes each tile is the worst of its pairs
NUMBERS = 16  # nodes, up to which values stand in the tiles
STEPS = 9  # of colour
SIDE, LARGEST = 480.0, 40.0  # units that the map, and one of its tiles, may be wide
LEGEND = 460.0  # units that the scale takes
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
    side: float  # of a tile
    width: float  # of the map
    whole: float  # with its scale
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
    nodes, count = quantity.nodes, len(quantity.nodes)
    rows = [_others(quantity.values[i][:count], i) for i in range(min(count, len(quantity.values)))]
    known = [value for row in rows for value in row if value is not None]
    if not known:
        return None
    low = quantity.better == "low"
    best, worst = (min(known), max(known)) if low else (max(known), min(known))
    span = max(abs(worst - best), SPAN * abs(best)) or 1.0
    digits = max(0, 2 - math.floor(math.log10(max(map(abs, known)) or 1.0)))
    block = -(-count // TILES)
    across = -(-count // block)
    side = min(SIDE / across, LARGEST)
    tiles = []
    for row in range(across):
        for column in range(across):
            here = [
                part
                for i in range(row * block, min((row + 1) * block, len(rows)))
                for part in _part(rows[i], i, column, block)
            ]
            if not here:
                continue
            value = None if None in here else (max if low else min)(each for each in here if each is not None)
            step = None if value is None else min(int(abs(value - best) / span * STEPS), STEPS - 1)
            text = "×" if value is None else f"{value:.{digits}f}"
            said = "not measured" if value is None else f"{text} {quantity.unit}"
            title = f"{nodes[row]} to {nodes[column]}: {said}" if block == 1 else ""
            tiles.append(Tile(round(column * side, 2), round(row * side, 2), step, text, title))
    pairs = ((value, i, j) for i, row in enumerate(rows) for j, value in enumerate(row) if value is not None)
    listed = (heapq.nlargest if low else heapq.nsmallest)(MOST, pairs)
    return Heatmap(
        name=quantity.name,
        unit=quantity.unit,
        better=quantity.better,
        side=round(side, 2),
        width=round(side * across, 2),
        whole=max(side * across, LEGEND),
        tiles=tuple(tiles),
        ticks=tuple(_ticks(nodes, block, side)),
        numbers=count <= NUMBERS,
        nodes=count,
        tiled=block,
        missing=count * (count - 1) - len(known),
        best=f"{best:.{digits}f}",
        worst=f"{max(best + (span if low else -span), 0.0):.{digits}f}",
        pairs=tuple((nodes[i], nodes[j], f"{value:.{digits}f} {quantity.unit}") for value, i, j in listed),
    )


def _others(row: tuple[float | None, ...], own: int) -> list[float | None]:
    """Without what a node measured with itself."""
    return [*row[:own], None, *row[own + 1 :]]


def _part(row: list[float | None], own: int, column: int, block: int) -> list[float | None]:
    """The row's pairs in one column of tiles."""
    first, end = column * block, (column + 1) * block
    return row[first:own] + row[own + 1 : end] if first <= own < end else row[first:end]


def _ticks(nodes: tuple[str, ...], block: int, side: float) -> Iterator[Tick]:
    """As many names as can be read."""
    every = max(-(-len(nodes) // 24), block)
    every = -(-every // block) * block
    for i in range(0, len(nodes), every):
        yield Tick(round((i // block + 0.5) * side, 2), nodes[i])
