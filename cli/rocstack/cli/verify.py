"""`rocstack verify`: the acceptance suite on a deployed cluster, and what it found."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import print_json, table

Level = Annotated[int, typer.Option(min=0, max=4, help="0 image, 1 cluster, 2 GPUs and fabric, 3 performance, 4 soak.")]
Only = Annotated[str, typer.Option(metavar="PATTERN", help="Checks whose name fits: munge, 'mpi-*'.")]
Out = Annotated[Path | None, typer.Option("--report", help="Folder of the report; default: one of its own each run.")]
User = Annotated[str, typer.Option(help="Whose jobs they are; default: rocstack-verify, which deploy makes.")]
Wait = Annotated[str, typer.Option(help="How long a job may wait for its turn: 5m, 2h.")]
Evidence = Annotated[Path | None, typer.Option(help="Judge an earlier run's evidence.json again, without the cluster.")]
List = Annotated[bool, typer.Option("--list", help="Name all checks, and end.")]


def register(app: typer.Typer) -> None:
    app.command("verify", epilog="Example: rocstack verify inventory.yml --level 2")(verify)


def verify(
    inventory: options.Nodes = None,
    level: Level = 3,
    only: Only = "",
    report: Out = None,
    user: User = "",
    wait: Wait = "5m",
    evidence: Evidence = None,
    list_checks: List = False,
    json: options.Json = False,
) -> None:
    """Prove a deployed cluster, GPU to gradient, and write the report.

    Runs as an ordinary Slurm user beside other jobs, and leaves nothing behind. Nodes that are down are named; the rest
    is verified. Exit code 1: a check failed.
    """
    from rocstack.cli.verify_report import progress, show
    from rocstack.verify import suite
    from rocstack.verify.suite import Wish

    if list_checks:
        return _list(json)
    chosen = options.settings()
    path = None if evidence else options.inventory(chosen, inventory)
    folder = report or Path(chosen.out) / "verify" / time.strftime("%Y%m%d-%H%M%S")
    wish = Wish(folder, path, evidence, level, only, user, _seconds(wait))
    with progress() as on_event:
        found = suite.run(wish, on_event)
    if json:
        print_json(found.model_dump(mode="json", by_alias=True))
    else:
        show(found, folder)
    raise typer.Exit(0 if found.passed else 1)


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
    import re

    from rocstack.cluster.settings import seconds
    from rocstack.errors import BadInput

    whole = seconds(text) if re.fullmatch(r"[0-9]+[smhd]", text) else None
    if whole is None:
        raise BadInput(f"--wait {text}: not a duration", code="bad-value", next_step="such as 30s, 5m or 2h")
    return whole
