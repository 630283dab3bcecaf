"""`rocstack status`, `logs`, `backup` and `restore`: a deployed cluster, looked at and kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.base.text import count
from rocstack.cli.command import Answer, Cluster, Force, Json, Service, Yes, command, confirmed
from rocstack.cli.ui import Interrupted, escape, out, print_json, show_finding, table
from rocstack.steps.options import Flag, StatusOptions, inventory_path, settings

if TYPE_CHECKING:
    from rocstack.deploy.state.status import NodeStatus, Status
    from rocstack.deploy.work.backup import BackupInfo

WIDE = 120  # columns of a terminal, from which on all is shown
# Nobody there hears that we are gone, but its input ends: then `docker logs` has to.
_FOLLOW = 'exec 3<&0; "$@" & p=$!; exec 2>/dev/null; (cat <&3; kill $p) >/dev/null 2>&1 & wait $p'
Nodes = Annotated[Path, Flag("The cluster's inventory.", argument=True)]
File = Annotated[Path, Flag("Backup file. It contains jobs' scripts, so only you can read it.", argument=True)]


@command("rocstack status inventory.yml --watch")
def status(
    choice: StatusOptions,
    watch: Annotated[bool, Flag("Repeat until Ctrl-C.")] = False,
    every: Annotated[float, Flag("Seconds between two readings of --watch.", least=1)] = 5.0,
    json: Json = False,
) -> None:
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
    models = sorted({node.virtual for node in cluster.nodes if node.virtual})
    virtual = f" (virtual: {', '.join(models)})" if models else ""
    nodes = f"{count(len(cluster.nodes), 'node')}{virtual}, control node {cluster.control}"
    out.print(f"[bold]{escape(cluster.cluster or 'no cluster')}[/]" + escape(f": {nodes}"))
    if cluster.release:
        out.say(f"release of {cluster.release.when} by {cluster.release.who}: {cluster.release.basis}")
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


@command("rocstack logs n2 --follow")
def logs(
    node: Annotated[str, Flag("Node of the inventory.", argument=True)],
    inventory: Cluster = None,
    service: Service = None,
    follow: Annotated[bool, Flag("Follow the log until Ctrl-C.", ("--follow", "-f"))] = False,
    lines: Annotated[int, Flag("Number of last lines to show.", ("--lines", "-n"), least=0)] = 100,
) -> None:
    """Show the log of a node's container: slurmd, slurmctld, the entrypoint and the gate write there."""
    from rocstack.deploy.state import service_target

    target = service_target.target(inventory_path(settings(), inventory), node, service)
    words = ["docker", "logs", f"--tail={lines}", *(["--follow"] if follow else []), target.container]
    try:
        if not follow:
            line = target.ssh_host.argv(words, options=["-T", "-q"])
            raise typer.Exit(subprocess.call(line, stdin=subprocess.DEVNULL))
        line = target.ssh_host.argv(["sh", "-c", _FOLLOW, "sh", *words], options=["-T", "-q"])
        with subprocess.Popen(line, stdin=subprocess.PIPE) as process:
            raise typer.Exit(process.wait())
    except Interrupted:
        raise typer.Exit(130) from None


def enter(node: str, words: Sequence[str], inventory: Path | None, service: str | None) -> int:
    """A shell, or a command, in the container of `node`; its exit status."""
    from rocstack.deploy.state import service_target

    target = service_target.target(inventory_path(settings(), inventory), node, service)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    name = os.environ.get("TERM", "")
    kind = [f"--env=TERM={name}"] if terminal and re.fullmatch(r"[A-Za-z0-9._+-]{1,40}", name) else []
    start = ["docker", "exec", "--interactive", *(["--tty"] if terminal else []), *kind, target.container]
    line = target.ssh_host.argv([*start, *(words or ["bash"])], options=["-t" if terminal else "-T", "-q"])
    return subprocess.call(line)


@command("rocstack backup inventory.yml slurm-2026-11-20.tar.zst")
def backup(inventory: Nodes, file: File) -> Answer:
    """Save the accounting database and slurmctld's state to one file. Nothing is stopped."""
    from rocstack.deploy.read import inventory as inventories
    from rocstack.deploy.state import service_target
    from rocstack.deploy.work import backup as backups

    began = time.monotonic()
    nodes = inventories.load(inventory_path(settings(), inventory))
    info = backups.backup(service_target.target(nodes.path, nodes.control.name, "controller").ssh_host, file)
    yield {"file": str(file), **asdict(info)}
    out.say(f"{file}: {_of(info)}, {info.size / 1e6:.1f} MB, {time.monotonic() - began:.1f} s")
    out.print("keys are not in it: keep rocstack-secrets.yml as well")


@command("rocstack restore inventory.yml slurm-2026-11-20.tar.zst")
def restore(inventory: Nodes, file: File, force: Force = False, yes: Yes = False) -> Answer:
    """Replace the accounting database and slurmctld's state with a backup. The controller stops meanwhile."""
    from rocstack.deploy.read import inventory as inventories
    from rocstack.deploy.read import journal
    from rocstack.deploy.state import service_target
    from rocstack.deploy.work import backup as backups
    from rocstack.deploy.work import controller
    from rocstack.edge import locks

    began = time.monotonic()
    info = backups.about(file)
    nodes = inventories.load(inventory_path(settings(), inventory))
    confirmed(f"Slurm's queue and accounting become those of the backup, {_of(info)}: what came since is lost.", yes)
    ssh_host = service_target.target(nodes.path, nodes.control.name, "controller").ssh_host
    with locks.cluster_lock(ssh_host, journal.lock()):
        controller.end_jobs(ssh_host, force)
        cancelled = backups.restore(ssh_host, file)
    yield {"file": str(file), **asdict(info), "cancelled": cancelled}
    if cancelled:
        out.print(f"cancelled, because they ran then and don't run now: {', '.join(map(str, cancelled))}")
    out.say(f"restored: {_of(info)}, {time.monotonic() - began:.1f} s")
    out.say(f"next: rocstack status {inventory}")


def _of(info: BackupInfo) -> str:
    return f"cluster {info.cluster}, Slurm {info.slurm}, {info.time}"
