"""`rocstack probe`: what this host is, or every node of an inventory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import err, escape, out, print_json, say, table

if TYPE_CHECKING:
    from rocstack.edge.ansible import State
    from rocstack.node.fabric import Fabric
    from rocstack.node.profile import NodeProfile
    from rocstack.node.recording import Recording
    from rocstack.probe.recordings import Failure, Recorded

NARROW = (0, 1, 2, 3, 6, 8)  # columns of the table on a narrow terminal

Nodes = Annotated[
    Path | None, typer.Argument(help="Ansible inventory; without one it is this host.", metavar="INVENTORY")
]
Out = Annotated[Path | None, typer.Option("--out", help="Write the node profiles to this file.")]
Record = Annotated[Path | None, typer.Option(help="Write what was read, masked, to this new or empty folder.")]
Replay = Annotated[Path | None, typer.Option(help="Probe recordings instead: a file of --record, or its folder.")]
Env = Annotated[bool, typer.Option("--env", help="Show the environment of the fabric, with the reason of every line.")]
Draw = Annotated[str | None, typer.Option(metavar="NODE", help="Draw this one of several nodes.")]
Forks = Annotated[int, typer.Option(min=1, max=500, help="Nodes at a time.")]
Root = Annotated[str | None, typer.Option(help="Root of another file system instead of this host's.", hidden=True)]


def register(app: typer.Typer) -> None:
    app.command("probe", epilog="Example: rocstack probe inventory.yml --out nodes.json")(probe)


def probe(
    inventory: Nodes = None,
    to: Out = None,
    record: Record = None,
    replay: Replay = None,
    draw: Draw = None,
    env: Env = False,
    nic: options.Nic = None,
    forks: Forks = 64,
    root: Root = None,
    overlay: options.Overlay = None,
    json: options.Json = False,
) -> None:
    """Read what nodes are: GPUs, NICs, drivers, kernel ABI, GIDs, libraries. Changes nothing on them.

    Works without root; what it could not read, it names. --nic is for --env: whose settings, instead of those of the
    cards that are there.
    """
    from rocstack.probe import profiles, summary
    from rocstack.probe import recordings as probes

    _refuse(inventory, replay, root, to, record)
    folder = options.settings(overlay=overlay).overlay_folder()
    recorded = _recorded(inventory, replay, root, forks, tree=record is not None)
    found = probes.profiles(recorded.recordings, folder)
    if record:
        _record(recorded.recordings, record)
    if to and found:
        profiles.write_profiles(to, found)
        say(f"{summary.count(len(found), 'node profile')}: {to}")
    drawn = _named(found, recorded.failures, draw) if draw else None
    if env:
        _show_env(found, nic, folder, json)
    elif json:
        print_json(profiles.to_dict(found))
    elif drawn:
        _draw(drawn)
    elif found:
        _show(found)
    _show_failures(recorded.failures)
    if recorded.failures:
        raise typer.Exit(1)


def probed(inventory: Path, overlay: Path | None = None) -> tuple[NodeProfile, ...]:
    """The profiles of all nodes, for commands that need every one of them.

    Raises:
        CheckFailed: a node could not be read.
    """
    from rocstack.base.errors import CheckFailed
    from rocstack.probe import recordings as probes

    recorded = _recorded(inventory, None, None, 64)
    if recorded.failures:
        _show_failures(recorded.failures)
        raise CheckFailed(
            f"{len(recorded.failures)} of {len(recorded.failures) + len(recorded.recordings)} nodes can't be read",
            code="nodes-unread",
            next_step="repair them, or take them out of the inventory",
        )
    return probes.profiles(recorded.recordings, overlay)


def _refuse(
    inventory: Path | None, replay: Path | None, root: str | None, to: Path | None, record: Path | None
) -> None:
    from rocstack.base.errors import BadInput, Where

    if sum(each is not None for each in (inventory, replay, root)) > 1:
        raise BadInput("an inventory and --replay exclude each other", code="one-source", next_step="give one")
    if to and not to.absolute().parent.is_dir():
        raise BadInput(f"no folder {to.parent}", code="no-folder", where=Where(str(to)), next_step="create it")
    if to and to.is_dir():
        raise BadInput(f"{to} is a folder", code="no-file", where=Where(str(to)), next_step="name a file")
    if record and record.exists() and not (record.is_dir() and not any(record.iterdir())):
        text = "name a new or an empty folder"
        raise BadInput(f"{record} holds something else", code="not-empty", where=Where(str(record)), next_step=text)


def _recorded(
    inventory: Path | None, replay: Path | None, root: str | None, forks: int, *, tree: bool = False
) -> Recorded:
    from rocstack.probe import recordings as probes

    if replay:
        return probes.Recorded(probes.read_recordings(replay))
    if inventory is None:
        return probes.Recorded((probes.record_host(root or "/", tree=tree),))
    with _progress() as on_event:
        return probes.record_inventory(inventory, on_event, forks=forks, tree=tree)


@contextmanager
def _progress() -> Iterator[Callable[[str, State], None]]:
    """How many nodes answered, on a terminal; nothing without one, since it takes seconds."""
    ended: set[str] = set()
    begun: set[str] = set()
    status = err.status("probing") if err.is_terminal else None

    def on_event(host: str, state: State) -> None:
        begun.add(host)
        if state != "started":
            ended.add(host)
        if status:
            status.update(f"probing: {len(ended)} of {len(begun)} nodes answered")

    if status is None:
        yield on_event
        return
    with status:
        yield on_event


def _record(recordings: Sequence[Recording], folder: Path) -> None:
    """One file and one tree a node; who is who is told here and nowhere else."""
    import json
    import secrets

    from rocstack.probe.redact import mask
    from rocstack.virtual.tree import shown

    for recording, masked in zip(recordings, mask(recordings, secrets.token_bytes(32)), strict=True):
        shown(masked).write_tree(folder / masked.host / "sys")
        (folder / f"{masked.host}.json").write_text(json.dumps(masked.to_dict(), indent=1) + "\n", encoding="utf-8")
        say(f"{recording.host} is recorded as {folder / masked.host}.json")


def _show(found: Sequence[NodeProfile]) -> None:
    from rocstack.probe import summary

    if len(found) == 1:
        out.print(f"[bold]{escape(summary.name(found[0]))}[/]")
        for row, text in summary.facts(found[0]).items():
            out.print(escape(f"  {row:9}  {_clean(text)}"))
        out.print()
        _draw(found[0])
    else:
        shown = NARROW if out.is_terminal and out.width < 130 else range(len(summary.COLUMNS))
        rows = map(summary.cells, found)
        table([summary.COLUMNS[at] for at in shown], ([_clean(row[at]) for at in shown] for row in rows))
        out.print()
        for line in summary.alike(found):
            out.print(escape(_clean(line)))
    _show_unread(found)


def _draw(node: NodeProfile) -> None:
    from rocstack.probe.diagram import draw

    drawing = draw(node, min(out.width, 120), _unicode())
    out.print(escape(drawing.rstrip() or f"{node.name}: no GPU and no NIC"), soft_wrap=True)


def _named(found: Sequence[NodeProfile], failures: Iterable[Failure], name: str) -> NodeProfile:
    from rocstack.base.errors import BadInput, did_you_mean

    for node in found:
        if node.name == name:
            return node
    why = [f"{failure.state}: {_clean(failure.reason)}" for failure in failures if failure.node == name]
    hint = why[0] if why else did_you_mean(name, [node.name for node in found])
    raise BadInput(f"no node '{name}' was read" + (f": {hint}" if hint else ""), code="unknown-node")


def _show_unread(found: Iterable[NodeProfile]) -> None:
    """Grouped by what and why, since many nodes fail alike."""
    from rocstack.probe.summary import listed

    groups: dict[tuple[str, str], list[str]] = {}
    for node in found:
        for unread in node.unread:
            groups.setdefault((unread.what, unread.why), []).append(node.name)
    for (what, why), nodes in list(groups.items())[:20]:
        out.print(escape(_clean(f"not read on {listed(nodes)}: {what}: {why}")))
    if len(groups) > 20:
        out.print(f"not read: {len(groups) - 20} more; --json has them all")


def _show_env(found: Sequence[NodeProfile], nic: str | None, overlay: Path | None, as_json: bool) -> None:
    from dataclasses import asdict

    from rocstack.node.envfile import render_env
    from rocstack.probe.differences import disagreements

    fabrics = {node.name: fabric for node in found if (fabric := _fabric(node, nic, overlay))}
    says = [each.says for each in disagreements(fabrics)]
    if as_json:
        print_json({"fabrics": [asdict(fabric) for fabric in fabrics.values()], "disagreements": says})
        return
    for node in found:
        if node.name in fabrics:
            out.print(escape(render_env(fabrics[node.name])))
        else:
            say(f"{node.name}: no card of a NIC profile; --nic NAME shows the settings of one")
    for text in says:
        say(text)


def _fabric(node: NodeProfile, nic: str | None, overlay: Path | None) -> Fabric | None:
    from rocstack.image import node_package
    from rocstack.node.fabric import fabric, likely
    from rocstack.stack import component

    library = component.library("nic", overlay)
    heads = [library.get(nic)] if nic else list(library.files.values())
    known = [node_package.settings(component.validate_head(head, component.NicProfile)) for head in heads]
    chosen = known[0] if nic else likely(node, known)
    return fabric(node, chosen) if chosen else None


def _show_failures(failures: Iterable[Failure]) -> None:
    for failure in failures:
        err.print(f"[bold red]{escape(failure.node)}[/]: {failure.state}: {escape(_clean(failure.reason))}")


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
