"""Bandwidth by message size, against the thresholds. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rocstack.verify.report.drawings import Curves, Series
from rocstack.verify.report.matrix import number

PLOT, HEIGHT = 440.0, 300.0  # between the axes it is so wide
LEFT, TOP, BOTTOM = 52.0, 16.0, 40.0
LETTER, MARGIN = 7.0, 24.0  # of a label
APART = 15.0  # between two labels
STYLES = 6  # that the style sheet has
MARK = 60.0  # how long the line of one curve's threshold is: it is about the largest sizes
TABLES, LONG = 24, 12  # series with a table of their own; rows of a table that stands open


@dataclass(frozen=True)
class Tick:
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
        return f"{self.name} {self.last}" + (f" ({self.wanted} wanted)" if self.wanted else "")


@dataclass(frozen=True)
class Table:
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
    xs: tuple[Tick, ...]
    ys: tuple[Tick, ...]
    threshold: Tick | None
    tables: tuple[Table, ...]
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
        xs=tuple(Tick(x(size), size_of(size)) for size in sizes),
        ys=tuple(Tick(y(top * part / 4), number(top * part / 4)) for part in range(5)),
        threshold=Tick(y(curves.threshold.value), curves.threshold.text) if curves.threshold else None,
        tables=tuple(_table(series) for series in curves.series[:TABLES]),
        unsaid=max(len(curves.series) - TABLES, 0),
    )


def _table(series: Series) -> Table:
    rows = [(size_of(size), number(rest[1]) if rest[1:] else "", number(rest[0])) for size, *rest in series.points]
    return Table(series.name, series.threshold.text if series.threshold else "", tuple(rows))


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
