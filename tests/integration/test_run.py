"""`rocstack run`, `shell` and `demo` with the image that was built."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from workspace import Built, Workspace, engine

from rocstack.container.host import read_host
from rocstack.container.run_line import run_line

pytestmark = pytest.mark.engine


@pytest.fixture
def here(built: Built, workspace: Workspace) -> Workspace:
    return workspace


def test_print_shows_a_line_that_works(here: Workspace) -> None:
    shown = here.run("run", "--print", "--gpus", "none", "--", "rocstack-versions")
    assert shown.code == 0, shown.err
    words = shlex.split(shown.out.replace("\\\n", " "))
    assert words[:2] == ["docker", "run"]
    assert words[-2:] == [here.reference("worker"), "rocstack-versions"]
    as_json = here.run("run", "--print", "--json", "--gpus", "none", "--", "rocstack-versions")
    assert as_json.json["args"] == words[1:]
    by_hand = subprocess.run(shown.out, shell=True, cwd=here.folder, capture_output=True, text=True)
    assert by_hand.returncode == 0, by_hand.stderr
    assert "pytorch\t2.6.0" in by_hand.stdout


def test_run(built: Built, here: Workspace) -> None:
    done = here.run("run", "--", "rocstack-versions")
    assert done.code == 0, done.err
    versions = dict(line.split("\t") for line in done.out.splitlines())
    reported = built.first.image("worker")["versions"]
    assert versions == {name: reported[name] for name in versions}
    assert {"rocm", "rccl", "ucx", "openmpi", "pmix", "munge", "slurm", "rdma", "pytorch", "trainer"} <= versions.keys()


@pytest.mark.parametrize("code", [0, 1, 3, 42])
def test_exit_status_is_passed_through(here: Workspace, code: int) -> None:
    assert here.run("run", "--role", "control", "--", "sh", "-c", f"exit {code}").code == code


def test_a_command_that_is_not_there(here: Workspace) -> None:
    done = here.run("run", "--role", "control", "--", "no-such-command")
    assert done.code == 127
    assert "no-such-command" in done.err


def test_folder_environment_and_mounts(here: Workspace) -> None:
    (here.folder / "data").mkdir()
    (here.folder / "data/file").write_text("hello\n")
    workspace = here.with_env(PASSED="from outside")
    flags = ["--role", "control", "--env", "PASSED", "--env", "SECRET=s3cret", "--mount", "data:/data:ro"]
    script = 'pwd; cat /data/file; echo "$PASSED $SECRET"; touch made; ! touch /data/made 2>/dev/null'
    done = workspace.run("run", *flags, "--", "sh", "-c", script)
    assert done.code == 0, done.err
    assert done.out.splitlines() == ["/workspace", "hello", "from outside s3cret"]
    assert (here.folder / "made").exists()
    shown = workspace.run("run", "--print", *flags, "--", "true")
    assert "s3cret" not in shown.out + shown.err


def test_locked_memory_is_unlimited_or_it_says_why_not(here: Workspace) -> None:
    """UCX on RDMA needs it; a machine that may not lift it is told so, and the container starts all the same."""
    host = read_host()
    done = here.run("run", "--role", "worker", "--", "sh", "-c", "ulimit -l")
    assert done.code == 0, done.err
    if host.raises_limits or host.limits["memlock"] == -1:
        assert done.out.strip() == "unlimited"
    else:
        assert done.out.strip() == str(host.limits["memlock"] // 1024)
        assert any(line.startswith("note: ") and "memlock" in line for line in done.err.splitlines())


def test_without_a_gpu_it_says_so(here: Workspace) -> None:
    if Path("/dev/kfd").exists():
        pytest.skip("there is a GPU")
    done = here.run("run", "--role", "worker", "--", "true")
    assert done.code == 0, done.err
    assert any("GPU" in line for line in done.err.splitlines() if line.startswith("note: "))


def test_image_that_was_not_built(workspace: Workspace) -> None:
    done = workspace.run(
        "run", "--nic", "mellanox", "--role", "control", "--stack", "rocm-7.2-ubuntu-24.04", "--", "true"
    )
    assert done.code == 3
    assert "rocstack build --stack rocm-7.2-ubuntu-24.04 --nic mellanox" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_reaches_the_command(here: Workspace, number: signal.Signals) -> None:
    """Ctrl-C on a terminal goes to all its processes, SIGTERM of a supervisor to one."""
    name = f"{here.prefix}-interrupted"
    script = "trap 'echo saved; exit 9' INT TERM; echo ready; while :; do sleep 0.1; done"
    process = here.start("run", "--role", "control", "--name", name, "--", "sh", "-c", script, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert out == "saved\n"
    assert process.returncode == 9, "its own exit status is told"
    assert "Traceback" not in err
    assert engine("ps", "--all", "--quiet", "--filter", f"name=^{name}$").stdout == ""


def test_shell(here: Workspace) -> None:
    """A person types; the terminal is passed on."""
    master, slave = pty.openpty()
    process = here.start("shell", "--role", "control", stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    os.write(master, b"tty; echo role=$ROCSTACK_ROLE; exit 5\n")
    text = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        text += chunk
    os.close(master)
    assert process.wait(timeout=30) == 5, text
    assert b"/dev/pts/0" in text
    assert b"role=control" in text


TINY = ("--config", "tiny", "--ranks", "2", "--checkpoint.dir=ck", "--output.metrics=run.jsonl")


def test_run_trainer(here: Workspace) -> None:
    """Checkpoints and metrics land in the current folder; the same command goes on from there."""
    for steps, done_before in ((2, 0), (3, 2)):
        done = here.run("run", "trainer", *TINY, f"--steps={steps}")
        assert done.code == 0, done.err + done.out
        assert f"done: step {steps}" in done.out
        assert ("resume: step 2 from ck" in done.out) == bool(done_before)
    told = [json.loads(line) for line in (here.folder / "run.jsonl").read_text().splitlines()]
    assert [line["step"] for line in told if "step" in line] == [1, 2, 3]


def test_what_a_training_run_writes_is_the_persons(here: Workspace) -> None:
    os.chown(here.folder, 4321, 5432)
    line = run_line(
        read_host(),
        here.reference("worker"),
        ["rocstack-train", *TINY, "--steps=1"],
        workspace=here.folder,
        user=(4321, 5432),
    )
    done = subprocess.run(["docker", *line.args], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    written = [path for path in here.folder.rglob("*") if ".rocstack" not in path.parts]
    assert written
    assert {(path.stat().st_uid, path.stat().st_gid) for path in written} == {(4321, 5432)}


def test_demo(built: Built, here: Workspace) -> None:
    shown = here.run("demo", "--steps", "2")
    assert shown.code == 0, shown.err
    assert "as read inside the container" in shown.out
    assert "2 rank(s)" in shown.out
    assert "done: step 2" in shown.out
    told = here.run("demo", "--steps", "2", "--json").json
    assert told["ok"]
    reported = built.first.image("worker")["versions"]
    assert told["versions"] == {name: reported[name] for name in told["versions"]}
    assert json.dumps(told["training"]).count("step=") == 2
