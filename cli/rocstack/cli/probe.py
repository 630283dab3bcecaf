"""`rocstack probe`: what this host is, or every node of an inventory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.base.errors import BadInput, hinted
from rocstack.base.text import count, listed
from rocstack.cli.command import Json, command
from rocstack.cli.ui import err, escape, out, print_json, say, table
from rocstack.steps.options import Flag, ProbeOptions

if TYPE_CHECKING:
    from rocstack.edge.ansible import State
    from rocstack.node.profile import NodeProfile
    from rocstack.steps.probe import FabricEnvironment, ProbeResult

NARROW = (0, 1, 2, 3, 6, 8)  # columns of the table on a narrow terminal


@command("rocstack probe inventory.yml --out nodes.json")
def probe(
    choice: ProbeOptions,
    draw: Annotated[str | None, Flag("Draw only this node.", metavar="NODE")] = None,
    env: Annotated[bool, Flag("Show the fabric's environment, with the reason for every line.")] = False,
    nic: Annotated[str | None, Flag("NIC profile for --env; default: that of the nodes' cards.")] = None,
    json: Json = False,
) -> None:
    """Inspect nodes: GPUs, NICs, drivers, kernel ABI, GIDs and libraries. Changes nothing on them.

    Works without root, and names what it could not read.
    """
    from rocstack.steps import probe as steps

    with _progress(choice.inventory is not None) as on_node:
        result = steps.probe(choice, on_node)
    for name, file in result.recorded:
        say(f"{name} is recorded as {file}")
    if choice.out and result.profiles:
        say(f"{count(len(result.profiles), 'node profile')}: {choice.out}")
    drawn = _named(result, draw) if draw else None
    if env:
        environment = steps.fabric_environment(result.profiles, nic, choice.overlay)
        print_json(environment.to_dict()) if json else _show_env(result.profiles, environment)
    elif json:
        print_json(result.to_dict())
    elif drawn:
        _draw(drawn)
    elif result.profiles:
        _show(result.profiles)
    for failure in result.failures:
        err.print(f"[bold red]{escape(failure.node)}[/]: {failure.state}: {escape(_clean(failure.reason))}")
    if not result.ok:
        raise typer.Exit(1)


@contextmanager
def _progress(shown: bool) -> Iterator[Callable[[str, State], None]]:
    """How many nodes answered, on a terminal; nothing without one, since it takes seconds."""
    begun: set[str] = set()
    ended: set[str] = set()
    status = err.status("probing") if shown and err.is_terminal else None

    def on_event(host: str, state: State) -> None:
        begun.add(host)
        if state != "started":
            ended.add(host)
        if status:
            status.update(f"probing: {len(ended)} of {len(begun)} nodes answered")

    with status or nullcontext():
        yield on_event


def _show(nodes: Sequence[NodeProfile]) -> None:
    from rocstack.probe import summary

    if len(nodes) == 1:
        out.print(f"[bold]{escape(summary.name(nodes[0]))}[/]")
        for row, text in summary.facts(nodes[0]).items():
            out.say(f"  {row:9}  {_clean(text)}")
        out.print()
        _draw(nodes[0])
    else:
        shown = NARROW if out.is_terminal and out.width < 130 else range(len(summary.COLUMNS))
        rows = map(summary.cells, nodes)
        table([summary.COLUMNS[at] for at in shown], ([_clean(row[at]) for at in shown] for row in rows))
        out.print()
        for line in summary.alike(nodes):
            out.say(_clean(line))
    _show_unread(nodes)


def _draw(node: NodeProfile) -> None:
    from rocstack.probe.diagram import draw

    drawing = draw(node, min(out.width, 120), _unicode())
    out.say(drawing.rstrip() or f"{node.name}: no GPU and no NIC")


def _named(result: ProbeResult, name: str) -> NodeProfile:
    for node in result.profiles:
        if node.name == name:
            return node
    why = [f": {failure.state}: {_clean(failure.reason)}" for failure in result.failures if failure.node == name]
    known = [node.name for node in result.profiles]
    raise BadInput.of("node-not-read", name=name, why=why[0] if why else hinted(name, known))


def _show_unread(nodes: Iterable[NodeProfile]) -> None:
    """Grouped by what and why, since many nodes fail alike."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        for unread in node.unread:
            groups.setdefault((unread.what, unread.why), []).append(node.name)
    for (what, why), names in list(groups.items())[:20]:
        out.say(_clean(f"not read on {listed(names)}: {what}: {why}"))
    if len(groups) > 20:
        out.print(f"not read: {len(groups) - 20} more; --json has them all")


def _show_env(nodes: Iterable[NodeProfile], environment: FabricEnvironment) -> None:
    from rocstack.node.fabric import render_env

    for node in nodes:
        if node.name in environment.fabrics:
            out.say(render_env(environment.fabrics[node.name]))
        else:
            say(f"{node.name}: no card of a NIC profile; --nic NAME shows the settings of one")
    for text in environment.disagreements:
        say(text)


def _clean(text: str) -> str:
    """What a node said, without anything that could steer the terminal."""
    from rocstack.probe.diagram import clean

    return clean(text, len(text), _unicode())


def _unicode() -> bool:
    try:
        "├│└─×→…".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
