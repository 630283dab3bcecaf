"""A log as it comes: any size, any encoding, from a file, a pipe or standard input, in pieces of whole lines."""

import codecs
import gzip
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from rocstack.base.errors import BadInput

Read = Callable[[int], bytes]  # up to so many bytes; none at the end
PIECE = 1 << 20  # bytes read at a time; a longer line is cut there
_SAMPLE = 1 << 16
_PACKED = {b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd", b"BZh": "bzip2"}  # how the files begin that these unpack
_TEXT_CONTROLS = frozenset(b"\t\n\r\b\f\x1b")


@contextmanager
def opened(name: str) -> Iterator[Read]:
    """What reads the log `name` as UTF-8 bytes; `-` is standard input. A .gz is unpacked on the way.

    Raises:
        BadInput: missing, unreadable, a folder, empty, or not text.
    """
    shown = "standard input" if name == "-" else name
    if name != "-" and Path(name).is_dir():
        raise BadInput.of("log-folder", name=name)
    try:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as raw:
            yield _text(raw, shown)
    except (gzip.BadGzipFile, EOFError) as error:
        raise BadInput.of("damaged-log", name=shown, problem=error) from None
    except OSError as error:
        raise BadInput.of("unreadable-log", name=shown, problem=error.strerror or error) from None


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
