"""A job that is followed, with a cluster that answers what is written here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_run import Cli

from rocstack.jobs import remote
from rocstack.jobs.pools import Pool
from rocstack.jobs.slurm import JobRecord
from rocstack.steps import jobs


@dataclass
class LoggedControl:
    """`states` and `pieces` are what one look after the other shows; the last stays."""

    states: list[str]
    pieces: list[bytes]
    looks: int = 0
    asked: list[Path] = field(default_factory=list)
    queued: list[str] = field(default_factory=list)

    def pools(self) -> list[Pool]:
        return [Pool("train", 2, "infinite", 8, True, "mi300x")]

    def submit(self, script: str, user: str) -> str:
        return "7"

    def record(self, job: str) -> JobRecord:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return JobRecord(
            id=job, name="mine", state=state, user="alice", account="default", partition="train", qos="normal",
            where="n[1-2]", nodes=2, submitted=0, began=0, ended=0, exit_code=0, signal=0, restarts=0,
            folder="/home/alice", log="/home/alice/mine-7.log",
        )  # fmt: skip

    def queue(self, user: str) -> list[Any]:
        return [SimpleNamespace(id="7", state=self.queued.pop(0))]

    def log(self, record: JobRecord) -> Any:
        return SimpleNamespace(read=self._read, end=lambda: "")

    def _read(self, offset: int) -> bytes:
        self.looks += 1
        return self.pieces.pop(0) if self.pieces else b""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "EVERY_S", 0.0)


def shown(control: LoggedControl) -> str:
    return "".join(jobs.pieces(control, "7", follow=True))  # type: ignore[arg-type]


def test_lines_that_come_after_the_end_are_shown() -> None:
    control = LoggedControl(["RUNNING", "COMPLETED"], [b"first\n", b"late\n"])
    assert shown(control) == "first\nlate\n"


def test_a_job_that_was_done_is_looked_at_until_nothing_is_new() -> None:
    control = LoggedControl(["RUNNING", "COMPLETED"], [b"all\n"])
    assert shown(control) == "all\n"
    assert control.looks == 2


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "FAILED"])
def test_a_job_that_is_ended_may_speak_after_a_pause(state: str) -> None:
    control = LoggedControl(["RUNNING", state], [b"begun\n", b"", b"saved\n"])
    assert shown(control) == "begun\nsaved\n"


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL"])
def test_a_job_on_its_way_back_into_the_queue_is_followed(state: str) -> None:
    """Accounting has its end until it is queued again: some seconds, or as long as its nodes take to be clean."""
    control = LoggedControl(["RUNNING", *[state] * 9, "COMPLETED"], [b"a\n", *[b""] * 9, b"b\n"])
    control.queued = ["COMPLETING"] * 8 + ["PENDING"]
    assert shown(control) == "a\nb\n"
    ended = LoggedControl(["RUNNING", state], [b"a\n"], queued=["COMPLETING", state])
    assert shown(ended) == "a\n"


def test_the_way_to_slurm_is_looked_for_once(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control = LoggedControl(["COMPLETED"], [b"0: hello\n"])

    def controller(path: Path) -> LoggedControl:
        control.asked.append(path)
        return control

    monkeypatch.setattr(remote, "controller", controller)
    monkeypatch.chdir(tmp_path)
    Path("inventory.yml").write_text("{}")
    Path("rocstack.yml").write_text("cluster: {users: {alice: {uid: 2000}}}\n")
    done = cli("submit", "mine", "--nodes=2", "--gpus-per-node=0", "--follow", "--", "true")
    assert done.code == 0
    assert "0: hello" in done.out
    assert len(control.asked) == 1
