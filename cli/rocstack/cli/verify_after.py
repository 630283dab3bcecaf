"""What follows a run of `rocstack verify`: what is proved, nodes drained; --watch, --history, --export-cvs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from rocstack.cli import options
from rocstack.cli.ui import Interrupted, escape, out, print_json, say, table

if TYPE_CHECKING:
    from rocstack.steps.verify import VerifyOptions, VerifyResult, VerifyRound
    from rocstack.verify.drain import Drained
    from rocstack.verify.history import HistoryEntry


def show_stored(result: VerifyResult) -> None:
    if result.problem:
        say(f"nothing is stored: {result.problem}")
    elif result.stored:
        say(result.stored)


def drain(result: VerifyResult, force: bool) -> None:
    """
    Raises:
        CheckFailed: nodes were not drained.
    """
    from rocstack.steps.verify import drain_failing

    _show_drained(drain_failing(result, force=force), result)


def watch(choice: VerifyOptions, *, every: str, drain: bool, force: bool) -> NoReturn:
    """Until Ctrl-C; a few lines for each run.

    Raises:
        BadInput, Missing: what time doesn't mend.
    """
    from rocstack.cli.verify_report import aside
    from rocstack.steps.verify import watch as step

    show_rounds(step(choice, every=every, drain=drain, force=force, on_event=aside))


def show_rounds(rounds: Iterable[VerifyRound]) -> NoReturn:
    try:
        for each in rounds:
            _show_round(each)
    except Interrupted:
        pass
    raise typer.Exit(130)


def _show_round(each: VerifyRound) -> None:
    from rocstack.cli.verify_report import slow
    from rocstack.verify import verdict

    now = f"{datetime.now():%H:%M:%S}"
    if each.result is None:
        say(f"{now}  not done: {each.problem}")
        return
    run = each.result.run
    say(f"{now}  {verdict.judge(run).sentence}, {run.seconds:.0f} s")
    for text in each.changes:
        say(f"          {text}")
    for text in slow(run):
        say(f"          slow: {text}")
    if each.result.news:
        say(f"          {each.result.stored}")
    if each.drained:
        _show_drained(each.drained, each.result, "          ")
    if each.problem:
        say(f"          {each.problem}")


def _show_drained(drained: Drained, result: VerifyResult, indent: str = "") -> None:
    from rocstack.verify import drain

    for name, reason in drained.drained.items():
        say(f"{indent}{name} is drained: {reason}")
    for name, why in drained.kept.items():
        say(f"{indent}{name} fails and is left as it is: {why}")
    if drained.passing:
        line = drain.resume_line(result.run.control, drained.passing)
        names = ", ".join(drained.passing)
        say(f"{indent}{names} passes and is drained by an earlier run; to give it back: `{line}`")


def show_history(*, count: int = 20, json: bool = False) -> None:
    """The last runs, and the nodes that came and went."""
    from rocstack.steps.verify import runs_folder
    from rocstack.verify import history

    entries = history.read(runs_folder())[-count:]
    if json:
        print_json({"runs": [each.model_dump(mode="json") for each in entries]})
        return
    rows = [
        (each.when, str(each.level) + (f" {each.only}" if each.only else ""), *_result(each), each.image[7:19] or "-")
        for each in entries
    ]
    table(("WHEN", "LEVEL", "RESULT", "FAILING", "SECONDS", "IMAGE"), rows, right=(4,))
    marks = history.flapping([each for each in entries if each.like(entries[-1])])
    if marks:
        out.print()
        table(
            ("NODE", "RUNS", "FAILED", "CHANGED"),
            [(name or "cluster", row, str(row.count("x")), str(history.turns(row))) for name, row in marks.items()],
            right=(2, 3),
        )
        out.print(escape("from the oldest: x fails, - took no part, . else"))


def export_cvs(inventory: Path | None, folder: Path) -> None:
    from rocstack.verify import cvs

    chosen = options.settings()
    files, notes = cvs.export(options.inventory(chosen, inventory), folder, chosen.cluster, chosen.overlay_folder())
    for file in files:
        out.print(escape(str(file)))
    for note in notes:
        say(f"note: {note}")
    line = f"cvs run host_configs_cvs --cluster_file {folder}/cluster.json --config_file {folder}/host_config.json"
    out.print(escape(f"next: {line}"))


def _result(each: HistoryEntry) -> tuple[str, str, str]:
    word = "passed" if each.passed else "failed" if each.complete else "interrupted"
    virtual = ", virtual" if each.virtual else ""
    failing = ", ".join([name or "cluster" for name in each.failing] + [f"{name} absent" for name in each.absent])
    return word + virtual, failing or "-", f"{each.seconds:.0f}"
