"""What nodes are: recordings read off this host or an inventory's nodes, and the node profiles made of them here."""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput, Where
from rocstack.edge import ansible
from rocstack.nic.elf import LibraryAbi, read_libibverbs, read_provider
from rocstack.node import collect, parse
from rocstack.node.nic_settings import NicSettings
from rocstack.node.parse_libraries import ReadLibrary
from rocstack.node.profile import NodeProfile
from rocstack.node.recording import Recording, natural_key
from rocstack.stack import component

PLAYBOOK, TASK = "probe.yml", "Collect"
LARGEST = 512 << 20  # bytes of one node's recording


@dataclass(frozen=True)
class ProbeFailure:
    """A node that could not be read. `state` is unreachable or failed."""

    node: str
    state: str
    reason: str


@dataclass(frozen=True)
class Recorded:
    """What a probe brought back, sorted by node; a recording is named as the inventory names its node."""

    recordings: tuple[Recording, ...]
    failures: tuple[ProbeFailure, ...] = ()


@dataclass(frozen=True)
class Probed:
    profiles: tuple[NodeProfile, ...]
    failures: tuple[ProbeFailure, ...] = ()


def probe_host(root: str = "/", overlay: Path | None = None) -> NodeProfile:
    """This host, or the tree of another below `root`."""
    return profiles([record_host(root)], overlay)[0]


def probe_inventory(
    inventory: Path,
    on_event: ansible.OnEvent = lambda host, state: None,
    *,
    overlay: Path | None = None,
    forks: int = ansible.FORKS,
) -> Probed:
    """Every node of an Ansible inventory, in one pass.

    Raises:
        BadInput, Missing, CheckFailed: as `ansible.run`.
    """
    found = record_inventory(inventory, on_event, forks=forks)
    return Probed(profiles(found.recordings, overlay), found.failures)


def record_host(root: str = "/", *, tree: bool = False) -> Recording:
    """This host; with `tree` also what real tools read of its /sys.

    Raises:
        BadInput: no such folder.
    """
    if not Path(root).is_dir():
        raise BadInput(
            f"no folder {root}", code="no-folder", next_step="name the root of a file system, or a copy of it"
        )
    recording = Recording.from_dict(collect.collect(root, tree=tree))
    return recording if recording.host else replace(recording, host=Path(root).resolve().name or "localhost")


def record_inventory(
    inventory: Path,
    on_event: ansible.OnEvent = lambda host, state: None,
    *,
    forks: int = ansible.FORKS,
    tree: bool = False,
) -> Recorded:
    """As `probe_inventory`, before anything is made of it; `tree` as `record_host`."""
    recordings, failures = [], []
    variables = {"rocstack_tree": tree}
    for run in ansible.run(PLAYBOOK, inventory, forks=forks, variables=variables, on_event=on_event):
        if run.state != "ok":
            failures.append(
                ProbeFailure(run.host, "unreachable" if run.state == "unreachable" else "failed", run.reason)
            )
            continue
        try:
            recordings.append(replace(_unpacked(run.results[TASK]["recording"]), host=run.host))
        except (KeyError, TypeError, ValueError) as error:
            failures.append(ProbeFailure(run.host, "failed", f"its answer can't be read: {error}"))
    return Recorded(tuple(_sorted(recordings, "host")), tuple(_sorted(failures, "node")))


def profiles(recordings: Iterable[Recording], overlay: Path | None = None) -> tuple[NodeProfile, ...]:
    """What the recordings say, by the NIC profiles that this rocstack knows."""
    known, library_abi = kinds(overlay), _read_library()
    return tuple(parse.parse(recording, known, library_abi) for recording in recordings)


def kinds(overlay: Path | None = None) -> tuple[NicSettings, ...]:
    """The hardware part of each NIC profile's head."""
    heads = [
        component.validate_head(file, component.NicProfile) for file in component.library("nic", overlay).files.values()
    ]
    return tuple(NicSettings(head.name, head.modules, head.pci, head.provider) for head in heads)


def read_recordings(path: Path) -> tuple[Recording, ...]:
    """Recordings that `rocstack probe --record` wrote: one file, or all of a folder.

    Raises:
        BadInput: none there, or something that is no recording.
    """
    files = sorted(path.glob("*.json"), key=lambda file: natural_key(file.stem)) if path.is_dir() else [path]
    if not files:
        raise BadInput(
            f"no recording in {path}", code="no-file", next_step=f"`rocstack probe --record {path}` writes one"
        )
    return tuple(map(_read_recording, files))


def _read_recording(file: Path) -> Recording:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(data, dict) and "profiles" in data:
            raise ValueError("a file of node profiles, not a recording")
        return Recording.from_dict(data)
    except OSError as error:
        raise BadInput(f"can't read {file}: {error.strerror}", code="no-file", next_step="check the path") from None
    except (ValueError, AttributeError, RecursionError) as error:
        raise BadInput(
            str(error) if "recording" in str(error) else f"not a recording: {error}",
            code="bad-recording",
            where=Where(str(file)),
            next_step="record again: `rocstack probe --record DIR`",
        ) from None


def _unpacked(text: str) -> Recording:
    """
    Raises:
        ValueError: not a recording, or an oversized one.
    """
    unzip = zlib.decompressobj(wbits=31)
    try:
        data = unzip.decompress(base64.b64decode(text, validate=True), LARGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if unzip.unconsumed_tail:
        raise ValueError(f"more than {LARGEST >> 20} MiB")
    recording: Mapping[str, Any] = json.loads(data)
    return Recording.from_dict(recording)


def _read_library() -> ReadLibrary:
    """Reads a library once, however many nodes have the same."""

    @cache
    def found(data: bytes, is_libibverbs: bool) -> LibraryAbi:
        return read_libibverbs(data) if is_libibverbs else read_provider(data)

    return found


def _sorted(items: list[Any], name: str) -> list[Any]:
    return sorted(items, key=lambda item: natural_key(getattr(item, name)))
