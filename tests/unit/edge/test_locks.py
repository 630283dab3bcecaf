"""Locks of a folder and of a cluster; here this machine is the node. tests/integration/test_connection.py has ssh."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocstack.base.errors import CheckFailed
from rocstack.deploy.read import journal
from rocstack.edge import locks
from rocstack.edge.locks import LockSpec
from rocstack.edge.ssh import SshHost
from rocstack.node import cluster_lock

HERE = SshHost("n1")


@pytest.fixture
def spec(tmp_path: Path) -> LockSpec:
    return LockSpec(str(tmp_path / "lock"), "verify", "`rocstack verify`")


def test_the_second_process_waits_for_a_folder(tmp_path: Path) -> None:
    path, order, waits = tmp_path / "new/.lock", list[str](), threading.Event()

    def second() -> None:
        with locks.file_lock(path, waits.set):
            order.append("second")

    with locks.file_lock(path, pytest.fail):
        other = threading.Thread(target=second)
        other.start()
        waits.wait()
        order.append("first")
    other.join()
    assert order == ["first", "second"]


def test_another_hears_who_has_it(spec: LockSpec) -> None:
    with locks.cluster_lock(HERE, spec) as lock:
        assert (lock.text, lock.lost) == ("", "")
        with pytest.raises(CheckFailed, match="at work on this cluster: ") as refused, locks.cluster_lock(HERE, spec):
            pytest.fail("two have it")
    assert locks.operator() in refused.value.what
    assert (refused.value.code, refused.value.next_step) == ("verify-running", "wait longer for it: --wait 1h")
    with locks.cluster_lock(HERE, spec):
        pass


def test_only_whoever_waits_is_told(spec: LockSpec) -> None:
    waits: list[str] = []
    with (
        locks.cluster_lock(HERE, spec, wait=1, on_wait=lambda: waits.append("first")),
        pytest.raises(CheckFailed) as refused,
        locks.cluster_lock(HERE, spec, wait=0.1, on_wait=lambda: waits.append("second")),
    ):
        pytest.fail("two have it")
    assert (refused.value.code, waits) == ("verify-running", ["second"])


def test_it_is_taken_as_soon_as_it_is_free(spec: LockSpec) -> None:
    with open(spec.path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with locks.cluster_lock(HERE, spec, wait=600, on_wait=lambda: fcntl.flock(file, fcntl.LOCK_UN)) as lock:
            assert json.loads(Path(spec.path).read_text())["who"] == locks.operator()
            assert not lock.lost


def test_only_the_holder_writes_the_file(spec: LockSpec, tmp_path: Path) -> None:
    spec = replace(spec, file=str(tmp_path / "file"))
    with locks.cluster_lock(HERE, spec) as lock:
        lock.write("first")
        for number in range(20):
            lock.write(str(number), wait=False)
    with locks.cluster_lock(HERE, spec) as lock:
        assert lock.text == "19"
        (tmp_path / "file.new").mkdir()
        with pytest.raises(CheckFailed, match="Is a directory") as failed:
            lock.write("x")
        assert failed.value.code == "journal-unwritten"
        lock.check()
    assert (tmp_path / "file").read_text() == "19"


def test_it_is_lost_when_the_other_end_is_gone(spec: LockSpec) -> None:
    with locks.cluster_lock(HERE, spec) as lock:
        lock._program.kill()
        lock._program.wait()
        with pytest.raises(CheckFailed, match="has ended") as lost:
            lock.check()
    assert lost.value.code == "lock-lost"


def test_why_there_is_no_lock(spec: LockSpec, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with (
        pytest.raises(CheckFailed, match=r"no lock on n1: .*Not a directory"),
        locks.cluster_lock(HERE, replace(spec, path=str(tmp_path / "taken/below/lock"))),
    ):
        pytest.fail("no folder")


@pytest.mark.parametrize(
    "answer",
    [
        "[]", "null", "[" * 5000, '{"text": "", "fence": 1e999}', '{"text": "", "fence": null}', '{"text": 1}',
        '{"error": 5}', '{"held_by": {}}', '{"waits_for": 1}',
    ],
)  # fmt: skip
def test_a_node_that_answers_what_it_never_does_gives_no_lock(spec: LockSpec, answer: str) -> None:
    node = SshHost("n1", ("sh", "-c", f"echo '{cluster_lock.MARK}{answer}'"))
    with pytest.raises(CheckFailed, match="no lock on n1"), locks.cluster_lock(node, spec):
        pytest.fail("it is taken for one")


def test_no_module_comes_from_the_folder_where_it_starts(
    spec: LockSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the control node is this machine, that is the working folder, and it runs as root."""
    (work := tmp_path / "work").mkdir()
    (work / "json.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(work)
    monkeypatch.setenv("PYTHONPATH", "")
    with suppress(CheckFailed), locks.cluster_lock(HERE, replace(spec, fence=str(tmp_path / "fence"))) as lock:
        subprocess.run(lock.guarded(sys.executable, ["true"]), check=False)
    assert not (work / "ran").exists()


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"who": "a"'])
def test_a_holder_that_can_not_be_read(text: str) -> None:
    assert locks.holder(text) == "somebody who began this moment"


@pytest.fixture
def deploys(tmp_path: Path) -> LockSpec:
    return journal.lock(str(tmp_path / "state"))


def lines(spec: LockSpec) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(spec.history).read_text().splitlines()]


def test_each_holder_has_a_larger_number_that_the_node_knows_at_once(deploys: LockSpec) -> None:
    numbers = []
    for least in (0, 0, 5, 1 << 40, 0):
        with locks.cluster_lock(HERE, deploys, least=least) as lock:
            numbers.append(lock.fence["number"])
            assert numbers[-1] > least
            assert json.loads(Path(deploys.fence).read_text()) == lock.fence
            assert lock.fence["who"] == locks.operator()
    assert numbers == sorted(set(numbers))
    assert oct(Path(deploys.fence).stat().st_mode)[-3:] == "600"
    assert not Path(deploys.history).exists(), "nothing was taken for anything"


def test_without_a_number_there_is_no_lock(deploys: LockSpec) -> None:
    Path(deploys.fence).mkdir(parents=True)
    with pytest.raises(CheckFailed, match="Is a directory"), locks.cluster_lock(HERE, deploys):
        pytest.fail("it can't be told from the one before")


@pytest.mark.parametrize(
    ("error", "outcome", "why"),
    [
        (None, "done", None),
        (CheckFailed("Slurm is silent", code="x"), "failed", "Slurm is silent"),
        (OSError("no space"), "failed", "no space"),
        (KeyboardInterrupt(), "interrupted", "stopped by its operator"),
    ],
)
def test_the_history_has_a_line_for_the_beginning_and_one_for_the_end(
    deploys: LockSpec, error: BaseException | None, outcome: str, why: str | None
) -> None:
    entry = {"command": "deploy", "nodes": ["n1", "n2"]}
    expected = pytest.raises(type(error)) if error else nullcontext()
    with expected, locks.cluster_lock(HERE, deploys, entry=entry) as lock:
        [began] = lines(deploys)
        lock.end["nodes"] = ["n1"]
        if error:
            raise error
    [first, ended] = lines(deploys)
    assert first == began
    about = {"fence": lock.fence["number"], "who": locks.operator()}
    assert began == {**about, "began": began["began"], **entry}
    assert ended.pop("ended") >= ended["began"]
    assert (ended.pop("outcome"), ended.pop("why", None)) == (outcome, why)
    assert ended == {**began, "nodes": ["n1"]}
    assert oct(Path(deploys.history).stat().st_mode)[-3:] == "600"


def test_what_it_found_at_its_end_counts(deploys: LockSpec) -> None:
    with locks.cluster_lock(HERE, deploys, entry={"command": "deploy"}) as lock:
        lock.end |= {"outcome": "failed", "why": "n2: no room"}
    assert [each.get("outcome") for each in lines(deploys)] == [None, "failed"]


@pytest.mark.parametrize("how", ["its machine", "its silence", "the control node"])
def test_whoever_dies_is_in_the_history(deploys: LockSpec, how: str) -> None:
    """The node says that it was interrupted; one that died itself left the beginning, perhaps with half a line."""
    entry = {"command": "deploy"}
    with locks.cluster_lock(HERE, deploys, silence=2 if how == "its silence" else 30, entry=entry) as lock:
        if how == "its silence":
            with lock._words:  # nothing is sent while somebody has it
                lock._program.wait()
        elif how == "its machine":
            lock._program.stdin.close()
        else:
            lock._program.kill()
        lock._program.wait()
        assert lock.lost
    first, *rest = lines(deploys)
    if how == "the control node":
        assert rest == []
        with open(deploys.history, "a") as file:
            file.write('{"fence": 1, "who')
    else:
        [ended] = rest
        words = "connection" if how == "its machine" else "nothing was heard of it for 2 s"
        assert (ended["outcome"], words in ended["why"]) == ("interrupted", True)
    with locks.cluster_lock(HERE, deploys, entry={"command": "down"}):
        pass
    whole = [json.loads(line) for line in Path(deploys.history).read_text().splitlines() if line.endswith("}")]
    assert [each["command"] for each in whole[-2:]] == ["down", "down"]
    assert first["fence"] < whole[-1]["fence"]


def test_a_command_under_the_lock(deploys: LockSpec, tmp_path: Path) -> None:
    made = tmp_path / "made"
    with locks.cluster_lock(HERE, deploys) as lock:
        words = lock.guarded("python3", ["touch", str(made)], alone_within=1)
    assert subprocess.run(words, check=False).returncode == 0
    made.unlink()
    with locks.cluster_lock(HERE, deploys):
        pass
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (bool(done.returncode), made.exists()) == (True, False)
    assert "has taken the cluster's lock since" in done.stderr
