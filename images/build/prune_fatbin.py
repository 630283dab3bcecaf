#!/usr/bin/env python3
"""Removes from shared libraries the GPU code of gfx targets that are not wanted.

    prune_fatbin.py --gfx gfx90a,gfx942 FILE...

HIP keeps the code objects of all targets as one bundle in the section .hip_fatbin. The wanted ones move up
inside the section, unchanged, and the whole pages that get free are cut out of the file. No address changes:
what follows the section in its read-only segment is mapped by the next segment instead, which is writable
only until relocation is done (RELRO), so no program header is added.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

FATBIN = b".hip_fatbin"
MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"  # layout: Clang documentation, Clang Offload Bundler
ENTRY = struct.Struct("<QQQ")  # offset, size, length of the id that follows
PAGE = 4096  # at least; hipcc aligns code objects to it too
FILE = "<16sHHIQQQI6H", "ident type cpu version entry phoff shoff flags size phsize phnum shsize shnum names"
SEGMENT = "<IIQQQQQQ", "type flags offset vaddr paddr size memsz align"
SECTION = "<IIQQQQIIQQ", "name type flags addr offset size link info align entsize"
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


def read(data: mmap.mmap, offset: int, layout: str, fields: str) -> SimpleNamespace:
    """A header at `offset`, as attributes in file order."""
    return SimpleNamespace(**dict(zip(fields.split(), struct.unpack_from(layout, data, offset), strict=True)))


def pack(layout: str, *headers: SimpleNamespace) -> bytes:
    return b"".join(struct.pack(layout, *vars(header).values()) for header in headers)


@dataclass(frozen=True)
class Code:
    """An entry of the bundle: a code object for one target, or the empty one of the host."""

    offset: int  # in the section
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


class Elf:
    """A library's bytes, its headers, and what is in its bundle."""

    def __init__(self, data: mmap.mmap) -> None:
        expect(data[:4] == b"\x7fELF", "not an ELF file")
        expect(data[4:6] == b"\x02\x01", "not a 64-bit little-endian ELF file")
        self.data = data
        self.head = head = read(data, 0, *FILE)
        sizes = (head.phsize, head.shsize) == (struct.calcsize(SEGMENT[0]), struct.calcsize(SECTION[0]))
        expect(sizes and head.names < head.shnum, "unusual ELF headers")
        self.segments = [read(data, head.phoff + i * head.phsize, *SEGMENT) for i in range(head.phnum)]
        self.sections = [read(data, head.shoff + i * head.shsize, *SECTION) for i in range(head.shnum)]
        self.loads = [segment for segment in self.segments if segment.type == LOAD]
        names = self.content(self.sections[head.names])
        found = [each for each in self.sections if names[each.name :].startswith(FATBIN + b"\0")]
        expect(len(found) == 1, f"it has no {FATBIN.decode()}")
        self.fat = found[0]
        self.codes = self.bundled()

    def content(self, section: SimpleNamespace) -> bytes:
        return b"" if section.type == NOBITS else self.data[section.offset : section.offset + section.size]

    def code(self, code: Code) -> bytes:
        return self.data[self.fat.offset + code.offset : self.fat.offset + code.offset + code.size]

    def bundled(self) -> list[Code]:
        start, size = self.fat.offset, self.fat.size
        at = start + len(MAGIC) + 8
        expect(self.data[start : start + 4] != b"CCOB", "its code objects are compressed")
        expect(self.data[start : at - 8] == MAGIC, f"no offload bundle at the start of its {FATBIN.decode()}")
        codes: list[Code] = []
        for _ in range(struct.unpack_from("<Q", self.data, at - 8)[0]):
            offset, length, id_length = ENTRY.unpack_from(self.data, at)
            at += ENTRY.size + id_length
            codes.append(Code(offset, length, self.data[at - id_length : at]))
        end = max((code.offset + code.size for code in codes), default=0)
        expect(max(end, at - start) <= size, "its offload bundle is cut off")
        expect(up(end, PAGE) >= size, "it holds more than one offload bundle")
        return codes

    def bundle(self, kept: Sequence[Code]) -> bytes:
        """The section's new bytes: a bundle of the entries `kept`, each code object as it was."""
        header, body = MAGIC + struct.pack("<Q", len(kept)), bytearray()
        start = up(len(header) + sum(ENTRY.size + len(code.id) for code in kept), PAGE)
        for code in kept:
            body += bytes(-len(body) % PAGE)
            header += ENTRY.pack(start + len(body), code.size, len(code.id)) + code.id
            body += self.code(code)
        return header + bytes(start - len(header)) + body

    def shrink(self, new: bytes) -> tuple[list[bytes], dict[int, bytes]]:
        """Changes the headers so that `new` is the section. Returns the new file in pieces, but with the old
        headers, and the new ones by their offset."""
        fat, end = self.fat, self.fat.offset + self.fat.size
        page = max([PAGE, *(load.align for load in self.loads)])
        homes = [load for load in self.loads if load.offset <= fat.offset and end <= load.offset + load.size]
        expect(len(homes) == 1 and self.head.phoff < fat.offset, "no one segment loads its code objects")
        home = homes[0]
        expect(home.flags == READ and home.memsz == home.size, "their segment is not plain read-only data")
        expect(fat.addr - fat.offset == home.vaddr - home.offset, "their address does not fit their segment")
        others = [each for each in (*self.segments, *self.sections) if each is not fat and each is not home]
        for other in others:
            before = other.offset + (0 if other.type == NOBITS else other.size) <= fat.offset
            expect(before or other.offset >= end, "something overlaps its code objects")

        cut, hole, gap = end // page * page - up(fat.offset + len(new), page), len(self.data), 0
        if end < home.offset + home.size:  # something follows: the next segment takes it over
            after = next((load for load in self.loads if load.vaddr > home.vaddr), home)
            takers = [x for x in self.segments if x.vaddr == after.vaddr and x.type in (LOAD, RELRO)]
            expect(len(takers) == 2 and after.flags == READ_WRITE, "no RELRO segment comes after it")
            hole = after.offset
            gap = (after.vaddr - hole) - (home.vaddr - home.offset)  # in addresses, but not in the file
            expect(hole >= home.offset + home.size and gap >= 0 and gap % page == 0, "odd segment order")
            for taker in takers:
                more = taker.vaddr - (fat.addr + fat.size)
                taker.offset, taker.vaddr, taker.paddr = end, taker.vaddr - more, taker.paddr - more
                taker.size, taker.memsz = taker.size + more, taker.memsz + more
        expect(cut > gap, "nothing worth removing")

        home.size = home.memsz = fat.offset + len(new) - home.offset
        fat.size = len(new)
        for header, field in (*((other, "offset") for other in others), (self.head, "shoff")):
            offset = getattr(header, field)
            setattr(header, field, offset - (0 if offset < end else cut if offset < hole else cut - gap))
        padding = bytes(end - cut - fat.offset - len(new))
        pieces = [self.data[: fat.offset], new, padding, self.data[end:hole], bytes(gap), self.data[hole:]]
        segments, sections = pack(SEGMENT[0], *self.segments), pack(SECTION[0], *self.sections)
        return pieces, {0: pack(FILE[0], self.head), self.head.phoff: segments, self.head.shoff: sections}


def same(old: Elf, new: Elf) -> bool:
    """Whether all sections but the pruned one have their old address and bytes, and all code its bytes."""
    codes = {code.id: old.code(code) for code in old.codes}
    good = all(new.code(code) == codes[code.id] for code in new.codes)
    for before, after in zip(old.sections, new.sections, strict=True):
        good &= before.addr == after.addr and (before is old.fat or old.content(before) == new.content(after))
        if after.flags & ALLOC and after.type != NOBITS:
            at, end = after.addr - after.offset, after.offset + after.size
            loads = [load for load in new.loads if load.vaddr - load.offset == at]
            good &= any(load.offset <= after.offset and end <= load.offset + load.size for load in loads)
    return good


def replace(path: Path, old: Elf, pieces: Iterable[bytes], headers: dict[int, bytes]) -> None:
    """Writes the new file beside `path` and, once complete and checked, puts it in its place."""
    state = path.stat()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "r+b") as out:
            out.writelines(pieces)
            for offset, header in headers.items():
                out.seek(offset)
                out.write(header)
            out.flush()
            with mmap.mmap(out.fileno(), 0, access=mmap.ACCESS_READ) as data:
                expect(same(old, Elf(data)), "the pruned file failed its check")
            os.fsync(out.fileno())
        os.chown(name, state.st_uid, state.st_gid)
        shutil.copystat(path, name)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def prune(path: Path, wanted: set[str]) -> str:
    """Prunes one file and says what was done. Raises Untouched if it was left as it is."""
    path = path.resolve(strict=True)
    before = path.stat().st_size
    expect(before > 0, "not an ELF file")  # nothing can't be mapped
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        old, new = Elf(data), Elf(data)
        kept = [code for code in old.codes if code.wanted(wanted)]
        every, has = ({code.gfx for code in codes if code.gfx} for codes in (old.codes, kept))
        expect(bool(has & wanted), f"it has none of the wanted targets, only {', '.join(sorted(every))}")
        lacks = f"; it has no code for {', '.join(sorted(wanted - has))}" if wanted - has else ""
        if every == has:
            return "nothing to remove" + lacks
        replace(path, old, *new.shrink(old.bundle(kept)))
    sizes = f"{before / 1e6:.1f} -> {path.stat().st_size / 1e6:.1f} MB"
    return f"{sizes}, kept {', '.join(sorted(has))}, removed {', '.join(sorted(every - has))}{lacks}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gfx", required=True, help="targets to keep, with commas between")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a file is left as it is")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    for gfx in options.gfx.split(","):
        if not re.fullmatch(r"gfx[0-9a-f]{3,4}", gfx):
            parser.error(f"not a gfx target: {gfx!r}")
    code = 0
    for file in options.files:
        try:
            print(f"{file}: {prune(file, set(options.gfx.split(',')))}")
        except (Untouched, struct.error, OverflowError) as error:
            reason = error if isinstance(error, Untouched) else "its headers make no sense"
            print(f"{file}: left as it is: {reason}")
            code = max(code, int(options.strict))
        except OSError as error:
            print(f"{file}: {error.strerror}", file=sys.stderr)
            code = 2
    return code


if __name__ == "__main__":
    sys.exit(main())
