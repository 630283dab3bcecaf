"""`rocstack verify`: the acceptance suite on a deployed cluster, and what it found."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import print_json, table

if TYPE_CHECKING:
    from rocstack.verify.result import Run
    from rocstack.verify.suite import Wish

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
    app.command("verify", epilog="Example: rocstack verify inventory.yml --level 2")(verify)


def verify(
    inventory: options.Nodes = None,
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
    is verified. Exit code 1: a check failed.
    """
    from rocstack.cli import verify_more
    from rocstack.verify.suite import Wish

    chosen = options.settings()
    out = Path(chosen.out) / "verify"
    if list_checks:
        return _list(json)
    if history:
        return verify_more.show_history(out, json=json)
    path = None if evidence else options.inventory(chosen, inventory)
    if export_cvs and path:
        return verify_more.export_cvs(path, export_cvs, chosen)
    default = 1 if watch else 3
    asked = default if level is None else level
    wish = Wish(report or _folder(out), path, evidence, asked, only, user, _seconds(wait))
    if watch and path:
        verify_more.watch(lambda: _quiet(wish, out), path, out, every=every, drain=drain_failing, force=force)
    found = _run(wish, out, json)
    if path:
        verify_more.finish(found, path, out, drain=drain_failing, force=force)
    raise typer.Exit(0 if found.passed else 1)


def _run(wish: Wish, out: Path, json: bool) -> Run:
    from rocstack.cli.verify_report import progress, show
    from rocstack.verify import suite

    with progress() as on_event:
        found = suite.run(replace(wish, previous=suite.newest(out, wish)), on_event)
    if json:
        print_json(found.model_dump(mode="json", by_alias=True))
    else:
        show(found, wish.folder)
    return found


def _quiet(wish: Wish, out: Path) -> Run:
    """One of several runs, in a folder of its own."""
    from rocstack.verify import suite

    return suite.run(replace(wish, folder=_folder(out), previous=suite.newest(out, wish)), lambda event: None)


def _folder(out: Path) -> Path:
    name = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
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
    from rocstack.cluster.operation import seconds
    from rocstack.errors import BadInput

    whole = seconds(text) if re.fullmatch(r"[1-9][0-9]{0,5}[smhd]", text) else None
    if whole is None:
        raise BadInput(f"--wait {text}: not a duration", code="bad-value", next_step="such as 30s, 5m or 2h")
    return whole
