"""A log as it comes: any size, any encoding, from a file, a pipe or standard input, in pieces of whole lines."""

import codecs
import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from rocstack.base.errors import BadInput

PIECE = 1 << 20  # bytes read at a time; a longer line is cut there
_SAMPLE = 1 << 16
_PACKED = {b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd", b"BZh": "bzip2"}  # how the files begin that these unpack
_TEXT_CONTROLS = frozenset(b"\t\n\r\b\f\x1b")


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """The log `name` as UTF-8 bytes; `-` is standard input. A .gz is unpacked on the way.

    Raises:
        BadInput: missing, unreadable, a folder, empty, or not text.
    """
    shown = "standard input" if name == "-" else name
    if name != "-" and Path(name).is_dir():
        raise BadInput(
            f"{name} is a folder",
            code="not-a-log",
            next_step="name one log file; for several, run `cat FOLDER/*.log | rocstack doctor --log -`",
        )
    try:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as raw:
            yield _text(raw, shown)
    except (gzip.BadGzipFile, EOFError) as error:
        raise BadInput(f"{shown}: the compressed log is damaged: {error}", code="not-a-log") from None
    except OSError as error:
        raise BadInput(
            f"can't read {shown}: {error.strerror or error}", code="no-file", next_step="check the path and permissions"
        ) from None


def pieces(stream: BinaryIO, size: int = PIECE) -> Iterator[bytes]:
    """The stream in pieces that end with a line's end; never more than twice `size` is held."""
    rest = b""
    while chunk := stream.read(size):
        rest += chunk
        cut = rest.rfind(b"\n") + 1 or (len(rest) if len(rest) >= size else 0)
        if cut:
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def _text(raw: BinaryIO, name: str) -> BinaryIO:
    stream = io.BufferedReader(cast("io.RawIOBase", raw), _SAMPLE)
    sample = stream.peek(_SAMPLE)[:_SAMPLE]
    if sample[:2] == b"\x1f\x8b":
        stream = io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=stream)), _SAMPLE)
        sample = stream.peek(_SAMPLE)[:_SAMPLE]
    if not sample:
        raise BadInput(
            f"{name} is empty",
            code="not-a-log",
            cause="the job wrote nothing yet, or the command before the pipe failed",
        )
    encoding = _encoding(sample)
    if encoding:
        return cast("BinaryIO", io.BufferedReader(_Recoded(stream, encoding), _SAMPLE))
    odd = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in sample)
    if odd > len(sample) / 20:
        packer = next((program for start, program in _PACKED.items() if sample.startswith(start)), None)
        raise BadInput(
            f"{name} is not a log: it holds binary data",
            code="not-a-log",
            next_step=f"unpack it: `{packer} -dc FILE | rocstack doctor -`"
            if packer
            else "give the text that the job or the kernel wrote",
        )
    return stream


def _encoding(sample: bytes) -> str | None:
    """UTF-16 by its mark or by its zeros; everything else is read as UTF-8, byte for byte."""
    if sample[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    for start, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        half = sample[start::2]
        if len(half) > 8 and half.count(0) > 0.7 * len(half) and sample[1 - start :: 2].count(0) == 0:
            return encoding
    return None


class _Recoded(io.RawIOBase):
    """A stream in another encoding, as UTF-8."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._stream, self._decoder = stream, codecs.getincrementaldecoder(encoding)(errors="replace")
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        while not self._ready:
            chunk = self._stream.read(_SAMPLE)
            self._ready = self._decoder.decode(chunk, final=not chunk).encode()
            if not chunk:
                break
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count
