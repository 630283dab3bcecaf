"""What the world outside may do to a run: a reader that goes away, a full disk, a scheduler that wants the node."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PACKAGE, SMALL, command, lines, start, wait_for

ENV = os.environ | {"PYTHONPATH": str(PACKAGE)}
TRAIN = [sys.executable, "-m", "rocstack_trainer", *SMALL]


@pytest.mark.parametrize("shell", ["{} | head -1", "{} >&-"])
def test_nobody_has_to_read_the_output(tmp_path: Path, shell: str) -> None:
    run = " ".join([*TRAIN, "--steps=20", f"--output.metrics={tmp_path / 'm'}"])
    done = subprocess.run(["bash", "-c", shell.format(run)], env=ENV, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(lines(tmp_path / "m")) == 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A few kB."""
    (small := tmp_path / "small").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", small], capture_output=True).returncode:
        pytest.skip("no right to mount here")
    yield small
    subprocess.run(["umount", "-l", small], check=True)


def test_a_full_disk_under_the_metrics_does_not_end_the_run(disk: Path) -> None:
    done = command(*SMALL, "--steps=60", f"--output.metrics={disk / 'm'}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("No space left on device: no more steps are written") == 1
    assert "done: step 60" in done.stdout


def test_a_last_step_that_can_not_be_saved_is_said_once_and_the_rest_is_told(disk: Path, tmp_path: Path) -> None:
    curves = tmp_path / "c.svg"
    done = command(*SMALL, "--steps=4", f"--checkpoint.dir={disk}", "--checkpoint.every=2", f"--output.curves={curves}")
    assert (done.returncode, done.stderr.count("the last step, 4, is not saved: ")) == (1, 1)
    assert [done.stdout.count(f"checkpoint: step {step} is not saved: ") for step in (2, 4)] == [1, 1]
    assert "done: step 4" in done.stdout
    assert curves.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("number", "asked"), [(signal.SIGUSR1, True), pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow)]
)
def test_slurms_signal_reaches_the_ranks_as_it_is(tmp_path: Path, monkeypatch, number: int, asked: bool) -> None:
    """SIGUSR1 asks for a place in the queue, SIGTERM (a preemption, or scancel) doesn't."""
    (scontrol := tmp_path / "scontrol").write_text(f"#!/bin/sh\necho $@ >>{tmp_path}/asked\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    metrics, folder = tmp_path / "m", f"--checkpoint.dir={tmp_path / 'c'}"
    process = start(
        *SMALL, "--steps=100000", "--ranks=2", folder, "--checkpoint.requeue=true", f"--output.metrics={metrics}"
    )
    wait_for(lambda: metrics.exists() and len(lines(metrics)) > 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, ""), err
    assert f"stopped by {signal.Signals(number).name}" in out
    assert len(list((tmp_path / "c").glob("step-*"))) == 1
    assert (tmp_path / "asked").exists() == asked
    assert not asked or (tmp_path / "asked").read_text() == "requeue 17\n"
