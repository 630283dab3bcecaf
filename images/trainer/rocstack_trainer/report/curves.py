"""The curves of a run as one SVG file, drawn from its metrics.

python3 -m rocstack_trainer.report.curves run.jsonl more.jsonl -o runs.svg
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

Steps = Sequence[Mapping[str, Any]]
Points = list[tuple[float, float]]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 450, 250, 64, 20, 52, 36  # of a panel, and the margins of its plot
MOST_POINTS = 400  # of a line: it is no wider in pixels
COLOURS = 6
STYLE = """
svg{--ink:#1c2733;--soft:#5f6b78;--grid:#e6eaee;--back:#fff;
--c0:#2166c2;--c1:#d1620b;--c2:#1b8a5a;--c3:#8b4fc0;--c4:#b8322f;--c5:#6b7280;
font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
@media (prefers-color-scheme:dark){svg{--ink:#e6ebf0;--soft:#9aa7b4;--grid:#29323c;--back:#12181f;
--c0:#6aa9f7;--c1:#f29a4a;--c2:#55c795;--c3:#bd93ea;--c4:#ef7f79;--c5:#a3adb8}}
.back{fill:var(--back)}text{fill:var(--soft)}.strong{fill:var(--ink);font-size:13px;font-weight:600}
.title{fill:var(--ink);font-size:17px;font-weight:600}.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:var(--grid)}.axis{stroke:var(--soft)}.second{stroke-dasharray:5 3}
.band{stroke:none;opacity:.22}.line{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}
"""


class Panel(NamedTuple):
    title: str
    keys: tuple[str, ...]  # in the metrics; the second is drawn dashed
    about: str = ""
    from_zero: bool = True
    cut: bool = False  # rare peaks, so that the rest can be seen
    scale: float = 1
    middle: Callable[[Sequence[float]], float] = median  # of a stretch, and of the run


PANELS = (
    Panel("Loss", ("loss", "eval_loss"), "dashed: of the evaluation", from_zero=False),
    Panel("Tokens per second", ("tokens_per_s",)),
    Panel("Time of a step, ms", ("step_ms", "comm_ms"), "dashed: waiting for gradients", cut=True),
    Panel(
        "Sent in a step, MB", ("wire_mb", "sent_mb"), "by the host; dashed: by the collectives of rank 0", middle=fmean
    ),
    Panel("MFU, %", ("mfu",), scale=100),
)


def svg(runs: Mapping[str, Steps], title: str = "") -> str:
    """A picture of some runs: a name for each, and its steps as the metrics file has them.

    Of a step that is there twice (the run was resumed), the last counts. What isn't there or finite is a gap.
    """
    steps = [tidy(run) for run in runs.values()]
    panels = [p for p in PANELS if p.scale == 1 or any(s.get(p.keys[0]) for run in steps for s in run)]
    there = {key for run in steps for step in run for key in step if step[key] is not None}
    panels = [p if there.issuperset(p.keys[1:]) else p._replace(keys=p.keys[:1], about="") for p in panels]
    names, body = (list(runs) if len(runs) > 1 else []), []
    top = 12 + 34 * bool(title) + 20 * math.ceil(len(names) / 3)
    width, height = 2 * WIDTH, top + HEIGHT * math.ceil(len(panels) / 2)
    if title:
        body.append(f'<text class="title" x="20" y="32">{escape(title)}</text>')
    for number, name in enumerate(names):
        x, y = 20 + number % 3 * 290, 26 + 34 * bool(title) + 20 * (number // 3)
        body.append(f'<path class="line" {_colour(number)} d="M{x} {y - 4}h22"/>')
        body.append(f'<text x="{x + 30}" y="{y}">{escape(name)}</text>')
    for number, panel in enumerate(panels):
        x, y = number % 2 * WIDTH, top + number // 2 * HEIGHT
        body.append(f'<g transform="translate({x} {y})">{"".join(_panel(panel, steps, number))}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img"><style>{STYLE}</style>\n<rect class="back" width="{width}" height="{height}"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _panel(panel: Panel, runs: Sequence[Steps], number: int) -> Iterator[str]:
    lines = [[_points(run, key, panel) for key in panel.keys] for run in runs]
    whole = [[sorted(y for _, y in line if math.isfinite(y)) for line in run] for run in lines]
    values = sorted(y for run in whole for line in run for y in line)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    yield f'<text class="strong" x="20" y="20">{panel.title}</text>'
    if not values:
        yield f'<text x="20" y="{TOP}">nothing to draw</text>'
        return
    low, high = (0.0 if panel.from_zero else values[0]), values[-1]
    if panel.cut:
        high = min(high, max(2 * line[int(0.97 * len(line))] for run in whole for line in run if line))
    margin = 0.05 * (high - low) or abs(high) / 2 or 1
    down = Axis(low if panel.from_zero else low - margin, high + margin, bottom, TOP)
    first, last = min(run[0]["step"] for run in runs if run), max(run[-1]["step"] for run in runs if run)
    across = Axis(first, last if last > first else first + 1, LEFT, right)
    for tick in (y_ticks := down.ticks(4)):
        y = down.at(tick)
        yield f'<path class="grid" d="M{LEFT} {y}H{right}"/>'
        yield f'<text class="end" x="{LEFT - 8}" y="{y + 4}">{text(tick, y_ticks)}</text>'
    for tick in (x_ticks := across.ticks(6, least=1)):
        x = across.at(tick)
        yield f'<path class="axis" d="M{x} {bottom}v4"/>'
        yield f'<text class="middle" x="{x}" y="{bottom + 17}">{text(tick, x_ticks)}</text>'
    yield f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>'
    yield f'<text class="end" x="{right}" y="{bottom + 32}">step</text>'
    frame = f"M{LEFT - 3} {TOP - 4}H{right + 3}V{bottom + 3}H{LEFT - 3}z"
    yield f'<clipPath id="plot{number}"><path d="{frame}"/></clipPath>'
    for colour, run in enumerate(lines):
        for second, line in enumerate(run):
            parts, plot = list(thin(line, panel.middle, MOST_POINTS)), f'clip-path="url(#plot{number})"'
            if len(line) > MOST_POINTS:
                band = "".join(_path([*lows, *reversed(highs)], across, down) + "z" for _, lows, highs in parts)
                yield f'<path class="band" style="fill:var(--c{colour % COLOURS})" {plot} d="{band}"/>'
            path = "".join(_path(middle, across, down) for middle, _, _ in parts)
            yield f'<path class="line{" second" * second}" {_colour(colour)} {plot} d="{path}"/>'
    about = panel.about or ("band: lowest to highest" if max(map(len, runs)) > MOST_POINTS else "")
    about += f"; peaks up to {text(values[-1])} are cut" if values[-1] > high else ""
    yield f'<text x="20" y="38">{about}</text>'
    if len(runs) == 1:
        ends = " / ".join(text(panel.middle(line)) for line in whole[0] if line)
        kind = "mean" if panel.middle is fmean else "median"
        said = f"{kind} {ends}" if panel.from_zero else text(_last(lines[0][0]))
        yield f'<text class="strong end" x="{right}" y="20">{said}</text>'


def _points(run: Steps, key: str, panel: Panel) -> Points:
    """What is drawn dashed may be there for some steps only, and is one line all the same."""
    points = [(step["step"], _value(step, key) * panel.scale) for step in run]
    return points if key == panel.keys[0] else [point for point in points if math.isfinite(point[1])]


def _last(points: Points) -> float:
    return next(y for _, y in reversed(points) if math.isfinite(y))


def _value(step: Mapping[str, Any], key: str) -> float:
    value = step.get(key)
    return float(value) if isinstance(value, int | float) else math.nan


def _colour(number: int) -> str:
    return f'style="stroke:var(--c{number % COLOURS})"'


def _path(points: Points, across: Axis, down: Axis) -> str:
    places = [f"{across.at(x)} {down.at(y)}" for x, y in points]
    return f"M{places[0]}m-3 0h6" if len(places) == 1 else "M" + "L".join(places)


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


def read(paths: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """The runs in some metrics files; the groups of a DiLoCo run are runs of their own. Raises OSError.

    A line that is no JSON (the run was killed while it wrote) is left out.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        name = path.stem if sum(path.stem == other.stem for other in paths) == 1 else str(path)
        groups: dict[int, list[dict[str, Any]]] = {}
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                step = json.loads(line)
                groups.setdefault(step.get("group", 0), []).append(step | {"step": int(step["step"])})
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
        for number, steps in sorted(groups.items()):
            runs[f"{name}, group {number}" if len(groups) > 1 else name] = steps
    return runs


def tidy(run: Steps) -> Steps:
    """In order, the last of those that are there twice, and a step without values where some are missing."""
    steps = sorted({step["step"]: step for step in run}.values(), key=lambda step: step["step"])
    after = [(a["step"], b["step"] - a["step"]) for a, b in pairwise(steps)]
    usual = min((gap for _, gap in after), default=0)
    holes = [{"step": step + usual} for step, gap in after if gap > 2 * usual]  # a group was away
    return sorted([*steps, *holes], key=lambda step: step["step"])


def thin(
    points: Points, middle: Callable[[Sequence[float]], float], most: int
) -> Iterator[tuple[Points, Points, Points]]:
    """The unbroken parts of a line: the middle, lowest and highest of each of `most` stretches of it. In a line no
    longer than that, all three are the line."""
    length = math.ceil(len(points) / most)
    part: list[tuple[float, float, float, float]] = []
    for start in range(0, len(points), length or 1):
        stretch = points[start : start + length]
        if values := [y for _, y in stretch if math.isfinite(y)]:
            part.append((stretch[0][0], middle(values), min(values), max(values)))
        if part and (len(values) < len(stretch) or start + length >= len(points)):
            yield tuple([(point[0], point[kind]) for point in part] for kind in (1, 2, 3))  # type: ignore[misc]
            part = []


def main() -> int:
    parser = argparse.ArgumentParser(
        "rocstack_trainer.report.curves", description="Draws metrics files into one SVG file."
    )
    parser.add_argument("metrics", nargs="+", type=Path, help="files that output.metrics named")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the SVG file")
    parser.add_argument("--title", default="")
    args = parser.parse_args()
    try:
        args.output.write_text(svg(read(args.metrics), args.title), encoding="utf-8")
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
