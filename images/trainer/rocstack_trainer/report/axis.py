"""An axis of a plot: where a value is, and the round numbers along it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Axis(NamedTuple):
    """From `low` at pixel `start` to `high` at pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    def ticks(self, about: int, least: float = 0) -> list[float]:
        """Round numbers from low to high; `least` between two of them."""
        rough = (self.high - self.low) / about
        unit = 10 ** math.floor(math.log10(rough))
        between = max(least, next(unit * m for m in (1, 2, 5, 10) if unit * m >= 0.7 * rough))
        first, last = math.ceil(self.low / between - 1e-9), math.floor(self.high / between + 1e-9)
        return [number * between for number in range(first, last + 1)]


def text(value: float, among: Sequence[float] = ()) -> str:
    """Short, and with the same digits as its neighbours on an axis: 250, 1.5k, 20M."""
    most = max((abs(v) for v in among), default=abs(value))
    scale, unit = next(((s, u) for s, u in ((1e9, "G"), (1e6, "M"), (1e4, "k")) if most >= s), (1.0, ""))
    scale = 1e3 if unit == "k" else scale
    if len(among) < 2:
        return f"{value / scale:.4g}{unit}"
    step = abs(among[1] - among[0]) / scale
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value / scale:.{digits}f}{unit if value else ''}"
