"""The build context as files: written whole or not at all, with the same modes everywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli_run import listing

from rocstack.base.errors import BadInput
from rocstack.image import context
from rocstack.image.context import EPOCH, BuildContext, ContextFile

SOME = BuildContext(
    {
        "Dockerfile": ContextFile(b"# x, rendered by rocstack 0\n"),
        "a/b/run": ContextFile(b"#!/bin/sh\n", 0o755),
        "a/c": ContextFile(b"\xff"),
    }
)


def modes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): f"{path.stat().st_mode & 0o7777:o}" for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_written_with_the_same_modes_under_any_umask(umask: int, tmp_path: Path) -> None:
    """COPY gives the image's own folders the modes of these."""
    before = os.umask(umask)
    try:
        SOME.write(tmp_path / "out")
    finally:
        os.umask(before)
    assert modes(tmp_path) == {
        "out": "755",
        "out/Dockerfile": "644",
        "out/a": "755",
        "out/a/b": "755",
        "out/a/b/run": "755",
        "out/a/c": "644",
    }
    assert context.read(tmp_path / "out") == SOME


def test_files_have_one_time_of_change_and_another_content_is_seen_by_it(tmp_path: Path) -> None:
    """BuildKit compares size and time, to the nanosecond; a layer has seconds."""
    times = []
    for text in (b"one", b"two", b"one"):
        BuildContext({"a/Dockerfile": ContextFile(text)}).write(tmp_path / "context")
        times.append((tmp_path / "context/a/Dockerfile").stat().st_mtime_ns)
        assert (tmp_path / "context/a").stat().st_mtime == EPOCH
    assert times[0] == times[2] != times[1]
    assert {each // 10**9 for each in times} == {EPOCH}


def test_written_over_an_older_one(tmp_path: Path) -> None:
    SOME.write(tmp_path / "out")
    newer = BuildContext({"only": ContextFile(b"1")})
    newer.write(tmp_path / "out")
    assert listing(tmp_path) == {"out": None, "out/only": b"1"}


def test_an_error_leaves_the_old_one_whole_and_nothing_else(tmp_path: Path) -> None:
    SOME.write(tmp_path / "out")
    before = listing(tmp_path)
    broken = BuildContext({"a": ContextFile(b"1"), "a/b": ContextFile(b"2")})  # a file can't be a folder
    with pytest.raises(OSError, match="a"):
        broken.write(tmp_path / "out")
    assert listing(tmp_path) == before
    with pytest.raises(OSError, match="Dockerfile"):
        SOME.write(tmp_path / "out/Dockerfile/below")
    assert listing(tmp_path) == before


def test_written_here_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    SOME.write(Path("."))
    monkeypatch.chdir(tmp_path)
    assert context.read(tmp_path / "here") == SOME


def test_ours_or_not(tmp_path: Path) -> None:
    assert not context.is_ours(tmp_path)
    SOME.write(tmp_path / "out")
    assert context.is_ours(tmp_path / "out")
    (tmp_path / "out/Dockerfile").write_text("FROM debian\n# rendered by hand\n")
    assert not context.is_ours(tmp_path / "out")


def test_digest() -> None:
    same = BuildContext(dict(reversed(SOME.files.items())), {"Dockerfile": ["x"]})
    assert same.digest() == SOME.digest()
    for path, file in [
        ("a/c", ContextFile(b"\xfe")),
        ("a/c", ContextFile(b"\xff", 0o755)),
        ("a/d", ContextFile(b"")),
    ]:
        other = BuildContext({**SOME.files, path: file})
        assert other.digest() != SOME.digest()
    assert BuildContext({"ab": ContextFile(b"")}).digest() != BuildContext({"a": ContextFile(b"b")}).digest()


def test_origin() -> None:
    some = BuildContext({}, {"f": ["", "x:1", "x:2"]})
    assert [some.origin("f", line) for line in (0, 1, 2, 3, 4, -1)] == [None, None, "x:1", "x:2", None, None]
    assert some.origin("g", 1) is None


def test_diff() -> None:
    new = BuildContext(
        {"Dockerfile": ContextFile(b"# y\nEND"), "a/b/run": ContextFile(b"#!/bin/sh\n"), "n": ContextFile(b"1\n")}
    )
    assert context.diff(SOME, SOME) == ""
    assert context.diff(SOME, new) == (
        "--- last build/Dockerfile\n+++ now/Dockerfile\n@@ -1 +1,2 @@\n"
        "-# x, rendered by rocstack 0\n+# y\n+END\n"
        "mode of a/b/run: 755 -> 644\n"
        "--- last build/a/c\n+++ /dev/null\n@@ -1 +0,0 @@\n-\ufffd\n"
        "--- /dev/null\n+++ now/n\n@@ -0,0 +1 @@\n+1\n"
    )


def test_reading_nothing(tmp_path: Path) -> None:
    assert context.read(tmp_path / "none") == BuildContext({})


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a/..", "/x", "", "a//b", "./x"])
def test_a_path_that_leads_out_of_the_folder_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        BuildContext({**SOME.files, path: ContextFile(b"x")}).write(tmp_path / "out/context")
    assert refused.value.code == "base-unfit"
    assert listing(tmp_path) == {}
