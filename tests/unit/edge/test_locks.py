"""Locks of a folder and of a cluster; here this machine is the node. tests/integration/test_connection.py has ssh."""

from __future__ import annotations

import fcntl
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rocstack.base.errors import CheckFailed
from rocstack.edge import locks
from rocstack.edge.locks import LockSpec
from rocstack.edge.ssh import SshHost

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


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"who": "a"'])
def test_a_holder_that_can_not_be_read(text: str) -> None:
    assert locks.holder(text) == "somebody who began this moment"
