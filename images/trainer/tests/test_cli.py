"""The real command in processes of its own, as a person or a scheduler starts it."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from conftest import PACKAGE, SMALL, command, lines, ranks, start, state, wait_for

from rocstack_trainer import all_reduce_check
from rocstack_trainer.errors import TrainerError
from rocstack_trainer.rank import Rank

FOREVER = (*SMALL, "--train.steps=1000000", "--train.min_lr=1", "--train.warmup=0")


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ended(pid: int) -> bool:
    """Gone, or a zombie that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def training(tmp_path: Path):
    """A run on 2 ranks after some steps: the process, the pids of its ranks, its checkpoint folder."""
    metrics, folder = tmp_path / "m.jsonl", tmp_path / "c"
    process = start(*FOREVER, "--ranks", "2", f"--output.metrics={metrics}", f"--checkpoint.dir={folder}")
    try:
        wait_for(lambda: len(lines(metrics)) > 3, process)
        yield process, children(process.pid), folder
    finally:
        process.kill()


def test_two_ranks_five_steps() -> None:
    done = command("--config", "tiny", "--steps", "5", "--ranks", "2")
    assert done.returncode == 0, done.stderr
    out = done.stdout.splitlines()
    assert out[0].startswith("model = { ")
    assert "2 rank(s) by --ranks, gloo on cpu" in done.stdout
    assert re.search(r"start-up: [\d.]+ s", done.stdout)
    assert "synthetic bytes" in done.stdout
    assert len([line for line in out if line.startswith("step=")]) == 5
    assert re.fullmatch(r"weights sha256 [0-9a-f]{64}", out[-1])


def test_no_rank_outlives_its_parent(training) -> None:
    process, pids, _ = training
    process.kill()
    process.wait()
    wait_for(lambda: all(ended(pid) for pid in pids), within_s=10)


def test_a_stop_signal_saves_and_ends_well(training) -> None:
    """SIGINT; test_outside sends the schedulers' ones."""
    process, pids, folder = training
    assert len(pids) == 2
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "run it again to go on" in out
    (saved,) = folder.glob("step-*")
    assert int(saved.name[5:]) == state(folder, int(saved.name[5:]))["step"] >= 4
    assert all(ended(pid) for pid in pids)


def test_a_stop_signal_to_one_rank_stops_all_at_the_same_step(training) -> None:
    process, pids, folder = training
    os.kill(pids[1], signal.SIGUSR1)  # as Slurm's --signal does
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "a signal to another rank" in out
    assert len(list(folder.glob("step-*"))) == 1


def test_a_stop_without_a_checkpoint_folder_says_that_work_is_lost(tmp_path: Path) -> None:
    metrics = tmp_path / "m.jsonl"
    process = start(*FOREVER, f"--output.metrics={metrics}")
    wait_for(lambda: len(lines(metrics)) > 1, process)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert "nothing was saved" in out


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--stesp=5"], 2, "did you mean train.steps?"),
        (["--ranks", "3", "--train.batch=8"], 2, "can't be shared by 3 ranks evenly: try 6"),
        (["--ranks", "0"], 2, "at least 1"),
        (["--config", "tinny"], 2, "did you mean tiny?"),
        (["--ranks", "2", "--check-backend", "mpi"], 2, "mpirun"),
    ],
)
def test_mistakes_are_told_at_once_and_without_a_traceback(args: list[str], code: int, message: str) -> None:
    done = command(*args)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_failure_of_every_rank_is_told_once() -> None:
    done = command(*SMALL, "--ranks", "2", "--data.path=/nowhere/t.bin")
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1
    assert "/nowhere/t.bin: No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_and_mistakes_do_not_import_torch() -> None:
    heavy = "{'torch', 'transformers', 'numpy'}"
    code = f"import sys, rocstack_trainer.cli; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(PACKAGE)}).returncode == 0
    assert "--check-backend" in command("--help").stdout


def test_gloo_adds_up() -> None:
    done = command("--check-backend", "gloo", "--ranks", "3")
    assert done.returncode == 0, done.stderr
    assert "gloo: all-reduce is right on 3 rank(s)" in done.stdout


def wrong_sum(rank: Rank) -> None:
    original = dist.all_reduce

    def all_reduce(values, *args, **kwargs):
        original(values, *args, **kwargs)
        if rank.rank == 1 and len(values) == 1000:
            values[567] += 1

    dist.all_reduce = all_reduce
    all_reduce_check.check(rank, 20)


def test_a_wrong_sum_is_found() -> None:
    error = ranks(2, wrong_sum)[1]
    assert isinstance(error, TrainerError)
    assert "1 of 1000" in str(error)
    assert "element 567" in str(error)


@pytest.mark.skipif(not (dist.is_mpi_available() and shutil.which("mpirun")), reason="no MPI in this PyTorch")
def test_mpi_trains_and_gloo_adds_up_under_mpirun() -> None:
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "-m", "rocstack_trainer"]
    trains = ("--parallel.backend=mpi", *SMALL, "--steps=3")
    for args, said in (("--check-backend=gloo",), "right on 2 rank(s) (mpirun)"), (trains, "weights sha256"):
        env = os.environ | {"PYTHONPATH": str(PACKAGE)}
        done = subprocess.run([*mpirun, *args], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
