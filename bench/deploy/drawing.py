"""Draws the ship time by the number of nodes: what was measured, and what the cost model says of more nodes.

    python bench/deploy/drawing.py RESULT.json docs/ship-time.svg

RESULT.json is what `python bench/deploy` wrote.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 820, 420, 64, 230, 40, 48
WAYS = {  # colour and name
    "save_load": ("#c0392b", "docker save | load, one by one"),
    "serial_pull": ("#d68910", "docker pull, one by one"),
    "archive": ("#7d3c98", "rocstack, archive"),
    "registry": ("#1f618d", "rocstack, registry"),
    "rack": ("#148f77", "rocstack, rack mirrors"),
}
MEASURED = {"rocstack": "registry"}
Point = tuple[float, float]


def log_axis(low: float, high: float, start: float, end: float) -> Any:
    span = math.log10(high) - math.log10(low)
    return lambda value: round(start + (math.log10(value) - math.log10(low)) / span * (end - start), 1)


def modelled(rows: Sequence[Mapping[str, Any]], way: str, link: float) -> list[Point]:
    names = {"save_load": "save-load", "serial_pull": "serial-pull"}
    return [(row["nodes"], row[names.get(way, way)]) for row in rows if row["link_gbps"] == link]


def measured(results: Sequence[Mapping[str, Any]], way: str) -> list[Point]:
    keys = (way, *(key for key, name in MEASURED.items() if name == way))
    shaped = [row for row in results if row["link_mbit"]]
    return [(row["nodes"], row[key]["first"]["s"]) for row in shaped for key in keys if key in row]


def draw(result: Mapping[str, Any], link: float) -> str:
    lines = {way: modelled(result["model"], way, link) for way in WAYS}
    dots = {way: measured(result["measured"], way) for way in WAYS}
    values = [y for points in (*lines.values(), *dots.values()) for _, y in points]
    x = log_axis(2, 1000, LEFT, WIDTH - RIGHT)
    y = log_axis(min(values) * 0.8, max(values) * 1.2, HEIGHT - BOTTOM, TOP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="14">'
        "First ship of a 1.2 GB image, seconds until the last node has it</text>",
    ]
    for ticks, axis in (((2, 4, 8, 16, 32, 64, 128, 256, 512, 1000), "x"), (seconds(min(values), max(values)), "y")):
        for tick in ticks:
            if axis == "x":
                out.append(f'<text x="{x(tick)}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick}</text>')
                continue
            out.append(f'<path d="M{LEFT} {y(tick)}H{WIDTH - RIGHT}" stroke="#ddd"/>')
            out.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4}" text-anchor="end">{tick:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">nodes</text>')
    for row, (way, (colour, name)) in enumerate(WAYS.items()):
        path = " ".join(f"{'L' if at else 'M'}{x(n)} {y(s)}" for at, (n, s) in enumerate(lines[way]))
        out.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="5 4"/>')
        out += [f'<circle cx="{x(n)}" cy="{y(s)}" r="4" fill="{colour}"/>' for n, s in dots[way]]
        at = TOP + 10 + 18 * row
        out.append(f'<text x="{WIDTH - RIGHT + 12}" y="{at}" fill="{colour}">{name}</text>')
    legend = TOP + 20 + 18 * len(WAYS)
    for text in (
        "dots: measured, virtual nodes",
        f"dashed: cost model, {link:g} Gbit/s,",
        "one core of a slow VM unpacking",
    ):
        out.append(f'<text x="{WIDTH - RIGHT + 12}" y="{legend}" fill="#555" font-size="11">{text}</text>')
        legend += 15
    return "\n".join([*out, "</svg>", ""])


def seconds(low: float, high: float) -> list[float]:
    found = [m * 10.0**e for e in range(0, 8) for m in (1, 3)]
    return [value for value in found if low * 0.8 <= value <= high * 1.2]


def main() -> None:
    source, target = map(Path, sys.argv[1:3])
    target.write_text(draw(json.loads(source.read_text()), 1))


if __name__ == "__main__":
    main()
