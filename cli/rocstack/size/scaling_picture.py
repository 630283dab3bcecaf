"""The runs of a scaling as one SVG: measured, ideal, and the pipeline's bubble. Drawn as the charts of `verify` are.
Pure but for the template."""

from __future__ import annotations

from math import log2
from typing import NamedTuple

from rocstack.size.scaling import Scaled
from rocstack.verify.report import charts, page
from rocstack.verify.report.charts import AxisTick
from rocstack.verify.report.matrix import number

LEFT, TOP, PLOT, HEIGHT = 70.0, 96.0, 520.0, 300.0
RIGHT, BOTTOM = 170.0, 56.0  # labels of lines; ticks, the axis' name
APART = 16.0  # between two labels


class ScaleLine(NamedTuple):
    """`label` is how high its name stands."""

    name: str
    path: str
    style: str
    dots: list[tuple[float, float, str]]
    label: float


def draw(scaled: Scaled) -> str:
    points = scaled.points
    sizes = [float(each.ranks) for each in points]
    lines: list[tuple[str, str, list[float]]] = [("ideal", "ideal", [scaled.ideal(each) for each in points])]
    stages = [scaled.bubble(each) for each in points]
    if None not in stages:
        lines.append(("less the bubble", "stages", [each for each in stages if each is not None]))
    lines.append(("measured", "seen", [each.speed for each in points]))
    top = charts.round_up(max(max(values) for _, _, values in lines))
    span = log2(sizes[-1] / sizes[0]) if sizes[-1] > sizes[0] else 0.0

    def x(size: float) -> float:
        return round(LEFT + (log2(size / sizes[0]) / span if span else 0.5) * PLOT, 1)

    def y(value: float) -> float:
        return round(TOP + (1 - value / top) * HEIGHT, 1)

    drawn: list[ScaleLine] = []
    for name, style, values in sorted(lines, key=lambda each: -each[2][-1]):
        places = [(x(size), y(value)) for size, value in zip(sizes, values, strict=True)]
        label = max(places[-1][1], drawn[-1].label + APART) if drawn else places[-1][1]
        dots = [(*place, f"{number(value)} {scaled.unit}") for place, value in zip(places, values, strict=True)]
        path = "M" + "L".join(f"{at} {high}" for at, high in places)
        drawn.append(ScaleLine(f"{name} {number(values[-1])}", path, style, dots if style == "seen" else [], label))
    return page.environment().get_template("scaling.svg.j2").render(
        title=f"{scaled.recipe}: {scaled.kind} scaling", says=scaled.places.says if scaled.places else "",
        unit=f"{scaled.unit} of all ranks", width=LEFT + PLOT + RIGHT, height=TOP + HEIGHT + BOTTOM, left=LEFT,
        right=LEFT + PLOT, bottom=TOP + HEIGHT, lines=drawn,
        xs=[AxisTick(x(each.ranks), f"{each.ranks:,} ({each.nodes:,})") for each in points],
        ys=[AxisTick(y(top * part / 4), number(top * part / 4)) for part in range(5)],
    )  # fmt: skip
