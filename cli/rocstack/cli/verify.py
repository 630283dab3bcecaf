"""`rocstack verify`: the acceptance suite on a deployed cluster, and what it found."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import Interrupted, print_json, say, table
from rocstack.steps.options import Inventory as Nodes

if TYPE_CHECKING:
    from rocstack.verify.result import Run
    from rocstack.verify.suite import VerifyOptions

BUSY = 75  # sysexits.h: try again later

Level = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=4,
        help="0 image, 1 cluster, 2 GPUs and fabric, 3 performance, 4 soak, each with those below it; default: 3, or 1 "
        "with --watch.",
        show_default=False,
    ),
]
Only = Annotated[str, typer.Option(metavar="PATTERN", help="Checks whose name fits: munge, 'mpi-*'.")]
Out = Annotated[Path | None, typer.Option("--report", help="Folder of the report; default: a new one each run.")]
User = Annotated[str, typer.Option(help="Whose jobs they are; default: rocstack-verify, which deploy makes.")]
Wait = Annotated[str, typer.Option(help="How long a job may wait for its turn: 5m, 2h.")]
Evidence = Annotated[Path | None, typer.Option(help="Judge an earlier run's evidence.json again, without the cluster.")]
Names = Annotated[bool, typer.Option("--list", help="Name all checks, and end.")]
Drain = Annotated[bool, typer.Option("--drain-failing", help="Drain the nodes that fail, with the reason.")]
Force = Annotated[bool, typer.Option("--force", help="With --drain-failing: also more than half of the workers.")]
Watch = Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C: what changed, and a history.")]
Every = Annotated[str, typer.Option(help="Between two runs of --watch: 10m, 1h.")]
History = Annotated[bool, typer.Option("--history", help="Show the last runs, and end.")]
Cvs = Annotated[Path | None, typer.Option("--export-cvs", help="Write inventory and configuration for AMD's cvs here.")]


def register(app: typer.Typer) -> None:
    options.add(app, "verify", verify, "rocstack verify inventory.yml --level 2")


def verify(
    inventory: Nodes = None,
    level: Level = None,
    only: Only = "",
    report: Out = None,
    user: User = "",
    wait: Wait = "5m",
    drain_failing: Drain = False,
    force: Force = False,
    watch: Watch = False,
    every: Every = "10m",
    history: History = False,
    evidence: Evidence = None,
    list_checks: Names = False,
    export_cvs: Cvs = None,
    json: options.Json = False,
) -> None:
    """Prove a deployed cluster, GPU to gradient, and write the report.

    Runs as an ordinary Slurm user beside other jobs, and leaves nothing behind. Nodes that are down are named; the rest
    is verified. Exit code 1: a check failed; 75: all workers were busy with jobs, and nothing is proved or taken back.
    """
    from rocstack.cli import verify_after
    from rocstack.verify.suite import VerifyOptions

    _refuse(
        (evidence, inventory, "--evidence judges without the cluster: leave the inventory away"),
        (evidence, watch or drain_failing or export_cvs or user, "--evidence judges without the cluster: it goes "
         "with --level, --only, --report and --json"),
        (force, not drain_failing, "--force is for --drain-failing"),
        (watch, report or json or export_cvs, "--watch writes a line a run, and a report each in a folder of its own"),
    )  # fmt: skip
    chosen = options.settings()
    out = Path(chosen.out) / "verify"
    if list_checks:
        return _list(json)
    if history:
        return verify_after.show_history(out, json=json)
    path = None if evidence else options.inventory(chosen, inventory)
    if export_cvs and path:
        return verify_after.export_cvs(path, export_cvs, chosen)
    default = 1 if watch else 3
    asked = default if level is None else level
    folder = report or _folder(out, "" if path else "replay-")
    wish = VerifyOptions(folder, path, evidence, asked, only, user, _seconds(wait), out if path else None)
    if watch and path:
        verify_after.watch(lambda: _quiet(wish, out), path, out, every=every, drain=drain_failing, force=force)
    found = _run(wish, json)
    if path:
        verify_after.finish(found, path, out, wish.folder, drain=drain_failing, force=force)
    raise typer.Exit(0 if found.passed else BUSY if found.busy and not found.failed else 1)


def _refuse(*pairs: tuple[object, object, str]) -> None:
    """
    Raises:
        BadInput: both of a pair are given.
    """
    from rocstack.base.errors import BadInput

    for one, other, why in pairs:
        if one and other:
            raise BadInput(f"options that don't go together: {why}", code="bad-value")


def _run(wish: VerifyOptions, json: bool) -> Run:
    from rocstack.cli.verify_report import progress, show
    from rocstack.verify import suite

    try:
        with progress() as on_event:
            found = suite.run(wish, on_event)
    except Interrupted:
        report = wish.folder / "report.html"
        say(f"stopped; what was found until then: {report}" if report.exists() else "stopped before anything was found")
        raise typer.Exit(130) from None
    if json:
        print_json(found.model_dump(mode="json", by_alias=True))
    else:
        show(found, wish.folder)
    return found


def _quiet(wish: VerifyOptions, out: Path) -> tuple[Run, Path]:
    """One of several runs, in a folder of its own."""
    from rocstack.cli.verify_report import aside
    from rocstack.verify import suite

    folder = _folder(out)
    return suite.run(replace(wish, folder=folder), aside), folder


def _folder(out: Path, kind: str = "") -> Path:
    name = kind + time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    tries = (out / (f"{name}-{number}" if number else name) for number in range(100))
    return next(folder for folder in tries if not folder.exists())


def _list(json: bool) -> None:
    from rocstack.verify import suite

    checks = suite.listed()
    if json:
        print_json([check.model_dump(mode="json") for check in checks])
        return
    rows = [(str(check.level), check.name, check.title, ", ".join(check.needs) or "-") for check in checks]
    table(("LEVEL", "CHECK", "WHAT IS SO", "NEEDS"), rows)


def _seconds(text: str) -> float:
    """
    Raises:
        BadInput: it is no duration.
    """
    from rocstack.base.errors import BadInput
    from rocstack.cluster.operation import seconds

    whole = seconds(text) if re.fullmatch(r"[1-9][0-9]{0,5}[smhd]", text) else None
    if whole is None:
        raise BadInput(f"--wait {text}: not a duration", code="bad-value", next_step="such as 30s, 5m or 2h")
    return whole
