"""A bundle as a file: read where its members lie, after all of it was compared with its one form."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.bundle import format as form
from rocstack.bundle.format import BLOBS, BLOCK, END, INSTALL, RECORD, BundleMember, BundleRecord

PIECE = 1 << 20  # bytes
SMALL = 16 << 20  # bytes of a member that is read whole
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class BundleFile:
    """An open bundle. `places` has the offset of each member's content."""

    path: Path
    file: IO[bytes]
    record: BundleRecord
    places: Mapping[str, tuple[BundleMember, int]]
    installs: bytes

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Compares everything but the contents.

        Raises:
            BadInput: it can't be read, or is no bundle.
            CheckFailed: it is truncated, or has something in it that a bundle doesn't have; by name of the cause.
        """
        with _opened(path) as file:
            installs, data = _start(path, file)
            record = _record(path, data)
            start = file.tell()
            places = {}
            known = frozenset({INSTALL, RECORD, *(each.path for each in record.members)})
            size, whole = os.fstat(file.fileno()).st_size, form.total(record, len(installs), len(data))
            for member, at, content in form.offsets(record.members, start):
                file.seek(at)
                expected = form.header(member.path, member.size)
                found = file.read(len(expected))
                if found != expected:
                    if len(found) < len(expected):
                        raise CheckFailed.of("bundle-truncated", file=path, size=size, whole=whole)
                    raise form.refusal(path, found, at, member, known)
                places[member.path] = (member, content)
                end = content + member.size
                file.seek(end)
                if any(file.read(len(form.padding(member.size)))):
                    raise CheckFailed.of("bundle-damaged", file=path, why=f"bytes behind {member.path}")
            if size < whole:
                raise CheckFailed.of("bundle-truncated", file=path, size=size, whole=whole)
            file.seek(whole - len(END))
            found = file.read(len(END) + BLOCK)
            if found != END:
                if any(found[:BLOCK]):
                    raise form.refusal(path, found, whole - len(END), None, known)
                raise CheckFailed.of("bundle-unlisted", file=path, member=f"bytes behind its end, at byte {whole}")
            if hashlib.sha256(installs).hexdigest() != record.install:
                raise CheckFailed.of("bundle-differs", file=path, member=INSTALL)
            yield cls(path, file, record, places, installs)

    def __contains__(self, path: str) -> bool:
        return path in self.places

    def pieces(self, path: str) -> Iterator[bytes]:
        """The content of a member, in blocks.

        Raises:
            CheckFailed: the file was cut off meanwhile.
        """
        member, at = self.places[path]
        left = member.size
        while left:
            data = os.pread(self.file.fileno(), min(PIECE, left), at)
            if not data:
                raise CheckFailed.of("bundle-differs", file=self.path, member=path)
            yield data
            at, left = at + len(data), left - len(data)

    def read(self, path: str) -> bytes:
        """A small member, whole.

        Raises:
            CheckFailed: it isn't there, isn't small, or has another content than bundle.json says.
        """
        if path not in self.places:
            raise CheckFailed.of("bundle-incoherent", file=self.path, why=f"it has no {path}")
        member, _ = self.places[path]
        if member.size > SMALL:
            raise CheckFailed.of("bundle-incoherent", file=self.path, why=f"{path} has more than {SMALL >> 20} MB")
        data = b"".join(self.pieces(path))
        if hashlib.sha256(data).hexdigest() != member.sha256:
            raise CheckFailed.of("bundle-differs", file=self.path, member=path)
        return data

    def blob(self, digest: str) -> bytes | None:
        path = BLOBS + digest.removeprefix("sha256:")
        return self.read(path) if path in self else None

    def check_contents(self, progress: Progress = lambda done, whole: None) -> None:
        """Reads every byte.

        Raises:
            CheckFailed: a member has another content than bundle.json says.
        """
        done, whole = 0, sum(member.size for member, _ in self.places.values())
        for path, (member, _) in self.places.items():
            summed = hashlib.sha256()
            for data in self.pieces(path):
                summed.update(data)
                done += len(data)
                progress(done, whole)
            if summed.hexdigest() != member.sha256:
                raise CheckFailed.of("bundle-differs", file=self.path, member=path)


def read_record(path: Path) -> BundleRecord:
    """Of a bundle, or of its bundle.json alone.

    Raises:
        BadInput: it can't be read, or is neither.
        CheckFailed: it is damaged.
    """
    with _opened(path) as file:
        if file.read(1) == b"{":
            file.seek(0)
            data = file.read(form.LARGEST_RECORD + 1)
            if len(data) > form.LARGEST_RECORD:
                raise BadInput.of("no-bundle", path, why="it has more than a bundle.json can have")
            return _record(path, data)
        return _record(path, _start(path, file)[1])


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115  # a pipe waits
    except OSError as error:
        raise BadInput.of("no-bundle", path, why=error.strerror or error) from None
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BadInput.of("no-bundle", path, why="it is no regular file")
        yield file


def _start(path: Path, file: IO[bytes]) -> tuple[bytes, bytes]:
    """The script and bundle.json: their sizes stand in their headers alone."""
    file.seek(0)
    script = _next(path, file, INSTALL, form.LARGEST_INSTALL)
    return script, _next(path, file, RECORD, form.LARGEST_RECORD)


def _next(path: Path, file: IO[bytes], name: str, largest: int) -> bytes:
    at = file.tell()
    found = file.read(BLOCK)
    size = _octal(found[124:136])
    if len(found) < BLOCK or size is None or found != form.header(name, size):
        if name == INSTALL:
            raise BadInput.of("no-bundle", path, why="it doesn't begin as one")
        if len(found) < BLOCK:
            raise CheckFailed.of("bundle-truncated", file=path, size=at + len(found), whole="more")
        raise form.refusal(path, found, at, None, frozenset({INSTALL, RECORD}))
    if size > largest:
        raise CheckFailed.of("bundle-other-size", file=path, member=name, size=size, listed=f"at most {largest}")
    data = file.read(size)
    padding = file.read(len(form.padding(size)))
    if len(data) < size or len(padding) < len(form.padding(size)):
        whole = f"at least {at + form.taken(name, size)}"
        raise CheckFailed.of("bundle-truncated", file=path, size=os.fstat(file.fileno()).st_size, whole=whole)
    if any(padding):
        raise CheckFailed.of("bundle-damaged", file=path, why=f"bytes behind {name}")
    return data


def _octal(field: bytes) -> int | None:
    text = field.rstrip(b"\0 ")
    return int(text, 8) if text and all(48 <= digit <= 55 for digit in text) else None


def _record(path: Path, data: bytes) -> BundleRecord:
    try:
        return form.loads(data)
    except ValueError as error:
        raise CheckFailed.of("bundle-unreadable", file=path, why=error) from None
