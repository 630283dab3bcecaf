"""prune_fatbin.py on libraries made here byte by byte, and on one from a compiler where there is one."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import zstandard
from fat_library import DYNAMIC, HEADERS, HOST, MAGIC, RW, RX, STACK, Library, Loaded, hip, make_bundle, read_bundle, up
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocstack.base import paths

SCRIPT = paths.images() / "build" / "prune_fatbin.py"
sys.path.insert(0, str(SCRIPT.parent))
prune_fatbin = importlib.import_module("prune_fatbin")
offload_bundle = importlib.import_module("offload_bundle")


def run(file: Path, *arguments: str, gfx: str = "gfx90a,gfx942") -> int:
    return prune_fatbin.main(["--gfx", gfx, *arguments, str(file)])


CODE = Random(1).randbytes(20_000)
SIMPLE = Library([HOST, (hip("gfx906"), CODE), (hip("gfx90a"), CODE[::-1]), (hip("gfx1100"), CODE * 2)])

generic = ["gfx9-generic", "gfx9-4-generic:sramecc+"]
targets = st.sampled_from(
    ["gfx803", "gfx906:sramecc+:xnack-", "gfx90a", "gfx90a:xnack+", "gfx90a:xnack-", "gfx942", *generic]
)
codes = st.builds(
    lambda seed, size: Random(seed).randbytes(size),
    st.integers(0, 9),
    st.sampled_from([0, 1, 9_000, 70_000]) | st.integers(0, 200_000),
)
contents = st.dictionaries(targets.map(hip), codes, min_size=3).map(lambda entries: [HOST, *entries.items()])
forms = st.sampled_from([0, 2, 3])
libraries = st.builds(
    Library,
    entries=contents,
    form=forms,
    more=st.just(()) | st.lists(st.tuples(forms, contents), max_size=5).map(tuple),
    in_place=st.booleans(),
    rodata=st.integers(0, 9000),
    tail=st.lists(st.integers(0, 9000), max_size=3).map(tuple),
    relro=st.integers(8, 20_000),
    data=st.integers(0, 9000),
    page=st.sampled_from([0x1000, 0x1000, 0x4000, 0x10000]),
    skipped=st.integers(0, 2),
    after_bundle=st.just(b""),
    seed=st.integers(0, 9),
)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(library=libraries, data=st.data())
def test_only_the_bundles_change(library: Library, data: st.DataObject, tmp_path: Path) -> None:
    file = tmp_path / "library.so"
    before = library.build()
    file.write_bytes(before)
    old = Loaded(before)
    assert run(file) == 0
    new = Loaded(file.read_bytes())
    if new.data == before:
        return  # nothing to remove, or too little; what is refused and why has tests of its own
    _, _, _, fat, _, fat_size, *_ = old.sections()[b".hip_fatbin"]
    wanted = ("gfx90a", "gfx942", "gfx9-generic", "gfx9-4-generic", "host-x86_64")
    had, has = old.wrapped(), new.wrapped()
    assert [bundle[HOST[0]] for bundle in had] == [b""] * (1 + len(library.more))
    assert has == [{name: code for name, code in each.items() if any(word in name for word in wanted)} for each in had]
    if not library.form and not any(form for form, _ in library.more):
        removed = sum(
            len(code) for all, kept in zip(had, has, strict=True) for name, code in all.items() if name not in kept
        )
        assert len(before) - len(new.data) >= removed - (2 + library.skipped) * library.page
    for name, slot in ((b".rela.dyn", 16), (b".hipFatBinSegment", 8)):
        was, now = bytearray(old.content(name)), bytearray(new.content(name))
        for at in range(slot, len(was), 24):
            if fat <= struct.unpack_from("<Q", was, at)[0] < fat + fat_size:
                was[at : at + 8] = now[at : at + 8] = bytes(8)
        assert was == now
    # Every section but one, by address and by offset.
    for name, section in old.sections().items():
        if name not in (b".hip_fatbin", b".rela.dyn", b".hipFatBinSegment"):
            assert new.sections()[name][:4] == section[:4]
            assert new.sections()[name][5:] == section[5:]
            if section[1] != 8:
                assert new.content(name) == old.content(name)
            if section[2] & 2:
                assert new.at(section[3], section[5]) == old.at(section[3], section[5])
    # Any address a relocation, a symbol or a pointer may name.
    for _, _, _, vaddr, _, _, memsz, _ in old.loads():
        for address in data.draw(st.lists(st.integers(vaddr, vaddr + memsz - 1), max_size=20)):
            pointers = [old.sections()[name] for name in (b".rela.dyn", b".hipFatBinSegment")]
            changed = [(fat, fat_size), *((section[3], section[5]) for section in pointers)]
            if address >= HEADERS and not any(start <= address < start + size for start, size in changed):
                assert new.at(address, 1) == old.at(address, 1)
                assert new.flags(address) == old.flags(address)
    kinds = [segment[0] for segment in old.segments()]
    assert [segment[0] for segment in new.segments()] == kinds
    assert [s[1] for s in new.segments() if s[0] == STACK] == [RW]
    assert run(file, "--strict") == 0, "a second run has nothing to do"
    assert file.read_bytes() == new.data


@pytest.mark.parametrize("tail", [(), (40, 30), (9000,)])
@pytest.mark.parametrize("skipped", [0, 1])
def test_free_pages_leave_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tail: tuple[int, ...], skipped: int
) -> None:
    file = tmp_path / "library.so"
    file.write_bytes(replace(SIMPLE, tail=tail, skipped=skipped).build())
    size = file.stat().st_size
    assert run(file, "--strict") == 0
    assert size - 60_000 - 2 * 4096 < file.stat().st_size < size - 60_000 + 4 * 4096
    said = capsys.readouterr().out
    assert "kept gfx90a, removed gfx1100, gfx906; it has no code for gfx942" in said
    assert read_bundle(Loaded(file.read_bytes()).content(b".hip_fatbin")) == {
        HOST[0]: b"",
        hip("gfx90a"): CODE[::-1],
    }


BUNDLE = make_bundle(SIMPLE.entries).ljust(up(len(make_bundle(SIMPLE.entries)), 4096), b"\0")
HUGE = struct.pack("<Q", 1 << 63)
PACKED = make_bundle(SIMPLE.entries, 3)
NONSENSE = zstandard.compress(CODE)
MANY = replace(SIMPLE, form=3, more=((3, SIMPLE.entries), (0, SIMPLE.entries[:2]), (2, SIMPLE.entries)))
REFUSED: dict[str, tuple[bytes, str]] = {
    "newer form": (replace(SIMPLE, fat=b"CCOB\4" + PACKED[5:]).build(), "compressed in an unknown way"),
    "zlib": (replace(SIMPLE, fat=PACKED[:6] + b"\0" + PACKED[7:]).build(), "compressed in an unknown way"),
    "broken frame": (replace(SIMPLE, fat=PACKED[:40] + bytes(40) + PACKED[80:]).build(), "broken|cut off"),
    "cut-off frame": (replace(SIMPLE, fat=PACKED[:-1]).build(), "cut off"),
    "frame without end": (
        replace(SIMPLE, fat=struct.pack("<4sHHQQQ", b"CCOB", 3, 1, len(PACKED) - 9, 0, 0) + PACKED[32:-9]).build(),
        "cut off",
    ),
    "compressed nonsense": (
        replace(SIMPLE, fat=struct.pack("<4sHHQQQ", b"CCOB", 3, 1, 32 + len(NONSENSE), 0, 0) + NONSENSE).build(),
        "no offload bundle where",
    ),
    "no bundle": (replace(SIMPLE, fat=CODE).build(), "no offload bundle where"),
    "no wrapper": (replace(SIMPLE, fat=BUNDLE, after_bundle=BUNDLE).build(), "no wrapper points to one"),
    "a stranger's pointer": (replace(MANY, stray=0).build(), "something other than its wrappers"),
    "a stranger's pointer into a bundle": (replace(MANY, stray=4096).build(), "something other than its wrappers"),
    "pointer into a bundle": (replace(MANY, in_place=True, starts=(1,)).build(), "into the middle"),
    "between bundles": (replace(SIMPLE, after_bundle=b"x").build(), "something lies between"),
    "another machine's": (MANY.build().replace(b"\3\0\x3e\0", b"\3\0\xb7\0", 1), "not for x86-64"),
    "none wanted": (
        replace(SIMPLE, entries=[HOST, (hip("gfx906"), CODE), (hip("gfx1100"), CODE)]).build(),
        "none of the wanted targets, only gfx1100, gfx906",
    ),
    "cut-off bundle": (replace(SIMPLE, fat=make_bundle(SIMPLE.entries)[:-1]).build(), "cut off"),
    "endless bundle": (replace(SIMPLE, fat=(MAGIC + HUGE).ljust(9000, b"\0")).build(), "no sense|cut off"),
    "huge code": (
        replace(SIMPLE, fat=(MAGIC + struct.pack("<QQQQ", 1, 0, 1 << 63, 0)).ljust(9000, b"\0")).build(),
        "cut off",
    ),
    "no section": (SIMPLE.build().replace(b".hip_fatbin", b".hip_fatbit"), "no .hip_fatbin"),
    "no RELRO": (replace(SIMPLE, relro_type=DYNAMIC).build(), "no RELRO segment"),
    "code in the segment": (replace(SIMPLE, home_flags=RX).build(), "not plain read-only data"),
    "too small": (
        replace(SIMPLE, entries=[HOST, (hip("gfx906"), b"x" * 9), (hip("gfx90a"), CODE)]).build(),
        "nothing worth removing",
    ),
    "32 bit": (SIMPLE.build().replace(b"ELF\x02", b"ELF\x01"), "not a 64-bit"),
    "big endian": (SIMPLE.build().replace(b"ELF\x02\x01", b"ELF\x02\x02"), "not a 64-bit"),
    "cut-off file": (SIMPLE.build()[:50_000], "headers make no sense"),
    "cut-off header": (SIMPLE.build()[:40], "headers make no sense"),
    "text": (b"#!/bin/sh\n", "not an ELF file"),
    "empty": (b"", "not an ELF file"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_expected_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    content, reason = REFUSED[case]
    file = tmp_path / "library.so"
    file.write_bytes(content)
    assert run(file) == 0
    said = capsys.readouterr().out
    assert "left as it is" in said
    assert re.search(reason, said)
    assert run(file, "--strict") == 1
    assert file.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file]


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from([SIMPLE, MANY]))
def test_broken_headers_never_break_a_file(tmp_path: Path, data: st.DataObject, library: Library) -> None:
    """Wrong bytes anywhere in the headers: the file is left, or what is not in the bundle is still there."""
    content = bytearray(library.build())
    table = struct.unpack_from("<Q", content, 40)[0]
    fat = content.index(b"CCOB" if library.form else MAGIC)
    places = [*range(4, HEADERS), *range(table, len(content)), *range(fat, fat + 200)]
    for place in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3)):
        content[place] = data.draw(st.sampled_from([0, 1, 4, 16, 64, 127, 255]))
    file = tmp_path / "library.so"
    file.write_bytes(content)
    assert run(file) == 0
    assert list(tmp_path.iterdir()) == [file]
    after = file.read_bytes()
    if after != content:
        for name in (b".text", b".rodata", b".tail0", b".data"):
            plain = Loaded(library.build()).content(name)
            assert after.count(plain) == 1


def test_owner_mode_and_time_stay_and_links_are_followed(tmp_path: Path) -> None:
    file, link = tmp_path / "library.so.1.0", tmp_path / "library.so.1"
    file.write_bytes(SIMPLE.build())
    file.chmod(0o741)
    os.utime(file, (1_000_000, 2_000_000))
    owner = (1234, 2345) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    os.chown(file, *owner)
    link.symlink_to(file.name)
    size = file.stat().st_size
    assert run(link) == 0
    state = file.stat()
    assert link.is_symlink()
    assert state.st_size < size
    assert (state.st_uid, state.st_gid, state.st_mode & 0o7777) == (*owner, 0o741)
    assert state.st_mtime == 2_000_000


def test_a_failure_at_the_last_step_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "library.so"
    file.write_bytes(SIMPLE.build())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prune_fatbin.os, "replace", full)
    assert run(file) == 2
    assert file.read_bytes() == SIMPLE.build()
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("section", [b".text", b".tail1", b".data", b".comment"])
def test_the_check_before_replacing_finds_a_wrong_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], section: bytes
) -> None:
    file = tmp_path / "library.so"
    file.write_bytes(SIMPLE.build())
    shrink, wrong = prune_fatbin.Library.shrink, Loaded(SIMPLE.build()).content(section)

    def careless(self: object, bundles: list[bytes]) -> object:
        pieces, headers = shrink(self, bundles)
        return [piece.replace(wrong, wrong[:-1] + b"?") for piece in pieces], headers

    monkeypatch.setattr(prune_fatbin.Library, "shrink", careless)
    assert run(file, "--strict") == 1
    assert "failed its check" in capsys.readouterr().out
    assert file.read_bytes() == SIMPLE.build()


def test_a_compressed_library_shrinks(tmp_path: Path) -> None:
    file = tmp_path / "library.so"
    file.write_bytes(MANY.build())
    size = file.stat().st_size
    assert run(file, "--strict") == 0
    new = Loaded(file.read_bytes())
    kept = {HOST[0]: b"", hip("gfx90a"): CODE[::-1]}
    assert new.wrapped() == [kept, kept, {HOST[0]: b""}, kept]
    assert len(new.data) < size - 3 * 20_000
    assert new.content(b".hip_fatbin").count(b"CCOB\3") == 2


def test_a_folder_is_pruned_and_surveyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "lib/librccl.so.1": MANY.build(),
        "lib/libnone.so": SIMPLE.build().replace(b".hip_fatbin", b".hip_fatbit"),
        "lib/libbroken.so": REFUSED["newer form"][0],
        "bin/bench": SIMPLE.build(),
        "bin/script": b"#!/bin/sh",
        "bin/empty": b"",
        "lib/rocblas/5/library/TensileLibrary_gfx942.co": b"",
        "lib/rocblas/5/library/TensileLibrary_gfx90a_gfx1100.co": b"",
        "lib/hipblaslt/library/hipblasltExtOpLibrary.dat": b"",
        "share/miopen/db/gfx942130.HIP.fdb.txt": b"",
        "share/doc/gfx1100": b"",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "lib/librccl.so").symlink_to("librccl.so.1")
    simple = ["gfx1100", "gfx906", "gfx90a"]
    kernels = {
        "lib/hipblaslt/library": [],
        "lib/rocblas/5/library": ["gfx1100", "gfx90a", "gfx942"],
        "share/miopen/db": ["gfx942"],
    }
    assert offload_bundle.survey(tmp_path) == {"bin/bench": simple, "lib/librccl.so.1": simple} | kernels
    assert "libbroken.so: its code objects are compressed in an unknown way (4, 1)" in capsys.readouterr().err
    assert run(tmp_path) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].removeprefix(f"{tmp_path}/") for line in said] == [
        "bin/bench", "lib/libbroken.so", "lib/librccl.so.1",
    ]  # fmt: skip
    script = [sys.executable, SCRIPT.with_name("offload_bundle.py"), tmp_path]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == {"bin/bench": ["gfx90a"], "lib/librccl.so.1": ["gfx90a"]} | kernels


def test_without_libzstd_a_compressed_library_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(_: str) -> None:
        raise OSError("no such file")

    (tmp_path / "library.so").write_bytes(MANY.build())
    offload_bundle.zstd.cache_clear()
    monkeypatch.setattr(offload_bundle.ctypes, "CDLL", absent)
    assert run(tmp_path / "library.so", "--strict") == 1
    assert "there is no libzstd.so.1" in capsys.readouterr().out


def test_bad_usage(tmp_path: Path) -> None:
    assert run(tmp_path / "absent.so") == 2
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path / "absent.so", gfx="gfx90a;gfx942")


SOURCE = r"""
#include <stdexcept>
asm(".section .hip_fatbin,\"a\",@progbits\n.p2align 12\n.globl __hip_fatbin\n.hidden __hip_fatbin\n"
    "__hip_fatbin: .incbin \"bundle\"\n.p2align 12\n.hidden __hip_fatbin_2\n.globl __hip_fatbin_2\n"
    "__hip_fatbin_2: .incbin \"packed\"\n.previous");
extern "C" const char __hip_fatbin[], __hip_fatbin_2[];
struct Wrapper { unsigned magic, version; const void *bundle; void *unused; };
__attribute__((section(".hipFatBinSegment"), used)) static Wrapper wrappers[] = {
    {0x48495046, 1, __hip_fatbin, 0}, {0x48495046, 1, __hip_fatbin_2, 0}};
__thread int local = 7;
int changed = 35;
static const int *const relocated[] = {&changed};
extern "C" const void *bundle(int n) { return wrappers[n].bundle; }
extern "C" int sum() { return *relocated[0] + local; }
__attribute__((noinline)) static void thrower(int n) { if (n) throw std::runtime_error("x"); }
extern "C" int caught(int n) { try { thrower(n); } catch (std::runtime_error &) { return 42; } return 0; }
"""
LOADER = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.bundle.restype = ctypes.c_void_p
assert library.caught(1) == 42 and library.caught(0) == 0 and library.sum() == 42
start, second = library.bundle(0), library.bundle(1)
sys.stdout.buffer.write((second - start).to_bytes(8, "little") + ctypes.string_at(start, int(sys.argv[2])))
"""


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler here")
@pytest.mark.parametrize("options", [[], ["-Wl,-z,max-page-size=65536"], ["-Wl,-z,noseparate-code"]])
def test_a_linked_library_still_loads_relocates_and_unwinds(tmp_path: Path, options: list[str]) -> None:
    entries = [*SIMPLE.entries, (hip("gfx1030"), CODE * 30)]
    (tmp_path / "bundle").write_bytes(make_bundle(entries))
    (tmp_path / "packed").write_bytes(make_bundle(SIMPLE.entries, 3))
    (tmp_path / "library.cc").write_text(SOURCE)
    build = ["g++", "-O1", "-fPIC", "-shared", "-Wl,-z,relro", *options, "library.cc", "-o", "library.so"]
    subprocess.run(build, cwd=tmp_path, check=True)
    file = tmp_path / "library.so"
    size = file.stat().st_size
    done = subprocess.run([sys.executable, SCRIPT, "--gfx", "gfx90a", file], capture_output=True, text=True, check=True)
    if "noseparate-code" in "".join(options):  # its segment is executable: nothing can take over what follows
        assert "left as it is: their segment is not plain read-only data" in done.stdout
        return
    assert file.stat().st_size < size - 660_000 + 4 * 65536
    length = len(Loaded(file.read_bytes()).content(b".hip_fatbin"))
    loaded = subprocess.run([sys.executable, "-c", LOADER, file, str(length)], capture_output=True, check=True)
    second, section = int.from_bytes(loaded.stdout[:8], "little"), loaded.stdout[8:]
    assert read_bundle(section) == read_bundle(section[second:]) == {HOST[0]: b"", hip("gfx90a"): CODE[::-1]}
