"""`rocstack report`: the files of a run, written again; and two runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import escape, out, print_json, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocstack.verify.compare import CheckChange, Comparison, ValueChange

Report = Annotated[
    Path | None, typer.Argument(metavar="PATH", help="report.json or its folder; default: the last run's.")
]
Compare = Annotated[
    tuple[Path, Path] | None,
    typer.Option(
        "--compare", metavar="A B", help="Show what became worse or better from run A to run B. Writes nothing."
    ),
]
Previous = Annotated[
    Path | None,
    typer.Option(
        help="Run to compare with in the HTML report; default: the last similar run before it.",
        show_default=False,
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open the HTML report in the browser.")]
MOST = 20  # rows of one kind


def register(app: typer.Typer) -> None:
    options.add(app, "report", report, "rocstack report .rocstack/verify/20261120-233100 --open")


def report(
    path: Report = None,
    compare: Compare = None,
    previous: Previous = None,
    open_it: Open = False,
    json: options.Json = False,
) -> None:
    """Write the files of a run's report again from its report.json, or compare two runs.

    Exit code 1: with --compare, something fails in B that didn't fail in A, or a value of real nodes is more than 30 %
    worse.
    """
    from rocstack.verify import artifacts, history, result, verdict

    if compare:
        raise typer.Exit(_compare(*compare, json=json))
    runs = Path(options.settings().out) / "verify"
    source = path or _newest(runs)
    run = result.read(source)
    folder = source if source.is_dir() else source.parent
    artifacts.write(run, folder, result.read(previous) if previous else history.previous(runs, run))
    page = folder / artifacts.HTML
    if json:
        print_json({"report": str(page), "verdict": verdict.judge(run).sentence, "passed": run.passed})
    else:
        out.print(f"[bold]{escape(verdict.judge(run).sentence)}[/]")
        out.print(escape(f"report: {page}"))
    if open_it:
        typer.launch(page.resolve().as_uri())


def _newest(folder: Path) -> Path:
    from rocstack.base.errors import BadInput

    newest = max(folder.glob("*/report.json"), key=_time, default=None)
    if newest is None:
        raise BadInput(
            f"no report in {folder}",
            code="no-report",
            next_step="run `rocstack verify INVENTORY`, or give the PATH of a report",
        )
    return newest.parent


def _time(file: Path) -> tuple[str, float]:
    """When the run was, and its file written; a folder's name may be anybody's."""
    import json

    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:  # reading the chosen one reports it
        data = None
    return str(data.get("when", "")) if isinstance(data, dict) else "", file.stat().st_mtime


def _compare(before: Path, after: Path, *, json: bool) -> int:
    from rocstack.verify import compare, result

    comparison = compare.compare(result.read(before), result.read(after))
    print_json(comparison.to_dict()) if json else _show(comparison)
    return 1 if comparison.worse else 0


def _show(comparison: Comparison) -> None:
    from rocstack.base.text import count

    out.print(escape(f"from {comparison.before} to {comparison.after}"))
    _changes("[bold red]regressions[/]: failing now, not then", comparison.regressions)
    _changes("no longer judged", comparison.unjudged)
    _changes("[green]repaired[/]", comparison.fixes)
    _values(comparison.values)
    for title, names in (("new checks", comparison.new), ("checks of then only", comparison.gone)):
        if names:
            out.print(escape(f"\n{title}: {', '.join(names)}"))
    if comparison.differences:
        out.print("\n[bold]different about the runs[/]")
        table(
            ("WHAT", "THEN", "NOW"), [(d.what, d.before or "-", d.after or "-") for d in comparison.differences[:MOST]]
        )
        _more(comparison.differences)
    out.print()
    values = count(len(comparison.values), "value")
    words = f"{count(comparison.worse, 'regression')}, {len(comparison.fixes)} repaired, {values} changed"
    out.print("nothing changed" if comparison.same else words)


def _changes(title: str, changes: Sequence[CheckChange]) -> None:
    if changes:
        out.print(f"\n[bold]{title}[/]")
        rows = [(each.check, each.node or "the cluster", each.before, each.after, each.why) for each in changes[:MOST]]
        table(("CHECK", "WHERE", "THEN", "NOW", "WHY"), rows)
        _more(changes)


def _values(values: Sequence[ValueChange]) -> None:
    if values:
        out.print("\n[bold]values that changed by more than noise[/]")
        rows = [
            (v.check, v.node or "the cluster", f"{v.before:.4g}", f"{v.after:.4g}", v.unit, f"{v.share:+.0%}", v.word)
            for v in values[:MOST]
        ]
        table(("CHECK", "WHERE", "THEN", "NOW", "UNIT", "CHANGE", ""), rows, right=(2, 3, 5))
        _more(values)
        if any(v.virtual for v in values):
            out.print("a value of virtual nodes is no regression: they share a machine")


def _more(items: Sequence[object]) -> None:
    if len(items) > MOST:
        out.print(f"and {len(items) - MOST} more; --json has all")
