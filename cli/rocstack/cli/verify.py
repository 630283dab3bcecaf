"""`rocstack verify`: the acceptance suite on a deployed cluster, what it measured, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from rocstack.base.errors import BadInput
from rocstack.cli.command import Json, command
from rocstack.cli.ui import Interrupted, out, print_json, say, table
from rocstack.steps.options import Flag, VerifyOptions, inventory_path, settings

if TYPE_CHECKING:
    from rocstack.steps.verify import VerifyResult, VerifyRound
    from rocstack.verify.drain import Drained

BUSY = 75  # sysexits.h: try again later


@command("rocstack verify inventory.yml --level 2")
def verify(
    choice: VerifyOptions,
    drain_failing: Annotated[bool, Flag("Drain the nodes that fail, with the reason.")] = False,
    force: Annotated[bool, Flag("With --drain-failing: drain even more than half of the workers.")] = False,
    watch: Annotated[bool, Flag("Repeat until Ctrl-C; show what changed and keep a history.")] = False,
    every: Annotated[str, Flag("Time between two runs of --watch: 10m, 1h.")] = "10m",
    history: Annotated[bool, Flag("Show the last runs and stop.")] = False,
    list_checks: Annotated[bool, Flag("List all checks, or those of --only, and stop.", ("--list",))] = False,
    export_cvs: Annotated[Path | None, Flag("Write inventory and configuration for AMD's cvs to this folder.")] = None,
    json: Json = False,
) -> None:
    """Test a deployed cluster, from GPUs to training, and write the report.

    Runs as an ordinary Slurm user beside other jobs, and leaves nothing behind. Nodes that are down are named; the rest
    is tested. Exit code 1: a check failed; 75: all workers were busy with jobs, so nothing is proved or taken back.
    """
    alone = "--evidence judges without the cluster: "
    others = watch or drain_failing or export_cvs or choice.user
    for together, why in (
        (choice.evidence and choice.inventory, f"{alone}leave out the inventory"),
        (choice.evidence and others, f"{alone}it goes with --level, --only, --report and --json"),
        (force and not drain_failing, "--force is for --drain-failing"),
        (
            watch and (choice.report or json or export_cvs),
            "--watch writes a line a run, and a report each in a folder of its own",
        ),
    ):
        if together:
            raise BadInput.of("no-combination", why=why)
    if list_checks:
        return _list(choice.only or "", json)
    if history:
        return show_history(json=json)
    if export_cvs:
        return _export_cvs(choice.inventory, export_cvs)
    from rocstack.cli import verify_report
    from rocstack.steps import verify as steps

    if watch:
        show_rounds(steps.watch(choice, every=every, drain=drain_failing, force=force, on_event=verify_report.aside))
    choice = replace(choice, report=steps.report_folder(choice))
    try:
        with verify_report.progress() as on_event:
            result = steps.verify(choice, on_event)
    except Interrupted:
        report = steps.report_folder(choice) / "report.html"
        say(f"stopped; what was tested until then: {report}" if report.exists() else "stopped before any result")
        raise typer.Exit(130) from None
    print_json(result.to_dict()) if json else verify_report.show(result.run, result.folder)
    if result.problem or result.stored:
        say(f"nothing is stored: {result.problem}" if result.problem else result.stored)
    if result.shown:
        say(result.shown)
    if drain_failing:
        _show_drained(steps.drain_failing(result, force=force), result)
    raise typer.Exit(0 if result.ok else BUSY if result.run.busy and not result.run.failed else 1)


def _list(pattern: str, json: bool) -> None:
    from rocstack.verify import suite

    checks = suite.fitting(pattern)
    if json:
        print_json({"checks": [check.model_dump(mode="json") for check in checks]})
        return
    rows = [(str(check.level), check.name, check.title, ", ".join(check.needs) or "-") for check in checks]
    table(("LEVEL", "CHECK", "WHAT IS SO", "NEEDS"), rows)


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
    from rocstack.verify.service_report import SHOWN

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
    if each.result.shown not in ("", SHOWN):
        say(f"          {each.result.shown}")
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
    rows = []
    for each in entries:
        level = f"{each.level} {each.only}" if each.only else str(each.level)
        result = "passed" if each.passed else "failed" if each.complete else "interrupted"
        virtual = ", virtual" if each.virtual else ""
        failing = ", ".join([name or "cluster" for name in each.failing] + [f"{name} absent" for name in each.absent])
        rows.append(
            (each.when, level, result + virtual, failing or "-", f"{each.seconds:.0f}", each.image[7:19] or "-")
        )
    table(("WHEN", "LEVEL", "RESULT", "FAILING", "SECONDS", "IMAGE"), rows, right=(4,))
    marks = history.flapping([each for each in entries if each.like(entries[-1])])
    if marks:
        out.print()
        table(
            ("NODE", "RUNS", "FAILED", "CHANGED"),
            [(name or "cluster", row, str(row.count("x")), str(history.turns(row))) for name, row in marks.items()],
            right=(2, 3),
        )
        out.say("from the oldest: x fails, - took no part, . else")


def _export_cvs(inventory: Path | None, folder: Path) -> None:
    from rocstack.verify import cvs

    chosen = settings()
    files, notes = cvs.export(inventory_path(chosen, inventory), folder, chosen.cluster, chosen.overlay_folder())
    for file in files:
        out.say(str(file))
    for note in notes:
        say(f"note: {note}")
    line = f"cvs run host_configs_cvs --cluster_file {folder}/cluster.json --config_file {folder}/host_config.json"
    out.say(f"next: {line}")
