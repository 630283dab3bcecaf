"""The headers of an ELF file, as the programs that change libraries read them."""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

FILE = "<16sHHIQQQI6H", "ident type cpu version entry phoff shoff flags size phsize phnum shsize shnum names"
SEGMENT = "<IIQQQQQQ", "type flags offset vaddr paddr size memsz align"
SECTION = "<IIQQQQIIQQ", "name type flags addr offset size link info align entsize"
LOAD = 1  # a segment
NOBITS = 8  # a section
ALLOC = 2  # its flag


class Untouched(Exception):
    """Why a file was left as it is."""


class NoCode(Untouched):
    """It is no library, or one without GPU code: most files."""


def expect(condition: bool, otherwise: str, kind: type[Untouched] = Untouched) -> None:
    if not condition:
        raise kind(otherwise)


def read(data: mmap.mmap, offset: int, layout: str, fields: str) -> SimpleNamespace:
    """A header at `offset`, as attributes in file order."""
    return SimpleNamespace(**dict(zip(fields.split(), struct.unpack_from(layout, data, offset), strict=True)))


class Elf:
    """A library's bytes and its headers.

    Raises:
        NoCode: it is none for 64 bits.
    """

    def __init__(self, data: mmap.mmap) -> None:
        expect(data[:4] == b"\x7fELF", "not an ELF file", NoCode)
        expect(data[4:6] == b"\x02\x01", "not a 64-bit little-endian ELF file", NoCode)
        self.data = data
        self.head = head = read(data, 0, *FILE)
        sizes = (head.phsize, head.shsize) == (struct.calcsize(SEGMENT[0]), struct.calcsize(SECTION[0]))
        expect(sizes and head.names < head.shnum, "unusual ELF headers", NoCode)
        self.segments = [read(data, head.phoff + i * head.phsize, *SEGMENT) for i in range(head.phnum)]
        self.sections = [read(data, head.shoff + i * head.shsize, *SECTION) for i in range(head.shnum)]
        self.names = self.content(self.sections[head.names])

    def named(self, section: SimpleNamespace, name: bytes) -> bool:
        return self.names.startswith(name + b"\0", section.name)

    def content(self, section: SimpleNamespace) -> bytes:
        return b"" if section.type == NOBITS else self.data[section.offset : section.offset + section.size]


def files_below(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if stat.S_ISREG(os.lstat(path := os.path.join(where, name)).st_mode):
                yield Path(path)


def is_elf(path: Path) -> bool:
    with path.open("rb", buffering=0) as file:
        return file.read(4) == b"\x7fELF"
