"""The whole acceptance suite on two virtual nodes, as a person runs it: nothing fails, and nothing is left behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deployed_cluster import INVENTORY, DeployedCluster

from rocstack.cluster.settings import VERIFY_UID
from rocstack.verify.result import ITEMS, Run, read

pytestmark = pytest.mark.engine
OTHERS = "rocm_?smi_|runc-process"  # what rocm-smi and amd-smi leave, whoever calls them; the engine at work
LEFT = {  # what a run could leave, and how one sees it
    "jobs": "squeue --noheader --all",
    "QoS": "sh -c 'sacctmgr --noheader --parsable2 show qos format=name | grep rocstack || true'",
    "reservations": "sh -c 'scontrol show reservation --oneliner | grep Name= || true'",
}


def left(deployed: DeployedCluster) -> dict[str, str]:
    """On both nodes, their containers and in Slurm."""
    found = {name: deployed.slurm(command).strip() for name, command in LEFT.items()}
    for node in ("n1", "n2"):
        # The suite's user has a temporary folder there, as all have; it is empty.
        own = f"/tmp/rocstack-{VERIFY_UID}"
        inside = f"docker exec rocstack-worker find /tmp /dev/shm -mindepth 1 -not -path {own} -printf '%f '"
        for where in ("ls -A /tmp", inside):
            names = deployed.ssh(node, where).split()
            found[f"{node}: {where}"] = " ".join(name for name in names if not re.match(OTHERS, name))
    return found


@pytest.fixture(scope="module")
def before(deployed: DeployedCluster) -> dict[str, str]:
    return left(deployed)


@pytest.fixture(scope="module")
def run(before: dict[str, str], deployed: DeployedCluster) -> Iterator[Run]:
    """Levels 0 to 3."""
    done = deployed.workspace.run("verify", "--report", "whole")
    assert done.code == 0, done.err + done.out
    assert "virtual nodes pass" in done.out
    yield read(deployed.workspace.folder / "whole")
    deployed.unverify()


def test_all_kinds_of_test_were_made(run: Run) -> None:
    states: dict[int, set[str]] = {}
    for result in run.results:
        if result.check.item:
            states.setdefault(result.check.item, set()).add(result.state)
    assert sorted(states) == list(range(1, ITEMS + 1))
    assert {item: found for item, found in states.items() if not found & {"passed", "measured"}} == {}
    assert (run.proved, run.virtual, run.complete) == (1, True, True), "not all of level 2 can be shown here"


def test_what_is_skipped_says_for_want_of_what(run: Run) -> None:
    skipped = [result for result in run.results if result.state == "skipped"]
    assert skipped
    assert all(result.why for result in skipped)
    assert all(
        m.virtual for r in run.results if r.check.level == 2 for m in r.measures if m.state == "passed" and m.node
    )


def test_the_report_is_there(run: Run, deployed: DeployedCluster) -> None:
    folder = deployed.workspace.folder / "whole"
    names = "report.html junit.xml passing_nodes.txt failing_nodes.txt evidence.json report.schema.json"
    assert all((folder / name).exists() for name in names.split())
    assert (folder / "report.html").stat().st_size < 1e6
    assert (folder / "passing_nodes.txt").read_text() == "n1\nn2\n"


def test_it_is_judged_again_without_the_cluster(run: Run, deployed: DeployedCluster) -> None:
    again = deployed.workspace.run("verify", "--evidence", "whole/evidence.json", "--report", "again")
    assert again.code == 0, again.err + again.out
    assert {r.check.name: r.state for r in read(deployed.workspace.folder / "again").results} == {
        r.check.name: r.state for r in run.results
    }


def test_nothing_is_left_behind(run: Run, before: dict[str, str], deployed: DeployedCluster) -> None:
    assert left(deployed) == before


def test_its_level_is_stored_and_shown(run: Run, deployed: DeployedCluster) -> None:
    rows: list[dict[str, Any]] = deployed.json("status", code=0)["nodes"]
    assert all(row["verified"] for row in rows)


def test_ctrl_c_cancels_its_jobs(run: Run, before: dict[str, str], deployed: DeployedCluster) -> None:
    process = deployed.workspace.start("verify", "--level", "1", "--report", "stopped")
    until = time.monotonic() + 60
    while not deployed.slurm(LEFT["jobs"]).strip():
        assert time.monotonic() < until, process.communicate()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 130, said
    assert left(deployed) == before
    report = deployed.workspace.folder / "stopped/report.json"
    assert not report.exists() or not json.loads(report.read_text())["complete"]


def test_one_at_a_time(deployed: DeployedCluster) -> None:
    config = deployed.workspace.folder / Path(INVENTORY).with_name("ssh_config")
    other = ["ssh", "-F", str(config), "n1", "flock /run/rocstack-verify.lock sh -c 'echo held; cat'"]
    with subprocess.Popen(other, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "held\n"
        assert deployed.refused("verify", "--only", "munge", "--wait", "1s") == (1, "verify-running")
        process.stdin.close()
    assert deployed.workspace.run("verify", "--only", "munge", "--wait", "1s").code == 0


def test_a_name_that_no_check_has(deployed: DeployedCluster) -> None:
    assert deployed.refused("verify", "--only", "mpi-latenzy") == (2, "unknown-check")
