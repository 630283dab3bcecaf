#!/usr/bin/env python3
"""Which GPU targets the libraries and kernel folders below some folders have code for, as JSON.

    offload_bundle.py FOLDER...

HIP keeps the code objects of all targets in bundles, and a library's bundles in its section .hip_fatbin: hundreds,
or one; plain, or compressed by zstd. Here they are read, with Python and the libzstd that dpkg itself needs.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from elf import Elf, NoCode, Untouched, expect, files_below, is_elf

FATBIN = b".hip_fatbin"
MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"  # layout of both forms: Clang documentation, Clang Offload Bundler
ENTRY = struct.Struct("<QQQ")  # offset, size, length of the id that follows
PACKED = b"CCOB"
# By version: magic, version, method, size of the whole, size of what is in it, the first half of that one's MD5
PACKED_HEADS = {2: struct.Struct("<4sHHIIQ"), 3: struct.Struct("<4sHHQQQ")}
ZSTD = 1
PAGE = 4096  # hipcc aligns bundles, and code objects in them, to it
CHUNK = 1 << 20
TARGET = r"gfx(?:[6-9]|1[0-9])[0-9][0-9a-f]"
# Kernels in files of their own, whose names say the target; rocstack's dpkg rules know the same folders.
KERNELS = re.compile(r".*/((rocblas/.*|hipblaslt/|hipsparselt/)library|miopen/db|aotriton\.images)(?=/)")

Take = Callable[[int, int], bytes]  # offset and size, never backwards


def up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


class Span(ctypes.Structure):
    """ZSTD_inBuffer and ZSTD_outBuffer."""

    _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t), ("at", ctypes.c_size_t)]


@functools.cache
def zstd() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError:
        raise Untouched("its code objects are compressed, and there is no libzstd.so.1") from None
    stream, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    span = ctypes.POINTER(Span)
    for name, result, arguments in (
        ("createDStream", stream, []),
        ("freeDStream", size, [stream]),
        ("decompressStream", size, [stream, span, span]),
        ("createCCtx", stream, []),
        ("freeCCtx", size, [stream]),
        ("CCtx_setParameter", size, [stream, number, number]),
        ("compressBound", size, [size]),
        ("compress2", size, [stream, ctypes.c_char_p, size, ctypes.c_char_p, size]),
        ("isError", ctypes.c_uint, [size]),
    ):
        function = getattr(library, "ZSTD_" + name)
        function.restype, function.argtypes = result, arguments
    return library


def compressed(content: bytes) -> bytes:
    """One zstd frame, at level 9 with long-distance matching: level 19 makes it 5 % smaller in 70 times the time."""
    library = zstd()
    context, room = library.ZSTD_createCCtx(), library.ZSTD_compressBound(len(content))
    for parameter, value in ((100, 9), (160, 1)):  # ZSTD_c_compressionLevel, ZSTD_c_enableLongDistanceMatching
        library.ZSTD_CCtx_setParameter(context, parameter, value)
    out = ctypes.create_string_buffer(room)
    size = library.ZSTD_compress2(context, out, room, content, len(content))
    library.ZSTD_freeCCtx(context)
    expect(not library.ZSTD_isError(size), "zstd failed")
    return ctypes.string_at(out, size)


def decompressed(data: mmap.mmap, start: int, end: int) -> Iterator[bytes]:
    """What the zstd frame from `start` to `end` holds, piece by piece: RCCL's bundle has 1.2 GB."""
    library = zstd()
    stream, room = library.ZSTD_createDStream(), ctypes.create_string_buffer(CHUNK)
    try:
        for at in range(start, end, CHUNK):
            piece = data[at : min(at + CHUNK, end)]
            source, out = (
                Span(ctypes.cast(ctypes.c_char_p(piece), ctypes.c_void_p).value, len(piece), 0),
                Span(None, 0, 0),
            )
            while source.at < len(piece) or out.at == CHUNK:
                out = Span(ctypes.addressof(room), CHUNK, 0)
                left = library.ZSTD_decompressStream(stream, ctypes.byref(out), ctypes.byref(source))
                expect(not library.ZSTD_isError(left), "its compressed bundle is broken")
                yield ctypes.string_at(room, out.at)
                if left == 0:
                    expect(at + source.at == end, "something follows in its compressed bundle")
                    return
        expect(False, "its offload bundle is cut off")
    finally:
        library.ZSTD_freeDStream(stream)


def forwards(pieces: Iterator[bytes]) -> Take:
    held, start = bytearray(), 0

    def take(offset: int, size: int) -> bytes:
        nonlocal start
        expect(offset >= start, "its code objects overlap")
        while start + len(held) < offset + size:
            piece = next(pieces, None)
            if piece is None:
                raise Untouched("its offload bundle is cut off")
            held.extend(piece)
            skipped = min(offset - start, len(held))
            del held[:skipped]
            start += skipped
        del held[: offset - start]
        content = bytes(held[:size])
        del held[:size]
        start = offset + size
        return content

    return take


@dataclass(frozen=True)
class Code:
    """An entry of a bundle: a code object for one target, or the empty one of the host."""

    offset: int  # in the bundle
    size: int
    id: bytes

    @property
    def gfx(self) -> str | None:
        """The target without features: gfx90a of hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-; or None."""
        found = re.search(rb"-(gfx[0-9a-f]+(-[0-9a-z]+)*)(:|$)", self.id)
        return found[1].decode() if found else None

    def wanted(self, gfx: set[str]) -> bool:
        """Generic targets always are: they serve whoever has no code of its own."""
        return self.gfx is None or self.gfx in gfx or self.gfx.endswith("-generic")


def gfx_of(codes: Iterable[Code]) -> set[str]:
    return {code.gfx for code in codes if code.gfx}


class Bundle:
    """An offload bundle that starts at `start` in a file and ends no later than at `limit`."""

    def __init__(self, data: mmap.mmap, start: int, limit: int) -> None:
        self.data, self.start, self.end, self.version = data, start, limit, 0
        self.body = start  # where the zstd frame begins in a compressed one
        if data[start : min(start + 4, limit)] == PACKED:
            version, method = struct.unpack_from("<HH", data, start + 4)
            head = PACKED_HEADS.get(version)
            if head is None or method != ZSTD:
                raise Untouched(f"its code objects are compressed in an unknown way ({version}, {method})")
            self.version, self.body = version, start + head.size
            self.end = start + head.unpack_from(data, start)[3]
            expect(self.body < self.end <= limit, "its offload bundle is cut off")
        take = self.taker()
        expect(take(0, len(MAGIC)) == MAGIC, f"no offload bundle where one should start in its {FATBIN.decode()}")
        at, codes = len(MAGIC) + 8, []
        for _ in range(struct.unpack("<Q", take(at - 8, 8))[0]):
            offset, size, length = ENTRY.unpack(take(at, ENTRY.size))
            codes.append(Code(offset, size, take(at + ENTRY.size, length)))
            at += ENTRY.size + length
        self.codes = codes
        if not self.version:
            self.end = start + max([at, *(code.offset + code.size for code in codes)])
            expect(self.end <= limit, "its offload bundle is cut off")

    def taker(self) -> Take:
        if self.version:
            return forwards(decompressed(self.data, self.body, self.end))

        def take(offset: int, size: int) -> bytes:
            expect(self.start + offset + size <= self.end, "its offload bundle is cut off")
            return self.data[self.start + offset : self.start + offset + size]

        return take

    def contents(self, codes: Iterable[Code]) -> Iterator[tuple[Code, bytes]]:
        """Code objects with their bytes, in the order they lie in."""
        take = self.taker()
        for code in sorted(codes, key=lambda code: (code.offset, code.size)):
            yield code, take(code.offset, code.size)


class Fat(Elf):
    """A library's bytes, its headers, and its bundles."""

    def __init__(self, data: mmap.mmap) -> None:
        super().__init__(data)
        found = [each for each in self.sections if self.named(each, FATBIN)]
        expect(len(found) == 1, f"it has no {FATBIN.decode()}", NoCode)
        self.fat = found[0]
        self.bundles = list(self.bundled())

    def bundled(self) -> Iterator[Bundle]:
        at, end = self.fat.offset, self.fat.offset + self.fat.size
        expect(at < end <= len(self.data), "its headers make no sense")
        while at < end:
            bundle = Bundle(self.data, at, end)
            yield bundle
            at = min(self.fat.offset + up(bundle.end - self.fat.offset, PAGE), end)
            expect(not any(self.data[bundle.end : at]), "something lies between its offload bundles")

    @property
    def codes(self) -> list[Code]:
        return [code for bundle in self.bundles for code in bundle.codes]


def targets(path: Path) -> set[str]:
    """The targets that a library's bundles have code for.

    Raises:
        NoCode: it has no .hip_fatbin, or is no library.
        Untouched: its bundles can't be read; the text says why.
    """
    expect(is_elf(path), "not an ELF file", NoCode)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return gfx_of(Fat(data).codes)
        except (struct.error, OverflowError):
            raise NoCode("its headers make no sense") from None


def survey(folder: Path) -> dict[str, list[str]]:
    """Libraries and kernel folders below `folder`, by path from there -> the targets they have code for, sorted; a
    kernel folder may have none left. A library whose bundles can't be read is said on stderr."""
    found: dict[str, set[str]] = {}
    for path in files_below(folder):
        inside = str(path.relative_to(folder))
        if kernels := KERNELS.match("/" + inside):
            where = kernels[0].lstrip("/")
            found.setdefault(where, set()).update(re.findall(TARGET, inside[len(where) :]))
            continue
        try:
            found[inside] = targets(path)
        except NoCode:
            pass
        except Untouched as error:
            print(f"{path}: {error}", file=sys.stderr)
    return {path: sorted(found[path]) for path in sorted(found)}


if __name__ == "__main__":
    print(json.dumps({path: has for folder in sys.argv[1:] for path, has in survey(Path(folder)).items()}, indent=1))
