"""Writes a bundle: its parts in their one order, under another name until all of it is there."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rocstack.base.errors import BadInput, CheckFailed, Missing
from rocstack.bundle import format as form
from rocstack.bundle.file import Progress
from rocstack.bundle.format import END, INSTALL, RECORD, BundleMember, BundleRecord
from rocstack.edge import files

Pieces = Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class BundlePart:
    """A member, and where its content comes from."""

    member: BundleMember
    pieces: Pieces

    @classmethod
    def of(cls, path: str, data: bytes) -> BundlePart:
        member = BundleMember(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        return cls(member, lambda: iter((data,)))

    @classmethod
    def from_file(cls, path: str, file: Path) -> BundlePart:
        with file.open("rb") as source:
            summed = hashlib.file_digest(source, "sha256").hexdigest()
        return cls(BundleMember(path=path, size=file.stat().st_size, sha256=summed), lambda: _read(file))


def _read(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while data := source.read(1 << 20):
            yield data


def write(
    path: Path, record: BundleRecord, install: bytes, parts: Mapping[str, BundlePart],
    progress: Progress = lambda done, whole: None,
) -> tuple[int, str]:  # fmt: skip
    """Returns the size and the sha256 of the file.

    Raises:
        Missing: there is too little room. BadInput: no file can be made there.
        CheckFailed: a part turned out as another than was said. Nothing is left there then.
    """
    own = record.dumps()
    whole = form.total(record, len(install), len(own))
    folder = path.absolute().parent
    try:
        free = shutil.disk_usage(folder).free
        if free < whole:
            raise Missing.of("bundle-no-room", file=path, need=whole / 1e6, free=free / 1e6, folder=folder)
        with files.writing(path) as file:
            summed, done = hashlib.sha256(), 0
            for data in _stream(record, install, own, parts):
                file.write(data)
                summed.update(data)
                done += len(data)
                progress(done, whole)
            if done != whole:
                raise AssertionError(f"{done} bytes instead of {whole}")
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            free = shutil.disk_usage(folder).free
            raise Missing.of("bundle-no-room", file=path, need=whole / 1e6, free=free / 1e6, folder=folder) from None
        raise BadInput.of("no-access", path, why=error.strerror or error) from None
    return whole, summed.hexdigest()


def _stream(record: BundleRecord, install: bytes, own: bytes, parts: Mapping[str, BundlePart]) -> Iterator[bytes]:
    for name, data in ((INSTALL, install), (RECORD, own)):
        yield form.header(name, len(data)) + data + form.padding(len(data))
    for member in record.members:
        yield form.header(member.path, member.size)
        summed, size = hashlib.sha256(), 0
        for data in parts[member.path].pieces():
            summed.update(data)
            size += len(data)
            if size > member.size:
                break
            yield data
        if size != member.size or summed.hexdigest() != member.sha256:
            raise CheckFailed.of("bundle-source-differs", member=member.path)
        yield form.padding(member.size)
    yield END
