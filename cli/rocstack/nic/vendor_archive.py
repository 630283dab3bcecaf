"""Archives that strangers made, read member by member: nothing is unpacked onto this machine."""

import bz2
import gzip
import lzma
import posixpath
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from rocstack.base.errors import BadInput, Where
from rocstack.base.tar_stream import open_tar

MIB = 1 << 20
# Firmware is padded with zeros, but a whole archive never shrinks 200-fold (deflate's own limit is about 1030).
RATIO, RATIO_FROM = 200, 64 * MIB
MAX_INDEX = 16 * MIB  # a zip's central directory: some 200,000 members
MAX_BYTES = 8192 * MIB  # of all that is read, and so of a member
# Ending -> how a file with it begins, at which byte, and what opens it.
_KINDS: dict[str, tuple[bytes, int, Callable[..., Any]]] = {
    ".zip": (b"PK", 0, lambda file: file),
    ".tar.gz": (b"\x1f\x8b", 0, gzip.open),
    ".tgz": (b"\x1f\x8b", 0, gzip.open),
    ".tar.xz": (b"\xfd7zXZ\0", 0, lzma.open),
    ".txz": (b"\xfd7zXZ\0", 0, lzma.open),
    ".tar.bz2": (b"BZh", 0, bz2.open),
    ".tar": (b"ustar", 257, lambda file: file),
}
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # can't be seen, or turns what is seen
# Whatever the standard library raises on bytes that somebody changed.
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError,
           ArithmeticError, LookupError, RuntimeError)  # fmt: skip


@dataclass
class Budget:
    """What may be read in one search, however deep archives are nested."""

    members: int = 100_000
    bytes: int = MAX_BYTES

    def member(self, where: str) -> None:
        self.members -= 1
        if self.members < 0:
            raise hostile("too many members", where)

    def spend(self, count: int, where: str) -> None:
        self.bytes -= count
        if self.bytes < 0:
            raise hostile("unpacks to more than is read of an archive", where)


@dataclass(frozen=True)
class Member:
    """One entry. `pieces(limit)` gives a file's content of at most `limit` bytes, and works until the next member is
    asked for."""

    name: str
    where: str  # "bundle.zip > folder/inner.tar.gz > name"
    is_file: bool
    pieces: Callable[[int], Iterator[bytes]]

    def read(self, limit: int) -> bytes:
        return b"".join(self.pieces(limit))


def shown(text: str) -> str:
    """A stranger's name, safe to print."""
    plain = ascii(text)[1:-1]
    return plain if len(plain) <= 160 else f"{plain[:120]}...{plain[-30:]}"


def bad(what: str, where: str, cause: str | None = None) -> BadInput:
    return BadInput.of("bad-archive", Where(where), what=what, cause=cause)


def _larger(limit: int, where: str) -> BadInput:
    return bad(f"larger than {limit // MIB} MB", where, "that is more than is read of a nested file")


def hostile(what: str, where: str) -> BadInput:
    return BadInput.of("hostile-archive", Where(where), what=what)


def ending(name: str) -> str | None:
    """The ending that makes `name` an archive's name."""
    return next((each for each in _KINDS if name.lower().endswith(each)), None)


def members(file: IO[bytes], name: str, where: str, budget: Budget, plain: bool = False) -> Iterator[Member]:
    """What a seekable archive holds, in its order; every entry's name and kind is checked. `plain` is for what is
    unpacked later: simple names only, and no link that leaves its folder.

    Raises:
        BadInput: damaged, encrypted, or made to do harm.
    """
    kind = ending(name)
    if kind is None:
        raise bad("not an archive that can be read", where, f"known endings: {', '.join(_KINDS)}")
    magic, offset, _ = _KINDS[kind]
    head = file.read(offset + 16)
    if not head[offset:].startswith(magic):
        page = head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html"))
        cause = "it begins like a web page: a download that wanted a login or a licence accepted" if page else None
        raise bad(f"no {kind[1:]} file inside", where, cause)
    with _whole(where):
        for member in (_zip if kind == ".zip" else _tar)(file, kind, where, budget, plain):
            _check_name(member.name, where, plain)
            yield member


@contextmanager
def _whole(where: str) -> Iterator[None]:
    try:
        yield
    except BadInput:
        raise
    except NotImplementedError as error:
        raise bad(f"packed in a way that can't be read: {error}", where) from None
    except _BROKEN as error:
        raise bad("damaged or cut off", where, shown(str(error)) or type(error).__name__) from None


def _check_name(name: str, where: str, plain: bool) -> None:
    parts = re.split(r"[/\\]", name)
    if not name or name[0] in "/\\" or ".." in parts or re.match(r"[A-Za-z]:", name):
        raise hostile(f"a member that would be written outside: '{shown(name)}'", where)
    if _CONTROL.search(name) or (plain and not re.fullmatch(r"[\w.+@~=,/ -]+", name, re.ASCII)):
        raise hostile(f"a member with odd characters in its name: '{shown(name)}'", where)


def _check_link(name: str, target: str, where: str, plain: bool) -> None:
    aim = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    # A way up can lead outside through another link, so nothing that is unpacked has one.
    if target[:1] in ("/", "\\") or aim.split("/")[0] == ".." or (plain and ".." in re.split(r"[/\\]", target)):
        raise hostile(f"a link that leads outside: '{shown(name)}' -> '{shown(target)}'", where)


class _Metered:
    """A stream that counts what is unpacked from `packed` bytes."""

    def __init__(self, inner: IO[bytes], packed: int, where: str, budget: Budget) -> None:
        self.inner, self.packed, self.where, self.budget = inner, packed, where, budget
        self.position = 0

    def read(self, size: int) -> bytes:
        data = self.inner.read(size)
        self.position += len(data)
        self.budget.spend(len(data), self.where)
        if self.position > max(RATIO_FROM, RATIO * self.packed):
            raise hostile(f"unpacks to more than {RATIO} times its size", self.where)
        return data

    def pieces(self, limit: int) -> Iterator[bytes]:
        size = 0
        while piece := self.read(MIB):
            size += len(piece)
            if size > limit:
                raise _larger(limit, self.where)
            yield piece


def _tar(file: IO[bytes], kind: str, where: str, budget: Budget, plain: bool) -> Iterator[Member]:
    packed = file.seek(0, 2)
    file.seek(0)
    stream = _Metered(_KINDS[kind][2](file), packed, where, budget)
    with open_tar(stream, MAX_BYTES) as tar:
        while (info := tar.next()) is not None:
            budget.member(where)
            at = f"{where} > {shown(info.name)}"
            if info.issym() or info.islnk():
                # A hard link's target is a path from the top.
                _check_link(info.name if info.issym() else "", info.linkname, where, plain)
            elif not (info.isdir() or info.isreg()):
                raise hostile(f"a device or other special file: '{shown(info.name)}'", where)

            def pieces(limit: int, info: tarfile.TarInfo = info, at: str = at) -> Iterator[bytes]:
                with _whole(at):
                    if info.size > limit:
                        raise _larger(limit, at)
                    opened, left = tar.extractfile(info), info.size
                    while opened and (piece := opened.read(MIB)):
                        left -= len(piece)
                        yield piece
                    if left:
                        raise EOFError("it ends too early")

            yield Member(info.name, at, info.isreg(), pieces)
        while stream.read(MIB):  # up to the checksum
            pass


class _ShortReads:
    """The library reads a zip's central directory at once, wherever the file says how long it is; nothing else of it
    takes as much."""

    def __init__(self, file: IO[bytes], where: str) -> None:
        self._file, self._where = file, where

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        if size > MAX_INDEX:
            raise bad("its list of members is too long", self._where)
        return self._file.read(size)


def _zip(file: IO[bytes], kind: str, where: str, budget: Budget, plain: bool) -> Iterator[Member]:
    packed = file.seek(0, 2)
    with zipfile.ZipFile(_ShortReads(file, where)) as archive:
        infos: list[zipfile.ZipInfo] = archive.infolist()
        if sum(info.file_size for info in infos) > max(RATIO_FROM, RATIO * packed):
            raise hostile(f"unpacks to more than {RATIO} times its size", where)
        for info in infos:
            budget.member(where)
            at = f"{where} > {shown(info.filename)}"

            def pieces(limit: int, info: zipfile.ZipInfo = info, at: str = at) -> Iterator[bytes]:
                if info.flag_bits & 1:
                    raise bad("encrypted", at, "it needs a password")
                with _whole(at), archive.open(info) as opened:
                    yield from _Metered(opened, info.compress_size, at, budget).pieces(limit)

            mode = stat.S_IFMT(info.external_attr >> 16)
            if mode == stat.S_IFLNK:
                _check_link(info.filename, b"".join(pieces(4096)).decode("utf-8", "replace"), where, plain)
            elif mode not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise hostile(f"a device or other special file: '{shown(info.filename)}'", where)
            # The library cuts a name at a zero byte.
            yield Member(info.orig_filename, at, mode in (0, stat.S_IFREG) and not info.is_dir(), pieces)
