"""Libraries with GPU code, made byte by byte as a compiler and a linker do it, and read as a program loader does."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from random import Random

import zstandard

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
R, RX, RW = 4, 5, 6
LOAD, DYNAMIC, NOTE, STACK, RELRO = 1, 2, 4, 0x6474E551, 0x6474E552
HEADERS = 64 + 7 * 56  # file header and program headers
HOST = ("host-x86_64-unknown-linux--", b"")


def up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def hip(gfx: str) -> str:
    return "hipv4-amdgcn-amd-amdhsa--" + gfx


def make_bundle(entries: list[tuple[str, bytes]], form: int = 0) -> bytes:
    """Form 0 is plain; 2 and 3 are the versions of the compressed one."""
    at, header, body = 4096, MAGIC + struct.pack("<Q", len(entries)), b""
    for name, code in entries:
        body += bytes(-len(body) % 4096)
        header += struct.pack("<QQQ", at + len(body), len(code), len(name)) + name.encode()
        body += code
    plain = header.ljust(at, b"\0") + body
    if not form:
        return plain
    frame = zstandard.ZstdCompressor().compress(plain)
    layout = {2: "<4sHHIIQ", 3: "<4sHHQQQ"}[form]
    size, md5 = struct.calcsize(layout) + len(frame), hashlib.md5(plain).digest()[:8]
    return struct.pack(layout, b"CCOB", form, 1, size, len(plain), int.from_bytes(md5, "little")) + frame


def read_bundle(fat: bytes) -> dict[str, bytes]:
    if fat.startswith(b"CCOB"):
        layout = {2: "<4sHHIIQ", 3: "<4sHHQQQ"}[fat[4]]
        _, _, method, size, length, md5 = struct.unpack_from(layout, fat)
        fat = zstandard.ZstdDecompressor().decompress(fat[struct.calcsize(layout) : size])
        assert (method, len(fat)) == (1, length)
        assert hashlib.md5(fat).digest()[:8] == md5.to_bytes(8, "little")
    assert fat.startswith(MAGIC)
    (count,), at, found = struct.unpack_from("<Q", fat, 24), 32, {}
    for _ in range(count):
        offset, size, length = struct.unpack_from("<QQQ", fat, at)
        assert offset % 4096 == 0
        found[fat[at + 24 : at + 24 + length].decode()] = fat[offset : offset + size]
        at += 24 + length
    return found


@dataclass(frozen=True)
class Library:
    """A library as a linker lays it out: R, RX, R with the bundles, RW that starts with RELRO and has the wrappers."""

    entries: list[tuple[str, bytes]]
    rodata: int = 100
    tail: tuple[int, ...] = (40, 30)  # sizes of the sections between the bundle and the end of its segment
    relro: int = 64
    data: int = 5000
    page: int = 4096
    skipped: int = 0  # pages that addresses skip before RW, and the file doesn't
    home_flags: int = R
    relro_type: int = RELRO
    after_bundle: bytes = b""
    seed: int = 0
    fat: bytes = b""  # the bundles, where they are not made of `entries`
    form: int = 0
    more: tuple[tuple[int, list[tuple[str, bytes]]], ...] = ()  # bundles after the first: form and entries
    in_place: bool = False  # addresses stand where they belong, as with RELR, and not in relocations
    starts: tuple[int, ...] = ()  # where wrappers point that point to no bundle
    stray: int | None = None  # an offset in the bundles that something else points to

    def build(self) -> bytes:
        random, page = Random(self.seed), self.page
        image, sections, segments = bytearray(HEADERS), [(b"", 0, 0, 0, 0, 0)], []
        fat, starts = bytearray(self.fat), [0]
        for form, entries in () if self.fat else ((self.form, self.entries), *self.more):
            fat.extend(bytes(-len(fat) % 4096))
            starts += [len(fat)] if fat else []
            fat += make_bundle(entries, form)
        starts += self.starts

        def add(name: bytes, content: bytes, shift: int = 0, flags: int = 2, align: int = 8, kind: int = 1) -> None:
            image.extend(bytes(-len(image) % align))
            sections.append((name, kind, flags, len(image) + shift if flags else 0, len(image), len(content)))
            image.extend(content)

        def load(flags: int, start: int, shift: int = 0, bss: int = 0) -> None:
            size = len(image) - start
            segments.append((LOAD, flags, start, start + shift, start + shift, size, size + bss, page))

        add(b".note", random.randbytes(36))
        add(b".rela.dyn", bytes(24 * (len(starts) + 2)), kind=4)
        load(R, 0)
        image.extend(bytes(-len(image) % page))
        start = len(image)
        add(b".text", random.randbytes(333), flags=6)
        load(RX, start)
        image.extend(bytes(-len(image) % page))
        start = len(image)
        add(b".rodata", random.randbytes(self.rodata))
        add(b".hip_fatbin", bytes(fat) + self.after_bundle, align=4096)
        for number, size in enumerate(self.tail):
            add(b".tail%d" % number, random.randbytes(size), align=4)
        load(self.home_flags, start)
        # The next segment starts in a page of its own; addresses and file may go apart here.
        image.extend(bytes(-len(image) % 8) + (b"" if self.skipped else bytes(-len(image) % page)))
        shift, start = self.skipped * page, len(image)
        add(b".data.rel.ro", random.randbytes(self.relro), shift, flags=3)
        add(b".data", random.randbytes(self.data), shift, flags=3)
        add(b".hipFatBinSegment", struct.pack("<IIQQ", 0x48495046, 1, 0, 0) * len(starts), shift, flags=3)
        at = {name: (address, offset) for name, _, _, address, offset, _ in sections}
        first, wraps, data = at[b".hip_fatbin"][0], at[b".hipFatBinSegment"], at[b".data"][0]
        relocations = [(data, 8, data), (data, 1 << 32 | 6, 0)]  # to itself, and to some symbol
        for number, bundle in enumerate(starts):
            if self.in_place:
                struct.pack_into("<Q", image, wraps[1] + 24 * number + 8, first + bundle)
            else:
                relocations.append((wraps[0] + 24 * number + 8, 8, first + bundle))
        if self.stray is not None:
            relocations[0] = (data, 8, first + self.stray)
        for number, relocation in enumerate(relocations):
            struct.pack_into("<QQQ", image, at[b".rela.dyn"][1] + 24 * number, *relocation)
        sections.append((b".bss", 8, 3, len(image) + shift, len(image), 100_000))
        load(RW, start, shift, bss=100_000)
        segments.append((self.relro_type, R, start, start + shift, start + shift, self.relro, self.relro, 1))
        segments.append((NOTE, R, *([sections[1][4]] * 3), 36, 36, 4))
        segments.append((STACK, RW, 0, 0, 0, 0, 0, 16))
        add(b".comment", b"made for a test\0", flags=0)
        names = b"".join(section[0] + b"\0" for section in sections) + b".shstrtab\0"
        add(b".shstrtab", names, flags=0, align=1)
        image.extend(bytes(-len(image) % 8))
        headers, name = b"", 0
        for text, kind, flags, addr, offset, size in sections:
            headers += struct.pack("<IIQQQQIIQQ", name, kind, flags, addr, offset, size, 0, 0, 1, 0)
            name += len(text) + 1
        ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
        counts = (64, 56, len(segments), 64, len(sections), len(sections) - 1)
        image[:64] = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 64, len(image), 0, *counts)
        image[64 : 64 + 56 * len(segments)] = b"".join(struct.pack("<IIQQQQQQ", *s) for s in segments)
        return bytes(image) + headers


@dataclass(frozen=True)
class Loaded:
    """A library as a program loader sees it, checked the way glibc's does."""

    data: bytes

    def __post_init__(self) -> None:
        end = 0
        for _, flags, offset, vaddr, paddr, filesz, memsz, align in self.loads():
            assert (vaddr - offset) % align == 0
            assert vaddr == paddr
            assert offset + filesz <= len(self.data)
            assert filesz <= memsz
            assert vaddr // align * align >= end, "segments share a page"
            end = up(vaddr + memsz, align)
            assert flags in (R, RX, RW)

    def segments(self) -> list[tuple[int, ...]]:
        start, count = struct.unpack_from("<Q", self.data, 32)[0], struct.unpack_from("<H", self.data, 56)[0]
        return [struct.unpack_from("<IIQQQQQQ", self.data, start + 56 * i) for i in range(count)]

    def loads(self) -> list[tuple[int, ...]]:
        return [segment for segment in self.segments() if segment[0] == LOAD]

    def sections(self) -> dict[bytes, tuple[int, ...]]:
        start = struct.unpack_from("<Q", self.data, 40)[0]
        count, names = struct.unpack_from("<HH", self.data, 60)
        table = [struct.unpack_from("<IIQQQQIIQQ", self.data, start + 64 * i) for i in range(count)]
        text = self.data[table[names][4] :]
        return {text[section[0] :].split(b"\0")[0]: section for section in table}

    def content(self, name: bytes) -> bytes:
        _, _, _, _, offset, size, *_ = self.sections()[name]
        return self.data[offset : offset + size]

    def at(self, address: int, size: int) -> bytes:
        """What the memory at this address holds."""
        for _, _, offset, vaddr, _, filesz, memsz, _ in self.loads():
            if vaddr <= address and address + size <= vaddr + memsz:
                start = offset + address - vaddr
                return self.data[start : min(start + size, offset + filesz)].ljust(size, b"\0")
        raise AssertionError(f"nothing is loaded at {address:#x}")

    def wrapped(self) -> list[dict[str, bytes]]:
        """The bundles that the wrappers point to, in their order, once relocation is done."""
        wraps, relocations = self.sections()[b".hipFatBinSegment"], self.content(b".rela.dyn")
        values = {place: value for place, info, value in struct.iter_unpack("<QQQ", relocations) if info == 8}
        found = []
        for number, (magic, _, value, _) in enumerate(struct.iter_unpack("<IIQQ", self.content(b".hipFatBinSegment"))):
            address = values.get(wraps[3] + 24 * number + 8, value)
            assert magic == 0x48495046
            fat = self.sections()[b".hip_fatbin"]
            assert address % 4096 == 0
            found.append(read_bundle(self.at(address, fat[3] + fat[5] - address)))
        return found

    def flags(self, address: int) -> int:
        """How the page at this address is mapped once relocation is done."""
        flags = next(s[1] for s in self.loads() if s[3] <= address < s[3] + s[6])
        for kind, _, _, vaddr, _, _, memsz, _ in self.segments():
            if kind == RELRO and vaddr // 4096 <= address // 4096 < (vaddr + memsz) // 4096:
                return R
        return flags
