"""Slurm worked from outside its controller's container, as a deploy does: drain, wait, requeue, resume."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
from slurm_containers import Cluster, Node, until
from workspace import Built

from rocstack.base import paths
from rocstack.cluster import slurm_files
from rocstack.deploy.work import controller
from rocstack.node.engine import NodeError
from rocstack.node.slurm_control import SlurmController, run_steps

pytestmark = pytest.mark.engine
# As with Slurm 25.05 and newer.
SETTINGS = """\
JobSubmitPlugins=lua
NodeName=n[1-2] CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
"""
ALL = ["n1", "n2"]


@pytest.fixture(scope="module")
def control(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    cluster = Cluster(built, tmp_path_factory.mktemp("slurm"), SETTINGS)
    shutil.copy(paths.templates() / "slurm" / slurm_files.REFUSE_LOGIN, cluster.folder / "etc")
    try:
        control = cluster.start("ctl", "control", cluster.settings(), look="30s")
        for name in ALL:
            cluster.start(name, "worker", "--env=ROCSTACK_CONTROLLER=ctl:6817", look="30s")
        until(control.health, "healthy", control)
        yield control
    finally:
        cluster.close()


@pytest.fixture
def slurm(control: Node) -> SlurmController:
    slurm = SlurmController(control.name)
    ready = slurm.wait_ready(ALL, 60)
    assert ready["ready"] == ALL, ready
    return slurm


@pytest.mark.parametrize("asks", ["--export=NONE", "--get-user-env"])
def test_a_job_that_would_end_slurmd_is_refused(control: Node, asks: str) -> None:
    refused = control.run("sbatch", asks, "--wrap=true", check=False)
    assert refused.returncode == 1
    assert "write --export=NIL, and set in the script what it needs" in refused.stderr
    control.run("sbatch", "--export=NIL", "--wait", "--wrap=true")


def test_a_node_is_freed_and_given_back(slurm: SlurmController, control: Node) -> None:
    control.run("sbatch", "--nodelist=n1", "--wrap=sleep 4")
    control.run("sbatch", "--nodelist=n2", "--wrap=sleep 400")
    control.run("bash", "-c", "until squeue -h -t running | grep -q n2; do sleep 0.2; done")
    assert slurm.drain(ALL, "update") == {"drained": ALL, "kept": {}}
    assert {row["reason"] for row in slurm.state().values()} == {"rocstack: update"}
    waited = slurm.wait_drained(ALL, 15)
    assert (waited["free"], list(waited["busy"])) == (["n1"], ["n2"])
    [job] = slurm.state()["n2"]["jobs"]
    assert waited["busy"]["n2"] == f"runs job {job}"
    waited = slurm.wait_drained(["n2"], 0, requeue=True)
    assert (waited["free"], waited["requeued"], waited["refused"]) == (["n2"], [job], {})
    control.run("scancel", str(job))
    assert slurm.wait_ready(ALL, 60)["resumed"] == ALL


def test_what_somebody_else_drained_stays_drained(slurm: SlurmController, control: Node) -> None:
    control.run("scontrol", "update", "nodename=n1", "state=drain", "reason=bad fan")
    try:
        assert slurm.drain(ALL, "rocstack: update") == {"drained": ["n2"], "kept": {"n1": "bad fan"}}
        ready = slurm.wait_ready([*ALL, "n9"], 6)
        assert (ready["ready"], ready["resumed"]) == (["n2"], ["n2"])
        assert ready["waiting"] == {"n1": "is idle+drain (bad fan)", "n9": "Slurm doesn't know it"}
        asked = time.monotonic()
        assert slurm.wait_ready(ALL, 600)["waiting"] == {"n1": "is idle+drain (bad fan)"}
        assert time.monotonic() - asked < 600, "no use to wait for a person"
    finally:
        control.run("scontrol", "update", "nodename=n1", "state=resume")


def test_a_node_that_a_deploy_set_down_comes_back(slurm: SlurmController, control: Node) -> None:
    control.run("scontrol", "update", "nodename=n2", "state=down", "reason=rocstack: not healthy")
    ready = slurm.wait_ready(ALL, 20)
    assert (ready["ready"], ready["resumed"]) == (ALL, ["n2"])


def test_lines_until_one_fails(control: Node) -> None:
    def run(*lines: list[str]) -> subprocess.CompletedProcess[str]:
        return control.run("bash", "-c", controller.script(map(shlex.join, lines)), check=False)

    assert not run(["scontrol", "ping"], ["bash", "-c", "echo ' Nothing new added.'; exit 1"]).returncode
    ran = run(["scontrol", "ping"], ["scontrol", "update", "partitionname=no such", "state=up"], ["touch", "/x"])
    assert (ran.returncode, ran.stdout.strip()) == (1, "1")
    assert "Invalid partition" in ran.stderr
    assert control.run("test", "-e", "/x", check=False).returncode


def test_an_unknown_step() -> None:
    with pytest.raises(NodeError, match="no step 'reboot'"):
        run_steps([{"do": "drain", "nodes": []}, {"do": "reboot"}], "none")


def test_no_controller() -> None:
    slurm = SlurmController("rocstack-test-no-such-container")
    with pytest.raises(NodeError, match="the controller doesn't answer: No such container"):
        slurm.state()
    assert list(slurm.wait_ready(["n1"], 0)["waiting"]) == ["n1"]
