"""Refusals of the commands for a deployed cluster, before anything on a node is asked."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import tarfile
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from cli_run import Cli

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.deploy.nodes.runs import DeployEvents, NodeRun, NodeRuns
from rocstack.deploy.read import journal
from rocstack.deploy.read.inventory import Inventory, InventoryHost
from rocstack.deploy.state import cluster_state, service_target
from rocstack.deploy.state.cluster_state import ABSENT, SlurmState
from rocstack.deploy.work import backup, controller, teardown
from rocstack.edge import locks, ssh, stalls
from rocstack.edge.ssh import SshHost

HOSTS = (InventoryHost("n1", "10.0.0.1", "10.0.0.1"), InventoryHost("n2", "10.0.0.2", "10.0.0.2"))
BOTH = Inventory(Path("inventory.yml"), HOSTS[0], HOSTS)
APART = Inventory(Path("inventory.yml"), HOSTS[0], HOSTS[1:])
ABOUT = "format 1\ncluster rocstack\nslurm 24.11.5\ntime 2026-11-20T21:00:01Z\n"


def archive(*members: tuple[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, text in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return zstandard.ZstdCompressor().compress(out.getvalue())


WHOLE = archive(("about", ABOUT), ("slurmctld/clustername", "rocstack|1"))


def test_a_backup_says_what_it_is_of(tmp_path: Path) -> None:
    file = tmp_path / "b"
    file.write_bytes(WHOLE)
    assert backup.about(file) == backup.BackupInfo("rocstack", "24.11.5", "2026-11-20T21:00:01Z", len(WHOLE))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        WHOLE[:-3],
        WHOLE[: len(WHOLE) // 2],
        zstandard.ZstdCompressor().compress(b"no archive"),
        archive(("slurmctld/clustername", "rocstack|1")),
        archive(("about", ABOUT.replace("format 1", "format 2"))),
        archive(("about", "format 1\n")),
    ],
    ids=["empty", "text", "end cut off", "half", "no tar", "no about", "another format", "of nothing"],
)
def test_no_backup(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "b"
    file.write_bytes(data)
    with pytest.raises(BadInput) as error:
        backup.about(file)
    assert (error.value.code, str(error.value.where)) == ("bad-backup", str(file))


def long_header() -> bytes:
    entry = tarfile.TarInfo("about")
    entry.type, entry.size = tarfile.XHDTYPE, 256 << 20
    return entry.tobuf() + bytes(256 << 20)


def linked(kind: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo("about")
        entry.type, entry.linkname = kind, "/etc/hostname"
        tar.addfile(entry)
    return zstandard.ZstdCompressor().compress(out.getvalue())


@pytest.mark.parametrize(
    "data",
    [
        zstandard.ZstdCompressor().compress(bytes(256 << 20)),
        zstandard.ZstdCompressor().compress(long_header()),
        linked(tarfile.SYMTYPE),
        linked(tarfile.LNKTYPE),
    ],
    ids=["zeros", "a long header", "a link", "a hard link"],
)
def test_a_backup_made_to_do_harm(data: bytes, tmp_path: Path) -> None:
    """By the control node; this machine's memory isn't filled with it."""
    file = tmp_path / "b"
    file.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(BadInput) as error:
            backup.about(file)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert error.value.code == "bad-backup"


def test_a_backup_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """This machine as the node, without such a container or without docker."""
    here = SshHost("here")
    with pytest.raises((CheckFailed, FileNotFoundError)):
        backup.backup(here, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_backup_that_stands_still_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "SILENCE_S", 0.5)
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nprintf cut; kill -STOP $$\n")
    program.chmod(0o755)
    with pytest.raises(CheckFailed, match="the backup of n1 failed: nothing came") as error:
        backup.backup(SshHost("n1", (str(program),), "n1"), tmp_path / "b")
    assert "journalctl -u docker" in str(error.value)
    assert list(tmp_path.iterdir()) == [program]


DOCKER = """#!/bin/sh
echo "$*" >>{folder}/asked
case "$*" in
ps*) {service} ;;
run*) cat >{folder}/read; {run} ;;
*rocstack-health*) {health} ;;
*squeue*) printf '7\\n8\\n' ;;
esac
"""


def restored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, run: str = "", health: str = "", newer: bool = False,
    service: str = "",
) -> Any:  # fmt: skip
    """This machine as the control node, with such a docker: the jobs that were cancelled. `newer`: another run has
    taken the lock since, and this one hasn't heard of it."""
    docker = folder / "docker"
    docker.write_text(DOCKER.format(folder=folder, run=run, health=health, service=service))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    file, spec = folder / "b", journal.lock(str(folder / "state"))
    file.write_bytes(WHOLE)
    with locks.cluster_lock(SshHost("n1"), spec) as held:
        if newer:
            Path(spec.fence).write_text(json.dumps({"number": held.fence["number"] + 1, "who": "ann@laptop"}))
        return backup.restore(SshHost("n1"), file, held)


def asked(folder: Path) -> list[str]:
    file = folder / "asked"
    return [line.split()[0] + " " + line.split()[-1] for line in file.read_text().splitlines()] if file.exists() else []


def test_a_restore_cancels_the_jobs_of_the_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert restored(tmp_path, monkeypatch) == [7, 8]
    assert (tmp_path / "read").read_bytes() == WHOLE
    lines = (tmp_path / "asked").read_text().splitlines()
    assert lines[-1].endswith("scancel --state=RUNNING 7 8"), "and no others"
    assert [line.split()[0] for line in lines[1:5]] == ["ps", "stop", "run", "start"]
    assert "--cap-drop=ALL" in lines[3]


def test_the_service_is_away_while_its_database_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restored(tmp_path, monkeypatch, service="echo 64c0ffee")
    lines = (tmp_path / "asked").read_text().splitlines()
    steps = [line for line in lines if line.split()[0] in ("stop", "run", "start")]
    assert steps[0] == "stop 64c0ffee"
    assert [line.split()[0] for line in steps] == ["stop", "stop", "run", "start"]
    assert steps[-1] == "start rocstack-control 64c0ffee"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"newer": True}, "the lock on the cluster is lost: .*ann@laptop"),
        ({"run": "echo 'this is no backup; nothing was changed' >&2; exit 2"}, "n1 failed: this is no backup"),
        ({"health": "echo no slurmctld; exit 1"}, "everything is restored, but the controller isn't healthy: no slurm"),
    ],
    ids=["another run has the lock", "refused", "unhealthy"],
)
def test_a_restore_that_fails_cancels_no_job(
    how: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "_RESTORE", backup._RESTORE.replace(f"+ {backup.HEALTHY_WITHIN}", "+ 1"))
    with pytest.raises(CheckFailed, match=says):
        restored(tmp_path, monkeypatch, **how)
    assert not [line for line in asked(tmp_path) if "scancel" in line or "RUNNING" in line]
    assert "newer" in how or "start rocstack-control" in asked(tmp_path), "the controller runs again in any case"


def test_what_changes_a_cluster_is_guarded() -> None:
    """Every command that goes to a node by ssh: a new one is fenced by the lock's number, or only asks."""
    fenced = {"backup.restore", "controller.run", "controller.end_jobs"}
    asks = {"backup.backup", "controller.account_changes"}
    found = set()
    for file in Path(backup.__file__).parent.glob("*.py"):
        for function in [each for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.FunctionDef)]:
            calls = {ast.unparse(each.func) for each in ast.walk(function) if isinstance(each, ast.Call)}
            if calls & {"ssh.run", "ssh.output", "ssh.captured", "stalls.run", "_run", "self._asked", "subprocess.run"}:
                found.add(f"{file.stem}.{function.name}")
                assert (f"{file.stem}.{function.name}" in fenced) == ("held.guarded" in calls), function.name
    assert found - {"backup._run", "controller._asked"} == fenced | asks


@pytest.mark.parametrize(
    ("inventory", "node", "service", "name"),
    [
        (BOTH, "n1", None, "rocstack-worker"),
        (APART, "n1", None, "rocstack-control"),
        (APART, "n1", "db", "rocstack-db"),
        (BOTH, "n2", "worker", "rocstack-worker"),
    ],
)
def test_which_container(inventory: Inventory, node: str, service: str | None, name: str) -> None:
    assert service_target.container(inventory, node, service) == name


@pytest.mark.parametrize(
    ("node", "service", "code", "hint"),
    [
        ("n3", None, "unknown-node", "known: n1, n2"),
        ("n2", "db", "unknown-service", "it runs on n1"),
        ("n2", "slurmd", "unknown-service", "n2 has no service 'slurmd'"),
    ],
)
def test_no_such_container(node: str, service: str | None, code: str, hint: str) -> None:
    with pytest.raises(BadInput) as error:
        service_target.container(BOTH, node, service)
    assert error.value.code == code
    assert hint in error.value.what or "did you mean" in error.value.what


def row(*ids: int) -> dict[str, list[int]]:
    return {"jobs": list(ids)}


@pytest.mark.parametrize(
    ("said", "force", "refused", "cancelled"),
    [
        (SlurmState({"n1": row(7), "n2": row(7, 8)}, ""), False, "2 jobs run: 7, 8", False),
        (SlurmState({"n1": row(7), "n2": row()}, ""), False, "a job runs: 7", False),
        (SlurmState({"n1": row(7)}, ""), True, "", True),
        (SlurmState({"n1": row()}, ""), False, "", False),
        (SlurmState(None, "timed out"), False, "can't tell whether jobs are running", False),
        (SlurmState(None, "timed out"), True, "", False),
        (SlurmState(None, ABSENT), False, "", False),
    ],
)
def test_jobs_in_the_way(
    said: SlurmState, force: bool, refused: str, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, ...]] = []

    def run(ssh_host: SshHost, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(cluster_state, "read_slurm", lambda ssh_host: said)
    monkeypatch.setattr(ssh, "run", run)
    if refused:
        with pytest.raises(CheckFailed, match=refused):
            controller.end_jobs(SshHost("n1"), force, None)
    else:
        controller.end_jobs(SshHost("n1"), force, None)
    assert ran == ([controller.CANCEL] if cancelled else [])


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("Error response from daemon: No such container: rocstack-control", ABSENT),
        ("Error: no such container rocstack-control", ABSENT),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock", "Cannot connect to the Docker daemon"),
        ("permission denied while trying to connect to the Docker daemon socket", "permission denied"),
    ],
)
def test_an_engine_that_is_silent_is_not_one_without_a_controller(
    says: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or `down` would take workers away while jobs run on them."""
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 1\n")
    docker.chmod(0o755)

    def run(ssh_host: SshHost, command: list[str]) -> subprocess.CompletedProcess[str]:
        path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        return subprocess.run(command, env=path, capture_output=True, text=True, check=False)

    monkeypatch.setattr(ssh, "run", run)
    said = cluster_state.read_slurm(SshHost("n1"))
    assert said.nodes is None
    assert said.why.startswith(why)
    if why == ABSENT:
        controller.end_jobs(SshHost("n1"), False, None)
    else:
        with pytest.raises(CheckFailed):
            controller.end_jobs(SshHost("n1"), False, None)


def test_slurms_commands_end_with_the_one_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/bash\nshift 3\nexec "$@"\n')  # exec --interactive CONTAINER
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    runs = NodeRuns(tmp_path / "inventory.yml", tmp_path / "log", DeployEvents())
    slurm, seen = controller.Controller(runs, SshHost("n1"), "n1"), tmp_path / "it's $HOME"
    slurm.run([["bash", "-c", "echo ' Nothing new added.'; exit 1"], ["touch", str(seen)]])
    assert seen.exists()
    with pytest.raises(CheckFailed, match=r"on n1 failed: `ls '/no such'` failed: ls: .*No such file"):
        slurm.run([["true"], ["ls", "/no such"], ["rm", str(seen)]])
    assert seen.exists(), "what follows one that failed doesn't run"
    for said in ("²", "7", "9" * 5000):  # by a hostile control node
        docker.write_text(f"#!/bin/bash\necho {said}; echo why >&2; exit 1\n")
        with pytest.raises(CheckFailed, match=r"`the controller's container` failed: why"):
            slurm.run([["true"]])


def test_the_inventory_of_the_settings(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (["status"], ["down"], ["deploy"], ["rollback"], ["logs", "n1"], ["shell", "n1"]):
        ran = cli(*command)
        assert (ran.code, "error no-inventory: the inventory inventory.yml is not there" in ran.err) == (2, True), (
            command
        )
    virtual = tmp_path / ".rocstack/local/inventory.yml"
    virtual.parent.mkdir(parents=True)
    virtual.write_text("all: {}\n")
    assert "next    give the one of this folder's virtual nodes, .rocstack/local/inventory.yml" in cli("status").err
    assert "`rocstack init`" in cli("status", "other.yml").err
    (tmp_path / "rocstack.yml").write_text("inventory: mine.yml\n")
    assert "error no-inventory: the inventory mine.yml is not there" in cli("down").err


def test_certificates_that_go_are_those_of_registries() -> None:
    """Whatever the control node's journal says: an empty name would be the folder of all registries' certificates."""
    references = ("r:5000/worker@sha256:1", "/worker", "./worker", "../worker", "", "-x/worker", "a b/worker")
    ident = f"sha256:{'c' * 64}"
    images = [journal.JournalImages(worker_id=ident, control_id=ident, worker_reference=each) for each in references]
    releases = tuple(journal.Release(images=each, when="", who="", healthy=True) for each in images)
    text = journal.Journal(releases=releases).dumps()
    assert teardown._certificates(APART, text) == ["/etc/docker/certs.d/r:5000"]


@pytest.mark.parametrize(("state", "gone"), [("ok", True), ("failed", False)])
def test_the_journal_of_a_node_that_failed_is_not_said_to_be_gone(
    state: Any, gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the history would say that somebody changed it."""
    lock: Any = SimpleNamespace(end={}, text="")
    monkeypatch.setattr(locks, "cluster_lock", lambda *_, **__: nullcontext(lock))
    monkeypatch.setattr(ssh, "ssh_hosts", lambda *_: {"n1": SshHost("n1")})
    monkeypatch.setattr(controller, "end_jobs", lambda *_: None)
    monkeypatch.setattr(NodeRuns, "send", lambda *_: {"n1": NodeRun("n1", state), "n2": NodeRun("n2", "ok")})
    teardown.down(APART, NodeRuns(APART.path, Path("log"), DeployEvents()), data=True)
    assert lock.end.get("journal") == (journal.Journal().digest() if gone else None)
