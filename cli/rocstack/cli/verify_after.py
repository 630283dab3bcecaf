"""What follows a run of `rocstack verify`: history, what is proved, nodes drained; --watch, --history, --export-cvs."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rocstack.cli.ui import Interrupted, escape, out, print_json, say, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from rocstack.settings.settings import Settings
    from rocstack.verify.history import HistoryEntry
    from rocstack.verify.result import Run


def finish(run: Run, inventory: Path, runs: Path, folder: Path, *, drain: bool = False, force: bool = False) -> None:
    """Notes the run, stores what it proved, and drains what fails if that is wanted. `folder` has its report.

    Raises:
        RocstackError: nodes were not drained.
    """
    from rocstack.base.errors import RocstackError
    from rocstack.verify import history, proved

    history.note(run, runs, folder)
    try:
        say(proved.keep(run, inventory, runs).sentence)
    except RocstackError as error:
        say(f"nothing is stored: {error.what}")
    if drain:
        _drain(run, inventory, force)


def watch(
    once: Callable[[], tuple[Run, Path]],
    inventory: Path,
    runs: Path,
    *,
    every: str = "10m",
    drain: bool = False,
    force: bool = False,
) -> NoReturn:
    """Runs again and again, until it is interrupted, which is how it ends; a line a run, and what changed.

    Raises:
        BadInput, Missing: what doesn't pass with time; `every` is no time.
    """
    from rocstack.base.errors import BadInput, Missing, RocstackError
    from rocstack.verify import history

    pause = _pause(every)
    try:
        while True:
            began = time.monotonic()
            try:
                _round(*once(), inventory, runs, drain, force)
                history.prune(runs)
            except (BadInput, Missing):
                raise
            except RocstackError as error:
                say(f"{datetime.now():%H:%M:%S}  not done: {error.what}")
            time.sleep(max(0.0, pause - (time.monotonic() - began)))
    except Interrupted:
        raise typer.Exit(130) from None


def _round(run: Run, folder: Path, inventory: Path, runs: Path, drain: bool, force: bool) -> None:
    from rocstack.base.errors import RocstackError
    from rocstack.cli.verify_report import slow
    from rocstack.verify import history, proved, verdict

    now = history.note(run, runs, folder)
    say(f"{datetime.now():%H:%M:%S}  {verdict.sentence(run)}, {run.seconds:.0f} s")
    for text in history.changes(history.before(runs, now), now):
        say(f"          {text}")
    for text in slow(run):
        say(f"          slow: {text}")
    try:
        kept = proved.keep(run, inventory, runs)
        if kept.news:
            say(f"          {kept.sentence}")
        if drain:
            _drain(run, inventory, force, "          ")
    except RocstackError as error:
        say(f"          {error.what}")


def _drain(run: Run, inventory: Path, force: bool, indent: str = "") -> None:
    from rocstack.verify import drain

    found = drain.drain(run, inventory, force)
    for name, reason in found.drained.items():
        say(f"{indent}{name} is drained: {reason}")
    for name, why in found.kept.items():
        say(f"{indent}{name} fails and is left as it is: {why}")
    if found.passing:
        line = drain.resume_line(run.control, found.passing)
        say(f"{indent}{', '.join(found.passing)} passes and is drained by an earlier run; to give it back: `{line}`")


def show_history(runs: Path, *, count: int = 20, json: bool = False) -> None:
    """The last runs, and the nodes that came and went."""
    from rocstack.verify import history

    entries = history.read(runs)[-count:]
    if json:
        print_json([each.model_dump(mode="json") for each in entries])
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


def export_cvs(inventory: Path, folder: Path, chosen: Settings) -> None:
    from rocstack.verify import cvs

    found = cvs.export(inventory, folder, chosen.cluster, chosen.overlay_folder())
    for file in found.files:
        out.print(escape(str(file)))
    for note in found.notes:
        say(f"note: {note}")
    line = f"cvs run host_configs_cvs --cluster_file {folder}/cluster.json --config_file {folder}/host_config.json"
    out.print(escape(f"next: {line}"))


def _result(each: HistoryEntry) -> tuple[str, str, str]:
    word = "passed" if each.passed else "failed" if each.complete else "interrupted"
    virtual = ", virtual" if each.virtual else ""
    failing = ", ".join([name or "cluster" for name in each.failing] + [f"{name} absent" for name in each.absent])
    return word + virtual, failing or "-", f"{each.seconds:.0f}"


def _pause(every: str) -> float:
    import re

    from rocstack.base.errors import BadInput
    from rocstack.cluster.operation import seconds

    whole = seconds(every) if re.fullmatch(r"[1-9][0-9]{0,5}[smhd]", every) else None
    if whole is None:
        raise BadInput(f"--every {every}: not a time", code="bad-value", next_step="such as 10m or 1h")
    return whole
