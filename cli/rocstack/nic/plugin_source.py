"""RCCL's plugin as the source archive that the user gives: is it one for this NIC and this stack?"""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocstack.base.errors import BadInput
from rocstack.nic import vendor_archive
from rocstack.nic.vendor_archive import MIB, Budget, shown
from rocstack.node.nic_settings import holds
from rocstack.stack.component import NicProfile
from rocstack.stack.resolve import PluginSource, PluginSpec

_HEADING = re.compile(r"^#+ v?(\d+(?:\.\d+)+)\b", re.MULTILINE | re.ASCII)
LARGEST = 64 * MIB  # aws-ofi-nccl 1.19.0 has 1 MB, RCCL's source a few


def read(nic: NicProfile, path: Path, versions: Mapping[str, str]) -> tuple[PluginSpec, dict[str, bytes]]:
    """The plugin to build, and its sources for the context. `versions` are those of the stack's components.

    Raises:
        BadInput: the NIC has no plugin, or needs none with this stack; no such file; an archive of something else, of
            another version than its name says, for another stack, or one that may not be unpacked.
    """
    head = nic.plugin
    if head is None:
        raise BadInput.of("nic-without-plugin", nic=nic.name)
    if holds(head.when, versions) is False:
        raise BadInput.of("plugin-not-needed", plugin=head.archive, instead=head.instead, when=head.when)
    path = path.expanduser()
    version, data = _archive(path, head.archive, head.holds, head.notes)
    fits = head.releases.get(version)
    if head.releases and (fits is None or not holds(fits, versions)):
        known = "; ".join(f"{release} for {when}" for release, when in head.releases.items())
        raise BadInput.of("plugin-unfit", path, plugin=head.archive, version=version, known=known, source=head.source)
    given = {path.name: data}
    if head.beside:
        file = path.with_name(f"{head.beside.archive}-{versions.get(head.beside.version, '')}.tar.gz")
        if not file.is_file():
            raise BadInput.of("nothing-beside", name=file.name, path=path, plugin=head.archive, source=head.source)
        given[file.name] = _archive(file, head.beside.archive)[1]
    sources = [PluginSource(archive=name, sha256=hashlib.sha256(data).hexdigest()) for name, data in given.items()]
    plugin = PluginSpec(
        name=head.archive,
        version=version,
        library=head.library,
        source=sources[0],
        beside=sources[1] if head.beside else None,
        packages=head.packages,
    )
    return plugin, {f"nic/plugin/{name}": data for name, data in given.items()}


def _archive(path: Path, name: str, holds: Sequence[str] = (), notes: str | None = None) -> tuple[str, bytes]:
    """The version, on which name, folder and `notes` agree, and the bytes."""
    named = re.fullmatch(rf"{re.escape(name)}-(\d+(?:\.\d+)+)\.tar\.gz", path.name, re.ASCII)
    if not path.is_file() or not named:
        raise BadInput.of("other-plugin" if path.is_file() else "absent-plugin", path=path, plugin=name)
    if path.stat().st_size > LARGEST:
        raise vendor_archive.bad(f"larger than {LARGEST // MIB} MB", str(path))
    data, top = path.read_bytes(), f"{name}-{named[1]}"
    files: dict[str, str] = {}  # of those asked for -> text, where that is asked for
    for member in vendor_archive.members(io.BytesIO(data), path.name, str(path), Budget(50_000, 512 * MIB), plain=True):
        inner = member.name.removeprefix("./").rstrip("/")
        folder, _, rest = inner.partition("/")
        if inner not in ("", ".") and folder != top:
            raise _other(path, f"it holds '{shown(inner)}' outside of {top}/")
        if member.is_file and rest in (*holds, notes):
            files[rest] = member.read(MIB).decode("utf-8", "replace") if rest == notes else ""
    missing = [each for each in holds if each not in files]
    if missing:
        raise _other(path, f"it has no {missing[0]}")
    if notes:
        heading = _HEADING.search(files.get(notes, ""))
        if not heading or heading[1] != named[1]:
            raise _other(path, f"its {notes} is of {heading[1] if heading else 'no version'}")
    return named[1], data


def _other(path: Path, what: str) -> BadInput:
    return BadInput.of("renamed-plugin", path, name=path.name, what=what)
