"""Probe: node profiles of this host, an inventory's nodes or recordings; and the fabric environment they need."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rocstack.base.errors import BadInput, Where
from rocstack.steps.options import Flag, Overlay, settings

if TYPE_CHECKING:
    from rocstack.edge.ansible import State
    from rocstack.node.fabric import Fabric
    from rocstack.node.profile import NodeProfile
    from rocstack.node.recording import Recording
    from rocstack.probe.recordings import ProbeFailure, Recorded

    OnNode = Callable[[str, State], None]


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    inventory: Annotated[
        Path | None, Flag("Ansible inventory; default: this host.", metavar="INVENTORY", argument=True)
    ] = None
    out: Annotated[Path | None, Flag("Write the node profiles to this file.", ("--out",))] = None
    record: Annotated[
        Path | None, Flag("Write what was read, with names and addresses masked, to this new or empty folder.")
    ] = None
    replay: Annotated[Path | None, Flag("Probe recordings instead of nodes: a file of --record, or its folder.")] = None
    forks: Annotated[int, Flag("Nodes to probe at a time.", least=1, most=500)] = 64
    root: Annotated[str | None, Flag("Root of another file system instead of this host's.", hidden=True)] = None
    overlay: Overlay = None


@dataclass(frozen=True)
class ProbeResult:
    """The node profiles, and the nodes that could not be read. `recorded` pairs a node's name with its recording."""

    profiles: tuple[NodeProfile, ...]
    failures: tuple[ProbeFailure, ...] = ()
    recorded: tuple[tuple[str, Path], ...] = ()

    @property
    def ok(self) -> bool:
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        from rocstack.probe.profiles import to_dict

        return to_dict(self.profiles)


def probe(options: ProbeOptions = ProbeOptions(), on_node: OnNode = lambda node, state: None) -> ProbeResult:
    """Reads what nodes have. Changes nothing on them, and needs no root.

    Raises:
        BadInput: options that exclude each other; a wrong inventory or recording; a file that can't be written.
        Missing, CheckFailed: Ansible is missing, or could not run at all.
    """
    from rocstack.probe import profiles
    from rocstack.probe.recordings import profiles as profiles_of

    _refuse(options)
    folder = settings(options).overlay_folder()
    recorded = _recorded(options, on_node)
    nodes = profiles_of(recorded.recordings, folder)
    written = _record(recorded.recordings, options.record) if options.record else ()
    if options.out and nodes:
        profiles.write_profiles(options.out, nodes)
    return ProbeResult(nodes, recorded.failures, written)


def _refuse(options: ProbeOptions) -> None:
    to, record = options.out, options.record
    if sum(each is not None for each in (options.inventory, options.replay, options.root)) > 1:
        raise BadInput("an inventory and --replay exclude each other", code="one-source", next_step="give one")
    if to and not to.absolute().parent.is_dir():
        raise BadInput(f"no folder {to.parent}", code="no-folder", where=Where(str(to)), next_step="create it")
    if to and to.is_dir():
        raise BadInput(f"{to} is a folder", code="no-file", where=Where(str(to)), next_step="name a file")
    if record and record.exists() and not (record.is_dir() and not any(record.iterdir())):
        text = "name a new or an empty folder"
        raise BadInput(f"{record} holds other files", code="not-empty", where=Where(str(record)), next_step=text)


def _recorded(options: ProbeOptions, on_node: OnNode) -> Recorded:
    from rocstack.probe import recordings

    tree = options.record is not None
    if options.replay:
        return recordings.Recorded(recordings.read_recordings(options.replay))
    if options.inventory is None:
        return recordings.Recorded((recordings.record_host(options.root or "/", tree=tree),))
    return recordings.record_inventory(options.inventory, on_node, forks=options.forks, tree=tree)


def _record(recordings: Sequence[Recording], folder: Path) -> tuple[tuple[str, Path], ...]:
    """One file and one tree a node. The answer says which node is which; the files don't."""
    from rocstack.probe.redact import mask
    from rocstack.virtual.tree import shown

    written = []
    for recording, masked in zip(recordings, mask(recordings, secrets.token_bytes(32)), strict=True):
        shown(masked).write_tree(folder / masked.host / "sys")
        file = folder / f"{masked.host}.json"
        file.write_text(json.dumps(masked.to_dict(), indent=1) + "\n", encoding="utf-8")
        written.append((recording.host, file))
    return tuple(written)


@dataclass(frozen=True)
class FabricEnvironment:
    """The fabric's environment of each node that has a NIC, and where nodes that should agree don't."""

    fabrics: dict[str, Fabric]
    disagreements: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"fabrics": [asdict(each) for each in self.fabrics.values()], "disagreements": list(self.disagreements)}


def fabric_environment(
    nodes: Sequence[NodeProfile], nic: str | None = None, overlay: str | None = None
) -> FabricEnvironment:
    """By the NIC profile `nic`, or that of the cards that are there.

    Raises:
        BadInput: no such NIC profile.
    """
    from rocstack.node.fabric import fabric, likely
    from rocstack.probe.classes import fabric_differences

    kinds = _nic_settings(nic, settings(overlay=overlay).overlay_folder())
    fabrics = {}
    for node in nodes:
        if kind := kinds[0] if nic else likely(node, kinds):
            fabrics[node.name] = fabric(node, kind)
    return FabricEnvironment(fabrics, tuple(each.sentence for each in fabric_differences(fabrics)))


def _nic_settings(nic: str | None, overlay: Path | None) -> list[Any]:
    from rocstack.image import node_package
    from rocstack.stack import component

    library = component.library("nic", overlay)
    heads = [library.get(nic)] if nic else list(library.files.values())
    return [node_package.settings(component.validate_head(head, component.NicProfile)) for head in heads]
