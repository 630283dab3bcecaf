import os
from pathlib import Path

import pytest

from rocstack_trainer.stop import requeue

SCONTROL = """#!/bin/sh
echo "$@" > {called}
{then}
"""


@pytest.mark.parametrize(
    ("then", "again", "said"),
    [
        ("exit 0", True, "requeue: job 42 is in the queue again"),
        ("echo 'slurm: Access denied' >&2; exit 1", False, "not in the queue again: slurm: Access denied\n  submit"),
        ("kill -9 $$", False, "not in the queue again: Command"),
    ],
)
def test_the_job_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, again: bool, said: str
) -> None:
    stand_in = tmp_path / "scontrol"
    stand_in.write_text(SCONTROL.format(called=tmp_path / "called", then=then))
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    told: list[str] = []
    assert requeue({"SLURM_JOB_ID": "42"}, told.append) is again
    assert said in told[0]
    assert (tmp_path / "called").read_text() == "requeue 42\n"


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[str] = []
    assert not requeue({}, told.append)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not requeue({"SLURM_JOB_ID": "42"}, told.append)
    assert "SLURM_JOB_ID is not set" in told[0]
    assert "there is no scontrol here" in told[1]
