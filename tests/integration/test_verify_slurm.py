"""The suite on a real cluster with something of Slurm's broken: the check that is about it turns red, and no other;
nodes that are away or busy are named, and the others verified."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deployed_cluster import INVENTORY, DeployedCluster, until
from workspace import engine

from rocstack.verify import result
from rocstack.verify.result import BAD, CheckResult
from rocstack.verify.suite import checks

pytestmark = pytest.mark.engine
SECONDS = 300
IMAGE, WORKERS, SCHEDULING = "test_image.py", "test_workers.py", "test_scheduling.py"
CONF = "/etc/rocstack/slurm/slurm.conf"
LEFT = "sh -c 'squeue --all --noheader; sacctmgr -nP show qos format=name; scontrol --oneliner show reservation'"


def verify(deployed: DeployedCluster, folder: Path, *files: str, wait: int = 60) -> dict[str, CheckResult]:
    """Check -> what it says, of the checks of these files up to level 1."""
    line = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "rocstack.verify.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
    ]
    line += [f"--rootdir={checks()}", "-q", "--level=1", f"--wait={wait}", f"--report={folder}"]
    line += [f"--inventory={INVENTORY}", *(str(checks() / name) for name in files)]
    workspace = deployed.workspace
    done = subprocess.run(
        line, cwd=workspace.folder, env=workspace.environ(), capture_output=True, text=True, timeout=SECONDS
    )
    assert (folder / "report.json").exists(), done.stdout + done.stderr
    return {each.check.name: each for each in result.read(folder).results}


def red(found: dict[str, CheckResult]) -> dict[str, set[str]]:
    """Check -> the nodes of which it says something bad."""
    return {
        name: {measure.node for measure in each.measures if measure.state in BAD}
        for name, each in found.items()
        if each.state in BAD
    }


def passed(found: dict[str, CheckResult], node: str) -> set[str]:
    return {
        name
        for name, each in found.items()
        for measure in each.measures
        if (measure.node, measure.state) == (node, "passed")
    }


def skipped(found: dict[str, CheckResult], name: str, node: str) -> str:
    """Why."""
    return next(measure.why for measure in found[name].measures if (measure.node, measure.state) == (node, "skipped"))


@contextmanager
def worker_restarted(deployed: DeployedCluster) -> Iterator[None]:
    """Whatever was done to the worker of n2 is over afterwards."""
    try:
        yield
    finally:
        deployed.ssh("n2", "docker restart rocstack-worker")
        deployed.idle()


@pytest.mark.slow
def test_a_good_cluster(deployed: DeployedCluster, tmp_path: Path) -> None:
    before = deployed.slurm(LEFT)
    found = verify(deployed, tmp_path, IMAGE, WORKERS, SCHEDULING)
    assert red(found) == {}
    assert {each.state for each in found.values()} <= {"passed", "skipped"}
    left = {name for name, each in found.items() if each.state == "skipped"}
    assert left == {"driver-rocm", "gpu-code", "munge-host"}
    until(lambda: deployed.slurm(LEFT) == before, 20, lambda: deployed.slurm(LEFT))


def test_munged_stopped(deployed: DeployedCluster, tmp_path: Path) -> None:
    with worker_restarted(deployed):
        # What starts it again has to go first.
        keeper = "kill $(ps -o ppid= -C munged)"
        kill = f"{keeper}; pkill munged; while pgrep munged; do sleep 0.1; done"
        deployed.ssh("n2", f"docker exec rocstack-worker sh -c {shlex.quote(kill)}")
        found = verify(deployed, tmp_path, IMAGE, WORKERS, SCHEDULING)
    assert red(found) == {"munge": {"n2"}}
    assert "munged" in found["munge"].why
    assert "no job can start on n2" in skipped(found, "scheduling", "n2")
    assert {"munge", "workers", "parts"} <= passed(found, "n1")


@pytest.mark.slow
def test_a_container_that_is_stopped(deployed: DeployedCluster, tmp_path: Path) -> None:
    with worker_restarted(deployed):
        deployed.ssh("n2", "docker stop --time 1 rocstack-worker")
        found = verify(deployed, tmp_path, IMAGE, WORKERS)
    unseen = {"nic-gate", "versions", "parts", "pmix", "names"}  # could not be inspected
    assert red(found).keys() - {"workers"} == {"munge", "containers", *unseen}  # Slurm may not have noticed yet
    assert set().union(*red(found).values()) == {"n2"}
    assert {"munge", "containers", "parts", "nic-gate"} <= passed(found, "n1")
    assert "is not running" in found["parts"].why


def test_a_node_that_ssh_does_not_reach(deployed: DeployedCluster, tmp_path: Path) -> None:
    rule = ["INPUT", "-p", "tcp", "--dport", "22", "-m", "state", "--state", "NEW", "-j", "REJECT"]
    engine("exec", deployed.power("n2"), "iptables", "-I", *rule)
    # Ansible would go on over a connection that it kept.
    engine("exec", deployed.power("n2"), "pkill", "-f", "^sshd-session", check=False)
    try:
        found = verify(deployed, tmp_path, WORKERS)
    finally:
        engine("exec", deployed.power("n2"), "iptables", "-D", *rule)
    assert red(found) == {"workers": {"n2"}}, {name: found[name].why for name in red(found)}
    assert "could not be reached" in found["workers"].why
    assert {"munge", "workers", "containers"} <= passed(found, "n1")


@pytest.mark.slow
def test_a_drained_node(deployed: DeployedCluster, tmp_path: Path) -> None:
    deployed.slurm("scontrol update nodename=n2 state=drain reason='bad fan'")
    try:
        found = verify(deployed, tmp_path, WORKERS)
    finally:
        deployed.slurm("scontrol update nodename=n2 state=resume")
    assert red(found) == {"workers": {"n2"}}
    assert "bad fan" in found["workers"].why
    assert {"munge", "workers", "names"} <= passed(found, "n1")


@pytest.mark.slow
def test_a_busy_node(deployed: DeployedCluster, tmp_path: Path) -> None:
    """Others' jobs stay; the suite waits as long as it may, and goes on without the node."""
    job = "sbatch --parsable --nodelist=n2 --exclusive --output=/dev/null --wrap='sleep 600'"
    number = deployed.ssh("n1", f"docker exec --user=alice --workdir=/tmp rocstack-control {job}").strip()
    try:
        until(lambda: deployed.jobs().get(int(number)) == "RUNNING", 30, deployed.jobs)
        found = verify(deployed, tmp_path, WORKERS, SCHEDULING, wait=5)
        assert deployed.jobs()[int(number)] == "RUNNING"
    finally:
        deployed.slurm(f"scancel {number}")
        deployed.idle()
    assert red(found) == {}
    assert "it is alloc for longer than" in skipped(found, "qos", "n2")
    assert found["qos"].state == found["scheduling"].state == "passed"


@pytest.mark.slow
def test_priorities_that_count_for_nothing(deployed: DeployedCluster, tmp_path: Path) -> None:
    with slurm_conf(deployed, "s/^PriorityWeightQOS=.*/PriorityWeightQOS=0/"):
        assert red(verify(deployed, tmp_path, SCHEDULING)) == {"scheduling": {""}}


@pytest.mark.slow
def test_limits_that_are_not_enforced(deployed: DeployedCluster, tmp_path: Path) -> None:
    with slurm_conf(deployed, "s/^AccountingStorageEnforce=.*/AccountingStorageEnforce=associations/"):
        assert red(verify(deployed, tmp_path, SCHEDULING)) == {"qos": {""}}


@contextmanager
def slurm_conf(deployed: DeployedCluster, edit: str) -> Iterator[None]:
    """As it is after the edit, until the end."""
    try:
        _read_again(deployed, f"cp -p {CONF} {CONF}.test && sed -i '{edit}' {CONF}")
        yield
    finally:
        _read_again(deployed, f"cp -p {CONF}.test {CONF} && rm {CONF}.test")


def _read_again(deployed: DeployedCluster, edit: str) -> None:
    """A controller that reconfigures starts anew, with all that the file says."""
    deployed.ssh("n1", edit)
    deployed.slurm("scontrol reconfigure")
    until(lambda: "is UP" in deployed.slurm("scontrol ping", check=False), 60)
    deployed.idle()
