"""Who lost the cluster's lock changes nothing on a node: numbers grow whatever becomes of the file."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocstack.base import paths
from rocstack.node import apply, cluster_lock, containers, files, node_lock, pull, removal, slurm_control
from rocstack.node.engine import CommandOutput, NodeError
from rocstack.node.fence import Fence

OLD = {"number": 7, "who": "ann@laptop"}
NEW = {"number": 8, "who": "bob@desk"}
REFUSED = "bob@desk has taken the cluster's lock since"


def known(folder: Path) -> int:
    return int(cluster_lock.newest(str(folder / cluster_lock.FENCE))["number"])


def test_an_older_number_is_refused_for_ever(tmp_path: Path) -> None:
    old, new = Fence(OLD, str(tmp_path / "state")), Fence(NEW, str(tmp_path / "state"))
    old.announce()
    old.check()
    new.announce()
    for change in (old.check, old.announce, Fence(OLD, str(tmp_path / "state")).announce):
        with pytest.raises(NodeError, match=REFUSED) as refused:
            change()
        assert refused.value.kind == "fenced"
        assert str(tmp_path) in refused.value.cause, "how a person gets out"
    new.check()
    assert known(tmp_path / "state") == 8
    Fence({}, str(tmp_path / "state")).announce()  # of nobody who could have the lock


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\0" * 64,
        '{"number": "x"}',
        '{"number": null}',
        '{"number": 1e999, "who": ""}',
        "[" * 9999,
        '{"number": -5, "who": "x"}',
    ],
)
def test_a_file_that_can_not_be_read_locks_nobody_out(text: str, tmp_path: Path) -> None:
    (tmp_path / cluster_lock.FENCE).write_text(text)
    Fence(OLD, str(tmp_path)).announce()
    assert known(tmp_path) == 7


def test_a_file_that_can_not_be_opened_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / cluster_lock.FENCE).mkdir()
    with pytest.raises(NodeError, match="can't be written"):
        Fence(OLD, str(tmp_path)).announce()


def test_numbers_grow_whatever_becomes_of_file_and_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, clock = str(tmp_path / "fence.json"), [1e9]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    first = cluster_lock.issue(path, 0, "a")
    assert first > 1e9
    clock[0] = 5.0  # back, as after a boot without a battery
    second = cluster_lock.issue(path, 0, "a")
    assert second == first + 1
    clock[0] = 4e9  # forth, and back again
    third = cluster_lock.issue(path, 0, "a")
    clock[0] = 1e9
    assert cluster_lock.issue(path, 0, "a") == third + 1
    os.unlink(path)  # another control node: its clock, and what its nodes know
    assert cluster_lock.issue(path, third + 1, "a") > third + 1
    Path(path).write_text("")
    assert cluster_lock.issue(path, 0, "a") > 1e9
    huge = cluster_lock.issue(path, 10**4000, "a")
    assert huge == cluster_lock.MOST + 1, "a node that lies doesn't make it unreadable"
    assert cluster_lock.issue(path, 0, "a") == huge + 1


def test_no_number_is_given_twice(tmp_path: Path) -> None:
    path, given = str(tmp_path / "fence.json"), list[int]()
    threads = [threading.Thread(target=lambda: given.append(cluster_lock.issue(path, 0, "a"))) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(given)) == 40
    assert known(tmp_path) == max(given)


def test_whoever_waits_for_the_node_hears_of_a_newer_one(tmp_path: Path) -> None:
    """And doesn't keep the newer one waiting."""
    newer = threading.Timer(1, Fence(NEW, str(tmp_path)).announce)
    refused = pytest.raises(NodeError, match=REFUSED)
    with node_lock.node_lock(str(tmp_path)):
        newer.start()
        with refused, node_lock.node_lock(str(tmp_path), 600, Fence(OLD, str(tmp_path))):
            pytest.fail("it got the lock")


class Engine:
    """Of a node: a newer run announces itself when it is asked for `at`; what was asked for is in `asked`."""

    def __init__(self, folder: Path, at: str) -> None:
        self.folder, self.at, self.asked = folder, at, list[str]()

    def docker(self, *words: str, **options: Any) -> CommandOutput:
        self.asked.append(" ".join(words))
        if self.at and self.asked[-1].startswith(self.at):
            Fence(NEW, str(self.folder)).announce()
        return CommandOutput(0, "", "")

    def container(self, spec: Any, image: str, heal: bool = False) -> containers.ContainerResult:
        self.docker("replace", spec["name"])
        return containers.ContainerResult(spec["name"], "replaced")


def order(tmp_path: Path, fence: Any = OLD) -> dict[str, Any]:
    spec = {"service": "test", "image": "sha256:1", "args": []}
    return {
        "fence": fence,
        "files": [files.entry(str(tmp_path / "etc/conf"), b"mine\n", 0o644)],
        "images": [],
        "containers": [{**spec, "name": "one"}],
        "remove": ["gone"],
        "exec": [["one", "first"], ["one", "second"]],
        "absent": [str(tmp_path / "etc/old"), str(tmp_path / "etc/never")],
        "keep": [],
        "state": {"deploy": "mine"},
    }


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine(tmp_path / "state", "")
    monkeypatch.setattr(apply, "docker", engine.docker)
    monkeypatch.setattr(containers, "try_container", engine.container)
    monkeypatch.setattr(
        containers, "remove", lambda names: [engine.docker("remove", *names) and name for name in names]
    )
    monkeypatch.setattr(pull, "local_id", lambda row: "sha256:1")
    monkeypatch.setattr(removal, "prune_images", lambda keep: engine.docker("prune") and [])
    return engine


WHOLE = ["remove gone", "replace one", "exec one first", "exec one second", "prune"]


def test_a_newer_run_before_the_first_step(tmp_path: Path, engine: Engine) -> None:
    Fence(NEW, str(tmp_path / "state")).announce()
    with pytest.raises(NodeError, match=REFUSED):
        apply.apply(order(tmp_path), {}, folder=str(tmp_path / "state"))
    assert engine.asked == []
    assert not (tmp_path / "etc").exists()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/old").write_text("key")
    done: dict[str, Any] = {}
    apply.apply(order(tmp_path, NEW), done, folder=str(tmp_path / "state"))
    assert engine.asked == WHOLE
    assert done["files"] == [str(tmp_path / "etc/conf"), str(tmp_path / "etc/old")]
    assert not (tmp_path / "etc/old").exists(), "nothing uses it any more"


@pytest.mark.parametrize("step", range(len(WHOLE)))
def test_a_newer_run_between_two_steps(tmp_path: Path, engine: Engine, step: int) -> None:
    """The next one isn't begun; node.json is the last."""
    engine.at = WHOLE[step]
    if step == len(WHOLE) - 1:
        apply.apply(order(tmp_path), {}, folder=str(tmp_path / "state"))
        return
    with pytest.raises(NodeError, match=REFUSED):
        apply.apply(order(tmp_path), {}, folder=str(tmp_path / "state"))
    assert engine.asked == WHOLE[: step + 1]
    assert not (tmp_path / "state/node.json").exists()


def test_taking_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    engine = Engine(state, "volume rm one")
    answers = {"volume ls --quiet": "one two"}
    monkeypatch.setattr(
        removal,
        "docker",
        lambda *words: CommandOutput(engine.docker(*words).code, answers.get(" ".join(words), ""), ""),
    )
    monkeypatch.setattr(containers, "remove", lambda names: [])
    done: dict[str, Any] = {}
    with pytest.raises(NodeError, match=REFUSED):
        removal.take_down(["one", "two"], True, [], done, fence=OLD, folder=str(state))
    assert done["volumes"] == ["one"], "the data of the other one stays"
    engine.asked.clear()
    with pytest.raises(NodeError, match=REFUSED):
        removal.take_down(["one", "two"], True, [], done, fence=OLD, folder=str(state))
    assert engine.asked == []


@pytest.mark.parametrize("path", ["/etc/docker/certs.d", "/etc/docker/certs.d/", "/etc/docker/certs.d/.",
                                  "/etc/docker/certs.d/../x", "/etc/passwd"])  # fmt: skip
def test_what_is_not_ours_is_never_taken_down(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "docker", lambda *words: CommandOutput(0, "", ""))
    monkeypatch.setattr(removal, "_remove", lambda path: pytest.fail(f"removes {path}"))
    with pytest.raises(NodeError):
        removal.take_down([], False, [path], {}, folder=str(tmp_path))


def test_slurm_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    idle = {"n1": {"state": ["IDLE"], "jobs": [], "reason": "", "started": 0}}
    monkeypatch.setattr(slurm_control.SlurmController, "state", lambda slurm: idle)
    monkeypatch.setattr(slurm_control, "docker", lambda *words, **more: asked.append(words) or CommandOutput(0, "", ""))
    old, new = Fence(OLD, str(tmp_path)), Fence(NEW, str(tmp_path))
    old.announce()
    drain = {"do": "drain", "nodes": ["n1"], "reason": "update"}
    slurm_control.run_steps([drain], may_change=old.check)
    assert len(asked) == 1
    new.announce()
    for step in (drain, {"do": "wait_drained", "nodes": ["n1"], "seconds": 1e9}):
        with pytest.raises(NodeError, match=REFUSED):
            slurm_control.run_steps([step], may_change=old.check)
    assert len(asked) == 1


def test_a_pull_that_tries_again_and_again_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "local_id", lambda row: None)
    attempts: list[str] = []

    def attempt(reference: str, *_: Any) -> None:
        attempts.append(reference)
        raise NodeError("connection reset by peer")

    monkeypatch.setattr(pull, "_attempt", attempt)
    image = {"id": "sha256:1", "name": "x", "reference": "host/x@sha256:1"}
    with pytest.raises(NodeError, match=REFUSED):
        pull.pull([image], None, 600, lambda _: Fence(NEW, str(tmp_path)).announce(), OLD, str(tmp_path))
    assert len(attempts) == 1


def guarded(folder: Path, fence: Any, *command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    line = {"fence": fence, "path": str(folder / cluster_lock.FENCE), **more}
    source = Path(cluster_lock.__file__).read_text()
    words = [sys.executable, "-c", source, "guard", json.dumps(line), *command]
    return subprocess.run(words, input="data", capture_output=True, text=True, check=False)


def test_a_plain_command_of_an_older_run(tmp_path: Path) -> None:
    assert (guarded(tmp_path / "new", OLD, "cat").stdout, guarded(tmp_path / "new", OLD, "false").returncode) == (
        "data",
        1,
    )
    assert guarded(tmp_path / "new", NEW, "cat").stdout == "data"
    done = guarded(tmp_path / "new", OLD, "touch", str(tmp_path / "made"))
    assert (done.returncode, (tmp_path / "made").exists()) == (cluster_lock.REFUSED, False)
    assert REFUSED in done.stderr


def test_a_plain_command_has_the_node_to_itself(tmp_path: Path) -> None:
    lock = {"lock": str(tmp_path / node_lock.LOCK), "within": 0}
    taken = ["sh", "-c", f"flock --nonblock {tmp_path / node_lock.LOCK} true || echo taken"]
    assert guarded(tmp_path, OLD, *taken, **lock).stdout == "taken\n", "as long as it runs"
    with node_lock.node_lock(str(tmp_path)):
        assert "still working" in guarded(tmp_path, OLD, "true", **lock).stderr
    assert guarded(tmp_path, OLD, "true", **lock).returncode == 0


READ_ONLY = {"rocstack_collect", "rocstack_facts"}


def test_every_module_that_changes_a_node_asks_for_a_number_and_gets_it() -> None:
    modules = {file.stem: file.read_text() for file in paths.playbooks().glob("library/*.py")}
    changing = {name for name, text in modules.items() if "supports_check_mode=True" not in text}
    assert modules.keys() - changing == READ_ONLY
    for name in changing:
        documentation = next(
            node.value.value
            for node in ast.parse(modules[name]).body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DOCUMENTATION"
        )
        assert yaml.safe_load(documentation)["options"]["fence"]["required"], name
        assert '"fence": ' in modules[name].partition("AnsibleModule(")[2] or "fence = {" in modules[name], name
    used = set()
    for file in paths.playbooks().glob("*.yml"):
        for play in yaml.safe_load(file.read_text()):
            for task in play.get("tasks", ()):
                for name in changing & task.keys():
                    used.add(name)
                    assert task[name]["fence"] == "{{ rocstack_data.fence | default({}) }}", f"{file.name}: {name}"
    assert used == changing
