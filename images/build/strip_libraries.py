#!/usr/bin/env python3
"""Strips the libraries below a folder of what only debuggers and linkers read, where that is safe.

    strip_libraries.py FOLDER

Libraries of wheels were changed by patchelf, and strip is known to lay out such ones in a way that the loader refuses
(pypa/auditwheel issue 716, pypa/manylinux issue 119). So a copy is stripped, and takes the library's place if the
loader sees the same in both; else the library stays as it was, with a line that says why.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from elf import ALLOC, LOAD, NOBITS, Elf, Untouched, expect, files_below, is_elf

WORTH = 100_000  # bytes: smaller ones hold little to strip
PAGE = 4096
DYNAMIC = 2  # a segment
TLS = 0x400  # a section's flag


class Loaded(Elf):
    """What the loader sees of a library."""

    def __init__(self, data: mmap.mmap) -> None:
        super().__init__(data)
        self.loads = [segment for segment in self.segments if segment.type == LOAD]
        for load in self.loads:
            page = max(PAGE, load.align)
            expect(load.offset % page == load.vaddr % page, "a segment's place in the file doesn't fit its address")
            expect(load.offset + load.size <= len(data), "a segment is cut off")

    def at(self, address: int, size: int) -> bytes:
        """What lies in memory, where a segment maps the file."""
        for load in self.loads:
            if load.vaddr <= address and address + size <= load.vaddr + load.size:
                start = load.offset + address - load.vaddr
                return self.data[start : start + size]
        raise Untouched("what the loader needs is in none of its segments")

    def room(self, address: int, size: int) -> bool:
        return any(load.vaddr <= address and address + size <= load.vaddr + load.memsz for load in self.loads)


def same(old: Loaded, new: Loaded) -> None:
    """
    Raises:
        Untouched: the loader would see something else; the text says what.
    """
    # strip may leave out bytes behind a segment's last section, and empty those between sections: where patchelf moved
    # something away, and nobody reads.
    ways = [[(load.vaddr, load.flags, load.align) for load in each.loads] for each in (old, new)]
    expect(ways[0] == ways[1], "its segments change")
    others = [
        [(s.type, s.flags, s.vaddr, s.size, s.memsz, s.align) for s in each.segments if s.type != LOAD]
        for each in (old, new)
    ]
    expect(others[0] == others[1], "its program headers change")
    for segment in old.segments:
        if segment.type == DYNAMIC:
            expect(
                old.at(segment.vaddr, segment.size) == new.at(segment.vaddr, segment.size), "its dynamic table changes"
            )
    used = [{(s.addr, s.type): s for s in each.sections if s.flags & ALLOC and s.size} for each in (old, new)]
    expect(used[0].keys() == used[1].keys(), "its sections change")
    for key, section in used[0].items():
        expect(section.size == used[1][key].size, "a section's size changes")
        if section.type != NOBITS:
            expect(old.content(section) == new.at(section.addr, section.size), "what is loaded changes")
        elif not section.flags & TLS:
            expect(new.room(section.addr, section.size), "a section gets no memory")


def strip(path: Path) -> tuple[int, str]:
    """Strips one file. Returns the bytes that it freed, and why it was left as it is."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        done = subprocess.run(
            ["strip", "--strip-unneeded", "-o", name, path], capture_output=True, text=True, check=False
        )
        expect(done.returncode == 0, done.stderr.strip().rpartition("\n")[2] or "strip fails")
        with path.open("rb") as before, open(name, "rb") as after:
            same(*(Loaded(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) for file in (before, after)))
        freed = path.stat().st_size - Path(name).stat().st_size
        if freed > 0:
            shutil.copymode(path, name)
            os.replace(name, path)
        return max(freed, 0), ""
    except (Untouched, struct.error, ValueError) as error:
        return 0, str(error) if isinstance(error, Untouched) else "its headers make no sense"
    finally:
        Path(name).unlink(missing_ok=True)


def main(folder: Path) -> None:
    files = [
        path for path in files_below(folder) if ".so" in path.name and path.stat().st_size > WORTH and is_elf(path)
    ]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(strip, files))
    left = [(path, why) for path, (_, why) in zip(files, done, strict=True) if why]
    for path, why in left:
        print(f"{path}: not stripped: {why}")
    freed = sum(each for each, _ in done)
    print(f"stripped {len(files) - len(left)} libraries of {len(files)}, {freed / 1e6:.0f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
