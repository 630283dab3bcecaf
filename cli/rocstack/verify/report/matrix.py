"""Checks by nodes: a row for each check, a column for each node, or for those that are alike. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from rocstack.summary import count
from rocstack.verify import verdict
from rocstack.verify.check import Check
from rocstack.verify.result import Measure, Run, State

FEW = 8  # nodes that have a column each
MOST = 24  # columns
LONGEST = 40  # characters of a value
MARKS: dict[str, str] = {"passed": "✓", "failed": "✗", "error": "?", "skipped": "–", "measured": "•", "": ""}
WORST: tuple[State, ...] = ("failed", "error", "skipped", "measured", "passed")


@dataclass(frozen=True)
class Column:
    """`label` is the node, or how many there are; `names` is the hostlist of those."""

    label: str
    names: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """`cells` are the states by column, None where the check said nothing of those nodes. Without cells `whole` says
    what the state is of."""

    check: Check
    state: State
    value: str
    wanted: str
    virtual: bool
    cells: tuple[State | None, ...]
    whole: str


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def table(run: Run) -> Table:
    states = {result.check.name: verdict.states(result) for result in run.results}
    looks = {
        node.name: tuple(states[result.check.name].get(node.name) for result in run.results)
        for node in run.nodes
        if not node.absent
    }
    groups: dict[tuple[State | None, ...], list[str]] = defaultdict(list)
    columns: list[tuple[tuple[str, ...], tuple[State | None, ...]]]
    if len(looks) <= FEW:
        columns = [((name,), look) for name, look in looks.items()]
    else:
        for name, look in looks.items():
            groups[look].append(name)
        ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
        columns = [(tuple(names), look) for look, names in ordered[:MOST]]
        rest = ordered[MOST:]
        if rest:
            worst = tuple(_worst(states) for states in zip(*(look for look, _ in rest), strict=True))
            columns.append((tuple(name for _, names in rest for name in names), worst))
    return Table(
        columns=tuple(_column(names, len(looks)) for names, _ in columns),
        rows=tuple(
            Row(
                check=result.check,
                state=result.state,
                value=value(result.measures),
                wanted=wanted(result.measures),
                virtual=any(measure.virtual for measure in result.measures),
                cells=() if set(states[result.check.name]) == {""} else tuple(look[row] for _, look in columns),
                whole="the cluster" if result.measures or result.check.scope == "cluster" else "on no node",
            )
            for row, result in enumerate(run.results)
        ),
    )


def value(measures: Iterable[Measure]) -> str:
    """What was measured, in a few words: the median and from where to where, or what is the same on all."""
    known = [measure for measure in measures if measure.value is not None and measure.state != "skipped"]
    units = {measure.unit for measure in known}
    numbers = [m.value for m in known if isinstance(m.value, int | float) and not isinstance(m.value, bool)]
    if known and len(numbers) == len(known) and len(units) == 1:
        unit = units.pop()
        low, high = min(numbers), max(numbers)
        span = "" if low == high else f" ({number(low)} to {number(high)})"
        return f"{number(median(numbers))} {unit}".rstrip() + span
    texts = list(dict.fromkeys(f"{say(measure.value)} {measure.unit}".rstrip() for measure in known))
    if len(texts) > 1:
        return count(len(texts), "different value")
    text = texts[0] if texts else ""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def wanted(measures: Iterable[Measure]) -> str:
    """The bound, if it is one for all."""
    texts = {measure.wanted for measure in measures if measure.wanted}
    text = texts.pop() if len(texts) == 1 else ""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def say(value: float | int | str | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, int | float) else str(value)


def _worst(states: Iterable[State | None]) -> State | None:
    there = set(states)
    return next((state for state in WORST if state in there), None)


def _column(names: tuple[str, ...], nodes: int) -> Column:
    if len(names) == 1:
        return Column(names[0], "", names)
    every = "all " if len(names) == nodes else ""
    return Column(f"{every}{count(len(names), 'node')}", verdict.listed(names, 40), names)
