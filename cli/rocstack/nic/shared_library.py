"""A shared library as the loader maps it, from the file's bytes: nothing in it is loaded or run.

Addresses, pointers that the loader writes, symbol versions, and what constructors pass to a function. x86_64 and
aarch64; stripped or not. Needs pyelftools alone: with elf.py it also runs beside Debian's package in an image build.
"""

from __future__ import annotations

import bisect
import re
import struct
from collections.abc import Collection, Iterator
from io import BytesIO
from typing import Any, NamedTuple

CONSTRUCTORS = 1024  # bytes of all; a compiled PROVIDER_DRIVER has 16 (-O2) to 40 (-O0)
RELOCATIONS = 1 << 18  # a provider has some hundred, a libfabric some ten thousand
VERSIONS = 500  # symbol versions of all libraries; one needs some ten of each
STUB_SIZE = 16  # bytes of a PLT entry
# x86_64: rdi, directly or by rax, gets an address (lea) or what a slot holds (mov); then a call or a jump.
X86_CALL = re.compile(
    rb"\x48(?P<how>[\x8d\x8b])(?:\x3d(?P<rdi>.{4})|\x05(?P<rax>.{4})\x48\x89\xc7)"
    rb"(?:\x5d|\xc9|\x48\x83\xc4.)*[\xf2\x3e]?(?:[\xe8\xe9]|\xff[\x15\x25])\Z",
    re.DOTALL,
)
PLTRELSZ, STRTAB, SYMTAB, RELA, RELASZ, STRSZ, SONAME, JMPREL = 2, 5, 6, 7, 8, 10, 14, 23
INIT_ARRAY, INIT_ARRAYSZ, RELRSZ, RELR = 25, 27, 35, 36
VERDEF, VERDEFNUM, VERNEED, VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
RELATIVE = {"EM_X86_64": 8, "EM_AARCH64": 1027}
BY_SYMBOL = {"EM_X86_64": {1, 6, 7}, "EM_AARCH64": {257, 1025, 1026}}  # plain address, GLOB_DAT, JUMP_SLOT


class UnreadableLibrary(Exception):
    """Why a value cannot be read."""


class Segment(NamedTuple):
    start: int
    end: int  # of what the file holds
    limit: int  # with the zeros that follow
    offset: int
    executable: bool


class SharedLibrary:
    """A shared library as the loader maps it: by address, whatever its section headers say."""

    def __init__(self, data: bytes) -> None:
        from elftools.elf.elffile import ELFFile  # slow, and most who import this module read no library

        self.data = data
        self.loads: list[Segment] = []
        self.constant: list[tuple[int, int]] = []  # ranges that are read-only once the loader is done
        self.frames = 0  # address of the table of functions that unwinding uses (.eh_frame_hdr)
        self.dynamic: dict[int, int] = {}
        self.build_ids: set[str] = set()
        self.pointers: dict[int, int] = {}  # slot -> the address in this library that the loader writes there
        self.imports: dict[int, str] = {}  # slot -> the name of another library's symbol
        try:
            self._map(ELFFile(BytesIO(data)))
        except UnreadableLibrary:
            raise
        except Exception as e:  # whatever the parser trips over in a damaged file
            raise UnreadableLibrary(f"damaged ELF file ({type(e).__name__}: {e})") from e
        self._relocate()

    def _map(self, elf: Any) -> None:
        header = elf.header
        self.machine: str = header["e_machine"]
        if elf.elfclass != 64 or not elf.little_endian or self.machine not in RELATIVE:
            order = "little" if elf.little_endian else "big"
            raise UnreadableLibrary(
                f"{elf.elfclass}-bit {order}-endian {self.machine}: only x86_64 and aarch64 are read"
            )
        if header["e_type"] != "ET_DYN":
            raise UnreadableLibrary(f"{header['e_type']}: not a shared library")
        sections = not header["e_shoff"] or (header["e_shentsize"] == 64 and 0 < header["e_shnum"] <= 1000)
        if header["e_phentsize"] != 56 or header["e_phnum"] > 32 or not sections:
            raise UnreadableLibrary("implausible headers")  # before anything walks them: a forged count costs minutes
        for segment in elf.iter_segments():
            kind, start, size, offset = (segment[key] for key in ("p_type", "p_vaddr", "p_filesz", "p_offset"))
            if kind in ("PT_LOAD", "PT_DYNAMIC", "PT_NOTE") and offset + size > len(self.data):
                raise UnreadableLibrary("truncated: a segment ends behind the end of the file")
            if kind == "PT_LOAD":
                if (start - offset) % 4096 or (self.loads and start < self.loads[-1].end):
                    raise UnreadableLibrary("segments that no loader maps")
                executable, limit = bool(segment["p_flags"] & 1), start + segment["p_memsz"]
                self.loads.append(Segment(start, start + size, limit, offset, executable))
                if not segment["p_flags"] & 2:
                    self.constant.append((start, start + size))
            elif kind == "PT_GNU_RELRO":
                self.constant.append((start, start + segment["p_memsz"]))
            elif kind == "PT_GNU_EH_FRAME":
                self.frames = start
            elif kind == "PT_DYNAMIC":
                for tag, value in struct.iter_unpack("<QQ", self.data[offset : offset + size // 16 * 16]):
                    if not tag:
                        break
                    self.dynamic.setdefault(tag, value)
            elif kind == "PT_NOTE" and size < 4096:
                notes = [note for note in segment.iter_notes() if note["n_name"] == "GNU"]
                self.build_ids |= {note["n_desc"] for note in notes if note["n_type"] == "NT_GNU_BUILD_ID"}

    def _relocate(self) -> None:
        slots: list[int] = []
        for table, size in ((RELA, RELASZ), (JMPREL, PLTRELSZ)):
            for slot, info, addend in struct.iter_unpack("<QQq", self.table(table, size, 24)):
                slots.append(slot)
                name, section, value = 0, info & 0xFFFFFFFF == RELATIVE[self.machine], 0
                if info & 0xFFFFFFFF in BY_SYMBOL[self.machine]:
                    name, section, value = self.unpack("<I2xHQ", self.tag(SYMTAB) + (info >> 32) * 24)
                if section:
                    self.pointers[slot] = value + addend
                else:
                    self.imports[slot] = self.name(name)
        following = 0
        for (word,) in struct.iter_unpack("<Q", self.table(RELR, RELRSZ, 8)):
            # An even word is an address, an odd one a bitmap of the 63 words that follow.
            here = [following + 8 * bit for bit in range(63) if word >> (bit + 1) & 1] if word & 1 else [word]
            following = following + 63 * 8 if word & 1 else word + 8
            slots += here
            if len(slots) > RELOCATIONS:
                raise UnreadableLibrary(f"more than {RELOCATIONS} relocations")
            self.pointers.update((slot, *self.unpack("<Q", slot)) for slot in here)
        self.slots = sorted(slots)
        if len(set(slots)) != len(slots):
            raise UnreadableLibrary("two relocations of one place")

    def tag(self, tag: int) -> int:
        return self.dynamic.get(tag, 0)

    def table(self, tag: int, size: int, entry: int) -> bytes:
        length = self.tag(size) // entry * entry
        if length > RELOCATIONS * entry:
            raise UnreadableLibrary(f"more than {RELOCATIONS} relocations")
        return self.read(self.tag(tag), length) if length else b""

    def plausible(self, number: int) -> int:
        if number > 100:
            raise UnreadableLibrary(f"a table with an implausible number of {number} entries")
        return number

    def segment(self, address: int) -> Segment:
        for load in self.loads:
            if load.start <= address < load.end:
                return load
        raise UnreadableLibrary(f"nothing in the file for address {address:#x}")

    def read(self, address: int, size: int) -> bytes:
        load = self.segment(address)
        if address + size > load.end:
            raise UnreadableLibrary(f"nothing in the file for address {load.end:#x}")
        at = load.offset + address - load.start
        return self.data[at : at + size]

    def unpack(self, layout: str, address: int) -> tuple[Any, ...]:
        return struct.unpack(layout, self.read(address, struct.calcsize(layout)))

    def is_code(self, address: int) -> bool:
        return any(load.executable and load.start <= address < load.end for load in self.loads)

    def is_data(self, address: int) -> bool:
        """Variables, structures and slots, but not the slots of imported functions."""
        held = any(not load.executable and load.start <= address < load.limit for load in self.loads)
        return held and address not in self.imports

    def is_constant(self, address: int, size: int) -> bool:
        return any(start <= address and address + size <= end for start, end in self.constant)

    def is_relocated(self, address: int) -> bool:
        """If the loader writes into the eight bytes there."""
        at = bisect.bisect_right(self.slots, address - 8)
        return at < len(self.slots) and self.slots[at] < address + 8

    def string(self, address: int) -> str:
        text, end, _ = self.read(address, min(256, self.segment(address).end - address)).partition(b"\0")
        if not end or not text.isascii() or not text.decode().isprintable():
            raise UnreadableLibrary(f"no text at address {address:#x}")
        return text.decode()

    def name(self, offset: int) -> str:
        if offset >= self.tag(STRSZ):
            raise UnreadableLibrary("a name outside the string table")
        return self.string(self.tag(STRTAB) + offset)

    def versions(self, *, defined: bool) -> Iterator[tuple[str, str]]:
        """(library, symbol version): those defined here, or those needed from other libraries."""
        from elftools.elf.hash import ELFHashTable

        def version(offset: int, digest: int) -> str:
            if ELFHashTable.elf_hash(self.name(offset)) != digest:  # the loader compares both
                raise UnreadableLibrary(f"symbol version {self.name(offset)!r} with the hash of another")
            return self.name(offset)

        left = VERSIONS
        at, number = (self.tag(tag) for tag in ((VERDEF, VERDEFNUM) if defined else (VERNEED, VERNEEDNUM)))
        for _ in range(self.plausible(number)):
            if defined:
                digest, first, following = self.unpack("<8xIII", at)
                yield "", version(self.unpack("<I", at + first)[0], digest)
            else:
                count, library, first, following = self.unpack("<2xHIII", at)
                entry = at + first
                left -= count
                if left < 0:
                    raise UnreadableLibrary(f"more than {VERSIONS} needed symbol versions")
                for _ in range(self.plausible(count)):
                    digest, name, step = self.unpack("<I4xII", entry)
                    yield self.name(library), version(name, digest)
                    entry += step
            at += following

    def references(self, code: bytes, address: int) -> Iterator[tuple[int, int, int | None]]:
        """(position, address that an instruction there computes, first argument if the instruction is a call).

        The argument is None unless the instructions right before the call set it.
        """
        if self.machine == "EM_X86_64":
            # lea, mov, jmp and call end in a 32-bit distance from the next instruction. Nothing is disassembled: any
            # four bytes are tried, and others hit the library by a chance of its size to 2^32.
            for at in range(len(code) - 3):
                before, argument = code[max(0, at - 40) : at], None
                if before[-1:] in (b"\xe8", b"\xe9", b"\x15", b"\x25") and (call := X86_CALL.search(before)):
                    group = "rdi" if call["rdi"] else "rax"
                    value = address + at - len(before) + call.end(group)
                    value += int.from_bytes(call[group], "little", signed=True)
                    argument = value if call["how"] == b"\x8d" else self.pointers.get(value)
                yield at, address + at + 4 + int.from_bytes(code[at : at + 4], "little", signed=True), argument
            return
        words = [word for (word,) in struct.iter_unpack("<I", code[: len(code) // 4 * 4])]
        registers: dict[int, int | None] = {}
        for at, word, following in zip(range(0, len(code), 4), words, [*words[1:], 0], strict=False):
            target, source, immediate = word & 31, word >> 5 & 31, word >> 10 & 0xFFF
            base = registers.get(source)
            if word & 0x9F000000 == 0x90000000:  # adrp
                distance = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
                registers[target] = (address + at & ~0xFFF) + ((distance ^ 1 << 20) - (1 << 20) << 12)
            elif word & 0xFFC00000 == 0x91000000 and base is not None:  # add
                registers[target] = base + immediate
                if following & 0xFFC003FF != 0x91000000 | target << 5 | target:  # else the first is a mere anchor
                    yield at, base + immediate, None
            elif word & 0xFFC00000 == 0xF9400000 and base is not None:  # ldr
                registers[target] = self.pointers.get(base + immediate * 8)
                yield at, base + immediate * 8, None
            elif word & 0x7C000000 == 0x14000000:  # b, bl
                distance = ((word & 0x3FFFFFF ^ 1 << 25) - (1 << 25)) * 4
                yield at, address + at + distance, registers.get(0)
                registers.clear()
            elif word & 0xFFFFF01F != 0xD503201F:  # no mere hint: it may set the registers that it names
                for register in (0, target, source):
                    registers.pop(register, None)

    def functions(self, entries: Collection[int]) -> dict[int, bytes]:
        """Entry -> the code of the function that begins there: none for one outside the table, as those of the C
        library's own start files are."""
        *kinds, _, count = self.unpack("<BBBBiI", self.frames)
        if kinds != [1, 0x1B, 0x03, 0x3B]:  # version; relative, unsigned, relative to the table: what linkers write
            raise UnreadableLibrary("no table of functions")
        found: dict[int, bytes] = {}
        left = CONSTRUCTORS
        for start, frame in struct.iter_unpack("<ii", self.read(self.frames + 12, count * 8)):
            entry = self.frames + start
            if entry in entries and entry not in found:
                (size,) = self.unpack("<12xI", self.frames + frame)
                left -= size
                if left < 0:
                    raise UnreadableLibrary(f"constructors of more than {CONSTRUCTORS} bytes")
                found[entry] = self.read(entry, size)
        return found

    def leads_to(self, address: int, symbol: str) -> bool:
        """If the address is the slot of an imported function, or a stub that jumps through it."""
        if self.is_code(address):
            stub = self.read(address, min(STUB_SIZE, self.segment(address).end - address))
            return any(self.imports.get(slot) == symbol for _, slot, _ in self.references(stub, address))
        return self.imports.get(address) == symbol

    def passed_to(self, symbol: str) -> set[int]:
        """The addresses that constructors pass to the function."""
        addresses: set[int] = set()
        first = self.tag(INIT_ARRAY)
        slots = range(first, first + 8 * self.plausible(self.tag(INIT_ARRAYSZ) // 8), 8)
        entries = {self.pointers.get(slot, -1) for slot in slots}
        for entry, code in (self.functions(entries) if entries else {}).items():
            computed = list(self.references(code, entry))
            calls = [(at, argument) for at, target, argument in computed if self.leads_to(target, symbol)]
            passed = {argument for _, argument in calls if argument is not None}
            data = {target for at, target, _ in computed if calls and at < calls[-1][0] and self.is_data(target)}
            # Any other data it has at hand might come to the call by a branch, or be what the argument is a copy of.
            others = {target for target in data - passed if self.pointers.get(target) not in passed}
            if others or any(argument is None for _, argument in calls):
                raise UnreadableLibrary(f"a constructor that may call {symbol} with something else")
            addresses |= passed
        return addresses
