"""`rocstack run` and `rocstack shell`: the image on this host."""

import os
import signal
import subprocess
import sys
from typing import Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import State, err, escape, print_json
from rocstack.steps.run import TRAIN, RunOptions

COMMANDS = {"trainer": TRAIN}  # a component's name as the command
Node = Annotated[str | None, typer.Argument(help="Node of the inventory; default: this host.")]
Command = Annotated[list[str] | None, typer.Argument(help="Command to run instead of the shell, after --.")]
Print = Annotated[bool, typer.Option("--print", help="Print the docker line and stop.")]


def register(app: typer.Typer) -> None:
    passes = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    example = "rocstack run trainer --config tiny --steps 5 --ranks 2"
    options.add(app, "run", run, example, context_settings=passes)
    options.add(app, "shell", shell, "rocstack shell n1 -- sinfo --Node")


def run(context: typer.Context, choice: RunOptions, show: Print = False, json: options.Json = False) -> None:
    """Run a command in the image with this host's devices, groups, limits and mounts. The current folder is /workspace.

    `rocstack run trainer ...` is short for `rocstack run -- rocstack-train ...`, which writes as you, not as root.
    """
    State.json = json  # --json behind the command is the command's
    words = context.args
    start(choice, (*(COMMANDS.get(word, word) for word in words[:1]), *words[1:]), show, json)


def shell(
    choice: RunOptions,
    node: Node = None,
    command: Command = None,
    inventory: options.Cluster = None,
    service: options.Service = None,
    show: Print = False,
) -> None:
    """Open a shell, or run a command, in the container of a node of the deployed cluster.

    Without NODE: a shell in the image on this host, with its devices, groups, limits and mounts.
    """
    if node:
        from rocstack.cli.at_node import enter

        raise typer.Exit(enter(node, command or [], inventory, service))
    start(choice, ("bash",), show, False)


def start(choice: RunOptions, command: tuple[str, ...], show: bool, json: bool) -> None:
    """Prints the line, or replaces this command by it; its exit code is ours."""
    from rocstack.container.run_line import shell_quote
    from rocstack.node.limits import refused_ulimit
    from rocstack.steps.run import plan_run

    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    plan = plan_run(choice, command, terminal=terminal, stdin=not sys.stdin.isatty(), dry=show)
    line = plan.line
    if show and json:
        print_json(plan.to_dict())
        return
    for note in line.notes:
        err.print(f"note: {escape(note)}")
    if show:
        sys.stdout.write(shell_quote(line) + "\n")
        return
    environ = os.environ | plan.variables
    while True:
        code, output = _docker(line.args, environ)
        refused = refused_ulimit(output) if code in (125, 126, 127) else None
        less = line.without_ulimit(refused) if refused else line
        if less.flags == line.flags:
            raise typer.Exit(code)
        line = less
        err.print(f"note: {escape(line.notes[-1])}; starting without it")


def _docker(args: tuple[str, ...], environ: dict[str, str]) -> tuple[int, str]:
    """Runs docker with its messages shown as they come; gives the exit status and the first 4 kB of them, where a
    refused limit is named. How an interrupted command ends is its own affair, so its status is waited for."""
    with subprocess.Popen(["docker", *args], env=environ, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        output = b""
        # Ctrl-C reaches the client as well as us, and it passes it on; SIGTERM reaches us alone.
        before = {
            signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
            signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
        }
        try:
            while chunk := os.read(process.stderr.fileno(), 65536):
                output = (output + chunk)[:4096]
                sys.stderr.buffer.write(chunk)
                sys.stderr.flush()
            process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return process.returncode, output.decode("utf-8", "replace")
