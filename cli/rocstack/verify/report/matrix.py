"""Checks by nodes: a row for each check, a column for each node or for a group of equal ones; and the kinds of test
that a training cluster must pass. Pure."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from statistics import median, median_low
from typing import NamedTuple, TypeVar

from rocstack.base.text import count
from rocstack.verify import verdict
from rocstack.verify.recorder import Scalar
from rocstack.verify.result import CheckResult, Measure, Run, State

FEW = 8  # nodes that have a column each
MOST = 24  # columns
LONGEST, LINES = 60, 4  # characters of a value, and how many of one check
MARKS: dict[str, str] = {"passed": "✓", "failed": "✗", "error": "?", "skipped": "–", "measured": "•", "": ""}
WORST: tuple[State, ...] = ("failed", "error", "skipped", "measured", "passed")
T = TypeVar("T", bound=Hashable)


class NodeColumn(NamedTuple):
    """`label` is the node, or how many there are; `names` is the hostlist of those."""

    label: str
    names: str
    nodes: list[str]


class CheckRow(NamedTuple):
    """`cells` are the states by column, None where the check said nothing of those nodes. Without cells `whole` says
    what the state is of."""

    result: CheckResult
    lines: tuple[tuple[str, str], ...]  # measured, wanted
    virtual: bool
    cells: tuple[State | None, ...]
    whole: str


class CheckTable(NamedTuple):
    columns: list[NodeColumn]
    rows: list[CheckRow]


def table(run: Run) -> CheckTable:
    states = [verdict.states(result) for result in run.results]
    names = [node.name for node in run.nodes if not node.absent]
    few = len(names) <= FEW
    # With a few nodes, each has a column of its own.
    groups = alike((name, (tuple(each.get(name) for each in states), name if few else "")) for name in names)
    columns = [(nodes, look) for (look, _), nodes in groups]
    if not few:  # the odd ones first, and last those that most nodes are like
        columns = [*sorted(columns[1:], key=lambda column: _bad(column[1])), columns[0]]
    if rest := columns[MOST - 1 : -1]:
        worst = tuple(_worst(cells) for cells in zip(*(look for _, look in rest), strict=True))
        columns[MOST - 1 : -1] = [([name for nodes, _ in rest for name in nodes], worst)]
    rows = [
        CheckRow(
            result=result,
            lines=lines(result.measures),
            virtual=any(measure.virtual for measure in result.measures),
            cells=() if set(states[row]) == {""} else tuple(look[row] for _, look in columns),
            whole="the cluster" if result.measures or result.check.scope == "cluster" else "on no node",
        )
        for row, result in enumerate(run.results)
    ]
    return CheckTable([_column(nodes, len(names)) for nodes, _ in columns], rows)


def alike(values: Iterable[tuple[str, T]]) -> list[tuple[T, list[str]]]:
    """Of (node, value): each value with its nodes, the commonest first."""
    groups: dict[T, list[str]] = defaultdict(list)
    for node, value in values:
        groups[value].append(node)
    return sorted(groups.items(), key=lambda item: -len(item[1]))


def label(nodes: list[str], remark: str = "") -> str:
    """Nodes that are alike: how many where they aren't a few, and their hostlist."""
    names = verdict.folded(nodes, 120)
    return names if len(nodes) < 3 else f"{count(len(nodes), 'node')}{remark}: {names}"


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


def _bad(states: Iterable[State | None]) -> tuple[int, ...]:
    """For sorting, the worst first: by how many checks failed, then by how many could not run, and so on."""
    there = list(states)
    return tuple(-there.count(state) for state in WORST[:3])


def _column(nodes: list[str], all_nodes: int) -> NodeColumn:
    if len(nodes) == 1:
        return NodeColumn(nodes[0], "", nodes)
    every = "all " if len(nodes) == all_nodes else ""
    return NodeColumn(f"{every}{count(len(nodes), 'node')}", verdict.folded(nodes, 40), nodes)


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


class AcceptanceItem(NamedTuple):
    """`state` is None where no check of the run was of this kind; `skipped` are its checks that were, while others
    weren't: it was tested in part."""

    number: int
    name: str
    state: State | None
    skipped: list[str]


def kinds(run: Run) -> Iterator[AcceptanceItem]:
    """The worst of each kind's checks; one that was skipped doesn't hide that another passed."""
    for item, name in enumerate(KINDS, 1):
        results = [result for result in run.results if result.check.item == item]
        skipped = [result.check.name for result in results if result.state == "skipped"]
        state = _worst({result.state for result in results} - {"skipped"}) or ("skipped" if skipped else None)
        yield AcceptanceItem(item, name, state, [] if state == "skipped" else skipped)
