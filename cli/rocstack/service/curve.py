"""A curve of numbers over steps, as what an SVG needs. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 400.0, 170.0  # of the SVG, in its own units: three beside each other are nearly as wide in pixels
LEFT, RIGHT, TOP, BOTTOM = 52.0, 10.0, 10.0, 24.0  # margins
MOST = 400  # points that are drawn: more than a screen shows
TICKS = 4


@dataclass(frozen=True)
class Tick:
    at: float  # in the SVG's units
    text: str


@dataclass(frozen=True)
class StepCurve:
    """`path` is the d of a path; `last` the newest value, `label` what the numbers are."""

    label: str
    path: str
    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]
    last: str
    steps: int


def curve(label: str, points: Sequence[tuple[int, float]]) -> StepCurve | None:
    """None where there are too few points; those that are no finite numbers don't count."""
    points = [(step, value) for step, value in points if math.isfinite(value)]
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return None
    few = _thinned(points)
    first, last = points[0][0], points[-1][0]
    ticks = _ticks(min(value for _, value in few), max(value for _, value in few))
    low, high = ticks[0], ticks[-1]
    across, up = (WIDTH - LEFT - RIGHT) / (last - first), (HEIGHT - TOP - BOTTOM) / (high - low)
    line = " ".join(f"{LEFT + (step - first) * across:.1f},{TOP + (high - value) * up:.1f}" for step, value in few)
    rows = tuple(Tick(round(TOP + (high - value) * up, 1), shown(value)) for value in ticks)
    columns = tuple(Tick(LEFT + (step - first) * across, f"{step:,}") for step in (first, last))
    return StepCurve(label, f"M{line.replace(' ', ' L')}", rows, columns, shown(points[-1][1]), last)


def shown(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.1e}"


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Of each stretch the mean, so that a peak of one step in thousands is no spike of the picture."""
    if len(points) <= MOST:
        return list(points)
    size = len(points) / MOST
    parts = [points[int(n * size) : max(int(n * size) + 1, int((n + 1) * size))] for n in range(MOST)]
    middle = [(part[len(part) // 2][0], sum(value for _, value in part) / len(part)) for part in parts]
    return [points[0], *middle[1:-1], points[-1]]


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers around both."""
    span = (high - low) or abs(high) or 1.0
    raw = span / TICKS
    unit = 10 ** math.floor(math.log10(raw)) if raw else 0.0
    if not unit:  # of numbers that are nearly nothing
        return [low, low + 1.0]
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= raw)
    start, end = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(start, max(end, start + 1) + 1)]
