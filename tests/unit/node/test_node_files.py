"""An order's files and which images may go."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocstack.node import files, removal
from rocstack.node.engine import NodeError

CLI = Path(__file__).resolve().parents[3] / "cli"


def wanted(path: Path, content: bytes = b"one\n", mode: str = "0640") -> dict[str, Any]:
    return {**files.entry(str(path), content, int(mode, 8)), "mode": mode}


def test_a_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "slurm/slurm.conf"
    assert files.read_before([wanted(path)]) == [{"path": str(path)}]
    assert files.ensure([wanted(path)]) == [str(path)]
    before = path.stat()
    assert files.ensure([wanted(path)]) == files.read_before([wanted(path)]) == []
    assert path.stat().st_ino == before.st_ino
    assert (path.read_bytes(), before.st_mode & 0o777) == (b"one\n", 0o640)


@pytest.mark.parametrize("change", ["content", "mode", "link", "folder-link"])
def test_what_differs_is_made_right(tmp_path: Path, change: str) -> None:
    path, other = tmp_path / "keys/munge.key", tmp_path / "other"
    files.ensure([wanted(path)])
    other.write_bytes(b"one\n")
    other.chmod(0o640)
    if change == "content":
        path.write_bytes(b"two\n")
    elif change == "mode":
        path.chmod(0o644)
    else:
        path.unlink()
        path.symlink_to(other if change == "link" else path)
    assert files.ensure([wanted(path)]) == [str(path)]
    assert not path.is_symlink()
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"one\n", 0o640)
    assert [entry.name for entry in path.parent.iterdir()] == ["munge.key"]


def test_what_was_there_is_put_back(tmp_path: Path) -> None:
    old, same, new = tmp_path / "old", tmp_path / "same", tmp_path / "new"
    files.ensure([wanted(old, mode="0600"), wanted(same)])
    order = [wanted(old, b"two\n", "0644"), wanted(same), wanted(new)]
    before = files.read_before(order)
    files.ensure(order)
    files.put_back(before)
    files.put_back(before)
    assert (old.read_bytes(), old.stat().st_mode & 0o777) == (b"one\n", 0o600)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["old", "same"]


def test_folders_are_open_but_for_keys(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        files.ensure([wanted(tmp_path / "a/b/file"), wanted(tmp_path / "c/keys/key")])
    finally:
        os.umask(umask)
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "c", "c/keys")}
    assert modes == {"a": 0o755, "a/b": 0o755, "c": 0o755, "c/keys": 0o700}
    (tmp_path / "c/keys").chmod(0o755)
    files.ensure([wanted(tmp_path / "c/keys/other")])
    assert (tmp_path / "c/keys").stat().st_mode & 0o777 == 0o700


def test_what_cant_be_written_says_where_but_not_what(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path, why in ((tmp_path / "file/below", "File exists"), (tmp_path / "folder", "Is a directory")):
        with pytest.raises(NodeError, match=why) as caught:
            files.ensure([wanted(path, b"s3cret")])
        assert caught.value.kind == "file"
        assert str(path) in caught.value.what
        assert base64.b64encode(b"s3cret").decode() not in caught.value.what
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


ID = {name: f"sha256:{name * 64}" for name in "abcdef"}
IMAGES = [
    {"Id": ID["a"], "RepoTags": ["rocstack/worker:aaaaaaaaaaaa"], "RepoDigests": ["r:5000/rocstack-worker@sha256:9"]},
    {"Id": ID["b"], "RepoTags": ["rocstack/control:bbbbbbbbbbbb"], "RepoDigests": []},
    {"Id": ID["c"], "RepoTags": ["rocstack/worker:cccccccccccc", "rocstack/worker:debian-13-tcp"], "RepoDigests": []},
    {"Id": ID["d"], "RepoTags": [], "RepoDigests": []},
    {"Id": ID["e"], "RepoTags": ["rocstack/worker:debian-13-tcp"], "RepoDigests": None},
]


@pytest.mark.parametrize(
    ("used", "keep", "gone"),
    [
        ("", set(), "ab"),
        ("a", set(), "b"),
        ("", {ID["b"]}, "a"),
        ("", {"sha256:9"}, "b"),
        ("b", {"rocstack/worker:aaaaaaaaaaaa"}, ""),
        # Another store knows the image by its manifest's digest, not by its configuration's.
        ("", {"sha256:configuration", "rocstack/worker:aaaaaaaaaaaa"}, "b"),
    ],
)
def test_only_images_that_a_deploy_brought_may_go(used: str, keep: set[str], gone: str) -> None:
    assert removal.removable_images(IMAGES, {ID[name] for name in used}, keep) == [ID[name] for name in gone]


WRITES = (
    "import os, sys; from rocstack.node import files\n"
    "def stand(_):\n  print('there', flush=True); sys.stdin.read()\n"
    "files.os.fsync = stand\n"
    "files.write(sys.argv[1], b'a key', 0o600, os.geteuid(), os.getegid())\n"
)


def test_what_a_killed_run_left_half_written_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    kept = ["other", ".rocstack-not-ours", ".rocstack-linked__"]
    (tmp_path / "elsewhere").write_text("x")
    (keys / kept[0]).write_text("x")
    (keys / kept[1]).write_text("x")
    (keys / kept[2]).symlink_to(tmp_path / "elsewhere")
    entry = files.entry(str(keys / "mine"), b"mine", 0o600)
    line = [sys.executable, "-c", WRITES, str(keys / "munge.key")]
    env = {**os.environ, "PYTHONPATH": str(CLI)}
    with subprocess.Popen(line, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout
        writer.stdout.readline()
        files.ensure([entry])
        (half,) = {file.name for file in keys.iterdir()} - {*kept, "mine"}
        writer.kill()
    assert (keys / half).read_text() == "a key"
    assert files.ensure([entry]) == []
    assert sorted(file.name for file in keys.iterdir()) == sorted([*kept, "mine"])
    assert (tmp_path / "elsewhere").exists()


def test_folders_that_a_killed_copy_left_go(tmp_path: Path) -> None:
    held, left, others = (tmp_path / f"rocstack-copy-{name}" for name in ("aaaaaaaa", "bbbbbbbb", "no"))
    for folder in (held, left, others):
        folder.mkdir()
        (folder / "auth.json").write_text("{}")
    handle = os.open(held, os.O_RDONLY)
    assert files.hold(handle)
    files.sweep(str(tmp_path), "rocstack-copy-", {os.geteuid() + 1})
    assert left.exists(), "it is another's"
    files.sweep(str(tmp_path), "rocstack-copy-", {os.geteuid()})
    os.close(handle)
    assert sorted(tmp_path.iterdir()) == [held, others]
