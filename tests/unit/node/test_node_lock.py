"""One at a time works on a node, and not for somebody who has left."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rocstack.node import node_lock, slurm_control
from rocstack.node.engine import NodeError

BUSY = {"n1": {"state": ["ALLOCATED", "DRAIN"], "jobs": [7], "reason": "rocstack: update", "started": 0}}


def test_a_second_one_waits_and_then_says_so(tmp_path: Path) -> None:
    folder = str(tmp_path / "state")
    refused = pytest.raises(NodeError, match="still working on this node after 0 s")
    with node_lock.node_lock(folder), refused as caught, node_lock.node_lock(folder, within=0):
        pass
    assert caught.value.kind == "busy"
    with node_lock.node_lock(folder, within=0):
        child = subprocess.run(["sleep", "0"])  # a process that it starts doesn't inherit the lock
    assert child.returncode == 0


def test_a_lock_that_cant_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NodeError, match="can't be opened"), node_lock.node_lock(str(tmp_path / "file/below")):
        pass


def test_who_has_left() -> None:
    reader, writer = os.pipe()
    try:
        assert not node_lock.caller_left(os.getppid(), writer)
        assert node_lock.caller_left(os.getppid() + 1, writer)
        os.close(reader)
        assert node_lock.caller_left(os.getppid(), writer)
    finally:
        os.close(writer)


class Clock:
    """Time that passes by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When Slurm was asked."""
    clock, times = Clock(), list[float]()

    def state(slurm: slurm_control.SlurmController) -> dict[str, Any]:
        times.append(clock.now)
        return BUSY

    monkeypatch.setattr(slurm_control, "time", clock)
    monkeypatch.setattr(slurm_control.SlurmController, "state", state)
    return times


def test_slurm_is_not_asked_more_often_than_it_helps(looks: list[float]) -> None:
    slurm = slurm_control.SlurmController()
    assert slurm.wait_drained(["n1"], 12)["busy"] == {"n1": "runs job 7"}
    assert looks == [0, 5, 10, 12]
    looks.clear()
    slurm.wait_ready(["n1"], 41, since=1)
    assert len(looks) == 60 + 1 + 3


def test_nobody_waits_for_a_deploy_that_is_gone(looks: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_control, "caller_left", lambda parent: len(looks) > 2)
    with pytest.raises(NodeError, match="has disconnected"):
        slurm_control.SlurmController().wait_drained(["n1"], 1e9)
    assert looks == [0, 5, 10]
