"""A run of the acceptance suite for a person: each check as it ends, then the verdict and what is wrong."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from rocstack.base.levels import LEVELS
from rocstack.base.text import count
from rocstack.cli.ui import err, escape, out, say, show_finding
from rocstack.verify.result import BAD, CheckResult, Measure, Run

STYLE = {"passed": "green", "measured": "cyan", "skipped": "dim", "failed": "bold red", "error": "bold red"}
STANDING = {"waiting": "waiting for another run", "stopping": "stopping"}
MOST = 3  # nodes of a failed check that are shown one by one
SLOW = 10  # lines of slow nodes


@contextmanager
def progress() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Takes the suite's events; a line a check, and on a terminal what runs at the moment."""
    if not err.is_terminal:
        yield _Lines(None)
        return
    what = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True))  # this is cut, not the time
    columns = (SpinnerColumn(), TimeElapsedColumn(), what)
    with Progress(*columns, console=err.console, transient=True, expand=True) as bar:
        yield _Lines(bar)


def aside(event: Mapping[str, Any]) -> None:
    """Says why nothing seems to happen."""
    if event["event"] == "waiting":
        say(f"waiting for another `rocstack verify` on this cluster; --wait says how long: {event['seconds']:.0f} s")
    if event["event"] == "stopping":
        say(f"stopping: its jobs are cancelled and the report is written, in at most {event['seconds']} s")


class _Lines:
    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._task = bar.add_task("reading the nodes", total=None) if bar else None
        self._titles: dict[str, str] = {}
        self._width, self._level = 0, -1
        self._began = time.monotonic()

    def __call__(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        aside(event)
        if kind in STANDING and self._bar and self._task is not None:
            self._bar.update(self._task, description=STANDING[kind])
        if kind == "checks":
            self._titles = {check["name"]: check["title"] for check in event["checks"]}
            self._width = max(map(len, self._titles), default=0)
        elif kind == "start" and self._bar and self._task is not None:
            self._bar.update(self._task, description=escape(self._titles[event["check"]]))
        elif kind == "result":
            self._ended(CheckResult.model_validate_json(json.dumps(event["result"])))

    def _ended(self, result: CheckResult) -> None:
        if result.check.level != self._level:
            self._level = result.check.level
            err.print(f"level {self._level}: {LEVELS[self._level]}")
        now = time.monotonic()
        seconds, self._began = now - self._began, now
        state = f"[{STYLE[result.state]}]{result.state:8}[/]"
        took = f"{seconds:5.1f} s" if seconds >= 0.05 else "       "
        text = _measured(result).partition("\n")[0]
        err.print(f"  {state} {took}  " + escape(f"{result.check.name.ljust(self._width)}  {text}".rstrip()))


def show(run: Run, folder: Path) -> None:
    """What is wrong, and the verdict last, where it is seen."""
    from rocstack.verify import verdict

    for result in run.results:
        if result.state in BAD:
            _show_failure(result)
    for node in run.nodes:
        if node.absent:
            out.print(f"[bold red]absent[/] {escape(f'{node.name}: {node.absent}')}")
    for line in slow(run):
        out.print(f"[yellow]slow[/] {escape(line)}")
    out.print()
    states: Counter[str] = Counter(result.state for result in run.results)
    counts = ", ".join(f"{states[state]} {state}" for state in STYLE if states[state])
    out.print(f"[bold]{escape(verdict.judge(run).sentence)}[/]")
    out.say(f"{count(len(run.results), 'check')} in {run.seconds:.0f} s: {counts}")
    out.say(f"report: {folder / 'report.html'}")


def slow(run: Run) -> Iterator[str]:
    """A line for each slow node and what it is slow at."""
    from rocstack.verify import outliers

    for each in run.slow_nodes[:SLOW]:
        yield f"{each.check}: {outliers.text(each)}"
    if len(run.slow_nodes) > SLOW:
        yield f"and {len(run.slow_nodes) - SLOW} more, in report.html"


def _show_failure(result: CheckResult) -> None:
    bad = [measure for measure in result.measures if measure.state in BAD]
    seen = [] if bad else [result.why]
    for measure in bad[:MOST]:
        seen += [f"{_where(measure)}: {measure.why}", *(f"  {line}" for line in measure.evidence.splitlines()[-3:])]
    if len(bad) > MOST:
        seen.append(f"and {_others(bad[MOST:])}")
    out.print()
    show_finding(result.finding, seen=seen, label=result.state)


def _measured(result: CheckResult) -> str:
    """The measured value in a few words, or why there is none."""
    bad = [measure for measure in result.measures if measure.state in BAD]
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        return f"{_where(bad[0])}: {bad[0].why}{more}"
    if result.why:
        return result.why
    virtual = " (virtual)" if any(measure.virtual for measure in result.measures) else ""
    return _values([measure for measure in result.measures if measure.state != "skipped"]) + virtual


def _values(measures: list[Measure]) -> str:
    """One value, or from the least to the greatest."""
    numbers = [m.value for m in measures if isinstance(m.value, int | float) and not isinstance(m.value, bool)]
    units = {measure.unit for measure in measures}
    if numbers and len(numbers) == len(measures) and len(units) == 1:
        low, high, unit = min(numbers), max(numbers), units.pop()
        text = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        return f"{text} {unit}".rstrip()
    texts = {str(measure.value) for measure in measures if measure.value is not None}
    if len(texts) == 1 and len(text := texts.pop()) <= 60:
        return text
    nodes = {measure.node for measure in measures if measure.node}
    return count(len(nodes), "node") if nodes else ""


def _others(measures: list[Measure]) -> str:
    """Those that aren't shown one by one."""
    from rocstack.verify import verdict

    pairs = sum(bool(measure.peer) for measure in measures)
    ends = {name for measure in measures for name in (measure.node, measure.peer) if name}
    names = verdict.folded(ends) or "the cluster"
    return f"{count(pairs, 'pair')} more, of {names}" if pairs else names


def _where(measure: Measure) -> str:
    return " and ".join(filter(None, (measure.node, measure.peer))) or "the cluster"
