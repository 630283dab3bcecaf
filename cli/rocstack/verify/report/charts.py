"""What the report plots: bandwidth by message size against the thresholds, and all pairs of nodes as a map. Pure."""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rocstack.verify.report.drawings import Curves, MatrixQuantity, Series
from rocstack.verify.report.matrix import number

PLOT, HEIGHT = 440.0, 300.0  # between the axes it is so wide
LEFT, TOP, BOTTOM = 52.0, 16.0, 40.0
LETTER, MARGIN = 7.0, 24.0  # of a label
APART = 15.0  # between two labels
STYLES = 6  # that the style sheet has
MARK = 60.0  # how long the line of one curve's threshold is: it is about the largest sizes
TABLES, LONG = 24, 12  # series with a table of their own; rows of a table that stands open
TILES = 48  # on a side; of more nodes each tile is the worst of its pairs
NUMBERS = 16  # nodes, up to which values stand in the tiles
STEPS = 9  # of colour
SIDE, LARGEST = 480.0, 40.0  # units that the map, and one of its tiles, may be wide
LEGEND = 460.0  # units that the scale takes
# The strongest colour is at least this far from the best value, so that noise doesn't look like a fault.
SPAN = 0.5
MOST = 5  # pairs that are listed


@dataclass(frozen=True)
class AxisTick:
    at: float
    text: str


@dataclass(frozen=True)
class Curve:
    """`label` is how high its name stands, `bound` its threshold."""

    name: str
    path: str
    end: tuple[float, float]
    label: float
    last: str
    style: int
    bound: float | None = None
    wanted: str = ""

    @property
    def text(self) -> str:
        return f"{self.name} {self.last}" + (f" (expected {self.wanted})" if self.wanted else "")


@dataclass(frozen=True)
class SizeTable:
    """`rows` are (size, algbw, busbw)."""

    name: str
    wanted: str
    rows: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Chart:
    """`mark` is where the lines of curves' own thresholds begin; `unsaid` are series without a table."""

    unit: str
    width: float
    height: float
    right: float  # where the axes end
    mark: float
    curves: tuple[Curve, ...]
    xs: tuple[AxisTick, ...]
    ys: tuple[AxisTick, ...]
    threshold: AxisTick | None
    tables: tuple[SizeTable, ...]
    unsaid: int

    @property
    def long(self) -> bool:
        return sum(len(table.rows) for table in self.tables) > LONG


def chart(curves: Curves) -> Chart | None:
    """None where there is no point. Sizes are on a logarithmic scale, bandwidths begin at 0."""
    points = [point for series in curves.series for point in series.points if point[0] > 0]
    if not points:
        return None
    low, high = (pick(point[0] for point in points) for pick in (min, max))
    lines = [curves.threshold, *(series.threshold for series in curves.series)]
    bounds = [line.value for line in lines if line]
    top = _nice(max([*bounds, *(point[1] for point in points)]) * 1.05 or 1.0)

    def x(size: float) -> float:
        share = math.log2(size / low) / math.log2(high / low) if high > low else 0.5
        return round(LEFT + share * PLOT, 1)

    def y(value: float) -> float:
        return round(TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM), 1)

    drawn = []
    for index, series in enumerate(curves.series):
        known = sorted(point for point in series.points if point[0] > 0)
        if known:
            path = "M" + "L".join(f"{x(point[0])} {y(point[1])}" for point in known)
            end, style, own = (x(known[-1][0]), y(known[-1][1])), index % STYLES, series.threshold
            bound, wanted = (y(own.value), number(own.value)) if own else (None, "")
            drawn.append(Curve(series.name, path, end, end[1], number(known[-1][1]), style, bound, wanted))
    step = max(1, math.ceil(math.log2(high / low) / 8)) if high > low else 1
    first = math.ceil(math.log2(low))
    sizes = [2.0**power for power in range(first, math.floor(math.log2(high)) + 1, step)] or [low]
    return Chart(
        unit=curves.unit,
        width=LEFT + PLOT + MARGIN + LETTER * max(len(curve.text) for curve in drawn),
        height=HEIGHT,
        right=LEFT + PLOT,
        mark=LEFT + PLOT - MARK,
        curves=tuple(_spread(drawn)),
        xs=tuple(AxisTick(x(size), size_of(size)) for size in sizes),
        ys=tuple(AxisTick(y(top * part / 4), number(top * part / 4)) for part in range(5)),
        threshold=AxisTick(y(curves.threshold.value), curves.threshold.text) if curves.threshold else None,
        tables=tuple(_table(series) for series in curves.series[:TABLES]),
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


def _spread(curves: list[Curve]) -> list[Curve]:
    """Labels that would overlap move apart, in the order of their curves' ends."""
    out: list[Curve] = []
    for curve in sorted(curves, key=lambda each: each.end[1]):
        at = max(curve.label, out[-1].label + APART) if out else curve.label
        out.append(replace(curve, label=round(at, 1)))
    return out


def _nice(value: float) -> float:
    """The next round number of which a quarter is round, too."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10, 12) if step * power >= value)


@dataclass(frozen=True)
class Tile:
    """`step` is None where nothing was measured."""

    x: float
    y: float
    step: int | None
    text: str
    title: str


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
    ticks: tuple[AxisTick, ...]
    numbers: bool
    nodes: int
    tiled: int  # nodes in a tile's side
    missing: int  # pairs that were not measured
    best: str
    worst: str
    pairs: tuple[tuple[str, str, str], ...]


def heatmap(quantity: MatrixQuantity) -> Heatmap | None:
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
            label = "not measured" if value is None else f"{text} {quantity.unit}"
            title = f"{nodes[row]} to {nodes[column]}: {label}" if block == 1 else ""
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


def _ticks(nodes: tuple[str, ...], block: int, side: float) -> Iterator[AxisTick]:
    """As many names as can be read."""
    every = max(-(-len(nodes) // 24), block)
    every = -(-every // block) * block
    for i in range(0, len(nodes), every):
        yield AxisTick(round((i // block + 0.5) * side, 2), nodes[i])
