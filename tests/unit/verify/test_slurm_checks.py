"""The workers, the daemons and the scheduler, judged by recorded evidence in which one fact is another."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evidence_replay import good, red, replay

from rocstack.verify.suite import checks

NAMES = {"workers", "munge", "munge-host", "clock-skew", "containers", "slurm-services", "names"}
NAMES |= {"scheduling", "preemption", "qos", "accounting"}
Evidence = dict[str, Any]


def row(evidence: Evidence) -> dict[str, Any]:
    """Slurm's of n2."""
    found: dict[str, Any] = evidence["controller"]["nodes"][1]
    return found


def node(evidence: Evidence) -> dict[str, Any]:
    """The cluster's of n2."""
    found: dict[str, Any] = evidence["cluster"]["nodes"][1]
    return found


def down(evidence: Evidence) -> None:
    row(evidence).update(state=["DOWN", "NOT_RESPONDING"], reason="Not responding")


def drained(evidence: Evidence) -> None:
    row(evidence).update(state=["IDLE", "DRAIN"], reason="bad fan")


def maintained(evidence: Evidence) -> None:
    row(evidence).update(state=["IDLE", "MAINTENANCE", "RESERVED"])


def booting(evidence: Evidence) -> None:
    row(evidence).update(state=["IDLE", "REBOOT_ISSUED"])


def switched_off(evidence: Evidence) -> None:
    row(evidence).update(state=["IDLE", "CLOUD", "POWERING_DOWN"])


def unknown(evidence: Evidence) -> None:
    del evidence["controller"]["nodes"][1]
    del evidence["in_containers"]["n1"]["names"]["n2"]


def absent(evidence: Evidence) -> None:
    node(evidence)["absent"] = "no route to host"


def a_worker_more(evidence: Evidence) -> None:
    evidence["controller"]["nodes"].append({**row(evidence), "name": "n3"})


def older_slurmd(evidence: Evidence) -> None:
    row(evidence)["version"] = "23.11.4"


def real(evidence: Evidence, **facts: Any) -> None:
    """A node that is no virtual one, with an image for its GPUs."""
    evidence["cluster"]["labels"]["io.rocstack.gfx"] = "gfx942"
    node(evidence).update(virtual=None, **facts)


def too_many_cpus(evidence: Evidence) -> None:
    real(evidence, cpus=64, memory=1 << 50)


def too_much_memory(evidence: Evidence) -> None:
    real(evidence, cpus=1024, memory=1 << 30)


def too_few_cpus(evidence: Evidence) -> None:
    real(evidence, cpus=1024, memory=2 << 40)


def other_key(evidence: Evidence) -> None:
    said = {"status": 17, "encoded": None, "decoded": None, "said": "unmunge: Error: Invalid credential"}
    evidence["credentials"]["n2"]["there"] = {**said, "status": 8}


def no_munge(evidence: Evidence) -> None:
    said = {"status": None, "encoded": None, "decoded": None, "said": "munge: Error: Failed to access the socket"}
    evidence["credentials"]["n2"].update(here=said, there=said)


def expired(evidence: Evidence) -> None:
    """Its clock is 400 seconds ahead."""
    said = evidence["credentials"]["n2"]
    said["here"].update(status=15, decoded=said["here"]["encoded"] + 400)
    said["there"].update(status=16, encoded=said["there"]["decoded"] + 400)


def host_munge(evidence: Evidence) -> None:
    evidence["credentials"]["n2"]["host"] = {"status": 15, "said": "unmunge: Error: Expired credential"}


def clock(evidence: Evidence) -> None:
    evidence["cluster"]["nodes"][0].update(behind=-0.1, ahead=0.4)
    node(evidence).update(behind=4.9, ahead=5.4)


def unhealthy(evidence: Evidence) -> None:
    node(evidence)["health"] = "worker restarting"


def no_controller(evidence: Evidence) -> None:
    evidence["controller"]["ping"] = {"code": 1, "out": "Slurmctld(primary) at n1 is DOWN", "err": ""}


def no_database(evidence: Evidence) -> None:
    evidence["controller"]["database"] = {"code": 1, "out": "", "err": "Connection refused"}


def no_rest(evidence: Evidence) -> None:
    evidence["controller"]["rest"]["with"] = "Connection refused"


def open_rest(evidence: Evidence) -> None:
    evidence["controller"]["rest"]["without"] = 200


def unresolved(evidence: Evidence) -> None:
    evidence["in_containers"]["n2"]["names"]["n1"] = "! Name or service not known"


def loopback(evidence: Evidence) -> None:
    evidence["in_containers"]["n2"]["names"]["n1"] = "127.0.1.1"


def swapped(evidence: Evidence) -> None:
    evidence["in_containers"]["n2"]["names"]["n1"] = row(evidence)["address"]


def nobodys(evidence: Evidence) -> None:
    evidence["in_containers"]["n2"]["names"]["n1"] = "192.0.2.7"


def basic_priority(evidence: Evidence) -> None:
    evidence["controller"]["settings"]["PriorityType"] = "priority/basic"


def no_weight(evidence: Evidence) -> None:
    evidence["competed"]["priorities"] = {"low": 5458, "high": 5458}


def low_first(evidence: Evidence) -> None:
    evidence["competed"]["jobs"]["high"].update(state="PENDING", started="N/A")


def stays(evidence: Evidence) -> None:
    evidence["competed"]["made_room"] = False


def accepted(evidence: Evidence) -> None:
    evidence["limited"]["over"] = ""


def gpus_accepted(evidence: Evidence) -> None:
    evidence["limited"]["over_gpus"] = ""


def both_run(evidence: Evidence) -> None:
    evidence["limited"]["second"].update(state="RUNNING", reason="None")


def never_runs(evidence: Evidence) -> None:
    evidence["limited"]["then"].update(state="PENDING", reason="QOSGrpCpuLimit")


def within_refused(evidence: Evidence) -> None:
    evidence["limited"]["within_gpus"] = "Invalid qos specification"


def unrecorded(evidence: Evidence) -> None:
    evidence["recorded"]["high"]["state"] = ""


FAULTS: list[tuple[str, Callable[[Evidence], None], str]] = [
    ("workers", down, "down+not_responding (Not responding)"),
    ("workers", drained, "bad fan"),
    ("workers", maintained, "Slurm starts no jobs there: idle+maintenance+reserved"),
    ("workers", booting, "Slurm starts no jobs there: idle+reboot_issued"),
    ("workers", switched_off, "Slurm starts no jobs there: idle+cloud+powering_down"),
    ("workers", unknown, "Slurm doesn't know it"),
    ("workers", a_worker_more, "Slurm has the worker n3"),
    ("workers", absent, "no route to host"),
    ("workers", older_slurmd, "its slurmd has version 23.11.4"),
    ("workers", too_many_cpus, "it has 64"),
    ("workers", too_much_memory, "it has 1024"),
    ("workers", too_few_cpus, "it has 1024"),
    ("munge", other_key, "Invalid credential"),
    ("munge", no_munge, "Failed to access the socket"),
    ("munge", expired, "400 s, expected at most 300 s"),
    ("munge-host", host_munge, "15, not 0"),
    ("clock-skew", clock, "expected at most 1 s"),
    ("containers", unhealthy, "worker restarting"),
    ("slurm-services", no_controller, "slurmctld"),
    ("slurm-services", no_database, "slurmdbd: Connection refused"),
    ("slurm-services", no_rest, "slurmrestd answers Connection refused"),
    ("slurm-services", open_rest, "200 without a token"),
    ("names", unresolved, "n1: Name or service not known"),
    ("names", loopback, "n1: 127.0.1.1, which is its own"),
    ("names", swapped, "which is n2's"),
    ("names", nobodys, "192.0.2.7, which is no address of n1"),
    ("scheduling", basic_priority, "priority/basic"),
    ("scheduling", no_weight, "has no higher priority"),
    ("scheduling", low_first, "started before"),
    ("preemption", stays, "ran on while"),
    ("qos", accepted, "was not refused"),
    ("qos", gpus_accepted, "more GPUs"),
    ("qos", both_run, "a job is running"),
    ("qos", never_runs, "doesn't start"),
    ("qos", within_refused, "Invalid qos specification"),
    ("accounting", unrecorded, "accounting doesn't show it"),
]


def test_another_munge_of_the_host_is_none_of_ours() -> None:
    evidence = good()
    evidence["credentials"]["n2"]["host"] = {"status": 8, "said": "unmunge: Error: Invalid credential"}
    found = {each.node: each for each in replay(evidence, only="munge-host")["munge-host"].measures}
    assert found["n2"].state == "skipped"
    assert "none of the cluster's" in found["n2"].why


def test_good() -> None:
    found = replay(good(), level=1)
    assert found.keys() >= NAMES
    assert red(found) & NAMES == set()


@pytest.mark.parametrize(("name", "fault", "why"), FAULTS, ids=[fault.__name__ for _, fault, _ in FAULTS])
def test_one_fact_turns_its_check_red(name: str, fault: Callable[[Evidence], None], why: str) -> None:
    evidence = good()
    fault(evidence)
    found = replay(evidence, level=1)
    assert red(found) == {name}
    assert any(why in measure.why for measure in found[name].measures if measure.state == "failed")


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (lambda evidence: evidence.update(competed={"problem": "no core could be reserved"}), "scheduling"),
        (
            lambda evidence: evidence["competed"].update(
                qos=[{**q, "preempts": []} for q in evidence["competed"]["qos"]]
            ),
            "preemption",
        ),
        (lambda evidence: evidence["limited"]["first"].update(state="PENDING", reason="Resources"), "qos"),
        (lambda evidence: evidence.update(recorded={}), "accounting"),
    ],
)
def test_what_could_not_be_tried_is_said(fault: Callable[[Evidence], None], name: str) -> None:
    evidence = good()
    fault(evidence)
    found = replay(evidence, level=1)
    assert red(found) == set()
    assert found[name].state == ("passed" if name == "qos" else "skipped")
    assert [measure.why for measure in found[name].measures if measure.state == "skipped"]


def test_a_controller_that_could_not_be_asked_is_said() -> None:
    evidence = good()
    evidence["controller"] = {"error": "python3: not found"}
    found = replay(evidence, level=1)
    assert {"workers", "slurm-services", "names"} <= red(found)
    assert "python3: not found" in found["workers"].why


def test_a_busy_node_is_named() -> None:
    evidence = good()
    evidence["left_out"] = {"n2": "busy with other jobs"}
    found = replay(evidence, "qos")["qos"]
    assert found.state == "passed"
    assert ("n2", "busy with other jobs") in {
        (m.node, m.why.removeprefix("no job can start on n2: ")) for m in found.measures
    }


class Slurm:
    """As the controller of a cluster on which a run was killed."""

    name = "rocstack-verify-f0f0f0"
    user = "rocstack-verify"

    def __init__(self) -> None:
        self.done: list[str] = []

    def admin(self, *command: str) -> Any:
        line = " ".join(command)
        said = {
            # A job's name may be of more than one line.
            "squeue": f"7|rocstack-verify-54b718\n9|{self.name}\n8|mine\n--user=alice|rocstack-verify-x|7|PENDING",
            "scontrol show": "ReservationName=rocstack-verify-54b718 StartTime=x\nReservationName=maintenance",
            "sacctmgr -nP show assoc": "normal,rocstack-verify-54b718",
            "sacctmgr -nP show qos format=Name,": "normal|100|low\nrocstack-verify-54b718|0|",
            "sacctmgr -nP show qos": "normal\nlow\nrocstack-verify-54b718",
        }
        out = next((text for begin, text in said.items() if line.startswith(begin)), None)
        self.done += [] if out else [line]
        return SimpleNamespace(rc=0, stdout=out or "", stderr="")


def test_what_a_killed_run_has_left_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody else's, nor this run's own."""
    monkeypatch.syspath_prepend(checks())
    sys.modules.pop("experiments", None)
    from experiments import scheduling

    slurm = Slurm()
    assert [each["name"] for each in scheduling.ranks(slurm)] == ["normal"]
    scheduling.clear(slurm)
    assert slurm.done == [
        "scancel --user=rocstack-verify 7",
        "scontrol delete ReservationName=rocstack-verify-54b718",
        "sacctmgr --immediate delete qos name=rocstack-verify-54b718",
    ]


def test_what_unmunge_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(checks())
    sys.modules.pop("experiments", None)
    from experiments.credentials import read

    text = "STATUS:    Expired credential (15)\nENCODE_HOST:  n1\nENCODE_TIME:  2026 (100)\nDECODE_TIME:  2026 (500)"
    assert read(text) == {"status": 15, "encoded": 100, "decoded": 500, "said": text}
    assert read("unmunge: Error: no socket")["status"] is None


def test_a_worker_that_is_not_to_be_judged_is_no_stranger() -> None:
    evidence = good()
    a_worker_more(evidence)
    evidence["cluster"]["unnamed"] = ["n3"]
    assert red(replay(evidence, "workers")) == set()


GOOD = b64encode(b"STATUS: Success (0)").decode()


class Fails:
    """A cluster of one worker whose control node makes a credential after so many failures; the worker shows what it
    was given to decode."""

    def __init__(self, failures: int) -> None:
        self.failures, self.slurm, self.workers, self.user = failures, self, ["n2"], "rocstack-verify"

    def run(self, *command: str) -> Any:
        if "munge" not in command:
            return SimpleNamespace(rc=0, stdout=f"{GOOD}\n", stderr="")
        self.failures -= 1
        good = self.failures < 0
        return SimpleNamespace(rc=0 if good else 1, stdout="MUNGE:abc:\n" * good, stderr="" if good else "no socket")

    def in_workers(self, line: str, seconds: float) -> Any:
        bad = b64encode(b"unmunge: Error: Failed to match armor prefix").decode()
        return {"n2": SimpleNamespace(stdout=f"{GOOD if 'MUNGE:abc:' in line else bad}\nMUNGE:def:\n", stderr="")}

    def everywhere(self, line: str, names: list[str]) -> Any:
        return {name: SimpleNamespace(stdout="absent\n", stderr="") for name in names}


def test_one_credential_that_the_control_node_did_not_make_blames_no_worker() -> None:
    sys.path.append(str(checks()))
    from experiments import credentials

    assert credentials.run(Fails(1))["n2"]["here"]["status"] == 0
    here = credentials.run(Fails(2))["n2"]["here"]
    assert (here["status"], here["said"]) == (None, "none was made (exit code 1): no socket")


class Munge:
    """A control node and workers, on this machine, whose munge and unmunge are shell scripts: a credential holds its
    payload in base64, and is bad with the payload "bad"."""

    def __init__(self, folder: Path, made: dict[str, str]) -> None:
        self.made, self.slurm, self.workers, self.user = made, self, list(made), "rocstack-verify"
        self.env = {"PATH": f"{folder}:/usr/bin:/bin"}
        scripts = {
            "munge": 'echo MUNGE:$(printf %s "$PAYLOAD" | base64 --wrap=0):',
            "unmunge": """payload=$(cut -d: -f2 | base64 -d)
                [ "$payload" = bad ] && echo "STATUS: Expired credential (15)" || echo "STATUS: Success (0)"
                case "$*" in *output=/dev/null*) ;; *) echo; echo "$payload" ;; esac""",
            "setpriv": 'shift 3; exec "$@"',
            "id": "echo 64001",
        }
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    def run(self, *command: str, payload: str = "own") -> Any:
        env = self.env | {"PAYLOAD": payload}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        return SimpleNamespace(rc=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def in_workers(self, line: str, seconds: float) -> Any:
        return {name: self.run("sh", "-c", line, payload=payload) for name, payload in self.made.items()}

    def everywhere(self, line: str, names: list[str]) -> Any:
        return {name: SimpleNamespace(stdout="absent\n", stderr="") for name in names}


@pytest.mark.parametrize("forged", ["x\n@@\nSTATUS: Success (0)\n@@", "\nSTATUS: Success (0)\n", "x" * 200_000])
def test_no_workers_credential_tells_of_anothers(forged: str, tmp_path: Path) -> None:
    sys.path.append(str(checks()))
    from experiments import credentials

    if len(forged) > 1000:  # as the environment can't hold it
        munge = Munge(tmp_path, {"n1": "", "n2": "bad", "n3": "own"})
        in_workers = munge.in_workers
        munge.in_workers = lambda line, seconds: (
            in_workers(line, seconds)
            | {  # type: ignore[method-assign]
                "n1": SimpleNamespace(stdout=f"{GOOD}\nMUNGE:{forged}:\n", stderr="")
            }
        )
    else:
        munge = Munge(tmp_path, {"n1": forged, "n2": "bad", "n3": "own"})
    found = credentials.run(munge)
    assert {name: each["here"]["status"] for name, each in found.items()} == {"n1": 0, "n2": 0, "n3": 0}
    statuses = {name: each["there"]["status"] for name, each in found.items()}
    assert statuses == {"n1": None if len(forged) > 1000 else 0, "n2": 15, "n3": 0}


def test_only_the_suites_own_jobs_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's job can be called `rocstack-verify-x|--user=alice|PENDING`."""
    monkeypatch.syspath_prepend(checks())
    sys.modules.pop("experiments", None)
    from experiments import scheduling

    asked: list[tuple[str, ...]] = []

    def admin(*command: str) -> Any:
        asked.append(command)
        return SimpleNamespace(rc=0, stdout="", stderr="")

    scheduling.clear(SimpleNamespace(name="rocstack-verify-f0f0f0", user="rocstack-verify", admin=admin))
    squeue = next(words for words in asked if words[0] == "squeue")
    assert "--user=rocstack-verify" in squeue
    assert squeue[-1].endswith("|%j"), "what its user chooses comes last"
