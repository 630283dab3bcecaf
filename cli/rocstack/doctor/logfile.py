"""A log as it comes: any size, any encoding, from a file, a pipe or standard input, in pieces of whole lines."""

import codecs
import gzip
import io
import os
import pwd
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import BinaryIO, NamedTuple, cast

from rocstack.base.errors import BadInput

Read = Callable[[int], bytes]  # up to so many bytes; none at the end
DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error)  # what reading a packed log raises
PIECE = 1 << 20  # bytes read at a time; a longer line is cut there
_SAMPLE = 1 << 16
_PACKED = {b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd", b"BZh": "bzip2"}  # how the files begin that these unpack
_TEXT_CONTROLS = frozenset(b"\t\n\r\b\f\x1b")


class FileUser(NamedTuple):
    """As whom a file is read, where root reads it."""

    uid: int
    gid: int


@contextmanager
def opened(name: str) -> Iterator[Read]:
    """What reads the log `name` as UTF-8 bytes; `-` is standard input. A .gz is unpacked on the way.

    Raises:
        BadInput: missing, unreadable, a folder, empty, or not text.
    """
    shown = "standard input" if name == "-" else name
    if name != "-" and os.path.isdir(name):
        raise BadInput.of("log-folder", name=name)
    with _read_from(lambda: open(0 if name == "-" else name, "rb", closefd=name != "-"), shown) as read:
        yield read


@contextmanager
def opened_file(name: str, user: FileUser | None = None) -> Iterator[Read]:
    """As `opened`, for a path that somebody else may have made or named: nothing but a plain file is opened, since a
    pipe holds its reader up and a device may act.

    Raises:
        BadInput: as `opened`; or it is no plain file.
    """
    with _read_from(lambda: _plain(name, user), name) as read:
        yield read


@contextmanager
def _read_from(open_it: Callable[[], BinaryIO], shown: str) -> Iterator[Read]:
    try:
        with open_it() as raw:
            yield _text(raw, shown)
    except DAMAGED as error:
        raise BadInput.of("damaged-log", name=shown, problem=error) from None
    except OSError as error:
        raise BadInput.of("unreadable-log", name=shown, problem=error.strerror or error) from None


def _plain(name: str, user: FileUser | None) -> BinaryIO:
    with _as(user):
        place = os.open(name, os.O_PATH | os.O_CLOEXEC)  # opens nothing yet: what it is can be asked first
        try:
            known = os.fstat(place)
            if not stat.S_ISREG(known.st_mode):
                raise BadInput.of("no-plain-log", name=name)
            if not known.st_size:  # or one of the kernel's, such as /proc/kmsg: reading that waits, and takes it away
                raise BadInput.of("empty-log", name=name)
            return open(f"/proc/self/fd/{place}", "rb")
        finally:
            os.close(place)


@contextmanager
def _as(user: FileUser | None) -> Iterator[None]:
    """With the user's rights, where this is root; anybody else has their own only."""
    if user is None or user.uid == 0 or os.geteuid() != 0:
        yield
        return
    groups = [user.gid]
    with suppress(KeyError):  # a user that this machine doesn't know
        groups = os.getgrouplist(pwd.getpwuid(user.uid).pw_name, user.gid)
    with ExitStack() as back:
        back.callback(os.setgroups, os.getgroups())
        os.setgroups(groups)
        back.callback(os.setegid, os.getegid())
        os.setegid(user.gid)
        back.callback(os.seteuid, 0)
        os.seteuid(user.uid)
        yield


def pieces(read: Read, size: int = PIECE) -> Iterator[bytes]:
    """The log in pieces that end with a line's end; never more than twice `size` is held."""
    rest = b""
    while chunk := read(size):
        rest += chunk
        cut = rest.rfind(b"\n") + 1 or (len(rest) if len(rest) >= size else 0)
        if cut:
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def _text(raw: BinaryIO, name: str) -> Read:
    stream = io.BufferedReader(cast("io.RawIOBase", raw), _SAMPLE)
    sample = stream.peek(_SAMPLE)[:_SAMPLE]
    if sample[:2] == b"\x1f\x8b":
        stream = io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=stream)), _SAMPLE)
        sample = stream.peek(_SAMPLE)[:_SAMPLE]
    if not sample:
        raise BadInput.of("empty-log", name=name)
    encoding = _encoding(sample)
    if encoding:
        text = io.TextIOWrapper(stream, encoding, errors="replace", newline="")
        return lambda size: text.read(size // 3 + 1).encode()  # a character is up to 3 bytes, of two in UTF-16
    odd = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in sample)
    if odd > len(sample) / 20:
        packer = next((program for start, program in _PACKED.items() if sample.startswith(start)), None)
        raise BadInput.of("packed-log" if packer else "binary-log", name=name, packer=packer)
    return stream.read


def _encoding(sample: bytes) -> str | None:
    """UTF-16 by its mark or by its zeros; everything else is read as UTF-8, byte for byte."""
    if sample[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    for start, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        half = sample[start::2]
        if len(half) > 8 and half.count(0) > 0.7 * len(half) and sample[1 - start :: 2].count(0) == 0:
            return encoding
    return None
