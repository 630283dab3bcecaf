"""A file is there as a whole, with the rights it should have, or not at all."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rocstack.edge import files


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("private", "mode"), [(False, 0o640), (True, 0o600)])
def test_a_file_is_replaced(private: bool, mode: int, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("before")
    before = os.umask(0o027)
    try:
        files.write(path, "ä\n", private=private)
    finally:
        os.umask(before)
    assert path.read_bytes() == "ä\n".encode()
    assert _mode(path) == mode
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("before")
    with pytest.raises(TypeError), files.writing(path) as file:
        assert file.write(b"half") + file.write("text")  # type: ignore[arg-type]
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files.write(Path("here"), "text")
    assert (tmp_path / "here").read_text() == "text"


def test_a_private_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "secrets.yml"
    files.create_private(path, "first")
    with pytest.raises(FileExistsError):
        files.create_private(path, "second")
    assert (path.read_text(), _mode(path)) == ("first", 0o600)


def test_a_file_that_can_not_be_written_goes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for write in (files.write, files.create_private):
        with pytest.raises(OSError, match="No space"):
            write(tmp_path / "file", "text")
    assert not list(tmp_path.iterdir())


KILLED = """
import os, signal, sys
from pathlib import Path
from rocstack.edge import files
with files.writing(Path(sys.argv[1]), private=True) as file:
    file.write(b"a key")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False).returncode == -signal.SIGKILL


def test_what_a_killed_run_left_goes_with_the_next(tmp_path: Path) -> None:
    path, others = tmp_path / "keys.yml", [tmp_path / ".keys.yml.swp", tmp_path / ".keys.yml.original"]
    for each in (path, *others):
        each.write_text("before")
    killed(path)
    assert path.read_text() == "before"
    files.write(path, "now", private=True)
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])
    killed(path)
    files.sweep(path)
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_two_writers_don_t_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "keys.yml"
    with files.writing(path) as one:
        one.write(b"one")
        files.write(path, "two")
        assert path.read_text() == "two"
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]
