"""What the report plots: bandwidth by message size against the thresholds, and all pairs of nodes as a map. Pure."""

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from rocstack.verify.report.drawings import Curves, MatrixQuantity, Series
from rocstack.verify.report.matrix import number

PLOT, HEIGHT = 440.0, 300.0  # between the axes it is so wide
LEFT, TOP, BOTTOM = 52.0, 16.0, 40.0
LETTER, MARGIN = 7.0, 24.0  # of a label
APART = 15.0  # between two labels
LEAST = 1e-9  # a scale ends at this at least
STYLES = 6  # that the style sheet has
MARK = 60.0  # how long the line of one curve's threshold is: it is about the largest sizes
TABLES, LONG = 24, 12  # series with a table of their own; rows of a table that stands open
TILES = 48  # on a side; of more nodes each tile is the worst of its pairs
NAMES = 24  # of nodes that can be read along a side
NUMBERS = 16  # nodes, up to which values stand in the tiles
STEPS = 9  # of colour
SIDE, LARGEST = 480.0, 40.0  # units that the map, and one of its tiles, may be wide
LEGEND = 460.0  # units that the scale takes
# The strongest colour is at least this far from the best value, so that noise doesn't look like a fault.
SPAN = 0.5
MOST = 5  # pairs that are listed


class AxisTick(NamedTuple):
    at: float
    text: str


class Curve(NamedTuple):
    """`label` is how high its name stands, `bound` its threshold."""

    name: str
    path: str
    end: tuple[float, float]
    label: float
    last: str
    style: int
    bound: float | None
    wanted: str

    @property
    def text(self) -> str:
        return f"{self.name} {self.last}" + (f" (expected {self.wanted})" if self.wanted else "")


class SizeTable(NamedTuple):
    """`rows` are (size, algbw, busbw)."""

    name: str
    wanted: str
    rows: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Chart:
    height, right = HEIGHT, LEFT + PLOT  # where the axes end
    mark = right - MARK  # where the lines of curves' own thresholds begin

    unit: str
    width: float
    curves: list[Curve]
    xs: list[AxisTick]
    ys: list[AxisTick]
    threshold: AxisTick | None
    tables: list[SizeTable]
    unsaid: int  # series without a table

    @property
    def long(self) -> bool:
        return sum(len(table.rows) for table in self.tables) > LONG


def chart(curves: Curves) -> Chart | None:
    """None where there is no point. Sizes are on a logarithmic scale, from a byte on; bandwidths begin at 0."""
    known = [sorted(point for point in series.points if point[0] >= 1) for series in curves.series]
    points = [point for series in known for point in series]
    if not points:
        return None
    low, high = min(points)[0], max(points)[0]
    bounds = [line.value for line in (curves.threshold, *(series.threshold for series in curves.series)) if line]
    most = max([*bounds, *(point[1] for point in points)])
    top = round_up(most * 1.05 if most > LEAST else 1.0)

    def x(size: float) -> float:
        share = math.log2(size / low) / math.log2(high / low) if high > low else 0.5
        return round(LEFT + share * PLOT, 1)

    def y(value: float) -> float:
        return round(TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM), 1)

    drawn: list[Curve] = []
    for end, index in sorted((y(own[-1][1]), index) for index, own in enumerate(known) if own):
        own, line = known[index], curves.series[index].threshold
        drawn.append(
            Curve(
                name=curves.series[index].name,
                path="M" + "L".join(f"{x(point[0])} {y(point[1])}" for point in own),
                end=(x(own[-1][0]), end),
                label=round(max(end, drawn[-1].label + APART), 1) if drawn else end,  # labels don't overlap
                last=number(own[-1][1]),
                style=index % STYLES,
                bound=y(line.value) if line else None,
                wanted=number(line.value) if line else "",
            )
        )
    step = max(1, math.ceil(math.log2(high / low) / 8))
    sizes = [2.0**power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1, step)] or [low]
    return Chart(
        unit=curves.unit,
        width=LEFT + PLOT + MARGIN + LETTER * max(len(curve.text) for curve in drawn),
        curves=drawn,
        xs=[AxisTick(x(size), size_of(size)) for size in sizes],
        ys=[AxisTick(y(top * part / 4), number(top * part / 4)) for part in range(5)],
        threshold=AxisTick(y(curves.threshold.value), curves.threshold.text) if curves.threshold else None,
        tables=[_table(series) for series in curves.series[:TABLES]],
        unsaid=max(len(curves.series) - TABLES, 0),
    )


def _table(series: Series) -> SizeTable:
    rows = [(size_of(size), number(rest[1]) if rest[1:] else "", number(rest[0])) for size, *rest in series.points]
    return SizeTable(series.name, series.threshold.text if series.threshold else "", tuple(rows))


def size_of(size: float) -> str:
    """ "64 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.4g} {unit}"


def round_up(value: float) -> float:
    """The next round number of which a quarter is round, too."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10, 12) if step * power >= value)


class Tile(NamedTuple):
    """`step` is None where nothing was measured."""

    x: float
    y: float
    step: int | None
    text: str
    title: str


class Heatmap(NamedTuple):
    """`best` and `worst` are the ends of the colours; `pairs` the worst pairs, the worst first."""

    quantity: MatrixQuantity
    side: float  # of a tile
    width: float  # of the map
    whole: float  # with its scale
    tiles: list[Tile]
    ticks: list[AxisTick]
    numbers: bool
    tiled: int  # nodes in a tile's side
    missing: int  # pairs that were not measured
    best: str
    worst: str
    pairs: list[tuple[str, str, str]]


def heatmap(quantity: MatrixQuantity) -> Heatmap | None:
    """None where nothing was measured at all."""
    nodes, count = quantity.nodes, len(quantity.nodes)
    block = max(1, -(-count // TILES))
    across = -(-count // block)
    blocks: dict[tuple[int, int], list[float | None]] = defaultdict(list)
    for i, row in enumerate(quantity.values[:count]):
        for column in range(across):
            first, end = column * block, min((column + 1) * block, count)
            own = i if first <= i < end else end  # what a node measured with itself is no pair
            blocks[i // block, column] += (*row[first:own], *row[own + 1 : end])
    known = [value for here in blocks.values() for value in here if value is not None]
    if not known:
        return None
    low = quantity.better == "low"
    best, worst = (min(known), max(known)) if low else (max(known), min(known))
    span = max(abs(worst - best), SPAN * abs(best)) or 1.0
    digits = max(0, 2 - math.floor(math.log10(max(map(abs, known)) or 1.0)))
    side = min(SIDE / across, LARGEST)
    tiles = []
    for (line, column), here in sorted(blocks.items()):
        if not here:
            continue
        measured = [each for each in here if each is not None]
        value = (max if low else min)(measured) if len(measured) == len(here) else None
        step = None if value is None else min(int(abs(value - best) / span * STEPS), STEPS - 1)
        text = "×" if value is None else f"{value:.{digits}f}"
        label = "not measured" if value is None else f"{text} {quantity.unit}"
        title = f"{nodes[line]} to {nodes[column]}: {label}" if block == 1 else ""
        tiles.append(Tile(round(column * side, 2), round(line * side, 2), step, text, title))
    rows = enumerate(quantity.values[:count])
    pairs = ((each, i, j) for i, row in rows for j, each in enumerate(row[:count]) if i != j and each is not None)
    listed = (heapq.nlargest if low else heapq.nsmallest)(MOST, pairs)
    every = block * -(-count // (NAMES * block))
    return Heatmap(
        quantity=quantity,
        side=round(side, 2),
        width=round(side * across, 2),
        whole=max(side * across, LEGEND),
        tiles=tiles,
        ticks=[AxisTick(round((i // block + 0.5) * side, 2), nodes[i]) for i in range(0, count, every)],
        numbers=count <= NUMBERS,
        tiled=block,
        missing=count * (count - 1) - len(known),
        best=f"{best:.{digits}f}",
        worst=f"{max(best + (span if low else -span), 0.0):.{digits}f}",
        pairs=[(nodes[i], nodes[j], f"{value:.{digits}f} {quantity.unit}") for value, i, j in listed],
    )
