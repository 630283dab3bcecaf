"""The steps of runs as lines to draw: read from metrics files, in order, with their gaps, not too many points."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

Steps = Sequence[Mapping[str, Any]]
Points = list[tuple[float, float]]


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
