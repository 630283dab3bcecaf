"""`rocstack status`: a deployed cluster in one table, and what of it is not in order."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import Interrupted, escape, out, print_json, table
from rocstack.steps.deploy import StatusOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocstack.deploy.state.status import NodeStatus, Status

WIDE = 120  # columns of a terminal, from which on all is shown
Watch = Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")]
Every = Annotated[float, typer.Option(min=1, help="Seconds between two readings of --watch.")]


def register(app: typer.Typer) -> None:
    options.add(app, "status", status, "rocstack status inventory.yml --watch")


def status(choice: StatusOptions, watch: Watch = False, every: Every = 5.0, json: options.Json = False) -> None:
    """Show the release, and each node's image, Slurm state, GPUs, jobs and health. Changes nothing.

    Exit code 1: something is not in order; it is named, with the next step.
    """
    from rocstack.steps.deploy import status as step

    def show(cluster: Status) -> None:
        print_json(cluster.to_dict()) if json else _show(cluster)

    if watch:
        _watch(lambda: step(choice), show, every, live=out.is_terminal and not json)
    cluster = step(choice)
    show(cluster)
    raise typer.Exit(0 if cluster.ok else 1)


def _watch(read: Callable[[], Status], show: Callable[[Status], None], every: float, live: bool) -> None:
    """Until it is interrupted, which is how it ends."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    try:
        if not live:
            while True:
                show(read())
                out.file.flush()
                time.sleep(every)
        # A console of its own: what is captured on the other one would have the live display in it.
        with Live(Text("reading the nodes"), console=Console(), auto_refresh=False) as screen:
            while True:
                cluster = read()
                with out.console.capture() as taken:
                    show(cluster)
                now = f"{datetime.now():%H:%M:%S}, again every {every:g} s; Ctrl-C ends it"
                screen.update(Text.from_ansi(f"{taken.get()}\n{now}"), refresh=True)
                time.sleep(every)
    except Interrupted:
        raise typer.Exit(130) from None


def _show(cluster: Status) -> None:
    from rocstack.cli.findings import show as show_finding

    models = sorted({node.virtual for node in cluster.nodes if node.virtual})
    virtual = f" (virtual: {', '.join(models)})" if models else ""
    count = len(cluster.nodes)
    name = escape(cluster.cluster or "no cluster")
    out.print(
        f"[bold]{name}[/]" + escape(f": {count} node{'s' * (count != 1)}{virtual}, control node {cluster.control}")
    )
    if cluster.release:
        out.print(escape(f"release of {cluster.release.when} by {cluster.release.who}: {cluster.release.basis}"))
    if cluster.images:
        out.print()
        rows = [
            (each.role, _short(each.id), _short(each.digest), each.stack, each.nic, each.content[:12], str(each.nodes))
            for each in cluster.images
        ]
        table(("ROLE", "IMAGE", "DIGEST", "STACK", "NIC", "CONTENT", "NODES"), rows, right=(6,))
    out.print()
    wide = not out.is_terminal or out.width >= WIDE
    cells = [_cells(node) for node in cluster.nodes]
    heads = [head for head in cells[0] if wide or head not in ("ROLES", "DIGEST", "REASON")]
    table(heads, [[row[head] for head in heads] for row in cells])
    for finding in cluster.findings:
        out.print()
        show_finding(finding, finding.node or "")


def _cells(node: NodeStatus) -> dict[str, str]:
    gpus = "-" if node.gpus is None else str(node.gpus)
    again = f", {node.restarts} restarts" if node.restarts else ""
    jobs = ", ".join(map(str, node.jobs)) if len(node.jobs) < 3 else f"{len(node.jobs)} jobs"
    return {
        "NODE": node.name,
        "ROLES": " ".join(node.roles),
        "IMAGE": _short(node.image),
        "DIGEST": _short(node.digest),
        "SLURM": node.slurm or "-",
        "GPUS": gpus if node.gres in (None, node.gpus) else f"{gpus} of {node.gres}",
        "JOBS": jobs or "-",
        "HEALTH": node.health + again,
        "VERIFIED": node.verified or "-",
        "REASON": node.reason,
    }


def _short(ident: str) -> str:
    return ident.removeprefix("sha256:")[:12] or "-"
