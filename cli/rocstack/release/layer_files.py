"""The files of an image's layer, read from its tar stream. Nothing is unpacked; of a file its sha256 is kept."""

from __future__ import annotations

import hashlib
import posixpath
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from rocstack.base.tar_stream import BLOCK, Pieces, open_tar

MOST = 3_000_000  # files of a layer, and files that its lists of packages name
TEXT = 1 << 30  # letters of all names, links and attributes, and of those lists
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
        ValueError: it is no tar, one with headers that no layer has, or of more files or letters than any has.
    """
    blocks = iter(stream)
    found = _Reader()
    try:
        with open_tar(Pieces(blocks)) as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
                found.take(archive, member)
    except (tarfile.TarError, OverflowError, EOFError) as error:
        raise ValueError(f"it is no tar: {str(error)[:200]}") from None
    for _ in blocks:  # padding; whoever gives the stream compares its sum at its end
        pass
    return LayerFiles(found.files, found.packages)


class _Reader:
    def __init__(self) -> None:
        self.files: dict[str, LayerFile] = {}
        self.packages: dict[str, str] = {}
        self._letters = 0

    def take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = member.name.removeprefix("./")
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
                self._count(len(kept))
                self.packages |= _listed(listed, kept.decode(errors="replace").splitlines())
        more = sorted((key, value) for key, value in member.pax_headers.items() if key.startswith(XATTR))
        self._count(len(path) + len(content) + sum(len(key) + len(value) for key, value in more))
        own = f"{member.uid}:{member.gid}"
        self.files[path] = LayerFile(kind, member.mode, own, member.size, content, float(member.mtime), tuple(more))
        if max(len(self.files), len(self.packages)) > MOST:
            raise ValueError(f"it has more than {MOST} files")

    def _count(self, letters: int) -> None:
        self._letters += letters
        if self._letters > TEXT:
            raise ValueError(f"its names, attributes and lists have more than {TEXT} letters")


def _listed(of: re.Match[str], lines: Sequence[str]) -> dict[str, str]:
    if of["package"]:
        return {line.lstrip("/"): of["package"] for line in lines}
    name = re.sub(r"[-_.]+", "-", of["wheel"]).lower()
    return {posixpath.normpath(f"{of['site']}/{line.rsplit(',', 2)[0]}"): f"{name} (wheel)" for line in lines}


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(BLOCK):
        yield piece
