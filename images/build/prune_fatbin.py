#!/usr/bin/env python3
"""Removes from shared libraries the GPU code of gfx targets that are not wanted.

    prune_fatbin.py --gfx gfx90a,gfx942 FILE...

HIP keeps the code objects of all targets as one bundle in the section .hip_fatbin, often far larger than the
rest of the library. The wanted ones move up inside the section, unchanged, and the whole pages that get free
are cut out of the file. No address changes: what follows the section in its read-only segment is mapped by the
next segment instead, which is writable only until relocation is done (RELRO). So no program header is added.

A file that is not as expected is left as it is, with a line that says why.
"""

from __future__ import annotations

import argparse
import mmap
import os
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

FATBIN = b".hip_fatbin"
MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"  # layout: Clang documentation, Clang Offload Bundler
ENTRY = struct.Struct("<QQQ")  # offset, size, length of the id that follows
CODE_ALIGN = 4096  # of code objects in a bundle, as hipcc asks for
LOAD, RELRO = 1, 0x6474E552
READ, READ_WRITE = 4, 6
ALLOC, NOBITS = 2, 8


class Untouched(Exception):
    """Why a file was left as it is."""


def expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Untouched(otherwise)


def up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


class Header(SimpleNamespace):
    """A header of an ELF file: the attributes are its fields, in file order."""

    layout: struct.Struct
    fields: str

    def __init__(self, data: mmap.mmap, offset: int = 0) -> None:
        super().__init__(**dict(zip(self.fields.split(), self.layout.unpack_from(data, offset), strict=True)))

    def pack(self) -> bytes:
        return self.layout.pack(*vars(self).values())


class FileHeader(Header):
    layout = struct.Struct("<16sHHIQQQIHHHHHH")
    fields = "ident type machine version entry phoff shoff flags ehsize phsize phnum shsize shnum names"


class Segment(Header):
    layout = struct.Struct("<IIQQQQQQ")
    fields = "type flags offset vaddr paddr size memsz align"


class Section(Header):
    layout = struct.Struct("<IIQQQQIIQQ")
    fields = "name type flags addr offset size link info align entsize"


@dataclass(frozen=True)
class Code:
    """An entry of the bundle: a code object for one target, or the empty one of the host."""

    offset: int  # in the section
    size: int
    id: bytes

    @property
    def gfx(self) -> str | None:
        """The target without features: gfx90a of hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-; none for the host."""
        found = re.search(rb"-(gfx[0-9a-f]+(-[0-9a-z]+)*)(:|$)", self.id)
        return found[1].decode() if found else None


class Elf:
    """A library's bytes, its headers, and what is in its bundle."""

    def __init__(self, data: mmap.mmap) -> None:
        expect(data[:4] == b"\x7fELF", "not an ELF file")
        expect(data[4:6] == b"\x02\x01", "not a 64-bit little-endian ELF file")
        self.data = data
        try:
            self.head = head = FileHeader(data)
            sizes = (head.phsize, head.shsize) == (Segment.layout.size, Section.layout.size)
            expect(sizes and head.names < head.shnum, "unusual ELF headers")
            self.segments = [Segment(data, head.phoff + i * head.phsize) for i in range(head.phnum)]
            self.sections = [Section(data, head.shoff + i * head.shsize) for i in range(head.shnum)]
        except struct.error:
            raise Untouched("its ELF headers are cut off") from None
        self.loads = [segment for segment in self.segments if segment.type == LOAD]
        found = [section for section in self.sections if self.name(section) == FATBIN]
        expect(len(found) == 1, f"it has no {FATBIN.decode()}")
        self.fat = found[0]
        self.codes = self._codes()

    def name(self, section: Section) -> bytes:
        start = self.sections[self.head.names].offset + section.name
        return self.data[start : self.data.find(b"\0", start)]

    def content(self, section: Section) -> bytes:
        return b"" if section.type == NOBITS else self.data[section.offset : section.offset + section.size]

    def code(self, code: Code) -> bytes:
        return self.data[self.fat.offset + code.offset : self.fat.offset + code.offset + code.size]

    def _codes(self) -> list[Code]:
        start, size = self.fat.offset, self.fat.size
        expect(self.data[start : start + 4] != b"CCOB", "its code objects are compressed")
        at = start + len(MAGIC) + 8
        expect(
            self.data[start : at - 8] == MAGIC, f"its {FATBIN.decode()} does not start with an offload bundle"
        )
        codes: list[Code] = []
        try:
            for _ in range(struct.unpack_from("<Q", self.data, at - 8)[0]):
                offset, length, id_length = ENTRY.unpack_from(self.data, at)
                at += ENTRY.size + id_length
                codes.append(Code(offset, length, self.data[at - id_length : at]))
        except struct.error:
            raise Untouched("its offload bundle is cut off") from None
        end = max((code.offset + code.size for code in codes), default=0)
        expect(max(end, at - start) <= size, "its offload bundle is cut off")
        expect(up(end, CODE_ALIGN) >= size, "it holds more than one offload bundle")
        return codes

    def bundle(self, kept: Iterable[Code]) -> bytes:
        """The section's new bytes: a bundle of the entries `kept`, each code object as it was."""
        kept = list(kept)
        header, body = MAGIC + struct.pack("<Q", len(kept)), bytearray()
        start = up(len(header) + sum(ENTRY.size + len(code.id) for code in kept), CODE_ALIGN)
        for code in kept:
            body += bytes(-len(body) % CODE_ALIGN)
            header += ENTRY.pack(start + len(body), code.size, len(code.id)) + code.id
            body += self.code(code)
        return header + bytes(start - len(header)) + body

    def shrink(self, new: bytes) -> Iterator[tuple[int | None, bytes]]:
        """Changes the headers so that `new` is the section, and yields the new file: pieces to append, then
        (offset, bytes) of headers to put over them."""
        fat, end = self.fat, self.fat.offset + self.fat.size
        page = max((segment.align for segment in self.loads), default=0)
        homes = [load for load in self.loads if load.offset <= fat.offset and end <= load.offset + load.size]
        expect(
            len(homes) == 1 and self.head.phoff < fat.offset, "its code objects are not in one loaded segment"
        )
        home = homes[0]
        expect(home.flags == READ and home.memsz == home.size, "its segment is not plain read-only data")
        expect(fat.addr - fat.offset == home.vaddr - home.offset, "its address does not fit its segment")
        others = [each for each in (*self.segments, *self.sections) if each is not fat and each is not home]
        for other in others:
            size = 0 if isinstance(other, Section) and other.type == NOBITS else other.size
            apart = other.offset >= end or other.offset + size <= fat.offset
            expect(apart, "another section or segment overlaps its code objects")

        cut = end // page * page - up(fat.offset + len(new), page)
        home_end, hole, gap = home.offset + home.size, len(self.data), 0
        if end < home_end:  # something follows the section: the next segment takes it over
            after = self.loads[self.loads.index(home) + 1 :][:1]
            relro = [
                each
                for each in self.segments
                if each.type == RELRO and each.vaddr in {a.vaddr for a in after}
            ]
            expect(
                bool(relro) and after[0].flags == READ_WRITE,
                "no RELRO segment follows that of its code objects",
            )
            hole = after[0].offset
            gap = (after[0].vaddr - hole) - (
                home.vaddr - home.offset
            )  # addresses may skip what the file doesn't
            expect(hole >= home_end and gap >= 0 and gap % page == 0, "its segments are not in order")
            for taker in (after[0], *relro):
                more = taker.vaddr - (fat.addr + fat.size)
                taker.offset, taker.vaddr, taker.paddr = end, taker.vaddr - more, taker.paddr - more
                taker.size, taker.memsz = taker.size + more, taker.memsz + more
        expect(cut > gap, "nothing worth removing")

        def moved(offset: int) -> int:
            return offset - (0 if offset < end else cut if offset < hole else cut - gap)

        home.size = home.memsz = fat.offset + len(new) - home.offset
        fat.size = len(new)
        for other in others:
            other.offset = moved(other.offset)
        self.head.shoff = moved(self.head.shoff)
        padding = bytes(end - cut - fat.offset - len(new))
        for piece in (
            self.data[: fat.offset],
            new,
            padding,
            self.data[end:hole],
            bytes(gap),
            self.data[hole:],
        ):
            yield None, piece
        yield 0, self.head.pack()
        yield self.head.phoff, b"".join(segment.pack() for segment in self.segments)
        yield self.head.shoff, b"".join(section.pack() for section in self.sections)


def check(old: Elf, new: Elf) -> None:
    """Each section but the pruned one has its old address and bytes, all are loaded, all code is as it was."""
    for before, after in zip(old.sections, new.sections, strict=True):
        name = old.name(before).decode(errors="replace")
        same = before is old.fat or old.content(before) == new.content(after)
        expect(same and before.addr == after.addr, f"section {name} would have changed")
        where = [load for load in new.loads if load.vaddr - load.offset == after.addr - after.offset]
        loaded = [
            load for load in where if load.offset <= after.offset <= load.offset + load.size - after.size
        ]
        expect(bool(loaded) or after.type == NOBITS or not after.flags & ALLOC, f"{name} would not be loaded")
    codes = {code.id: old.code(code) for code in old.codes}
    expect(all(new.code(code) == codes[code.id] for code in new.codes), "a code object would have changed")


def prune(path: Path, wanted: set[str]) -> str:
    """Prunes one file, atomically, and returns what was done. Targets named *-generic stay: they serve whoever
    has no code of its own.

    Raises:
        Untouched: the file was left as it is.
    """
    path = path.resolve(strict=True)
    state = path.stat()
    expect(state.st_size > FileHeader.layout.size, "not an ELF file")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        old, changed = Elf(data), Elf(data)
        kept = [
            code for code in old.codes if not code.gfx or code.gfx in wanted or code.gfx.endswith("-generic")
        ]
        has = {code.gfx for code in kept if code.gfx}
        gone = sorted({code.gfx for code in old.codes if code.gfx} - has)
        expect(bool(has & wanted), f"it has none of the wanted targets, only {', '.join(gone)}")
        lacks = f"; it has no code for {', '.join(sorted(wanted - has))}" if wanted - has else ""
        if not gone:
            return "nothing to remove" + lacks
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "r+b") as out:
                for offset, piece in changed.shrink(old.bundle(kept)):
                    out.seek(*((0, os.SEEK_END) if offset is None else (offset,)))
                    out.write(piece)
                out.flush()
                with mmap.mmap(out.fileno(), 0, access=mmap.ACCESS_READ) as written:
                    check(old, Elf(written))
                os.fsync(out.fileno())
            os.chown(name, state.st_uid, state.st_gid)
            shutil.copystat(path, name)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    sizes = f"{state.st_size / 1e6:.1f} -> {path.stat().st_size / 1e6:.1f} MB"
    return f"{sizes}, kept {', '.join(sorted(has))}, removed {', '.join(gone)}{lacks}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gfx", required=True, help="targets to keep, with commas between")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a file is left as it is")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    wanted = set(options.gfx.split(","))
    if bad := sorted(gfx for gfx in wanted if not re.fullmatch(r"gfx[0-9a-f]{3,4}", gfx)):
        parser.error(f"not a gfx target: {bad[0]!r}")
    code = 0
    for file in options.files:
        try:
            print(f"{file}: {prune(file, wanted)}")
        except Untouched as reason:
            print(f"{file}: left as it is: {reason}")
            code = max(code, int(options.strict))
        except OSError as error:
            print(f"{file}: {error.strerror}", file=sys.stderr)
            code = 2
    return code


if __name__ == "__main__":
    sys.exit(main())
