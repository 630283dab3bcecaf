"""Before Slurm's controller is told of new files, the disk that it saves its jobs on must have room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocstack.node import apply, engine_facts, files
from rocstack.node.engine import CommandOutput, NodeError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []

    def docker(*words: str, **_: Any) -> CommandOutput:
        lines.append(words)
        return CommandOutput(0, "", "")

    monkeypatch.setattr(apply, "docker", docker)
    return lines


def run(tmp_path: Path, *command: str) -> dict[str, Any]:
    done: dict[str, Any] = {}
    order = {
        "files": [files.entry(str(tmp_path / "slurm.conf"), b"new\n", 0o644)],
        "images": [],
        "containers": [],
        "exec": [["rocstack-control", *command]],
        "state": {"deploy": "mine"},
    }
    try:
        apply.apply(order, done, folder=str(tmp_path / "state"))
    finally:
        assert (tmp_path / "slurm.conf").read_text() == "new\n"
    return done


def test_a_full_disk_keeps_the_controller_from_reading_back_old_jobs(
    tmp_path: Path, asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_facts, "room", lambda: ("/data/docker", 3_000_000))
    with pytest.raises(NodeError, match="/data/docker has only 3 MB free") as caught:
        run(tmp_path, "scontrol", "reconfigure")
    assert (caught.value.kind, asked) == ("full", [])
    monkeypatch.setattr(engine_facts, "room", lambda: ("/data/docker", 3_000_000_000))
    assert run(tmp_path, "scontrol", "reconfigure")["exec"] == [["rocstack-control", "scontrol", "reconfigure"]], "late"
    assert asked == [("exec", "rocstack-control", "scontrol", "reconfigure")]


@pytest.mark.parametrize(("command", "free"), [("scontrol", None), ("rocstack-users", 0)])
def test_what_is_not_known_or_saves_nothing_is_run(
    command: str, free: int | None, tmp_path: Path, asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_facts, "room", lambda: ("/data/docker", free))
    run(tmp_path, command)
    assert asked == [("exec", "rocstack-control", command)]
