"""`rocstack report`: the files of a run, written again; and two runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.base.errors import BadInput
from rocstack.base.text import count
from rocstack.cli.command import Answer, command
from rocstack.cli.ui import escape, out, table
from rocstack.steps.options import Flag, settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocstack.verify.compare import CheckChange, Comparison, ValueChange

MOST = 20  # rows of one kind


@command("rocstack report .rocstack/verify/20261120-233100 --open")
def report(
    path: Annotated[
        Path | None, Flag("report.json or its folder; default: the last run's.", metavar="PATH", argument=True)
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        Flag("Show what became worse or better from run A to run B. Writes nothing.", ("--compare",), "A B"),
    ] = None,
    previous: Annotated[
        Path | None,
        Flag("Run to compare with in the HTML report; default: the last similar run before it.", show_default=False),
    ] = None,
    open_it: Annotated[bool, Flag("Open the HTML report in the browser.", ("--open",))] = False,
) -> Answer:
    """Write the files of a run's report again from its report.json, or compare two runs.

    Exit code 1: with --compare, something fails in B that didn't fail in A, or a value of real nodes is more than 30 %
    worse.
    """
    from rocstack.verify import artifacts, history, result, verdict
    from rocstack.verify import compare as comparing

    if compare:
        before, after = map(result.read, compare)
        change = comparing.compare(before, after)
        yield change.to_dict(), not change.worse
        return _show(change)
    runs = Path(settings().out) / "verify"
    source = path or _newest(runs)
    run = result.read(source)
    folder = source if source.is_dir() else source.parent
    artifacts.write(run, folder, result.read(previous) if previous else history.previous(runs, run))
    page = folder / artifacts.HTML
    if open_it:
        typer.launch(page.resolve().as_uri())
    sentence = verdict.judge(run).sentence
    yield {"report": str(page), "verdict": sentence, "passed": run.passed}
    out.print(f"[bold]{escape(sentence)}[/]")
    out.say(f"report: {page}")


def _newest(folder: Path) -> Path:
    newest = max(folder.glob("*/report.json"), key=_time, default=None)
    if newest is None:
        raise BadInput.of("no-run", folder=folder)
    return newest.parent


def _time(file: Path) -> tuple[str, float]:
    """When the run was, and its file written; a folder's name may be anybody's."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:  # reading the chosen one reports it
        data = None
    return str(data.get("when", "")) if isinstance(data, dict) else "", file.stat().st_mtime


def _show(comparison: Comparison) -> None:
    out.say(f"from {comparison.before} to {comparison.after}")
    _changes("[bold red]regressions[/]: failing now, not then", comparison.regressions)
    _changes("no longer judged", comparison.unjudged)
    _changes("[green]repaired[/]", comparison.fixes)
    _values(comparison.values)
    for title, names in (("new checks", comparison.new), ("checks of then only", comparison.gone)):
        if names:
            out.say(f"\n{title}: {', '.join(names)}")
    if comparison.differences:
        out.print("\n[bold]different about the runs[/]")
        _rows(("WHAT", "THEN", "NOW"), [(d.what, d.before or "-", d.after or "-") for d in comparison.differences])
    out.print()
    values = count(len(comparison.values), "value")
    words = f"{count(comparison.worse, 'regression')}, {len(comparison.fixes)} repaired, {values} changed"
    out.print("nothing changed" if comparison.same else words)


def _changes(title: str, changes: Sequence[CheckChange]) -> None:
    if changes:
        out.print(f"\n[bold]{title}[/]")
        rows = [(each.check, each.node or "the cluster", each.before, each.after, each.why) for each in changes]
        _rows(("CHECK", "WHERE", "THEN", "NOW", "WHY"), rows)


def _values(values: Sequence[ValueChange]) -> None:
    if values:
        out.print("\n[bold]values that changed by more than noise[/]")
        rows = [
            (v.check, v.node or "the cluster", f"{v.before:.4g}", f"{v.after:.4g}", v.unit, f"{v.share:+.0%}", v.word)
            for v in values
        ]
        _rows(("CHECK", "WHERE", "THEN", "NOW", "UNIT", "CHANGE", ""), rows, right=(2, 3, 5))
        if any(v.virtual for v in values):
            out.print("a value of virtual nodes is no regression: they share a machine")


def _rows(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    table(heads, rows[:MOST], right=right)
    if len(rows) > MOST:
        out.print(f"and {len(rows) - MOST} more; --json has all")
