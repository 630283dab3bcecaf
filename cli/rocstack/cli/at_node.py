"""`rocstack logs`, and `rocstack shell NODE`: a container of the deployed cluster, by plain ssh."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import Interrupted

Node = Annotated[str, typer.Argument(help="Node of the inventory.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until Ctrl-C.")]
Lines = Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of last lines to show.")]
# Nobody there hears that we are gone, but its input ends: then `docker logs` has to.
_FOLLOW = 'exec 3<&0; "$@" & p=$!; exec 2>/dev/null; (cat <&3; kill $p) >/dev/null 2>&1 & wait $p'


def register(app: typer.Typer) -> None:
    options.add(app, "logs", logs, "rocstack logs n2 --follow")


def logs(
    node: Node,
    inventory: options.Cluster = None,
    service: options.Service = None,
    follow: Follow = False,
    lines: Lines = 100,
) -> None:
    """Show the log of a node's container: slurmd, slurmctld, the entrypoint and the gate write there."""
    from rocstack.deploy.state import service_target

    chosen = options.settings()
    target = service_target.target(options.inventory(chosen, inventory), node, service)
    command = ["docker", "logs", f"--tail={lines}", *(["--follow"] if follow else []), target.container]
    try:
        if not follow:
            line = target.ssh_host.argv(command, options=["-T", "-q"])
            raise typer.Exit(subprocess.call(line, stdin=subprocess.DEVNULL))
        line = target.ssh_host.argv(["sh", "-c", _FOLLOW, "sh", *command], options=["-T", "-q"])
        with subprocess.Popen(line, stdin=subprocess.PIPE) as process:
            raise typer.Exit(process.wait())
    except Interrupted:
        raise typer.Exit(130) from None


def enter(node: str, command: list[str], inventory: Path | None, service: str | None) -> int:
    """A shell, or `command`, in the container of `node`; its exit status."""
    from rocstack.deploy.state import service_target

    chosen = options.settings()
    target = service_target.target(options.inventory(chosen, inventory), node, service)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    name = os.environ.get("TERM", "")
    kind = [f"--env=TERM={name}"] if terminal and re.fullmatch(r"[A-Za-z0-9._+-]{1,40}", name) else []
    words = ["docker", "exec", "--interactive", *(["--tty"] if terminal else []), *kind, target.container]
    line = target.ssh_host.argv([*words, *(command or ["bash"])], options=["-t" if terminal else "-T", "-q"])
    return subprocess.call(line)
