"""The logs that the doctor fetches: of a folder, of a job, of a node."""

from __future__ import annotations

import gzip
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_run import Cli

from rocstack.base.errors import BadInput
from rocstack.doctor import logrules
from rocstack.edge.ssh import SshHost
from rocstack.probe import recordings
from rocstack.probe.recordings import Recorded
from rocstack.steps import doctor_logs

QP = "Unable to create QP."
DOCKER = """#!/bin/sh
QP="Unable to create QP."
echo "$*" >> calls
case "$*" in
*scontrol*) cat job.json ;;
*sacct*) cat accounting ;;
*"tail -c"*) for file; do :; done; case $file in *.err) exit 1 ;; *slow) exit 124 ;; *) echo "n1: $QP" ;; esac ;;
*inspect*) [ ! -e gone ] || { echo "Error: No such container: rocstack-worker" >&2; exit 1; } ;;
*logs*) echo "slurmd: fatal: Unable to determine this slurmd's NodeName" ;;
esac
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


@pytest.fixture
def cluster(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its inventory. ssh leads to this machine, where docker is a script."""
    known = [SimpleNamespace(name=name) for name in ("head", "n1")]
    roles = {"head": ("control",), "n1": ("worker",)}
    inventory = SimpleNamespace(nodes=known, control=known[0], roles=lambda name: roles.get(name, ()))
    monkeypatch.setattr(doctor_logs.inventories, "load", lambda path: inventory)
    monkeypatch.setattr(doctor_logs.ssh, "ssh_hosts", lambda path, names: {name: SshHost(name) for name in names})
    script(place / "docker", DOCKER)
    script(place / "dmesg", "#!/bin/sh\necho '[4.5] amdgpu 0000:0e:00.0: amdgpu: GPU reset begin!'\n")
    (place / "calls").touch()
    (place / "accounting").touch()
    (place / "inventory.yml").touch()
    return place


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def codes(done: Any) -> list[str]:
    return [finding["id"] for finding in done.json()["findings"]]


def test_a_folder(cli: Cli, place: Path) -> None:
    logs = place / "logs"
    (logs / "deep").mkdir(parents=True)
    (logs / "rank0.log").write_text(f"a\n{QP}\n")
    (logs / "deep" / "rank1.log.gz").write_bytes(gzip.compress(f"{QP}\n".encode()))
    (logs / "rank2.log").touch()
    (logs / "core").write_bytes(bytes(range(256)) * 10)
    (logs / "cut.gz").write_bytes(gzip.compress(b"n1: text\n" * 50_000)[:90])
    whole = gzip.compress(random.Random(1).randbytes(200_000).hex().encode())
    (logs / "broken.gz").write_bytes(whole[:90_000] + b"\xff" * 200 + whole[90_200:])
    (logs / "nonsense.gz").write_bytes(gzip.compress(b"x")[:10] + b"\xff" * 2000)
    (logs / ".hidden").write_text(QP)
    done = cli("doctor", "--log", "logs", "--json")
    (finding,) = done.json()["findings"]
    assert (finding["id"], finding["file"], finding["line"], finding["count"]) == (
        "perftest-create-qp",
        "deep/rank1.log.gz",
        1,
        2,
    )
    assert set(done.json()["skipped"]) == {"rank2.log", "core", "cut.gz", "broken.gz", "nonsense.gz"}
    shown = cli("doctor", "--log", "logs").out
    assert "logs (3 files): " in shown, "of broken.gz what could be read"
    assert "skipped, no logs: " in shown
    assert "(deep/rank1.log.gz line 1, 2 times)" in shown


def test_a_folder_without_logs(cli: Cli, place: Path) -> None:
    (place / "logs").mkdir()
    assert cli("doctor", "--log", "logs", "--json").json()["error"]["what"] == "no file is in logs"
    (place / "logs/empty").touch()
    done = cli("doctor", "--log", "logs", "--json")
    assert (done.code, done.json()["error"]["code"]) == (2, "not-a-log")


def test_a_job_of_this_folder(cli: Cli, place: Path) -> None:
    (place / "slurm-42.out").write_text(f"{QP}\n")
    (place / "slurm-421.out").write_text("other\n")
    assert codes(cli("doctor", "--job", "42", "--json")) == ["perftest-create-qp"]
    done = cli("doctor", "--job", "421")
    assert (done.code, "job 421 (slurm-421.out): 1 line" in done.out) == (0, True)
    assert "nothing known was found in 1 line" in done.out
    assert cli("doctor", "--job", "43", "--json").json()["error"]["code"] == "no-job-log"
    assert cli("doctor", "--job", "x; reboot", "--json").json()["error"]["code"] == "bad-job"


def test_a_job_as_this_machines_slurm_knows_it(cli: Cli, place: Path) -> None:
    (place / "out.txt").write_text(f"{QP}\n")
    said = job(user_id=os.getuid(), group_id=os.getgid(), standard_output=str(place / "out.txt"))
    script(place / "scontrol", f"#!/bin/sh\necho '{said}'\n")
    assert codes(cli("doctor", "--job", "42", "--json")) == ["perftest-create-qp"]


def job(**more: Any) -> str:
    known = {"user_id": 1000, "group_id": 100, "standard_output": "/home/a/42.out", "batch_host": "n1", **more}
    return json.dumps({"jobs": [known]})


def test_a_job_of_a_cluster_is_read_as_its_user(cli: Cli, cluster: Path) -> None:
    (cluster / "job.json").write_text(job(standard_error="/home/a/42.out", name="x UserId=root(0)"))
    done = cli("doctor", "inventory.yml", "--job", "42", "--json")
    (finding,) = done.json()["findings"]
    assert (finding["id"], finding["file"], finding["node"]) == ("perftest-create-qp", "n1:/home/a/42.out", "n1")
    calls = (cluster / "calls").read_text().splitlines()
    assert calls[0] == "exec rocstack-control timeout --kill-after=5 60 scontrol show job 42 --json"
    tail = f"timeout --kill-after=5 120 tail -c {doctor_logs.MOST} -- /home/a/42.out"
    assert calls[1:] == [f"exec --user=1000:100 rocstack-worker {tail}"], "a pipe doesn't hold it up"


def test_a_job_that_scontrol_has_forgotten(cli: Cli, cluster: Path) -> None:
    (cluster / "job.json").write_text("slurm_load_jobs error: Invalid job id specified")
    (cluster / "accounting").write_text("1000|100|n[1-4]|/home/a/42|x.out|\n0|0|n1|/etc/shadow|\n")
    with pytest.raises(BadInput, match="no log of job 43"):
        doctor_logs._asked("43", lambda words: SimpleNamespace(stdout="", stderr="", returncode=1))  # type: ignore[arg-type,return-value]
    assert codes(cli("doctor", "inventory.yml", "--job", "42", "--json")) == ["perftest-create-qp"]
    assert "--user=1000:100 rocstack-worker timeout" in (cluster / "calls").read_text()


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (job(standard_output="/dev/null"), "no log of job 42: it has no output file"),
        (job(batch_host="m9"), "job 42 ran on 'm9', which is no node of inventory.yml"),
        (job(standard_output="/home/a/42.err"), "a log on n1 can't be read: no reason given"),
        (job(standard_output="/home/a/slow"), "a log on n1 can't be read: nothing within 120 s"),
    ],
)
def test_a_job_without_a_log(cli: Cli, cluster: Path, said: str, what: str) -> None:
    (cluster / "job.json").write_text(said)
    done = cli("doctor", "inventory.yml", "--job", "42", "--json")
    assert (done.code, done.json()["error"]["what"]) == (2, what)


NESTED = '{"jobs": ' + "[" * 200_000


@pytest.mark.parametrize(
    "said",
    [
        job(user_id=float("inf")),
        job(group_id=-1),
        job(user_id=2**32 - 1),
        job(standard_output="/home/a/\0x"),
        job(standard_output="/home/a/\ud800"),
        job(standard_output="/" + "a" * 5000),
        NESTED,
        NESTED.replace("[", '{"a":'),
    ],
    ids=range(8),
)
@pytest.mark.parametrize("there", [True, False])
def test_what_no_job_can_be_is_refused(cli: Cli, cluster: Path, said: str, there: bool) -> None:
    (cluster / "job.json").write_text(said)
    script(cluster / "scontrol", "#!/bin/sh\ncat job.json\n")
    script(cluster / "sacct", "#!/bin/sh\necho '99999999999|0|n1|/x|/x'\n")
    done = cli("doctor", *(["inventory.yml"] if there else []), "--job", "42", "--json")
    assert (done.code, done.json()["error"]["code"]) == (2, "no-job-log")


@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_what_a_jobs_user_made_is_opened_only_if_it_is_a_file(cli: Cli, place: Path, what: str) -> None:
    os.mkfifo(place / "pipe")
    (place / "device").symlink_to("/dev/zero")
    (place / "folder").mkdir()
    (place / "42.out").symlink_to(what)
    (place / "slurm-43.out").symlink_to(what)
    (place / "logs").mkdir()
    (place / "logs/x.log").symlink_to(place / what)
    said = job(user_id=os.getuid(), group_id=os.getgid(), standard_output=str(place / "42.out"))
    script(place / "scontrol", f"#!/bin/sh\n[ $3 = 42 ] && echo '{said}'\n")
    script(place / "sacct", "#!/bin/sh\n")
    for number in ("42", "43"):
        error = cli("doctor", "--job", number, "--json").json()["error"]
        assert (error["code"], "no plain file" in error["what"]) == ("not-a-log", True)


def test_a_pipe_of_the_operators_own_is_read(cli: Cli, place: Path) -> None:
    os.mkfifo(place / "pipe")
    threading.Thread(target=(place / "pipe").write_text, args=(f"{QP}\n",), daemon=True).start()
    assert codes(cli("doctor", "--log", "pipe", "--json")) == ["perftest-create-qp"]


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody can read; nobody else enters pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads as somebody else")
def test_root_reads_a_jobs_file_as_the_jobs_user(cli: Cli, public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{public}:/usr/bin:/bin")
    (public / "roots").write_text(f"{QP}\n")
    (public / "roots").chmod(0o600)
    (public / "42.out").symlink_to("roots")
    (public / "slurm-43.out").symlink_to("roots")
    os.lchown(public / "slurm-43.out", 65534, 65534)
    as_nobody = job(user_id=65534, group_id=65534, standard_output=str(public / "42.out"))
    script(public / "scontrol", f"#!/bin/sh\n[ $3 = 42 ] && echo '{as_nobody}'\n")
    script(public / "sacct", "#!/bin/sh\n")
    before = (os.geteuid(), os.getegid(), os.getgroups())
    for number in ("42", "43"):
        error = cli("doctor", "--job", number, "--json", cwd=public).json()["error"]
        assert (error["code"], "Permission denied" in error["what"]) == ("no-file", True)
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before
    os.chown(public / "roots", 65534, 65534)
    for number in ("42", "43"):
        assert codes(cli("doctor", "--job", number, "--json", cwd=public)) == ["perftest-create-qp"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads as somebody else")
def test_root_follows_a_link_in_a_folder_as_who_made_it(cli: Cli, public: Path) -> None:
    (public / "roots").write_text(f"{QP}\n")
    (public / "roots").chmod(0o600)
    (public / "logs").mkdir()
    (public / "logs/a.log").symlink_to("../roots")
    (public / "logs/b.log").write_text("step 1\n")
    assert codes(cli("doctor", "--log", str(public / "logs"), "--json")) == ["perftest-create-qp"]
    os.lchown(public / "logs/a.log", 65534, 65534)
    done = cli("doctor", "--log", str(public / "logs"), "--json").json()
    assert (done["findings"], "Permission denied" in done["skipped"]["a.log"]) == ([], True)


def test_no_file_of_the_kernels_holds_the_doctor_up(cli: Cli, place: Path) -> None:
    """One whose reading waits has no size."""
    (place / "logs").mkdir()
    (place / "logs/a.log").symlink_to("/proc/self/status")
    (place / "logs/b.log").write_text(f"{QP}\n")
    done = cli("doctor", "--log", "logs", "--json").json()
    assert [finding["id"] for finding in done["findings"]] == ["perftest-create-qp"]
    assert set(done["skipped"]) == {"a.log"}


def test_a_file_without_an_end_is_read_in_part(cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one with holes, or one that unpacks to a thousand times its size."""
    monkeypatch.setattr(doctor_logs, "LONGEST", 2 << 20)
    (place / "slurm-42.out").write_text(f"{QP}\n" + "x" * (8 << 20))
    (place / "logs").mkdir()
    (place / "logs/a.gz").write_bytes(gzip.compress((place / "slurm-42.out").read_bytes()))
    for words, name in ((("--job", "42"), "slurm-42.out"), (("--log", "logs"), "a.gz")):
        done = cli("doctor", *words, "--json").json()
        assert [finding["id"] for finding in done["findings"]] == ["perftest-create-qp"]
        assert done["bytes"] < 5 << 20
        assert set(done["skipped"]) == {name}


def test_a_file_that_may_not_be_looked_at_is_skipped(cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_file = Path.is_file

    def refuse(path: Path) -> bool:
        if path.name == "b.log":
            raise PermissionError(13, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    (place / "logs").mkdir()
    (place / "logs/a.log").write_text(f"{QP}\n")
    (place / "logs/b.log").write_text(f"{QP}\n")
    done = cli("doctor", "--log", "logs", "--json")
    assert codes(done) == ["perftest-create-qp"]
    assert done.json()["skipped"] == {"b.log": "can't read b.log: Permission denied"}


def test_a_node_with_its_logs(cli: Cli, cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "record_inventory", lambda *given, **more: Recorded(()))
    done = cli("doctor", "inventory.yml", "--node", "n1", "--json")
    found = {finding["id"]: (finding["file"], finding["node"]) for finding in done.json()["findings"]}
    assert found == {"gpu-reset": ("the kernel's log", "n1"), "slurm-node-name": ("the worker's log", "n1")}
    assert done.json()["logs"] == {"the kernel's log": 1, "the worker's log": 1}
    assert "error gpu-reset (the kernel's log line 1" in cli("doctor", "inventory.yml", "--node", "n1").out
    done = cli("doctor", "inventory.yml", "--node", "m1", "--json")
    assert (done.code, done.json()["error"]["code"]) == (2, "unknown-node")


def test_a_worker_that_is_not_there_has_no_log(cli: Cli, cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "record_inventory", lambda *given, **more: Recorded(()))
    (cluster / "gone").touch()
    done = cli("doctor", "inventory.yml", "--node", "n1", "--json").json()
    assert done["logs"] == {"the kernel's log": 1}
    why = "a log on n1 can't be read: Error: No such container: rocstack-worker"
    assert done["unread"] == {"n1": [f"the worker's log: {why}"]}


def test_a_log_of_a_node_that_is_not_got_is_said(cli: Cli, cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(host: SshHost, *given: Any) -> Any:
        raise host.error("no answer from", "No route to host")

    monkeypatch.setattr(recordings, "record_inventory", lambda *given, **more: Recorded(()))
    monkeypatch.setattr(doctor_logs.ssh, "output", lost)
    unread = cli("doctor", "inventory.yml", "--node", "n1", "--json").json()["unread"]
    assert "No route to host" in unread["n1"][0]


@pytest.mark.parametrize(
    "words",
    [
        ("--job", "42", "--log", "x"),
        ("--job", "42", "--node", "n1"),
        ("--node", "n1", "--log", "x"),
        ("--job", "42", "--profiles", "x.json"),
    ],
)
def test_one_thing_at_a_time(cli: Cli, place: Path, words: tuple[str, ...]) -> None:
    done = cli("doctor", *words, "--json")
    assert (done.code, done.json()["error"]["code"]) == (2, "one-source")


def test_a_long_line_without_a_process_is_soon_read() -> None:
    """As a job's user can write it."""
    began = time.thread_time()
    for _ in range(5):
        assert logrules._PROCESS.search("NCCL INFO Using network " + "a1" * 4000) is None
    assert time.thread_time() - began < 1.5
    found = logrules._PROCESS.search("n1.x-y:12:345 [0] NCCL")
    assert found
    assert found.groups() == ("n1.x-y", "12")
