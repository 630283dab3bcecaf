"""Providers compiled from data/elf: what is read from the file is what a libibverbs is told when it loads them.

Adding a case is adding a row to LOADABLE or UNREADABLE."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rocstack.image import render
from rocstack.nic import shared_library
from rocstack.nic.elf import ANY_ABI, LibraryAbi, read_libibverbs, read_provider
from rocstack.nic.shared_library import INIT_ARRAY, INIT_ARRAYSZ, VERNEEDNUM, SharedLibrary, UnreadableLibrary

SOURCES = Path(__file__).parents[1] / "data" / "elf"
pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")

# name: (private ABI, compiler and linker flags, kernel-ABI range)
LOADABLE: dict[str, tuple[int, str, tuple[int, int]]] = {
    "plain": (34, "-O2", (6, 7)),
    "unoptimised": (34, "-O0", (6, 7)),
    "small": (34, "-Os", (6, 7)),
    "fast": (34, "-O3", (6, 7)),
    "debug": (34, "-O2 -g", (6, 7)),
    "lto": (34, "-O2 -flto", (6, 7)),
    "no PLT": (34, "-O2 -fno-plt", (6, 7)),
    "no PLT, unoptimised": (34, "-O0 -fno-plt", (6, 7)),
    "control-flow protection": (34, "-O2 -fcf-protection=full -Wl,-z,ibtplt", (6, 7)),
    "no control-flow protection": (34, "-O2 -fcf-protection=none", (6, 7)),
    "stack protector and trapping": (34, "-O1 -fstack-protector-all -ftrapv", (6, 7)),
    "lazy": (34, "-O2 -Wl,-z,lazy", (6, 7)),
    "now": (34, "-O2 -Wl,-z,now", (6, 7)),
    "RELR": (34, "-O2 -Wl,-z,pack-relative-relocs", (6, 7)),
    "RELR, now": (34, "-O2 -Wl,-z,pack-relative-relocs,-z,now", (6, 7)),
    "SysV hash": (34, "-O2 -Wl,--hash-style=sysv", (6, 7)),
    "one text segment": (34, "-O2 -Wl,-z,noseparate-code", (6, 7)),
    "large pages": (34, "-O2 -Wl,-z,max-page-size=0x10000", (6, 7)),
    "gold": (34, "-O2 -fuse-ld=gold", (6, 7)),
    "lld": (34, "-O2 -fuse-ld=lld", (6, 7)),
    "stripped": (34, "-O2 -s", (6, 7)),
    "private ABI 16": (16, "-O2 -DLAYOUT=16", (6, 7)),
    "private ABI 25": (25, "-O2", (6, 7)),
    "private ABI 65": (65, "-O2", (6, 7)),
    "kernel ABI 1": (34, "-O2 -DLOWEST=1 -DHIGHEST=1", (1, 1)),
    "from 0": (34, "-O2 -DLOWEST=0 -DHIGHEST=5", (0, 5)),
    "no upper end": (34, "-O2 -DLOWEST=0 -DHIGHEST=0x7fffffff", (0, ANY_ABI)),
    "just plausible": (34, "-O2 -DLOWEST=1000 -DHIGHEST=1000", (1000, 1000)),
    "match function, no table": (34, "-O2 -DTABLE=0 -DMATCH=make", (6, 7)),
    "match function, no table, 16": (16, "-O2 -DLAYOUT=16 -DTABLE=0 -DMATCH=make", (6, 7)),
    "look-alike": (34, "-O2 -DLOOKALIKE", (6, 7)),
    "look-alike, unoptimised": (34, "-O0 -DLOOKALIKE", (6, 7)),
    "look-alike, stripped": (34, "-O2 -s -DLOOKALIKE", (6, 7)),
    "another constructor": (34, "-O2 -DBEHIND", (6, 7)),
    "another constructor, unoptimised": (34, "-O0 -DBEHIND -DLOOKALIKE", (6, 7)),
}
# name: (private ABI, flags, what the reason says)
UNREADABLE: dict[str, tuple[int, str, str]] = {
    "turned round": (34, "-DLOWEST=2 -DHIGHEST=1", "implausible range 2-1"),
    "implausible": (34, "-DLOWEST=1 -DHIGHEST=1001", "implausible range 1-1001"),
    "no range": (34, "-DLOWEST=0x7fffffff -DHIGHEST=0x7fffffff", "implausible range"),
    "more than INT_MAX": (34, "-DLOWEST=0 -DHIGHEST=0x80000000u", "implausible range"),
    "two drivers": (34, "-O2 -DSECOND=1", "several drivers: tiny 1-1, tiny 6-7"),
    "two drivers, unoptimised": (34, "-O0 -DSECOND=1", "several drivers: tiny 1-1, tiny 6-7"),
    **{
        f"{variant}, {level}": (34, f"{level} -D{variant}", "with something else|several drivers")
        for variant in ("CHOSEN", "BRANCHED", "FILLED", "COPIED", "ON_STACK", "BOTH_IN_ONE", "BY_NUMBER")
        for level in ("-O0", "-O2")
    },
    "matches nothing": (34, "-DTABLE=0", "registers no verbs_device_ops"),
    "no name": (34, '-DNAME="a\\tb"', "registers no verbs_device_ops"),
    "empty name": (34, '-DNAME=""', "registers no verbs_device_ops"),
    "can be changed": (34, "-DCONST=", "registers no verbs_device_ops"),
    "can be changed, no RELRO": (34, "-Wl,-z,norelro", "registers no verbs_device_ops"),
    "registers on request": (34, "-DSILENT", "no constructor seen that calls verbs_register_driver_34"),
    "registers on request, look-alike": (34, "-DSILENT -DLOOKALIKE", "no constructor seen"),
    "no table of functions": (34, "-O2 -fno-asynchronous-unwind-tables", "no table of functions|no constructor seen"),
    "private ABI 15": (15, "-O2", "private ABI 15: libraries have a range from 16 on"),
}

Compile = Callable[[int, str], Path]


def register(private_abi: int) -> str:
    return f"-DREGISTER=verbs_register_driver_{private_abi}"


def gcc(*args: str | Path) -> None:
    done = subprocess.run(["gcc", "-shared", "-fPIC", *args], capture_output=True, text=True, check=False)
    for option, missing in (("-fuse-ld=", "cannot find"), ("pack-relative-relocs", "unrecognized|unknown")):
        if done.returncode and option in " ".join(map(str, args)) and re.search(missing, done.stderr):
            pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def libibverbs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """`libibverbs(34)`: one of that private ABI."""

    @cache
    def run(private_abi: int) -> Path:
        library = tmp_path_factory.mktemp("elf") / "libibverbs.so.1"
        script = library.with_name("map")
        script.write_text(f"IBVERBS_PRIVATE_{private_abi} {{ global: *; }};\n")
        flags = (register(private_abi), f"-Wl,--version-script={script},-soname,{library.name}")
        gcc("-o", library, *flags, SOURCES / "libibverbs.c")
        return library

    return run


@pytest.fixture(scope="module")
def compile(libibverbs: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """`compile(34, "-O2")`: a provider linked with a libibverbs of that private ABI."""

    def run(private_abi: int, flags: str) -> Path:
        # A file name of another private ABI: names say nothing.
        provider = tmp_path_factory.mktemp("elf") / "libtiny-rdmav99.so"
        gcc("-o", provider, register(private_abi), *flags.split(" "), SOURCES / "provider.c", libibverbs(private_abi))
        return provider

    return run


@pytest.fixture(scope="module")
def plain(compile: Compile) -> bytes:
    """A stripped provider with a look-alike; its range is 677 to 699, which stands in the file once."""
    return compile(34, "-O2 -s -DLOWEST=677 -DHIGHEST=699 -DLOOKALIKE").read_bytes()


LOAD = """
import ctypes, sys
verbs = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
ctypes.CDLL(sys.argv[2])
number = lambda name: ctypes.c_uint32.in_dll(verbs, name).value
print(number("seen"), (ctypes.c_char * 64).in_dll(verbs, "seen_name").value.decode())
print(number("seen_lowest"), number("seen_highest"))
"""


@pytest.mark.parametrize("case", LOADABLE)
def test_what_is_read_is_what_is_registered(case: str, compile: Compile, libibverbs: Callable[[int], Path]) -> None:
    private_abi, flags, kernel_abi = LOADABLE[case]
    provider = compile(private_abi, flags)
    found = read_provider(provider.read_bytes())
    assert (found.private_abi, found.kernel_abi, found.driver) == (private_abi, kernel_abi, "tiny"), found.reasons
    assert found.reasons == (("soname: the library has none",) if found.build_id else found.reasons)
    command = [sys.executable, "-I", "-S", "-c", LOAD, libibverbs(private_abi), provider]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == ["1", "tiny", *(str(number) for number in kernel_abi)]


@pytest.mark.parametrize("case", UNREADABLE)
def test_unknown_rather_than_a_guess(case: str, compile: Compile) -> None:
    private_abi, flags, reason = UNREADABLE[case]
    found = read_provider(compile(private_abi, flags).read_bytes())
    assert (found.private_abi, found.kernel_abi, found.driver) == (private_abi, None, None)
    said = [line for line in found.reasons if line.startswith(("kernel_abi: ", "driver: "))]
    assert len(said) == 2
    assert all(any(words in line for words in reason.split("|")) for line in said), said


def test_every_none_has_a_reason(compile: Compile) -> None:
    for flags in ("-O2 -Wl,--build-id=none -nodefaultlibs", "-O2 -Wl,-soname,libtiny.so.1"):
        found = read_provider(compile(34, flags).read_bytes())
        empty = {field for field in LibraryAbi.__dataclass_fields__ if getattr(found, field) is None}
        assert empty == {line.split(":")[0] for line in found.reasons}


def test_identity(compile: Compile) -> None:
    provider = compile(34, "-O2 -Wl,-soname,libtiny.so.1")
    found = read_provider(provider.read_bytes())
    printed = subprocess.run(["readelf", "-nW", provider], capture_output=True, text=True, check=True).stdout
    assert found.build_id is not None
    assert found.build_id in printed
    assert found.soname == "libtiny.so.1"
    summed = subprocess.run(["sha256sum", provider], capture_output=True, text=True, check=True).stdout
    assert summed.split()[0] == found.sha256


def test_libibverbs_is_what_it_defines(compile: Compile, libibverbs: Callable[[int], Path]) -> None:
    provider, library = compile(59, "-O2"), libibverbs(59).read_bytes()
    found = read_libibverbs(library)
    assert (found.private_abi, found.kernel_abi, found.soname) == (59, None, "libibverbs.so.1")
    assert not [line for line in found.reasons if line.startswith(("private_abi", "kernel_abi", "driver"))]
    assert "private_abi: defines no IBVERBS_PRIVATE_N" in read_libibverbs(provider.read_bytes()).reasons
    assert "private_abi: needs no IBVERBS_PRIVATE_N" in read_provider(library).reasons


def test_only_libibverbs_counts(compile: Compile, tmp_path: Path) -> None:
    """Two private ABIs at once, and one that another library defines."""
    map_ = "IBVERBS_PRIVATE_33 { global: other; }; IBVERBS_PRIVATE_34 { global: verbs_register_driver_34; };"
    (tmp_path / "map").write_text(map_)
    (tmp_path / "other.c").write_text("void other(void) {} void verbs_register_driver_34(void *x) { (void)x; }")
    (tmp_path / "uses.c").write_text("void other(void); void use(void); void use(void) { other(); }")
    for soname in ("libibverbs.so.1", "libother.so.1"):
        script = f"-Wl,--version-script={tmp_path}/map,-soname,{soname}"
        gcc("-o", tmp_path / "library.so", script, tmp_path / "other.c")
        flags = ("-DREGISTER=verbs_register_driver_34", SOURCES / "provider.c", tmp_path / "uses.c")
        gcc("-o", tmp_path / "provider.so", *flags, tmp_path / "library.so")
        found = read_provider((tmp_path / "provider.so").read_bytes())
        several = "needs IBVERBS_PRIVATE_33, IBVERBS_PRIVATE_34"
        said = several if "ibverbs" in soname else "needs no IBVERBS_PRIVATE_N"
        assert (found.private_abi, found.kernel_abi) == (None, None)
        assert f"private_abi: {said}" in found.reasons
        assert f"kernel_abi: {said}" in found.reasons


def needed_glibc(file: Path) -> set[str]:
    """By pyelftools' own reader of versions, which goes by sections."""
    with file.open("rb") as stream:
        needs = [s for s in ELFFile(stream).iter_sections() if isinstance(s, GNUVerNeedSection)]
        names = {aux.name for section in needs for _, entries in section.iter_versions() for aux in entries}
    return {name for name in names if name.startswith("GLIBC")}


def test_glibc(compile: Compile) -> None:
    plain, packed = compile(34, "-O2"), compile(34, "-O2 -Wl,-z,pack-relative-relocs")
    assert needed_glibc(plain) == {"GLIBC_2.2.5"}
    assert read_provider(plain.read_bytes()).glibc == "2.2.5"
    assert "GLIBC_ABI_DT_RELR" in needed_glibc(packed)
    assert read_provider(packed.read_bytes()).glibc == "2.36"


def test_section_headers_do_not_matter(plain: bytes) -> None:
    bare = bytearray(plain)
    bare[0x28:0x30] = bytes(8)  # e_shoff
    bare[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
    found, whole = read_provider(bytes(bare)), read_provider(plain)
    assert found.kernel_abi == (677, 699)
    assert found == replace(whole, sha256=found.sha256)


@pytest.mark.parametrize("data", [b"", b"\x7f", b"\x7fEL", b"#!/bin/sh\n", b"!<arch>\n", b"MZ" + bytes(100)])
@pytest.mark.parametrize("read", [read_provider, read_libibverbs])
def test_no_elf_file_at_all(data: bytes, read: Callable[[bytes], LibraryAbi]) -> None:
    with pytest.raises(ValueError, match="not an ELF file"):
        read(data)


def patched(data: bytes, offset: int, new: bytes) -> bytes:
    return data[:offset] + new + data[offset + len(new) :]


@pytest.mark.parametrize(
    ("offset", "new", "reason"),
    [
        (4, b"\x01", "32-bit|damaged"),
        (5, b"\x02", "big-endian|damaged"),
        (0x12, struct.pack("<H", 243), "EM_RISCV"),
        (0x12, struct.pack("<H", 40), "EM_ARM"),
        (0x10, struct.pack("<H", 2), "ET_EXEC: not a shared library"),
        (0x38, struct.pack("<H", 0xFFFF), "implausible headers"),
        (0x36, bytes(2), "implausible headers"),
        (0x3A, bytes(2), "implausible headers"),
        (0x3C, struct.pack("<H", 0xFFFF), "implausible headers"),
        (0x20, struct.pack("<Q", 1 << 63), "damaged"),
    ],
)
def test_other_kinds_of_file(plain: bytes, offset: int, new: bytes, reason: str) -> None:
    found = read_provider(patched(plain, offset, new))
    assert found == LibraryAbi(sha256=found.sha256, reasons=found.reasons)
    assert len(found.reasons) == 6
    for line in found.reasons:
        assert any(word in line for word in reason.split("|")), line


def test_a_real_32_bit_object(tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text("int x;")
    subprocess.run(["gcc", "-m32", "-c", "-o", tmp_path / "x.o", tmp_path / "x.c"], check=True)
    assert (
        "32-bit little-endian EM_386: only x86_64 and aarch64 are read"
        in read_provider((tmp_path / "x.o").read_bytes()).reasons[0]
    )


def range_at(data: bytes) -> int:
    needle = struct.pack("<II", 677, 699)
    assert data.count(needle) == 1
    return data.index(needle)


def test_each_byte_of_the_range_counts(plain: bytes) -> None:
    at = range_at(plain)
    for byte in range(8):
        for bit in range(8):
            new = patched(plain, at + byte, bytes([plain[at + byte] ^ 1 << bit]))
            lowest, highest = struct.unpack_from("<II", new, at)
            expected = (lowest, highest) if lowest <= highest <= 1000 else None
            assert read_provider(new).kernel_abi == expected


def checked(data: bytes) -> LibraryAbi | None:
    try:
        return read_provider(data)
    except ValueError:
        return None if data[:4] != b"\x7fELF" else pytest.fail("an ELF file")


HOSTILE = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)


@HOSTILE
@given(change=st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)))
def test_one_changed_byte_never_gives_another_range(plain: bytes, change: tuple[float, int]) -> None:
    place, flip = int(change[0] * len(plain)), change[1]
    at = range_at(plain)
    found = checked(patched(plain, place, bytes([plain[place] ^ flip])))
    if found and not at <= place < at + 8:
        assert found.kernel_abi in ((677, 699), None)
        assert found.private_abi in (34, None)


@HOSTILE
@given(changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=8)), max_size=8))
def test_many_changed_bytes_never_raise(plain: bytes, changes: list[tuple[float, bytes]]) -> None:
    data = plain
    for place, new in changes:
        data = patched(data, int(place * len(plain)), new)
    checked(data)


@HOSTILE
@given(offset=st.integers(0, 0x40 + 56 * 11), new=st.sampled_from([b"\0", b"\xff", b"\x7f"]), size=st.integers(1, 8))
@example(offset=0x36, new=b"\0", size=2)
def test_hostile_headers_never_raise(plain: bytes, offset: int, new: bytes, size: int) -> None:
    checked(patched(plain, offset, new * size))


def test_hostile_tables_are_bounded(plain: bytes) -> None:
    """Every entry of the dynamic section in turn says that its table lies elsewhere or is of another size."""
    with_dynamic = ELFFile(BytesIO(plain)).get_section_by_name(".dynamic")
    assert with_dynamic is not None
    at = with_dynamic["sh_offset"]
    for entry in range(at, at + with_dynamic["sh_size"], 16):
        for value in (0, 1, 0x40, len(plain) // 2, 0xFFFF, 1 << 32, 1 << 63):
            found = checked(patched(plain, entry + 8, struct.pack("<Q", value)))
            assert found is not None
            assert found.kernel_abi in ((677, 699), None)
            assert found.private_abi in (34, None)


def test_hostile_versions_are_bounded(plain: bytes) -> None:
    """A list of needed versions whose entries all say that thousands of others follow, in the same place."""
    needs = ELFFile(BytesIO(plain)).get_section_by_name(".gnu.version_r")
    assert needs is not None
    data = bytearray(plain)
    for place in range(needs["sh_offset"], needs["sh_offset"] + needs["sh_size"], 16):
        struct.pack_into("<H", data, place + 2, 0xFFFF)
        struct.pack_into("<I", data, place + 12, 0)
    found = checked(bytes(data))
    assert found is not None
    assert (found.private_abi, found.kernel_abi, found.glibc) == (None, None, None)


def test_hostile_constructors_are_bounded(plain: bytes) -> None:
    """Each of a hundred is read by the byte: a node's answer holds thousands of such libraries."""
    library = SharedLibrary(plain)
    (start, frame) = library.unpack("<ii", library.frames + 12)
    place = next(each for each in library.loads if each.start <= library.frames < each.end)
    size = place.offset + library.frames + frame + 12 - place.start
    entry, slot = library.frames + start, library.tag(INIT_ARRAY)
    library = SharedLibrary(patched(plain, size, struct.pack("<I", 1025)))
    library.pointers[slot] = entry
    with pytest.raises(UnreadableLibrary, match="constructors of more than 1024 bytes"):
        library.passed_to("x")


def test_relocations_are_bounded(compile: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word of RELR is 63 of them, and each is kept."""
    made = [compile(34, flags).read_bytes() for flags in ("-O2", "-O2 -Wl,-z,pack-relative-relocs")]
    monkeypatch.setattr(shared_library, "RELOCATIONS", 2)
    for data in made:
        with pytest.raises(UnreadableLibrary, match="more than 2 relocations"):
            SharedLibrary(data)
    packed = bytearray(made[1])
    table = SharedLibrary.__new__(SharedLibrary)
    table.data, table.pointers, table.imports, table.machine = bytes(packed), {}, {}, "EM_X86_64"
    table.loads = [shared_library.Segment(0, len(packed), len(packed), 0, False)]
    table.dynamic = {shared_library.RELR: 0, shared_library.RELRSZ: 8}
    table.data = struct.pack("<Q", (1 << 64) - 1) + bytes(packed[8:])
    with pytest.raises(UnreadableLibrary, match="more than 2 relocations"):
        table._relocate()


def test_each_constructor_is_read_once(plain: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    library, read = SharedLibrary(plain), list[int]()
    entry, slot = library.frames + library.unpack("<i", library.frames + 12)[0], library.tag(INIT_ARRAY)
    library.dynamic[INIT_ARRAYSZ] = 800
    library.pointers |= dict.fromkeys(range(slot, slot + 800, 8), entry)
    monkeypatch.setattr(library, "references", lambda code, at: read.append(at) or [])
    library.passed_to("x")
    assert read == [entry]


def test_needed_versions_are_bounded_together(plain: bytes) -> None:
    """Lists that are plausible each: a hundred of a hundred."""
    needs = ELFFile(BytesIO(plain)).get_section_by_name(".gnu.version_r")
    assert needs is not None
    library = SharedLibrary(plain)
    library.dynamic[VERNEEDNUM] = 100
    data = bytearray(plain)
    struct.pack_into("<H", data, needs["sh_offset"] + 2, 100)
    struct.pack_into("<I", data, needs["sh_offset"] + 12, 0)  # the next is the same
    struct.pack_into("<I", data, needs["sh_offset"] + 16 + 12, 0)
    library.data = bytes(data)
    with pytest.raises(UnreadableLibrary, match="more than 500 needed symbol versions"):
        list(library.versions(defined=False))


@HOSTILE
@given(length=st.floats(0, 1))
def test_a_truncated_file_is_unreadable(plain: bytes, length: float) -> None:
    found = checked(plain[: int(length * (len(plain) - 1))])
    assert found is None or found.kernel_abi is None


@HOSTILE
@given(rest=st.binary(max_size=2000))
def test_an_elf_magic_and_noise(rest: bytes) -> None:
    found = checked(b"\x7fELF\x02\x01\x01" + rest)
    assert found is not None
    assert (found.private_abi, found.kernel_abi) == (None, None)


def test_an_image_build_has_all_modules_that_the_reader_imports(tmp_path: Path) -> None:
    for path, file in render.readers().items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
    command = [sys.executable, "-m", "rocstack.nic.elf", tmp_path / "absent"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={}, cwd=tmp_path / "check")
    assert "No such file" in done.stderr


def test_as_a_script(compile: Compile, libibverbs: Callable[[int], Path], tmp_path: Path) -> None:
    """Alone in a folder, as an image build has it, with the library's path as the only argument."""
    for path, file in render.readers().items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
    module, folder = ["-m", "rocstack.nic.elf"], tmp_path / "check"
    provider, library = compile(34, "-O2"), libibverbs(34)
    done = subprocess.run(
        [sys.executable, *module, provider, library], capture_output=True, text=True, check=True, env={}, cwd=folder
    )
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["file"], first["private_abi"], first["kernel_abi"]) == (str(provider), 34, [6, 7])
    assert (second["file"], second["private_abi"], second["kernel_abi"]) == (str(library), 34, None)
    for wrong, said in ((tmp_path / "absent", "No such file"), (SOURCES / "provider.c", "not an ELF file")):
        command = [sys.executable, *module, wrong]
        failed = subprocess.run(command, capture_output=True, text=True, check=False, env={}, cwd=folder)
        assert failed.returncode == 1
        assert said in failed.stderr
        assert "Traceback" not in failed.stderr


def everything(folder: Path) -> Iterator[Path]:
    return (file for file in folder.glob("*.so*") if file.is_file())


def test_ordinary_libraries_have_no_range() -> None:
    """Dozens of libraries of this machine: none is a provider, none raises, none takes long."""
    read = 0
    for file in list(everything(Path("/usr/lib/x86_64-linux-gnu")))[:60]:
        data = file.read_bytes()
        if data[:4] == b"\x7fELF" and "libibverbs" not in file.name:
            found = checked(data)
            assert found is not None
            assert found.kernel_abi is None or b"verbs_register_driver" in data, file
            read += 1
    if not read:
        pytest.skip("no libraries where Debian has them")
