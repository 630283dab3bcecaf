"""What nodes are: recordings read off this host or an inventory's nodes, and the node profiles made of them here."""

import base64
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput
from rocstack.base.text import from_json, values_of
from rocstack.edge import ansible
from rocstack.nic.elf import LibraryAbi, read_libibverbs, read_provider
from rocstack.node import collect, parse
from rocstack.node.nic_settings import NicSettings
from rocstack.node.profile import NodeProfile
from rocstack.node.recording import Recording, natural_key
from rocstack.stack import component

PLAYBOOK, TASK = "probe.yml", "Collect"
# Of one node's answer. The largest node model has 0.3 MB and 2,200 values; a real node adds its libraries, packed.
LARGEST = 32 << 20  # bytes
MOST_VALUES = 100_000


@dataclass(frozen=True)
class ProbeFailure:
    """A node that could not be read. `state` is unreachable or failed."""

    node: str
    state: str
    reason: str


@dataclass(frozen=True)
class Recorded:
    """What a probe brought back, sorted by node; a recording is named as the inventory names its node, and `hostnames`
    has what that calls itself."""

    recordings: tuple[Recording, ...]
    failures: tuple[ProbeFailure, ...] = ()
    hostnames: Mapping[str, str] = field(default_factory=dict)


def probe_host(root: str = "/", overlay: Path | None = None) -> NodeProfile:
    """This host, or the tree of another below `root`."""
    return profiles([record_host(root)], overlay)[0]


def record_host(root: str = "/", *, tree: bool = False) -> Recording:
    """This host; with `tree` also what real tools read of its /sys.

    Raises:
        BadInput: no such folder.
    """
    if not Path(root).is_dir():
        raise BadInput.of("no-root-folder", root=root)
    recording = Recording.from_dict(collect.collect(root, tree=tree))
    return recording if recording.host else replace(recording, host=Path(root).resolve().name or "localhost")


def record_inventory(
    inventory: Path,
    on_event: ansible.OnEvent = lambda host, state: None,
    *,
    forks: int = ansible.FORKS,
    tree: bool = False,
    limit: Iterable[str] | None = None,
) -> Recorded:
    """Every node of an Ansible inventory, or those of `limit`, in one pass; `tree` as `record_host`.

    Raises:
        BadInput, Missing, CheckFailed: as `ansible.run`.
    """
    recordings, failures, hostnames = [], [], {}
    variables = {"tree": tree}
    for run in ansible.run(PLAYBOOK, inventory, forks=forks, variables=variables, limit=limit, on_event=on_event):
        if run.state != "ok":
            state = "unreachable" if run.state == "unreachable" else "failed"
            failures.append(ProbeFailure(run.host, state, run.reason))
            continue
        try:
            data = unpacked(run.results[TASK]["recording"])
            recording = Recording.from_dict(data)
            hostnames[run.host] = recording.host
            recordings.append(replace(recording, host=run.host))
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            failures.append(ProbeFailure(run.host, "failed", f"its answer can't be read: {error}"))
    recordings.sort(key=lambda recording: natural_key(recording.host))
    failures.sort(key=lambda failure: natural_key(failure.node))
    return Recorded(tuple(recordings), tuple(failures), hostnames)


def profiles(recordings: Iterable[Recording], overlay: Path | None = None) -> tuple[NodeProfile, ...]:
    """What the recordings say, by the NIC profiles that this rocstack knows. A library is read once, however many
    nodes have the same."""

    @cache
    def read_library(data: bytes, is_libibverbs: bool) -> LibraryAbi:
        return read_libibverbs(data) if is_libibverbs else read_provider(data)

    known = kinds(overlay)
    return tuple(parse.parse(recording, known, read_library) for recording in recordings)


def kinds(overlay: Path | None = None) -> tuple[NicSettings, ...]:
    """The hardware part of each NIC profile's head."""
    heads = component.nic_profiles(overlay)
    return tuple(NicSettings(head.name, head.modules, head.pci, head.provider) for head in heads)


def read_recordings(path: Path) -> tuple[Recording, ...]:
    """Recordings that `rocstack probe --record` wrote: one file, or all of a folder.

    Raises:
        BadInput: none there, or something that is no recording.
    """
    files = sorted(path.glob("*.json"), key=lambda file: natural_key(file.stem)) if path.is_dir() else [path]
    if not files:
        raise BadInput.of("no-recording", folder=path)
    return tuple(map(_read_recording, files))


def _read_recording(file: Path) -> Recording:
    try:
        data = from_json(file.read_text(encoding="utf-8"))
        if isinstance(data, dict) and "profiles" in data:
            raise ValueError("a file of node profiles, not a recording")
        return Recording.from_dict(data)
    except OSError as error:
        raise BadInput.of("recording-unreadable", file=file, why=error.strerror) from None
    except (ValueError, AttributeError) as error:
        wrong = str(error) if "recording" in str(error) else f"not a recording: {error}"
        raise BadInput.of("bad-recording", file, wrong=wrong) from None


def unpacked(text: str) -> Any:
    """What a module of ours packed into its answer.

    Raises:
        TypeError, ValueError: it is damaged, or oversized.
    """
    too_large = f"more than {LARGEST >> 20} MiB, or {MOST_VALUES} values"
    if len(text) > 2 * LARGEST:
        raise ValueError(too_large)
    unzip = zlib.decompressobj(wbits=31)
    try:
        data = unzip.decompress(base64.b64decode(text, validate=True), LARGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    # What stands in texts is counted as well, and is little.
    if unzip.unconsumed_tail or values_of(data) > MOST_VALUES:
        raise ValueError(too_large)
    return from_json(data)
