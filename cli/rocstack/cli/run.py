"""`rocstack run` and `rocstack shell`: the image on this host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import State, err, escape, print_json

if TYPE_CHECKING:
    from rocstack.container.mount import Mount

TRAIN = "rocstack-train"
COMMANDS = {"trainer": TRAIN}  # a component's name as the command
Image = Annotated[str | None, typer.Option(help="Image instead of the one built here for --stack and --nic.")]
RoleName = Annotated[str, typer.Option(help="worker or control.")]
Gpus = Annotated[str, typer.Option(help="all, none, or numbers such as 0,2-3.")]
Mounts = Annotated[list[str], typer.Option("--mount", help="SRC[:DST[:ro]]; may be given several times.")]
Env = Annotated[list[str], typer.Option("--env", help="NAME or NAME=VALUE; the value never reaches the process list.")]
Name = Annotated[str | None, typer.Option(help="Name of the container.")]
Node = Annotated[str | None, typer.Argument(help="A node of the inventory; without it: this host.")]
Command = Annotated[list[str] | None, typer.Argument(help="A command instead of the shell, behind --.")]
Print = Annotated[bool, typer.Option("--print", help="Print the docker line and stop.")]


def register(app: typer.Typer) -> None:
    passes = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    app.command(
        "run",
        context_settings=passes,
        epilog="Example: rocstack run trainer --config tiny --steps 5 --ranks 2",
    )(run)
    app.command("shell", epilog="Example: rocstack shell n1 -- sinfo --Node")(shell)


def run(
    context: typer.Context,
    image: Image = None,
    role: RoleName = "worker",
    stack: options.Stack = None,
    nic: options.Nic = None,
    gpus: Gpus = "all",
    mount: Mounts = [],  # noqa: B006
    env: Env = [],  # noqa: B006
    name: Name = None,
    show: Print = False,
    json: options.Json = False,
) -> None:
    """Start the image with this host's devices, groups, limits and mounts. The current folder is /workspace.

    `rocstack run trainer ...` is short for `rocstack run -- rocstack-train ...`, which writes as you, not as root.
    """
    State.json = json  # --json behind the command is the command's
    words = context.args
    start(
        [*(COMMANDS.get(word, word) for word in words[:1]), *words[1:]],
        image,
        role,
        stack,
        nic,
        gpus,
        mount,
        env,
        name,
        show,
        json,
    )


def shell(
    node: Node = None,
    command: Command = None,
    inventory: options.Cluster = None,
    service: options.Service = None,
    image: Image = None,
    role: RoleName = "worker",
    stack: options.Stack = None,
    nic: options.Nic = None,
    gpus: Gpus = "all",
    mount: Mounts = [],  # noqa: B006
    env: Env = [],  # noqa: B006
    name: Name = None,
    show: Print = False,
) -> None:
    """A shell, or a command, in the container of a node of the deployed cluster.

    Without NODE: a shell in the image on this host, with its devices, groups, limits and mounts.
    """
    if node:
        from rocstack.cli.at_node import enter

        raise typer.Exit(enter(node, command or [], inventory, service))
    start(["bash"], image, role, stack, nic, gpus, mount, env, name, show, False)


def start(
    command: list[str],
    image: str | None,
    role: str,
    stack: str | None,
    nic: str | None,
    gpus: str,
    mount: list[str],
    env: list[str],
    name: str | None,
    show: bool,
    json: bool,
) -> None:
    from rocstack.base.errors import BadInput, Missing
    from rocstack.container.environment import parse_env
    from rocstack.container.host import read_host
    from rocstack.container.mount import check_mounts, parse_mount
    from rocstack.container.run_line import parse_gpus, run_line, shell_quote
    from rocstack.edge import engine
    from rocstack.node.refused_limit import refused_ulimit
    from rocstack.stack.component import ROLES

    chosen = options.settings(stack=stack, nic=nic)
    if role not in ROLES:
        raise BadInput(f"no role '{role}': known: {', '.join(ROLES)}", code="unknown-role")
    reference = image or f"{chosen.image_prefix}/{role}:{chosen.stack_name()}-{chosen.nic}"
    variables = parse_env(env, os.environ)
    own = [parse_mount(text, base=Path.cwd(), home=Path.home()) for text in mount]
    chosen_gpus = parse_gpus(gpus)
    mounts = check_mounts([*check_mounts(own), *_from_host(reference, needed=not show)])
    line = run_line(
        read_host(),
        reference,
        command,
        profile=chosen.run,
        gpus=chosen_gpus,
        mounts=mounts,
        workspace=Path.cwd(),
        env=variables,
        user=_person() if command[:1] == [TRAIN] else None,
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
        stdin=not sys.stdin.isatty(),
        name=name,
    )
    if show:
        if json:
            print_json({"args": list(line.args), "notes": list(line.notes)})
        else:
            for note in line.notes:
                err.print(f"note: {escape(note)}")
            sys.stdout.write(shell_quote(line) + "\n")
        return
    client = engine.connect()
    if image is None and engine.find_image(client, reference) is None:
        raise Missing(
            f"no image {reference} on this host",
            code="no-image",
            next_step=f"`rocstack build --stack {chosen.stack} --nic {chosen.nic}`, or name one: --image REFERENCE",
        )
    for note in line.notes:
        err.print(f"note: {escape(note)}")
    environ = {**os.environ, **dict(variables.values)}
    while True:
        code, said = _docker(line.args, environ)
        refused = refused_ulimit(said) if code in (125, 126, 127) else None
        less = line.without_ulimit(refused) if refused else line
        if less.flags == line.flags:
            raise typer.Exit(code)
        line = less
        err.print(f"note: {escape(line.notes[-1])}; starting without it")


def _person() -> tuple[int, int] | None:
    """Whom a run's checkpoints belong to; nobody to name where root in the container is the person already."""
    from rocstack.base.errors import Missing
    from rocstack.edge import engine

    if os.geteuid() == 0:
        return None
    try:
        rootless = engine.is_rootless(engine.connect())
    except Missing:  # of use to --print alone; whatever starts says it itself
        rootless = False
    return None if rootless else (os.geteuid(), os.getegid())


def _from_host(reference: str, *, needed: bool) -> tuple[Mount, ...]:
    """Libraries of this host that the image takes at start, if they fit it.

    Raises:
        CheckFailed: they don't, or that can't be told.
    """
    from rocstack.base.errors import CheckFailed, Missing
    from rocstack.edge import engine
    from rocstack.nic.host_libraries import host_mounts
    from rocstack.node.gate import FITS, SLINGSHOT, judge
    from rocstack.node.image import from_labels
    from rocstack.probe.recordings import probe_host

    try:
        found = engine.find_image(engine.connect(), reference)
    except Missing:
        if needed:
            raise
        return ()
    image = from_labels(reference, (found.labels if found else None) or {})
    if image.nic != SLINGSHOT and not any(provider.way == "host" for provider in image.providers):
        return ()
    node = probe_host()
    verdict = judge(image, node)
    if verdict.result != FITS:
        raise CheckFailed(
            f"{verdict.result}: {verdict.says}",
            code="unfit",
            cause="the image takes a library of this host, which must fit the image's own libibverbs and libc",
            next_step="`rocstack doctor` looks at this host",
        )
    return host_mounts(image, node)


def _docker(args: tuple[str, ...], environ: dict[str, str]) -> tuple[int, str]:
    """Runs docker with its messages shown as they come; gives the exit status and the first 4 kB of them, where a
    refused limit is named. How an interrupted command ends is its own affair, so its status is waited for."""
    with subprocess.Popen(["docker", *args], env=environ, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = b""
        # Ctrl-C reaches the client as well as us, and it passes it on; SIGTERM reaches us alone.
        before = {
            signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
            signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
        }
        try:
            while chunk := os.read(process.stderr.fileno(), 65536):
                said = (said + chunk)[:4096]
                sys.stderr.buffer.write(chunk)
                sys.stderr.flush()
            process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return process.returncode, said.decode("utf-8", "replace")
