"""What a deploy would do and what it did, for a person."""

from dataclasses import replace
from pathlib import Path

from rocstack.base.findings import LEVELS, Finding
from rocstack.base.text import count, listed
from rocstack.cli import findings as display
from rocstack.cli.ui import escape, out, print_json, table
from rocstack.deploy.plan.plan import Change, NodePlan, Outcome, Plan
from rocstack.steps.deploy import DeployPreview


def show_plan(preview: DeployPreview, json: bool) -> None:
    if json:
        print_json(preview.to_dict())
        return
    _show_nodes(preview.plan)
    _show_findings(preview.plan)
    out.print()
    if ship := preview.plan.ship:
        out.print(escape(f"the image would go to {ship['nodes']} nodes by {ship['method']}: {ship['why']}"))
    changes = sum(len(node.changes) for node in preview.plan.nodes)
    why = preview.refused
    out.print(
        escape(f"nothing can be done: {why}" if why else f"{changes} changes on {len(preview.plan.changed)} nodes")
    )


def _show_nodes(plan: Plan) -> None:
    rows = [
        (f"{node.name}{f' (virtual {node.virtual})' if node.virtual else ''}", " ".join(node.roles), node.now, *row)
        for node in plan.nodes
        for row in _rows(node)
    ]
    table(("NODE", "ROLES", "RUNS NOW", "CHANGE", "WHY"), rows)


def _rows(node: NodePlan) -> list[tuple[str, str]]:
    if node.result == "change":
        return [_row(change) for change in _grouped(node.changes)]
    why = next((finding.what for finding in node.findings if finding.level == "error"), "")
    return [({"unchanged": "none", "blocked": "none: not fit", "unreachable": "none: not read"}[node.result], why)]


def _grouped(changes: tuple[Change, ...]) -> list[Change]:
    """Files as one row: what they are for is in the containers."""
    files = [change for change in changes if change.kind == "file"]
    rest = [change for change in changes if change.kind != "file"]
    if not files:
        return rest
    names = [change.what.rpartition("/")[2] for change in files]
    return [*rest, replace(files[0], what=listed(names), why=", ".join(sorted({change.why for change in files})))]


def _row(change: Change) -> tuple[str, str]:
    return f"{change.kind} {change.what}", change.why


def _show_findings(plan: Plan) -> None:
    """What several nodes have alike is shown once."""
    groups: dict[Finding, list[str]] = {}
    for node in plan.nodes:
        for finding in node.findings:
            groups.setdefault(replace(finding, node=None), []).append(node.name)
    for finding in plan.findings:
        groups.setdefault(finding, [])
    for finding, names in sorted(groups.items(), key=lambda item: LEVELS.index(item[0].level)):
        out.print()
        display.show(finding, listed(names, 8))
    for note in plan.notes:
        out.print(f"\n[bold]note[/] {escape(note)}")


def show_outcome(outcome: Outcome, log: Path, json: bool) -> None:
    if json:
        print_json(outcome.to_dict())
        return
    if not outcome.ok:
        _show_findings(outcome.plan)
    for note in outcome.notes:
        out.print(f"[bold]note[/] {escape(note)}")
    for name, reason in outcome.failed.items():
        out.print(f"[bold red]failed[/] {escape(f'{name}: {reason}')}")
    if outcome.untouched:
        out.print(escape(f"not come to: {', '.join(outcome.untouched)}"))
    if outcome.stopped:
        out.print(f"[bold red]stopped[/]: {escape(outcome.stopped)}")
    changed = count(len(outcome.changed), "node")
    out.print(escape(f"{changed} changed, {len(outcome.ready)} ready for jobs, {outcome.seconds:.1f} s"))
    if not outcome.ok:
        out.print(escape(f"Ansible's output: {log}"))
