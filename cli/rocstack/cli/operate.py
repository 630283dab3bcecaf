"""`rocstack status`, `logs`, `backup`, `restore` and `rotate-keys`: a deployed cluster, looked at and kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, TextIO

import typer

from rocstack.base.text import count, listed, visible_lines
from rocstack.cli.command import Answer, Cluster, Force, Json, Service, Yes, command, confirmed
from rocstack.cli.nodes_display import show_alike
from rocstack.cli.ui import Interrupted, escape, out, print_json, table
from rocstack.steps.options import Flag, StatusOptions, inventory_path, settings

if TYPE_CHECKING:
    from rocstack.deploy.state.status import NodeStatus, Status
    from rocstack.deploy.work.backup import BackupInfo

PIECE = 1 << 16  # bytes of a line that is longer
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
    history: Annotated[bool, Flag("Show who deployed what and when, and stop.")] = False,
    json: Json = False,
) -> None:
    """Show the release, and each node's image, Slurm state, GPUs, jobs and health. Changes nothing.

    Exit code 1: something is not in order; it is named, with the next step.
    """
    from rocstack.steps.deploy import status as step

    if history:
        return _show_history(choice, json=json)

    def show(cluster: Status) -> None:
        print_json(cluster.to_dict()) if json else _show(cluster)

    if watch:
        _watch(lambda: step(choice), show, every, live=out.is_terminal and not json)
    cluster = step(choice)
    show(cluster)
    raise typer.Exit(0 if cluster.ok else 1)


def _show_history(choice: StatusOptions, *, json: bool, most: int = 20) -> None:
    from rocstack.deploy.state.history import CHANGED, UNSIGNED
    from rocstack.steps.deploy import history as step

    found = step(choice)
    if json:
        print_json(found.to_dict())
        raise typer.Exit(0 if found.ok else 1)
    rows, checked = [], any(each.signed for each in found.deploys)
    for each in found.deploys[-most:]:
        outcome = f"{each.outcome}: {each.why}" if each.why else each.outcome
        cells = (
            each.began,
            each.who,
            each.command,
            _short(each.image),
            listed(each.nodes),
            outcome,
            str(each.fence),
            each.signed,
        )
        rows.append([cell or "-" for cell in (cells if checked else cells[:-1])])
    head = ("BEGAN", "WHO", "COMMAND", "IMAGE", "NODES", "OUTCOME", "LOCK", "SIGNED BY")
    table(head if checked else head[:-1], rows, right=(6,))
    if found.unread:
        out.say(f"{count(found.unread, 'line')} of the history can't be read")
    if found.forged:
        out.say(f"{count(found.forged, 'line')} came after one that a trusted key signed; the signed one counts")
    if found.journal:
        how = found.journal if found.journal in (CHANGED, UNSIGNED) else f"as {found.journal} signed it"
        out.say(f"deploy.json, where the releases are: {how}")
    if not found.ok:
        out.say("something was changed: somebody who may write on the control node did it; ask who")
    raise typer.Exit(0 if found.ok else 1)


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
        signers = ", ".join(cluster.release.images.signers)
        signed = f"signed by {signers}" if signers else "unsigned"
        out.say(f"release of {cluster.release.when} by {cluster.release.who}: {cluster.release.basis}; {signed}")
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
    show_alike(cluster.findings)


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
            raise typer.Exit(_relay(line, subprocess.DEVNULL))
        line = target.ssh_host.argv(["sh", "-c", _FOLLOW, "sh", *words], options=["-T", "-q"])
        raise typer.Exit(_relay(line, subprocess.PIPE))
    except Interrupted:
        raise typer.Exit(130) from None


def _relay(line: list[str], stdin: int) -> int:
    """Runs a command and shows both its outputs as they come, without what could steer the terminal; its exit status.
    Its input, if it has one, ends with us."""
    with subprocess.Popen(line, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        pipes = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
        copies = [threading.Thread(target=_copy, args=(*each, process), daemon=True) for each in pipes]
        try:
            for each in copies:
                each.start()
            for each in copies:
                each.join()
        finally:
            if process.stdin:
                process.stdin.close()
            if any(each.is_alive() for each in copies):
                process.terminate()
        return process.wait()


def _copy(pipe: IO[bytes], to: TextIO, process: subprocess.Popen[bytes]) -> None:
    try:
        while piece := pipe.readline(PIECE):
            to.write(visible_lines(piece.decode(errors="replace")))
            to.flush()
    except OSError:  # nobody reads it any more
        process.terminate()


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
    from rocstack.steps.trust_policy import history_signer

    began = time.monotonic()
    info = backups.about(file)
    chosen = settings()
    nodes = inventories.load(inventory_path(chosen, inventory))
    confirmed(f"Slurm's queue and accounting become those of the backup, {_of(info)}: what came since is lost.", yes)
    ssh_host = service_target.target(nodes.path, nodes.control.name, "controller").ssh_host
    entry = {"command": "restore", "nodes": [nodes.control.name]}
    sign = history_signer(chosen)
    with locks.cluster_lock(ssh_host, journal.lock(resume="rocstack restore"), entry=entry, sign=sign) as held:
        controller.end_jobs(ssh_host, force, held)
        cancelled = backups.restore(ssh_host, file, held)
    yield {"file": str(file), **asdict(info), "cancelled": cancelled}
    if cancelled:
        out.print(f"cancelled, because they ran then and don't run now: {', '.join(map(str, cancelled))}")
    out.say(f"restored: {_of(info)}, {time.monotonic() - began:.1f} s")
    out.say(f"next: rocstack status {inventory}")


@command("rocstack rotate-keys inventory.yml")
def rotate_keys(inventory: Annotated[Path | None, Flag("The cluster's inventory.", argument=True)] = None) -> Answer:
    """Replace the MUNGE key, the JWT key and the passwords of database and registry. Jobs keep running; the controller
    restarts. Run it again if it was interrupted or a node failed.
    """
    from rocstack.deploy.nodes.runs import DeployEvents, NodeRuns
    from rocstack.deploy.read import inventory as inventories
    from rocstack.deploy.work import rotation
    from rocstack.steps.deploy import fresh_log
    from rocstack.steps.trust_policy import history_signer

    began, chosen = time.monotonic(), settings()
    nodes = inventories.load(inventory_path(chosen, inventory))
    node_runs = NodeRuns(nodes.path, fresh_log(chosen), DeployEvents(), chosen.cluster.ship.forks)
    done = rotation.rotate(nodes, node_runs, history_signer(chosen))
    yield done
    for name, why in done.failed.items():
        out.print(escape(f"{name} has not got the new keys: {why}"))
    if done.failed:
        out.say("next: repair these nodes, or remove them from the inventory; then run rocstack rotate-keys again")
    else:
        out.say(
            f"{count(len(done.nodes), 'node')} with new keys, {time.monotonic() - began:.1f} s; old tokens are invalid"
        )
        out.print("keep a copy of rocstack-secrets.yml: it has changed")


def _of(info: BackupInfo) -> str:
    return f"cluster {info.cluster}, Slurm {info.slurm}, {info.time}"
