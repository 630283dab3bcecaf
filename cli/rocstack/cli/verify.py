"""`rocstack verify`: the acceptance suite on a deployed cluster, and what it measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import Interrupted, print_json, say, table
from rocstack.steps.verify import VerifyOptions

if TYPE_CHECKING:
    from rocstack.steps.verify import VerifyResult

BUSY = 75  # sysexits.h: try again later

Names = Annotated[bool, typer.Option("--list", help="List all checks and stop.")]
Drain = Annotated[bool, typer.Option("--drain-failing", help="Drain the nodes that fail, with the reason.")]
Force = Annotated[bool, typer.Option("--force", help="With --drain-failing: drain even more than half of the workers.")]
Watch = Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C; show what changed and keep a history.")]
Every = Annotated[str, typer.Option(help="Time between two runs of --watch: 10m, 1h.")]
History = Annotated[bool, typer.Option("--history", help="Show the last runs and stop.")]
Cvs = Annotated[
    Path | None, typer.Option("--export-cvs", help="Write inventory and configuration for AMD's cvs to this folder.")
]


def register(app: typer.Typer) -> None:
    options.add(app, "verify", verify, "rocstack verify inventory.yml --level 2")


def verify(
    choice: VerifyOptions,
    drain_failing: Drain = False,
    force: Force = False,
    watch: Watch = False,
    every: Every = "10m",
    history: History = False,
    list_checks: Names = False,
    export_cvs: Cvs = None,
    json: options.Json = False,
) -> None:
    """Test a deployed cluster, from GPUs to training, and write the report.

    Runs as an ordinary Slurm user beside other jobs, and leaves nothing behind. Nodes that are down are named; the rest
    is tested. Exit code 1: a check failed; 75: all workers were busy with jobs, so nothing is proved or taken back.
    """
    from rocstack.cli import verify_after

    evidence = choice.evidence
    alone = "--evidence judges without the cluster: "
    _refuse(
        (evidence, choice.inventory, f"{alone}leave out the inventory"),
        (
            evidence,
            watch or drain_failing or export_cvs or choice.user,
            f"{alone}it goes with --level, --only, --report and --json",
        ),
        (force, not drain_failing, "--force is for --drain-failing"),
        (
            watch,
            choice.report or json or export_cvs,
            "--watch writes a line a run, and a report each in a folder of its own",
        ),
    )
    if list_checks:
        return _list(json)
    if history:
        return verify_after.show_history(json=json)
    if export_cvs:
        return verify_after.export_cvs(choice.inventory, export_cvs)
    if watch:
        verify_after.watch(choice, every=every, drain=drain_failing, force=force)
    result = _run(choice, json)
    verify_after.show_stored(result)
    if drain_failing:
        verify_after.drain(result, force)
    raise typer.Exit(0 if result.ok else BUSY if result.run.busy and not result.run.failed else 1)


def _refuse(*pairs: tuple[object, object, str]) -> None:
    """
    Raises:
        BadInput: both of a pair are given.
    """
    from rocstack.base.errors import BadInput

    for one, other, why in pairs:
        if one and other:
            raise BadInput(f"options that don't go together: {why}", code="bad-value")


def _run(choice: VerifyOptions, json: bool) -> VerifyResult:
    from rocstack.cli.verify_report import progress, show
    from rocstack.steps import verify as steps

    choice = replace(choice, report=steps.report_folder(choice))
    try:
        with progress() as on_event:
            result = steps.verify(choice, on_event)
    except Interrupted:
        report = steps.report_folder(choice) / "report.html"
        say(f"stopped; what was tested until then: {report}" if report.exists() else "stopped before any result")
        raise typer.Exit(130) from None
    print_json(result.to_dict()) if json else show(result.run, result.folder)
    return result


def _list(json: bool) -> None:
    from rocstack.verify import suite

    checks = suite.listed()
    if json:
        print_json({"checks": [check.model_dump(mode="json") for check in checks]})
        return
    rows = [(str(check.level), check.name, check.title, ", ".join(check.needs) or "-") for check in checks]
    table(("LEVEL", "CHECK", "WHAT IS SO", "NEEDS"), rows)
