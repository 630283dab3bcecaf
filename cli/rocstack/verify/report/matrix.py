"""Checks by nodes: a row for each check, a column for each node or for a group of equal ones; and the kinds of test
that a training cluster must pass. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, median_low

from rocstack.base.text import count
from rocstack.verify import verdict
from rocstack.verify.recorder import Scalar
from rocstack.verify.result import Check, Measure, Run, State

FEW = 8  # nodes that have a column each
MOST = 24  # columns
LONGEST, LINES = 60, 4  # characters of a value, and how many of one check
MARKS: dict[str, str] = {"passed": "✓", "failed": "✗", "error": "?", "skipped": "–", "measured": "•", "": ""}
WORST: tuple[State, ...] = ("failed", "error", "skipped", "measured", "passed")


@dataclass(frozen=True)
class NodeColumn:
    """`label` is the node, or how many there are; `names` is the hostlist of those."""

    label: str
    names: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class CheckRow:
    """`cells` are the states by column, None where the check said nothing of those nodes. Without cells `whole` says
    what the state is of."""

    check: Check
    state: State
    lines: tuple[tuple[str, str], ...]  # measured, wanted
    virtual: bool
    cells: tuple[State | None, ...]
    whole: str


@dataclass(frozen=True)
class CheckTable:
    columns: tuple[NodeColumn, ...]
    rows: tuple[CheckRow, ...]


def table(run: Run) -> CheckTable:
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
    return CheckTable(
        columns=tuple(_column(names, len(looks)) for names, _ in columns),
        rows=tuple(
            CheckRow(
                check=result.check,
                state=result.state,
                lines=lines(result.measures),
                virtual=any(measure.virtual for measure in result.measures),
                cells=() if set(states[result.check.name]) == {""} else tuple(look[row] for _, look in columns),
                whole="the cluster" if result.measures or result.check.scope == "cluster" else "on no node",
            )
            for row, result in enumerate(run.results)
        ),
    )


def lines(measures: Iterable[Measure]) -> tuple[tuple[str, str], ...]:
    """What was measured and what was wanted, in a few words: numbers of one unit as their median, and from where to
    where; texts as they are. At most `LINES`."""
    groups: dict[tuple[str, str], list[Measure]] = defaultdict(list)
    for measure in measures:
        if measure.state != "skipped" and (measure.value is not None or measure.wanted):
            groups[measure.unit, measure.wanted].append(measure)
    texts = [(_value([m.value for m in group], unit), _short(wanted)) for (unit, wanted), group in groups.items()]
    if len(texts) > LINES:
        texts = [*texts[: LINES - 1], (f"and {len(texts) - LINES + 1} more", "")]
    return tuple(texts)


def _value(values: list[Scalar], unit: str) -> str:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers and len(numbers) == len([value for value in values if value is not None]):
        low, high = number(min(numbers)), number(max(numbers))
        middle = number(median_low(numbers) if all(isinstance(each, int) for each in numbers) else median(numbers))
        return f"{middle} {unit}".rstrip() + ("" if low == high else f" ({low} to {high})")
    texts = list(dict.fromkeys(say(value) for value in values if value is not None))
    text = ", ".join(texts) if len(texts) < 3 else count(len(texts), "different value")
    return _short(f"{text} {unit}".strip())


def _short(text: str) -> str:
    text = {"True": "yes", "False": "no"}.get(text, " ".join(text.split()))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def say(value: Scalar) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, int | float) else str(value)


def _worst(states: Iterable[State | None]) -> State | None:
    there = set(states)
    return next((state for state in WORST if state in there), None)


def _column(names: tuple[str, ...], nodes: int) -> NodeColumn:
    if len(names) == 1:
        return NodeColumn(names[0], "", names)
    every = "all " if len(names) == nodes else ""
    return NodeColumn(f"{every}{count(len(names), 'node')}", verdict.folded(names, 40), names)


KINDS = (
    "enumerating the GPUs",
    "enumerating the finetuning workers",
    "Slurm GRES",
    "network interfaces",
    "network topology",
    "simple MPI job launch",
    "communication between MPI ranks",
    "latency and bandwidth on MPI links",
    "collectives: functional",
    "collectives: performance",
    "scheduling and prioritization",
    "QoS enforcement",
    "checkpoint and restart",
    "model distribution among ranks",
    "training on one GPU",
    "training on several GPUs of a node",
    "training on several nodes",
    "data partitioning among nodes",
)


@dataclass(frozen=True)
class AcceptanceItem:
    """`state` is None where no check of the run was of this kind; `skipped` are its checks that were, while others
    weren't: it was tested in part."""

    number: int
    name: str
    state: State | None
    skipped: tuple[str, ...]


def kinds(run: Run) -> tuple[AcceptanceItem, ...]:
    """The worst of each kind's checks; one that was skipped doesn't hide that another passed."""
    return tuple(_kind(run, number, name) for number, name in enumerate(KINDS, 1))


def _kind(run: Run, number: int, name: str) -> AcceptanceItem:
    results = [result for result in run.results if result.check.item == number]
    states = {result.state for result in results}
    if len(states) > 1:
        states -= {"skipped"}
    state = next((state for state in WORST if state in states), None)
    gone = () if state == "skipped" else (each.check.name for each in results if each.state == "skipped")
    return AcceptanceItem(number, name, state, tuple(gone))
