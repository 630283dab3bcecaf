"""New keys on a node: what is written, when, and what stays as it is."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rocstack.node import engine_facts, files, rotation
from rocstack.node.engine import CommandOutput, NodeError

OLD = 1_000_000_000.0  # when the keys were written


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("munge.key", "jwt.key", "slurmdbd.conf"):
        (tmp_path / name).write_text("DbdHost=localhost\nStoragePass=old\nStorageUser=slurm\n")
        os.utime(tmp_path / name, (OLD, OLD))
    (tmp_path / "slurmdbd.conf").chmod(0o600)
    (tmp_path / "node.json").write_text(json.dumps({"cluster": "c", "keys": {"munge_key": "old"}}))
    monkeypatch.setattr(rotation, "DBD", str(tmp_path / "slurmdbd.conf"))
    return tmp_path


def order(folder: Path, database: str = "", **keys: str) -> Any:
    made = {name: files.entry(str(folder / name), b"new", 0o400) for name in ("munge.key", "jwt.key")}
    return {"munge": made["munge.key"], "files": [made["jwt.key"]], "database": database, "keys": keys}


class Engine:
    """One with a worker that runs, or none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int = 0, running: bool = True) -> None:
        self.calls: list[tuple[tuple[str, ...], str]] = []
        self.code = code
        rows = [{"Name": rotation.WORKER, "State": {"Status": "running"}}] if running else []
        monkeypatch.setattr(rotation.containers, "find", lambda *names: [row for row in rows if row["Name"] in names])
        monkeypatch.setattr(rotation, "docker", self.docker)

    def docker(self, *words: str, stdin: str = "", **_: Any) -> CommandOutput:
        self.calls.append((words, stdin))
        return CommandOutput(self.code, "", "no munged" if self.code else "")


def test_the_worker_has_the_key_before_its_file_which_keeps_its_time(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(monkeypatch)
    rotation.swap(order(node, "new-password", munge_key="new"), str(node))
    ((words, stdin),) = engine.calls
    assert words[:3] == ("exec", "-i", rotation.WORKER)
    assert base64.b64decode(stdin) == b"new"
    assert not any("new-password" in word or stdin in word for word in words), "nothing secret in a process list"
    assert (node / "munge.key").read_bytes() == b"new"
    assert (node / "munge.key").stat().st_mtime == OLD
    assert (node / "jwt.key").stat().st_mtime > OLD, "who reads that one has to start again"
    assert (node / "slurmdbd.conf").read_text() == "DbdHost=localhost\nStoragePass=new-password\nStorageUser=slurm\n"
    assert (node / "slurmdbd.conf").stat().st_mode & 0o777 == 0o600
    assert json.loads((node / "node.json").read_text()) == {"cluster": "c", "keys": {"munge_key": "new"}}
    rotation.swap(order(node, "new-password", munge_key="new"), str(node))
    assert len(engine.calls) == 2, "munged may have been started before its key was there: again"
    assert (node / "munge.key").stat().st_mtime == OLD


def test_a_worker_that_does_not_take_it_keeps_its_file(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Engine(monkeypatch, code=1)
    before = (node / "munge.key").read_bytes()
    with pytest.raises(NodeError, match="no munged"):
        rotation.swap(order(node), str(node))
    assert (node / "munge.key").read_bytes() == before


def test_a_node_without_a_worker_or_a_database(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, before = Engine(monkeypatch, running=False), (node / "slurmdbd.conf").read_text()
    rotation.swap(order(node), str(node))
    assert engine.calls == []
    assert (node / "munge.key").read_bytes() == b"new"
    assert (node / "slurmdbd.conf").read_text() == before
    assert json.loads((node / "node.json").read_text())["keys"] == {"munge_key": "old"}


def test_a_control_node_that_was_taken_down_has_nothing_to_note(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Engine(monkeypatch, running=False)
    (node / "node.json").unlink()
    (node / "slurmdbd.conf").unlink()
    rotation.swap(order(node, "new-password", munge_key="new"), str(node))
    assert sorted(os.listdir(node)) == ["jwt.key", "munge.key"], "it has no cluster"


@pytest.mark.parametrize(("written", "spec"), [(OLD, "abc"), (2_000_000_000.0, "")])
def test_a_container_that_is_older_than_what_it_reads_is_not_as_described(
    node: Path, written: float, spec: str
) -> None:
    path = node / "munge.key"
    os.utime(path, (written, written))
    labels = {engine_facts.SPEC: "abc", engine_facts.READS: str(path)}
    row = {
        "Name": "/c",
        "State": {"Status": "running", "StartedAt": "2020-01-01T00:00:00.5Z"},
        "Config": {"Labels": labels},
    }
    assert engine_facts._container(row)["spec"] == spec
    row["State"]["Status"] = "exited"  # type: ignore[index]
    assert engine_facts._container(row)["spec"] == "abc", "it reads the file when it starts"
