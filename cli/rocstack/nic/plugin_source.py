"""RCCL's plugin as the source archive that the user gives: is it one for this NIC and this stack?"""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rocstack.base.errors import BadInput, Where
from rocstack.nic import vendor_archive
from rocstack.nic.vendor_archive import MIB, Budget, shown
from rocstack.node.nic_settings import holds
from rocstack.stack.component import NicProfile, RcclPlugin
from rocstack.stack.plugin import PluginSource, PluginSpec

_HEADING = re.compile(r"^#+ v?(\d+(?:\.\d+)+)\b", re.MULTILINE | re.ASCII)
LARGEST = 64 * MIB  # aws-ofi-nccl 1.19.0 has 1 MB, RCCL's source a few


@dataclass(frozen=True)
class PluginArchives:
    """The plugin to build, and its sources for the context."""

    plugin: PluginSpec
    archives: dict[str, bytes] = field(repr=False)


def read(nic: NicProfile, path: Path, versions: Mapping[str, str]) -> PluginArchives:
    """`versions` are those of the stack's components.

    Raises:
        BadInput: the NIC has no plugin, or needs none with this stack; no such file; an archive of something else, of
            another version than its name says, for another stack, or one that may not be unpacked.
    """
    head = nic.plugin
    if head is None:
        raise BadInput(f"NIC profile '{nic.name}' uses no plugin", code="no-plugin", next_step="drop --nic-plugin")
    if holds(head.when, versions) is False:
        raise BadInput(
            f"RCCL needs no {head.archive} here: {head.instead}",
            code="plugin-not-needed",
            cause=f"it is for {head.when}",
            next_step="drop --nic-plugin, or choose another stack",
        )
    path = path.expanduser()
    version, data = _archive(path, head.archive, head.holds, head.notes)
    fits = head.releases.get(version)
    if head.releases and (fits is None or not holds(fits, versions)):
        known = "; ".join(f"{release} for {when}" for release, when in head.releases.items())
        raise BadInput(
            f"{head.archive} {version} is not known to fit this stack",
            code="plugin-unfit",
            where=Where(str(path)),
            cause=f"known to fit: {known} ({head.source})",
            next_step="use the release for the stack's ROCm",
        )
    archives = {f"nic/plugin/{path.name}": data}
    beside = _beside(head, path, versions)
    if beside:
        archives[f"nic/plugin/{beside[0]}"] = beside[1]
    plugin = PluginSpec(
        name=head.archive,
        version=version,
        library=head.library,
        source=_source(path.name, data),
        beside=_source(*beside) if beside else None,
        packages=head.packages,
    )
    return PluginArchives(plugin, archives)


def _source(name: str, data: bytes) -> PluginSource:
    return PluginSource(archive=name, sha256=hashlib.sha256(data).hexdigest())


def _beside(head: RcclPlugin, path: Path, versions: Mapping[str, str]) -> tuple[str, bytes] | None:
    if not head.beside:
        return None
    name = f"{head.beside.archive}-{versions.get(head.beside.version, '')}.tar.gz"
    file = path.with_name(name)
    if not file.is_file():
        raise BadInput(
            f"no {name} next to {path}",
            code="no-file",
            cause=f"{head.archive} is compiled with it ({head.source})",
            next_step="put the tag's archive there, as the project publishes it",
        )
    return name, _archive(file, head.beside.archive)[1]


def _archive(path: Path, name: str, holds: Sequence[str] = (), notes: str | None = None) -> tuple[str, bytes]:
    """The version, on which name, folder and `notes` agree, and the bytes."""
    named = re.fullmatch(rf"{re.escape(name)}-(\d+(?:\.\d+)+)\.tar\.gz", path.name, re.ASCII)
    if not path.is_file() or not named:
        raise BadInput(
            f"{path} is not a file named {name}-VERSION.tar.gz",
            code="no-file" if not path.is_file() else "no-plugin",
            next_step=f"name the release archive of {name} with --nic-plugin",
        )
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
    return BadInput(
        f"it is named {path.name}, but {what}",
        code="wrong-release",
        where=Where(str(path)),
        cause="it was renamed, repacked or changed, or this release lacks a part that ROCm needs",
        next_step="use the archive as the project publishes it, or another release",
    )
