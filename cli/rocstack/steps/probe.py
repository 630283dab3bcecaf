"""Probe: node profiles of this host, an inventory's nodes or recordings; and the fabric environment they need."""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput
from rocstack.deploy.read import inventory_text
from rocstack.edge.ansible import State
from rocstack.image import node_package
from rocstack.node.fabric import Fabric, fabric, likely
from rocstack.node.profile import NodeProfile
from rocstack.node.recording import HOST, Recording
from rocstack.probe import profiles, recordings
from rocstack.probe.classes import fabric_differences
from rocstack.probe.recordings import ProbeFailure, Recorded
from rocstack.probe.redact import mask
from rocstack.stack import component
from rocstack.steps.options import ProbeOptions, settings
from rocstack.virtual.tree import shown

OnNode = Callable[[str, State], None]


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
        return profiles.to_dict(self.profiles)


def probe(options: ProbeOptions = ProbeOptions(), on_node: OnNode = lambda node, state: None) -> ProbeResult:
    """Reads what nodes have. Changes nothing on them, and needs no root.

    Raises:
        BadInput: options that exclude each other; a wrong inventory or recording; a file that can't be written.
        Missing, CheckFailed: Ansible is missing, or could not run at all.
    """
    to, record = options.out, options.record
    if sum(each is not None for each in (options.inventory, options.replay, options.root)) > 1:
        raise BadInput.of("several-to-probe")
    if to and not to.absolute().parent.is_dir():
        raise BadInput.of("no-parent", to, folder=to.parent)
    if to and to.is_dir():
        raise BadInput.of("not-a-file", to, path=to)
    if record and record.exists() and not (record.is_dir() and not any(record.iterdir())):
        raise BadInput.of("record-not-empty", record, folder=record)
    folder = settings(options).overlay_folder()
    recorded = _recorded(options, on_node)
    nodes = recordings.profiles(recorded.recordings, folder)
    written = _record(recorded, record) if record else ()
    if to and nodes:
        profiles.write_profiles(to, nodes)
    return ProbeResult(nodes, recorded.failures, written)


def _recorded(options: ProbeOptions, on_node: OnNode) -> Recorded:
    tree = options.record is not None
    if options.replay:
        return recordings.Recorded(recordings.read_recordings(options.replay))
    if options.inventory is None:
        return recordings.Recorded((recordings.record_host(options.root or "/", tree=tree),))
    inventory_text.refuse_lost(options.inventory)
    return recordings.record_inventory(options.inventory, on_node, forks=options.forks, tree=tree)


def _record(read: Recorded, folder: Path) -> tuple[tuple[str, Path], ...]:
    """The answer says which node is which; the files don't."""
    masked = mask(read.recordings, secrets.token_bytes(32), read.hostnames)
    files = write_recordings(masked, folder)
    return tuple((recording.host, file) for recording, file in zip(read.recordings, files, strict=True))


def write_recordings(masked: Sequence[Recording], folder: Path) -> list[Path]:
    """One file and one tree a node, in a folder that has none of them: nothing that is there is written to.

    Raises:
        BadInput: a name or a path in a recording would lead elsewhere, or they can't be written.
    """
    written = []
    try:
        trees = [shown(recording) for recording in masked]
        for tree in trees:
            tree.check_paths()
        _check_names([recording.host for recording in masked])
        folder.mkdir(parents=True, exist_ok=True)
        for recording, tree in zip(masked, trees, strict=True):
            (folder / recording.host).mkdir()
            tree.write_tree(folder / recording.host / "sys")
            file = folder / f"{recording.host}.json"
            with file.open("x", encoding="utf-8") as new:
                new.write(json.dumps(recording.to_dict(), indent=1) + "\n")
            written.append(file)
    except OSError as error:
        raise BadInput.of("no-access", folder, why=error.strerror or error) from None
    except ValueError as error:
        raise BadInput.of("bad-recording", wrong=str(error)) from None
    return written


def _check_names(hosts: Sequence[str]) -> None:
    """
    Raises:
        ValueError: one can't be a file's, or two would be the same file's.
    """
    files: set[str] = set()
    for host in hosts:
        own = {host.lower(), f"{host}.json".lower()}  # a Mac's disk makes no difference
        if not HOST.fullmatch(host) or own & files:
            raise ValueError(f"{host!r:.80} is no name of one node's recording")
        files |= own


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
    kinds = _nic_settings(nic, settings(overlay=overlay).overlay_folder())
    fabrics = {}
    for node in nodes:
        if kind := kinds[0] if nic else likely(node, kinds):
            fabrics[node.name] = fabric(node, kind)
    return FabricEnvironment(fabrics, tuple(each.sentence for each in fabric_differences(fabrics)))


def _nic_settings(nic: str | None, overlay: Path | None) -> list[Any]:
    library = component.library("nic", overlay)
    heads = [library.get(nic)] if nic else list(library.files.values())
    return [node_package.settings(component.validate_head(head, component.NicProfile)) for head in heads]
