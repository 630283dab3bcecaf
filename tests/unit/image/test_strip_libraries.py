"""strip_libraries.py on libraries made here byte by byte, and programs as strip that do what a broken one did."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fat_library import HOST, Library, hip

from rocstack.base import paths

SCRIPT = paths.images() / "build" / "strip_libraries.py"
sys.path.insert(0, str(SCRIPT.parent))
strip_libraries = importlib.import_module("strip_libraries")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """One with something at its end that strip can take away."""
    file = tmp_path / "tree/liba.so.1"
    file.parent.mkdir()
    file.write_bytes(Library([HOST, (hip("gfx90a"), bytes(90_000))]).build() + bytes(50_000))
    file.chmod(0o755)
    return file


def put_strip(folder: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """A strip that writes `data` as `change` leaves it."""
    program = folder / "bin/strip"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport struct, sys\nout, source = sys.argv[-2:]\n"
        f"data = bytearray(open(source, 'rb').read()[:-50_000])\n{change}\nopen(out, 'wb').write(data)\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


# A field of program header N as (offset in the header); Library has LOAD x4, RELRO, NOTE, STACK.
MOVE = "at = 64 + {n} * 56 + {field}\nstruct.pack_into('<Q', data, at, struct.unpack_from('<Q', data, at)[0] + {by})"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("", ""),
        (MOVE.format(n=3, field=8, by=8), "a segment's place in the file doesn't fit its address"),
        (MOVE.format(n=3, field=8, by=-4096), "what is loaded changes"),
        (MOVE.format(n=3, field=32, by=-4096), "what the loader needs is in none of its segments"),
        (MOVE.format(n=3, field=40, by=-99_000), "a section gets no memory"),
        (MOVE.format(n=1, field=16, by=4096), "its segments change"),
        (MOVE.format(n=5, field=32, by=-4), "its program headers change"),
        ("data[data.index(b'.text') - 1:] = b''", "its headers make no sense"),
        ("data = data[:100]", "its headers make no sense"),
        ("data[4400] ^= 1", "what is loaded changes"),
        ("sys.exit('strip: unable to copy file')", "strip: unable to copy file"),
    ],
)
def test_a_copy_that_the_loader_would_see_otherwise_is_dropped(
    change: str,
    says: str,
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = library.read_bytes()
    put_strip(tmp_path, monkeypatch, change)
    strip_libraries.main(library.parent)
    said = capsys.readouterr().out
    if says:
        assert said == f"{library}: not stripped: {says}\nstripped 0 libraries of 1, 0 MB\n"
        assert library.read_bytes() == before
    else:
        assert said == "stripped 1 libraries of 1, 0 MB\n"
        assert library.read_bytes() == before[:-50_000]
    assert library.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in library.parent.iterdir()] == [library.name]


def test_small_files_and_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_strip(tmp_path, monkeypatch, "raise SystemExit('not to be called')")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/small.so").write_bytes(b"\x7fELF")
    (tmp_path / "tree/text.so").write_bytes(b"GROUP ( libc.so.6 )" * 10_000)
    strip_libraries.main(tmp_path / "tree")


@pytest.mark.skipif(not shutil.which("gcc"), reason="no compiler here")
def test_a_compilers_library_still_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, file = tmp_path / "a.c", tmp_path / "liba.so"
    source.write_text(
        "static int h(int x) { return x * 3; } int answer(int x) { return h(x) + 1; } int t[50000] = {1};"
    )
    subprocess.run(["gcc", "-g3", "-shared", "-fPIC", "-o", file, source], check=True)
    before = file.stat().st_size
    strip_libraries.main(tmp_path)
    assert "stripped 1 libraries of 1" in capsys.readouterr().out
    assert file.stat().st_size < before
    code = f"import ctypes; print(ctypes.CDLL({str(file)!r}).answer(4))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "13\n"
