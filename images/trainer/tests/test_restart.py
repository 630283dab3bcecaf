"""A rank dies by SIGKILL: the others of its group end within seconds, start again, and reach the same weights."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PACKAGE, SMALL, lines, start, trained, wait_for

from rocstack_trainer import settings

EXACT = ("--parallel.algorithm=flat", "--parallel.compress=none")  # what `auto` takes is measured
RUN = (*SMALL, *EXACT, "--checkpoint.every=5")
TORCHRUN = ("--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--max-restarts=1", "--nproc-per-node=2")


def rank_pid(parent: int, rank: int) -> int:
    """The descendant of `parent` that is this rank; -1 if none is."""
    waiting = [parent]
    while waiting:
        pid = waiting.pop()
        children = Path(f"/proc/{pid}/task/{pid}/children")
        try:
            waiting += [int(child) for child in children.read_text().split()]
            env = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"RANK={rank}".encode() in env and pid != parent:
            return pid
    return -1


def weights(out: str) -> str:
    return re.findall(r"weights sha256 ([0-9a-f]{64})", out)[-1]


@pytest.fixture
def straight(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """The weights of a run that nothing happens to."""
    trained(2, settings.load("tiny", [*RUN, "--train.steps=40", f"--checkpoint.dir={tmp_path / 'straight'}"]))
    return weights(capfd.readouterr().out)


def kill_rank_1(process: subprocess.Popen[str], metrics: Path, step: int = 12) -> None:
    """Once rank 0 has told of a step."""
    wait_for(lambda: len(lines(metrics)) >= step, process)
    os.kill(rank_pid(process.pid, 1), signal.SIGKILL)


def test_ranks_start_again_and_reach_the_same_weights(tmp_path: Path, straight: str) -> None:
    metrics = tmp_path / "m.jsonl"
    where = (f"--checkpoint.dir={tmp_path / 'c'}", f"--output.metrics={metrics}")
    process = start(*RUN, *where, "--steps=40", "--ranks=2", "--restarts=1")
    kill_rank_1(process, metrics)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert re.search(r"error: rank 1 was ended by SIGKILL .*; its ranks start again \(1 of 1\)", err)
    assert re.search(r"resume: step \d*[05] ", out)
    assert weights(out) == straight
    assert sorted({line["step"] for line in lines(metrics)}) == list(range(1, 41))


@pytest.mark.slow
def test_torchrun_without_libuv_starts_them_again_too(tmp_path: Path, straight: str) -> None:
    """Its rendezvous in a file, and no TCPStore of its own: the two that would ask for libuv."""
    metrics = tmp_path / "m.jsonl"
    where = (f"--checkpoint.dir={tmp_path / 'c'}", f"--output.metrics={metrics}")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", *TORCHRUN, f"--rdzv-endpoint={tmp_path / 'rdzv'}"),
            *("-m", "rocstack_trainer", *RUN, *where, "--steps=40"),
        ],
        env=os.environ | {"PYTHONPATH": str(PACKAGE), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        kill_rank_1(process, metrics)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "by torchrun" in out
    assert re.search(r"resume: step \d*[05] ", out)
    assert weights(out) == straight


# spawn() alone: the ranks are shell scripts.


@pytest.fixture
def spawned(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    def run(script: str, ranks: int, **options: int) -> tuple[int, str, str]:
        code = (
            "import sys; from rocstack_trainer.ranks.spawn import spawn;"
            f"sys.exit(spawn({ranks}, ['sh', '-c', sys.argv[1]], **{options}))"
        )
        env = os.environ | {"PYTHONPATH": str(PACKAGE), "ROCSTACK_TRAINER_STORE": "127.0.0.1:9"}
        command = [sys.executable, "-c", code, script]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30)
        return done.returncode, done.stdout, done.stderr

    return run


def test_at_most_so_many_restarts(spawned) -> None:
    code, out, err = spawned("echo start $RANK; test $RANK = 1 && sleep .3 && kill -9 $$; exec sleep 9", 2, restarts=2)
    assert code == 128 + signal.SIGKILL
    assert (out.count("start 0"), out.count("start 1")) == (3, 3)
    assert err.count("error: rank 1 was ended by SIGKILL") == 3
    assert [line.rpartition("; ")[2] for line in err.splitlines()] == [
        "its ranks start again (1 of 2)",
        "its ranks start again (2 of 2)",
        "the others are stopped",
    ]


def test_a_second_signal_does_not_wait(spawned, tmp_path: Path) -> None:
    """Of ranks that don't come to a step boundary nothing is left."""
    twice = "test $RANK = 0 && { sleep .3; kill -TERM $PPID; sleep .5; echo first; kill -TERM $PPID; }"
    code, out, err = spawned(f"trap '' TERM; echo $$ >>pids; {twice}; exec sleep 25", 2)
    assert (code, out, err) == (128 + signal.SIGKILL, "first\n", "stopped: nothing was saved\n")
    assert not any(Path(f"/proc/{pid}").exists() for pid in (tmp_path / "pids").read_text().split())


@pytest.mark.parametrize(("code", "starts"), [(1, 1), (2, 1), (3, 1), (4, 2)])
def test_only_a_lost_rank_is_a_reason_to_start_again(spawned, code: int, starts: int) -> None:
    found, out, _ = spawned(f"echo start $RANK; test $RANK = 1 && exit {code}; exec sleep 9", 2, restarts=1)
    assert (found, out.count("start 1")) == (code, starts)


def test_groups_live_and_die_apart(spawned) -> None:
    """Ranks 2 and 3 are group 1: rank 3 dies, so 2 is killed, and group 0 finishes."""
    code, out, err = spawned("test $RANK = 3 && kill -9 $$; sleep 1; echo done $RANK of $WORLD_SIZE", 4, groups=2)
    assert sorted(out.splitlines()) == ["done 0 of 4", "done 1 of 4"]
    assert re.search(r"error: group 1: rank 1 was ended by SIGKILL.*; the other groups go on", err)
    assert code == 0


def test_only_the_group_of_a_lost_rank_starts_again(spawned) -> None:
    script = "echo start $RANK; if test $RANK = 3 -a ! -e again; then touch again; kill -9 $$; fi; sleep 1"
    code, out, err = spawned(script, 4, groups=2, restarts=1)
    assert sorted(out.split("\n")[:-1]) == sorted(f"start {rank}" for rank in (0, 1, 2, 2, 3, 3))
    assert "group 1: rank 1 was ended by SIGKILL (out of memory? `dmesg` tells); its ranks start again (1 of 1)" in err
    assert code == 0


def test_after_a_stop_a_lost_group_counts(spawned) -> None:
    """Group 0 is stopped and saved: it didn't make up for the loss of the other one."""
    saves = "trap 'exit 0' TERM; sleep 0.5; kill -TERM $PPID; sleep 9 & wait"
    assert spawned(f"test $RANK = 1 && kill -9 $$; {saves}", 2, groups=2)[0] == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("script", "code"),
    [("kill -9 $$", 137), ("exit $((RANK == 1 ? 1 : 0))", 1), ("exit $((RANK + 1))", 1), ("exit 0", 0)],
)
def test_the_exit_code_of_groups(spawned, script: str, code: int) -> None:
    assert spawned(script, 2, groups=2)[0] == code
