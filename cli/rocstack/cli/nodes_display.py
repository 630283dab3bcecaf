"""What a deploy shows: a row for each node at work on a terminal, a line for each result without one; what it would do,
and what it did."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rocstack.base.findings import LEVELS, Finding
from rocstack.base.text import count, listed
from rocstack.cli.ui import Rows, err, escape, out, show_finding, table
from rocstack.deploy.nodes.runs import DeployEvents
from rocstack.deploy.plan.plan import NodePlan, Outcome, Plan
from rocstack.node import hostlist
from rocstack.steps.deploy import DeployPreview

SOME = 8  # nodes that are named one by one
NONE = {"unchanged": "none", "blocked": "none: not fit", "unreachable": "none: not read"}


class NodesDisplay(Rows, DeployEvents):
    """Takes the events of a deploy."""

    def __init__(self) -> None:
        super().__init__()
        self._start = time.monotonic()
        self._began: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def begin(self, nodes: Sequence[str]) -> None:
        self._open(nodes)

    def say(self, text: str) -> None:
        with self._guard:
            err.say(text)

    def step(self, node: str, text: str) -> None:
        with self._guard:
            self._began.setdefault(node, time.monotonic())
            self._row(node, text)

    def end(self, node: str, text: str, *, ok: bool = True) -> None:
        with self._guard:
            now = time.monotonic()
            seconds = now - self._began.pop(node, self._ended.get(node, self._start))
            self._ended[node] = now
            self._drop(node)
            mark = f"{seconds:6.1f} s" if ok else "[bold red]  failed[/]"
            err.print(f"{mark}  {escape(node.ljust(self._width))}  {escape(text)}")

    def rest(self) -> None:
        with self._guard:
            self._start = time.monotonic()
            self._began.clear()
            self._ended.clear()
            for node in list(self._tasks):
                self._drop(node)


def show_plan(preview: DeployPreview) -> None:
    plan = preview.plan
    rows = [
        (f"{node.name}{f' (virtual {node.virtual})' if node.virtual else ''}", " ".join(node.roles), node.now, *row)
        for node in plan.nodes
        for row in _rows(node)
    ]
    table(("NODE", "ROLES", "RUNS NOW", "CHANGE", "WHY"), rows)
    _show_findings(plan)
    out.print()
    if ship := plan.ship:
        out.say(f"the image would go to {ship['nodes']} nodes by {ship['method']}: {ship['why']}")
    number = sum(len(node.changes) for node in plan.nodes)
    changes = f"{count(number, 'change')} on {count(len(plan.changed), 'node')}"
    out.say(f"nothing can be done: {preview.refused}" if preview.refused else changes)


def _rows(node: NodePlan) -> list[tuple[str, str]]:
    """Files are one row: what they are for is in the containers."""
    if node.result != "change":
        return [(NONE[node.result], next((each.what for each in node.findings if each.level == "error"), ""))]
    rows = [(f"{change.kind} {change.what}", change.why) for change in node.changes if change.kind != "file"]
    files = [change for change in node.changes if change.kind == "file"]
    if files:
        names = listed(change.what.rpartition("/")[2] for change in files)
        rows.append((f"file {names}", ", ".join(sorted({change.why for change in files}))))
    return rows


def _show_findings(plan: Plan) -> None:
    own = [replace(finding, node=node.name) for node in plan.nodes for finding in node.findings]
    show_alike([*own, *plan.findings])
    for note in plan.notes:
        out.print(f"\n[bold]note[/] {escape(note)}")


def show_alike(findings: Iterable[Finding]) -> None:
    """What several nodes have alike is shown once, in the words of the first: a thousand of them may be away."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        words = (finding.what, finding.cause, finding.next)
        alike = (_without_names(text, finding.node) if finding.node else text for text in words)
        groups.setdefault((finding.level, finding.code, *alike), []).append(finding)
    for found in sorted(groups.values(), key=lambda each: LEVELS.index(each[0].level)):
        names = [each.node for each in found if each.node]
        shown = ", ".join(names) if len(names) <= SOME else f"{len(names)} nodes: {hostlist.fold(names)}"
        out.print()
        show_finding(found[0], shown)


def _without_names(text: str, node: str) -> str:
    text = re.sub(r"(?<= host )\S+(?= port \d)", "HOST", text)
    return re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", "NODE", text)


def show_outcome(outcome: Outcome, log: Path) -> None:
    if not outcome.ok:
        _show_findings(outcome.plan)
    for note in outcome.notes:
        out.print(f"[bold]note[/] {escape(note)}")
    for name, reason in outcome.failed.items():
        out.print(f"[bold red]failed[/] {escape(f'{name}: {reason}')}")
    if outcome.untouched:
        out.say(f"not reached: {', '.join(outcome.untouched)}")
    if outcome.stopped:
        out.print(f"[bold red]stopped[/]: {escape(outcome.stopped)}")
    changed = count(len(outcome.changed), "node")
    out.say(f"{changed} changed, {len(outcome.ready)} ready for jobs, {outcome.seconds:.1f} s")
    if not outcome.ok:
        out.say(f"Ansible's output: {log}")
