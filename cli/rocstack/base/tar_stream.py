"""Tars that others made, read as a stream: no header takes more memory or time than its bytes are worth, and a damaged
one isn't taken for the end, behind which another reader would find more files."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable
from typing import Any, Protocol

BLOCK = 1 << 20  # bytes that are read at once
MOST = 1 << 40  # bytes of a member: tarfile steps over one block by block, also past the end
MAX_HEADER = 1 << 20  # bytes of a long name or an extended header
MAX_NAME = 4096  # of a path, and of where a link leads: PATH_MAX of Linux
MAX_BEFORE = 8  # headers before one member: tarfile calls itself for each
MAX_GLOBAL = 64  # extended headers for all that follow: tarfile keeps what they say
# tarfile looks for "DIGITS name=" in an extended header from each of its bytes on: a header of digits alone would take
# an hour, and no Ctrl-C is heard meanwhile. Numbers there have some 20 digits.
_ENDLESS = re.compile(rb"[0-9]{33}")


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Pieces:
    """Bytes that come in pieces, as a file that `open_tar` reads: whatever is asked for, it gives one piece."""

    def __init__(self, pieces: Iterable[bytes | bytearray]) -> None:
        self._pieces = iter(pieces)

    def read(self, size: int) -> bytes:
        return bytes(next(filter(None, self._pieces), b""))


def open_tar(reader: Readable, most: int = MOST) -> tarfile.TarFile:
    """Members come in their order, and each is read before the next.

    Raises:
        tarfile.TarError: here, or at a member: no tar, damaged, cut off, or a header beyond the limits above.
    """
    kind = type("BoundedHeader", (_Header,), {"most": most})
    return tarfile.open(fileobj=reader, mode="r|", bufsize=BLOCK, tarinfo=kind)  # type: ignore[call-overload,no-any-return]


class _Again:
    """A stream of which a part was read, which comes once more."""

    def __init__(self, part: bytes, stream: Any) -> None:
        self._part, self._stream = part, stream

    def read(self, size: int) -> bytes:
        part, self._part = self._part, b""
        return part or bytes(self._stream.read(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Header(tarfile.TarInfo):
    """Refuses what tarfile would believe. The methods are the ones that it calls, of 3.11 to 3.14."""

    most: int

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Any:
        try:
            return super().frombuf(buf, encoding, errors)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"a damaged header: {error}") from None
        except tarfile.EmptyHeaderError:  # type: ignore[attr-defined]
            raise tarfile.ReadError("it ends in the middle") from None

    def _proc_member(self, tar: Any) -> Any:
        if not 0 <= self.size <= (MAX_HEADER if self.type in b"xgXLK" else self.most):
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        tar.before = getattr(tar, "before", 0) + 1
        if tar.before > MAX_BEFORE:
            raise tarfile.ReadError(f"more than {MAX_BEFORE} headers before a member")
        found = super()._proc_member(tar)  # type: ignore[misc]
        tar.before -= 1
        if not 0 <= found.size <= self.most:  # by an extended header
            raise tarfile.ReadError(f"a member of {found.size} bytes")
        if (longest := max(len(found.name), len(found.linkname))) > MAX_NAME:
            raise tarfile.ReadError(f"a name of {longest} letters")
        return found

    def _proc_pax(self, tar: Any) -> Any:
        if self.type == tarfile.XGLTYPE:
            tar.globals = getattr(tar, "globals", 0) + 1
            if tar.globals > MAX_GLOBAL:
                raise tarfile.ReadError(f"more than {MAX_GLOBAL} extended headers for all members")
        data = tar.fileobj.read(-(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)
        if _ENDLESS.search(data):
            raise tarfile.ReadError("an extended header with a number of more than 32 digits")
        stream, tar.fileobj = tar.fileobj, _Again(data, tar.fileobj)
        try:
            return super()._proc_pax(tar)  # type: ignore[misc]
        finally:
            tar.fileobj = stream

    def _sparse(self, *args: Any) -> Any:
        """Its map has no end of its own, and no engine's layer and no vendor's source has such a file."""
        raise tarfile.ReadError("a sparse file")

    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _sparse
