"""`rocstack run`, `shell` and `demo`: the image on this host."""

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from rocstack.base.errors import CheckFailed, Missing
from rocstack.cli.command import Cluster, Json, Service, command
from rocstack.cli.ui import State, err, out, print_json, say, table
from rocstack.steps.job_options import TRAIN, RunOptions
from rocstack.steps.options import Flag, Nic, Stack, settings

if TYPE_CHECKING:
    from rocstack.steps.run import RunPlan

COMMANDS = {"trainer": TRAIN}  # a component's name as the command
Print = Annotated[bool, Flag("Print the docker line and stop.", ("--print",))]


@command(
    "rocstack run trainer --config tiny --steps 5 --ranks 2",
    allow_extra_args=True,
    ignore_unknown_options=True,
    allow_interspersed_args=False,
)
def run(context: typer.Context, choice: RunOptions, show: Print = False, json: Json = False) -> None:
    """Run a command in the image with this host's devices, groups, limits and mounts. The current folder is /workspace.

    `rocstack run trainer ...` is short for `rocstack run -- rocstack-train ...`, which writes as you, not as root.
    """
    State.json = json  # --json behind the command is the command's
    words = context.args
    _start(choice, (*(COMMANDS.get(word, word) for word in words[:1]), *words[1:]), show, json)


@command("rocstack shell n1 -- sinfo --Node")
def shell(
    choice: RunOptions,
    node: Annotated[str | None, Flag("Node of the inventory; default: this host.", argument=True)] = None,
    command: Annotated[list[str] | None, Flag("Command to run instead of the shell, after --.", argument=True)] = None,
    inventory: Cluster = None,
    service: Service = None,
    show: Print = False,
) -> None:
    """Open a shell, or run a command, in the container of a node of the deployed cluster.

    Without NODE: a shell in the image on this host, with its devices, groups, limits and mounts.
    """
    if node:
        from rocstack.cli.operate import enter

        raise typer.Exit(enter(node, command or (), inventory, service))
    _start(choice, ("bash",), show, False)


def _start(choice: RunOptions, words: tuple[str, ...], show: bool, json: bool) -> None:
    """Prints the line, or replaces this command by it; its exit code is ours."""
    from rocstack.container.run_line import shell_quote
    from rocstack.steps.run import plan_run

    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    plan = plan_run(choice, words, terminal=terminal, stdin=not sys.stdin.isatty(), dry=show)
    line = plan.line
    if show and json:
        print_json(plan.to_dict())
        return
    for note in line.notes:
        say(f"note: {note}")
    if show:
        sys.stdout.write(shell_quote(line) + "\n")
        return
    start_line(plan)


def start_line(plan: "RunPlan") -> NoReturn:
    """Runs the container; its exit code is ours."""
    from rocstack.node.limits import refused_ulimit

    line, environ = plan.line, os.environ | plan.variables
    while True:
        code, output = _docker(line.args, environ)
        refused = refused_ulimit(output) if code in (125, 126, 127) else None
        less = line.without_ulimit(refused) if refused else line
        if less.flags == line.flags:
            raise typer.Exit(code)
        line = less
        say(f"note: {line.notes[-1]}; starting without it")


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


@command("rocstack demo --nic tcp")
def demo(
    stack: Stack = None,
    nic: Nic = None,
    steps: Annotated[int, Flag("Training steps to run.")] = 8,
    json: Json = False,
) -> None:
    """Run the built image: print its versions and train a tiny model on 2 ranks."""
    from rocstack.container import privileges
    from rocstack.edge import engine
    from rocstack.image.build_report import with_built_stack

    reference = with_built_stack(settings(stack=stack, nic=nic)).image_name("worker")
    if engine.find_image(engine.connect(), reference) is None:
        raise Missing.of("not-built", reference=reference)
    words = ["docker", "run", "--rm", "--no-healthcheck", "--ipc=host", *privileges.LEAST, reference]
    listed = subprocess.run([*words, "rocstack-versions"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise CheckFailed.of("demo-failed", reference=reference, output=listed.stderr.strip()[-300:])
    versions = dict(line.split("\t", 1) for line in listed.stdout.splitlines())
    if not json:
        table(("COMPONENT", "VERSION"), versions.items(), title=f"{reference}, as read inside the container")
        out.print()
    train = [*words, "rocstack-train", "--config", "tiny", "--steps", str(steps), "--ranks", "2"]
    err.print("training a tiny Llama on 2 ranks (CPU, gloo)")
    ran = subprocess.run(train, capture_output=json, text=True, check=False)
    if json:
        training = {"training": ran.stdout.splitlines(), "ok": ran.returncode == 0}
        print_json({"image": reference, "versions": versions, **training})
        raise typer.Exit(int(ran.returncode != 0))
    if ran.returncode != 0:
        raise CheckFailed.of("demo-unfinished")
