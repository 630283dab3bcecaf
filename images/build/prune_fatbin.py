#!/usr/bin/env python3
"""Removes from shared libraries the GPU code of gfx targets that are not wanted.

    prune_fatbin.py --gfx gfx90a,gfx942 FILE-OR-FOLDER...

HIP keeps the code objects of all targets in bundles in the section .hip_fatbin. Each bundle is made anew of the
wanted ones, unchanged, and compressed if it was; the bundles move up inside the section, the pointers to them are
changed, and the whole pages that get free are cut out of the file. No other address changes: what follows the
section in its read-only segment is mapped by the next segment instead, which is writable only until relocation is
done (RELRO), so no program header is added.

A file that is not as expected is left as it is, with a line that says why.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import os
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

from elf import (
    ALLOC,
    FILE,
    LOAD,
    NOBITS,
    SECTION,
    SEGMENT,
    NoCode,
    Untouched,
    expect,
    files_below,
    is_elf,
)  # fmt: skip
from offload_bundle import ENTRY, MAGIC, PACKED, PACKED_HEADS, PAGE, ZSTD, Bundle, Fat, compressed, gfx_of, up

RELRO = 0x6474E552
READ, READ_WRITE = 4, 6
X86_64, RELATIVE = 62, 8
WRAPPERS = b".hipFatBinSegment"
# What may hold the address of a bundle: an entry's layout, which of its fields, and that one's offset
WRAPPER = struct.Struct("<IIQQ"), 2, 8  # magic, version, bundle, unused
SYMBOL, RELOCATION = (struct.Struct("<IBBHQQ"), 4, 8), (struct.Struct("<QQQ"), 2, 16)
HOLDERS = {2: SYMBOL, 4: RELOCATION, 11: SYMBOL}  # by type of section


def pack(layout: str, *headers: SimpleNamespace) -> bytes:
    return b"".join(struct.pack(layout, *vars(header).values()) for header in headers)


def remade(bundle: Bundle, wanted: set[str], digests: dict[bytes, bytes]) -> bytes:
    """The bundle without the code for other targets. Notes the SHA-256 of each code object that stays in `digests`."""
    kept = [code for code in bundle.codes if code.wanted(wanted)]
    content = {}
    for code, data in bundle.contents(kept):
        content[code] = data
        digests[code.id] = hashlib.sha256(data).digest()
    if len(kept) == len(bundle.codes):
        return bundle.data[bundle.start : bundle.end]
    header, body = MAGIC + struct.pack("<Q", len(kept)), bytearray()
    start = up(len(header) + sum(ENTRY.size + len(code.id) for code in kept), PAGE)
    for code in kept:
        body += bytes(-len(body) % PAGE)
        header += ENTRY.pack(start + len(body), code.size, len(code.id)) + code.id
        body += content[code]
    plain = header + bytes(start - len(header)) + body
    if not bundle.version:
        return plain
    head, frame = PACKED_HEADS[bundle.version], compressed(plain)
    md5 = int.from_bytes(hashlib.md5(plain, usedforsecurity=False).digest()[:8], "little")
    return head.pack(PACKED, bundle.version, ZSTD, head.size + len(frame), len(plain), md5) + frame


class Library(Fat):
    """One whose bundles can be changed."""

    def pointers(self) -> dict[tuple[int, int], int]:
        """Where an address of a bundle stands -> which bundle. Where is a section's number and an offset in it: in
        the wrappers that HIP registers, or in the relocations that fill them; also in symbols.

        Raises:
            Untouched: something else points into the bundles, or nothing to one of them.
        """
        expect(self.head.cpu == X86_64, "not for x86-64")
        first, end = self.fat.addr, self.fat.addr + self.fat.size
        starts = {first + bundle.start - self.fat.offset: i for i, bundle in enumerate(self.bundles)}
        wrappers = [each for each in self.sections if self.named(each, WRAPPERS)]
        found: dict[tuple[int, int], int] = {}
        served: set[int] = set()
        for number, section in enumerate(self.sections):
            holder = WRAPPER if section in wrappers else HOLDERS.get(section.type)
            if holder is None:
                continue
            (layout, field, offset), content = holder, self.content(section)
            for i, entry in enumerate(layout.iter_unpack(content[: len(content) // layout.size * layout.size])):
                if not first <= entry[field] < end:
                    continue
                if holder is RELOCATION:
                    if entry[1] & 0xFFFFFFFF != RELATIVE:
                        continue
                    fills = any(each.addr <= entry[0] < each.addr + each.size for each in wrappers)
                    expect(fills, "something other than its wrappers points to its bundles")
                expect(entry[field] in starts, "something points into the middle of its bundles")
                found[number, i * layout.size + offset] = starts[entry[field]]
                if holder is not SYMBOL:
                    served.add(starts[entry[field]])
        expect(len(served) == len(self.bundles), "no wrapper points to one of its bundles")
        return found

    def shrink(self, bundles: list[bytes]) -> tuple[list[bytes], dict[int, bytes]]:
        """Changes the headers so that the section holds `bundles`. Returns the new file in pieces, but with the old
        headers and pointers, and the new ones by their offset."""
        fat, end = self.fat, self.fat.offset + self.fat.size
        pointers = self.pointers() if len(bundles) > 1 else {}  # the first one stays where it is
        new, starts = bytearray(), []
        for bundle in bundles:
            new += bytes(-len(new) % PAGE)
            starts.append(fat.addr + len(new))
            new += bundle
        loads = [segment for segment in self.segments if segment.type == LOAD]
        page = max([PAGE, *(load.align for load in loads)])
        homes = [load for load in loads if load.offset <= fat.offset and end <= load.offset + load.size]
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
            after = next((load for load in loads if load.vaddr > home.vaddr), home)
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
        changed = {0: pack(FILE[0], self.head), self.head.phoff: segments, self.head.shoff: sections}
        for (number, offset), bundle_number in pointers.items():
            changed[self.sections[number].offset + offset] = struct.pack("<Q", starts[bundle_number])
        return pieces, changed


Digests = list[dict[bytes, bytes]]  # bundle by bundle: a code object's id -> its SHA-256


def same(old: Library, new: Library, digests: Digests) -> bool:
    """Whether all sections but the pruned one have their old address and bytes but for the pointers to bundles, these
    still point to the same ones, and all code has its bytes."""
    good = len(new.bundles) == len(digests)
    for bundle, kept in zip(new.bundles, digests, strict=False):
        good &= {code.id: hashlib.sha256(data).digest() for code, data in bundle.contents(bundle.codes)} == kept
    old_pointers, new_pointers = (each.pointers() if len(digests) > 1 else {} for each in (old, new))
    good &= old_pointers == new_pointers
    loads = [segment for segment in new.segments if segment.type == LOAD]
    for number, (before, after) in enumerate(zip(old.sections, new.sections, strict=True)):
        had, has = (bytearray(each.content(section)) for each, section in ((old, before), (new, after)))
        for where, offset in old_pointers:
            if where == number:
                had[offset : offset + 8] = has[offset : offset + 8] = bytes(8)
        good &= before.addr == after.addr and (before is old.fat or had == has)
        if after.flags & ALLOC and after.type != NOBITS:
            at, end = after.addr - after.offset, after.offset + after.size
            homes = [load for load in loads if load.vaddr - load.offset == at]
            good &= any(load.offset <= after.offset and end <= load.offset + load.size for load in homes)
    return good


def replace(path: Path, old: Library, digests: Digests, pieces: Iterable[bytes], changed: dict[int, bytes]) -> None:
    """Writes the new file beside `path` and, once complete and checked, puts it in its place."""
    state = path.stat()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "r+b") as out:
            out.writelines(pieces)
            for offset, content in changed.items():
                out.seek(offset)
                out.write(content)
            out.flush()
            with mmap.mmap(out.fileno(), 0, access=mmap.ACCESS_READ) as data:
                expect(same(old, Library(data), digests), "the pruned file failed its check")
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
    expect(before > 0, "not an ELF file", NoCode)  # nothing can't be mapped
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        old, new = Library(data), Library(data)
        every = gfx_of(old.codes)
        has = gfx_of(code for code in old.codes if code.wanted(wanted))
        expect(bool(has & wanted), f"it has none of the wanted targets, only {', '.join(sorted(every))}")
        lacks = f"; it has no code for {', '.join(sorted(wanted - has))}" if wanted - has else ""
        if every == has:
            return "nothing to remove" + lacks
        digests: Digests = [{} for _ in old.bundles]
        bundles = [remade(bundle, wanted, kept) for bundle, kept in zip(old.bundles, digests, strict=True)]
        replace(path, old, digests, *new.shrink(bundles))
    sizes = f"{before / 1e6:.1f} -> {path.stat().st_size / 1e6:.1f} MB"
    return f"{sizes}, kept {', '.join(sorted(has))}, removed {', '.join(sorted(every - has))}{lacks}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gfx", required=True, help="targets to keep, with commas between")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a file is left as it is")
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE-OR-FOLDER", help="all libraries below a folder")
    options = parser.parse_args(arguments)
    for gfx in options.gfx.split(","):
        if not re.fullmatch(r"gfx[0-9a-f]{3,4}", gfx):
            parser.error(f"not a gfx target: {gfx!r}")
    code = 0
    below = {path: filter(is_elf, files_below(path)) for path in options.paths if path.is_dir()}
    for file in [file for path in options.paths for file in below.get(path, [path])]:
        try:
            print(f"{file}: {prune(file, set(options.gfx.split(',')))}")
        except (Untouched, struct.error, OverflowError) as error:
            if isinstance(error, NoCode) and file not in options.paths:
                continue
            reason = error if isinstance(error, Untouched) else "its headers make no sense"
            print(f"{file}: left as it is: {reason}")
            code = max(code, int(options.strict))
        except OSError as error:
            print(f"{file}: {error.strerror}", file=sys.stderr)
            code = 2
    return code


if __name__ == "__main__":
    sys.exit(main())
