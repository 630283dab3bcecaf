"""The files of an image's layer, read from its tar stream. Nothing is unpacked; of a file its sha256 is kept."""

from __future__ import annotations

import hashlib
import posixpath
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import IO, Any

from rocstack.registry.layers import BLOCK

MOST = 3_000_000  # files of a layer
LIST = 8 << 20  # bytes of the list of one package's files
# Where dpkg has such lists, and where wheels have theirs.
LISTS = re.compile(
    r"var/lib/dpkg/info/(?P<package>[a-z0-9.+-]+)(:[a-z0-9]+)?\.list"
    r"|(?P<site>.+)/(?P<wheel>[^/-]+)-[^/]*\.dist-info/RECORD"
)
XATTR = "SCHILY.xattr."
KINDS = {
    tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard link", tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device", tarfile.FIFOTYPE: "pipe",
}  # fmt: skip


@dataclass(frozen=True)
class LayerFile:
    """`content` is the sha256 of a file's bytes, or where a link leads; `size` is bytes."""

    kind: str
    mode: int
    owner: str  # uid:gid
    size: int
    content: str
    modified: float  # seconds since 1970
    more: tuple[tuple[str, str], ...] = ()  # extended attributes


@dataclass(frozen=True)
class LayerFiles:
    """By path, without a leading slash; `packages` says which package or wheel (`name (wheel)`) lists a path."""

    files: Mapping[str, LayerFile]
    packages: Mapping[str, str] = field(default_factory=dict)


def read(stream: Iterable[bytes | bytearray]) -> LayerFiles:
    """Reads the stream to its end.

    Raises:
        ValueError: it is no tar, or one of more files than any layer has.
    """
    blocks = iter(stream)
    reader: Any = SimpleNamespace(read=lambda size: bytes(next(blocks, b"")))  # tarfile takes any number of bytes
    files: dict[str, LayerFile] = {}
    packages: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=reader, mode="r|", bufsize=BLOCK) as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
                if len(files) >= MOST:
                    raise ValueError(f"it has more than {MOST} files")
                path = member.name.removeprefix("./")
                files[path] = _file(archive, member, path, packages)
    except (tarfile.TarError, OverflowError, EOFError) as error:
        raise ValueError(f"it is no tar: {error}") from None
    for _ in blocks:  # padding; whoever gives the stream compares its sum at its end
        pass
    return LayerFiles(files, packages)


def _file(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, packages: dict[str, str]) -> LayerFile:
    kind, content = KINDS.get(member.type, "file"), member.linkname
    if kind == "device":
        content = f"{member.devmajor}:{member.devminor}"
    opened = archive.extractfile(member) if member.isreg() else None
    if opened:
        listed = LISTS.fullmatch(path) if member.size <= LIST else None
        summed, kept = hashlib.sha256(), bytearray()
        for piece in _pieces(opened):
            summed.update(piece)
            if listed:
                kept += piece
        content = summed.hexdigest()
        if listed:
            packages |= _listed(listed, kept.decode(errors="replace").splitlines())
    more = sorted((key, value) for key, value in member.pax_headers.items() if key.startswith(XATTR))
    own = f"{member.uid}:{member.gid}"
    return LayerFile(kind, member.mode, own, member.size, content, float(member.mtime), tuple(more))


def _listed(of: re.Match[str], lines: Sequence[str]) -> dict[str, str]:
    if of["package"]:
        return {line.lstrip("/"): of["package"] for line in lines}
    name = re.sub(r"[-_.]+", "-", of["wheel"]).lower()
    return {posixpath.normpath(f"{of['site']}/{line.rsplit(',', 2)[0]}"): f"{name} (wheel)" for line in lines}


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(BLOCK):
        yield piece
