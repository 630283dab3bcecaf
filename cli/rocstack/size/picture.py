"""The layouts of a search as one SVG: what a step's time goes to, and a GPU's memory beside it. Drawn as the charts of
`verify` are. Pure but for the template."""

from __future__ import annotations

from typing import NamedTuple

from rocstack.size.search import Searched, Tried
from rocstack.verify.report import charts, page
from rocstack.verify.report.charts import AxisTick
from rocstack.verify.report.matrix import number

LEFT, PLOT, GAP, BESIDE = 350.0, 340.0, 70.0, 150.0  # labels, times, their numbers, memory
TOP, ROW, BAR, BOTTOM, RIGHT = 96.0, 38.0, 20.0, 30.0, 60.0
KINDS = ("compute", "communication", "bubble")
GIB = float(1 << 30)


class TimePart(NamedTuple):
    x: float
    width: float
    style: int
    title: str


class LayoutRow(NamedTuple):
    """`memory` is the width of its bar; None where the compiler refused the layout."""

    y: float
    name: str
    rounds: str
    parts: list[TimePart]
    time: AxisTick | None
    memory: float | None
    gib: str
    why: str


def draw(searched: Searched) -> str:
    first = searched.tried[0].sized
    budget = first.hardware.budget
    longest = charts.round_up(max((_middle(each) for each in searched.tried if each.ok), default=1.0))
    most = 1.25 * budget  # longer bars are cut
    beside = LEFT + PLOT + GAP
    rows = []
    for index, each in enumerate(searched.tried):
        parts, at = [], LEFT
        for style, kind in enumerate(KINDS):
            seconds = sum(step.kinds[kind] for step in each.speed.steps) / 2
            width = round(seconds / longest * PLOT, 1)
            if width and each.ok:
                parts.append(TimePart(round(at, 1), width, style, f"{kind}: {number(seconds)} s"))
                at += width
        size = float(each.said.total)
        rows.append(LayoutRow(
            y=TOP + index * ROW, name=str(each.sized.layout), rounds=each.sized.layout.rounds, parts=parts,
            time=AxisTick(round(at + 6, 1), f"{number(_middle(each))} s") if each.ok else None,
            memory=None if each.said.refused else round(min(size / most, 1.0) * BESIDE, 1), gib=f"{size / GIB:.0f} GiB",
            why="" if each.ok else "refused" if each.said.refused else "doesn't fit",
        ))  # fmt: skip
    bottom = TOP + len(rows) * ROW
    nodes = f"{first.nodes} node{'s' * (first.nodes > 1)} of {min(first.hardware.gpus, first.layout.gpus)}"
    return page.environment().get_template("layouts.svg.j2").render(
        title=f"{first.model.about} on {nodes} {first.hardware.gpu}", width=beside + BESIDE + RIGHT,
        height=bottom + BOTTOM, top=TOP, bottom=bottom, left=LEFT, beside=beside, bar=BAR, rows=rows, kinds=KINDS,
        ticks=[AxisTick(round(LEFT + part / 4 * PLOT, 1), number(longest * part / 4)) for part in range(5)],
        budget=AxisTick(round(beside + budget / most * BESIDE, 1), f"{budget / GIB:.0f} GiB may be used"),
    )  # fmt: skip


def _middle(each: Tried) -> float:
    return sum(each.speed.seconds) / 2
