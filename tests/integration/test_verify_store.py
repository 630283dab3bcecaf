"""What is kept of a verification, and what follows from it on a deployed cluster: the journal, `deploy --require`, a
node drained by a run or by itself, and --watch. Runs are made up here; that the suite makes such is seen elsewhere."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest
from deployed_cluster import INVENTORY, DeployedCluster, until

from rocstack.base.errors import CheckFailed
from rocstack.deploy.plan import services
from rocstack.deploy.read import journal, verified
from rocstack.deploy.read.journal import VerifiedLevel
from rocstack.edge import locks, ssh
from rocstack.verify import drain, proved
from rocstack.verify.result import Check, CheckResult, Measure, NodeSeen, Run, State

pytestmark = pytest.mark.engine

DEVICE = "/dev/dri/renderD131"


def release(deployed: DeployedCluster) -> journal.Release:
    return journal.loads(deployed.ssh("n1", f"cat {journal.PATH}")).releases[-1]


def made(deployed: DeployedCluster, level: int, state: State = "passed", node: str = "n1") -> Run:
    """A run in which one check of each level passed, and the one of the highest ended so on `node`."""
    images = release(deployed).images
    results = [
        CheckResult(
            check=Check(name=f"check-{each}", title="t", level=each, cause="c", next_step="n"),
            state=state if each == level else "passed",
            measures=(Measure(state=state if each == level else "passed", node=node, why="as it was made up"),),
        )
        for each in range(level + 1)
    ]
    return Run(
        rocstack="1",
        id="20261121-000000",
        cluster="rocstack",
        control="n1",
        who="ann",
        when="2026-11-21T00:00:00Z",
        seconds=1.0,
        level=level,
        nodes=tuple(
            NodeSeen(name=name, roles=("worker",), virtual="mi300x-thor2", image=images.worker_id)
            for name in ("n1", "n2")
        ),
        image=images.worker_id,
        control_image=images.control_id,
        results=tuple(results),
    )


@pytest.fixture
def inventory(deployed: DeployedCluster) -> Path:
    return deployed.workspace.folder / INVENTORY


@pytest.fixture
def runs(deployed: DeployedCluster) -> Path:
    return deployed.workspace.folder / ".rocstack/verify"


@pytest.mark.usefixtures("unverified")
def test_only_what_was_verified_is_deployed(deployed: DeployedCluster, inventory: Path, runs: Path) -> None:
    before = deployed.ssh("n1", f"cat {journal.PATH}")
    refused = deployed.json("deploy", "--require", "1", "--plan", code=1)
    assert ("error", "not-verified") in [(each["level"], each["code"]) for each in refused["findings"]]
    assert "level 1 of the acceptance suite is required" in refused["refused"]
    refused = deployed.json("deploy", "--require", "1", code=1)
    assert "proved for these images: none" in refused["stopped"]
    assert deployed.ssh("n1", f"cat {journal.PATH}") == before, "it was changed"

    assert proved.keep(made(deployed, 1), inventory, runs).sentence.startswith("level 1 is proved: on n1")
    assert release(deployed).verified == VerifiedLevel(
        level=1, when="2026-11-21T00:00:00Z", virtual=True, report="20261121-000000"
    )
    assert {node["verified"] for node in deployed.json("status")["nodes"]} == {"level 1"}
    assert deployed.json("deploy", "--require", "1", "--plan")["refused"] == ""

    assert proved.keep(made(deployed, 1, "failed"), inventory, runs).sentence.startswith("level 1 is taken back")
    assert {node["verified"] for node in deployed.json("status")["nodes"]} == {"level 0"}


@pytest.mark.usefixtures("unverified")
def test_a_claim_that_was_brought_from_elsewhere_counts(deployed: DeployedCluster, inventory: Path, runs: Path) -> None:
    proved.keep(made(deployed, 1).model_copy(update={"cluster": "test"}), inventory, runs)
    with locks.cluster_lock(ssh.ssh_hosts(inventory, ["n1"])["n1"], journal.lock()) as held:
        held.write(journal.loads(held.text).verified(None).dumps())
    assert deployed.json("deploy", "--require", "1", "--plan")["refused"] == ""


@pytest.mark.usefixtures("unverified")
def test_while_somebody_deploys(deployed: DeployedCluster, inventory: Path, runs: Path) -> None:
    with locks.cluster_lock(ssh.ssh_hosts(inventory, ["n1"])["n1"], journal.lock()):
        said = proved.keep(made(deployed, 1), inventory, runs).sentence
    assert "only, not on n1: another deploy of this cluster is running" in said
    assert release(deployed).verified is None
    images = release(deployed).images
    assert [each.level for each in verified.claims(runs, images.worker_id, images.control_id)] == [1]


def test_a_node_that_fails_is_drained_and_no_deploy_takes_it_back(deployed: DeployedCluster, inventory: Path) -> None:
    failed = made(deployed, 1, "failed", node="n2")
    try:
        found = drain.drain(failed, inventory)
        assert found.drained == {"n2": "rocstack-verify: check-1: as it was made up"}
        assert deployed.nodes()["n2"].endswith("rocstack-verify: check-1: as it was made up")
        assert drain.drain(failed, inventory).drained == {}, "it is drained already"
        assert drain.drain(made(deployed, 1, node="n2"), inventory).passing == ("n2",)
        with pytest.raises(CheckFailed, match="2 of 2 workers"):
            drain.drain(made(deployed, 1, "failed", node="n1"), inventory)
        deployed.run("deploy")
        assert "rocstack-verify" in deployed.nodes()["n2"]
    finally:
        deployed.run(*drain.resume_line("n1", ["n2"]).split()[1:])
    deployed.idle()


def test_a_worker_drains_itself(deployed: DeployedCluster) -> None:
    config = deployed.slurm("scontrol show config")
    assert "HealthCheckInterval     = 300 sec" in config
    assert "HealthCheckProgram      = /usr/local/bin/rocstack-node-health" in config
    check = "docker exec rocstack-worker rocstack-node-health"
    assert deployed.ssh("n2", check) == "", "a healthy node"
    made = deployed.ssh("n2", f"docker exec rocstack-worker stat -c '%a c 0x%t 0x%T' {DEVICE}").split()
    deployed.ssh("n2", f"docker exec rocstack-worker rm {DEVICE}")
    try:
        assert deployed.ssh("n2", f"{check} --say", check=False) == f"device gone: {DEVICE}\n"
        deployed.ssh("n2", check, check=False)
        assert deployed.nodes()["n2"] == "idle", "the cluster's settings don't want it drained"
        deployed.ssh("n2", f"echo drain >{services.CLUSTER}/health")  # as they are by default
        deployed.ssh("n2", check, check=False)
        assert deployed.nodes()["n2"] == f"drained: rocstack-health: device gone: {DEVICE}"
    finally:
        deployed.ssh("n2", f"echo say >{services.CLUSTER}/health")
        # From the node: the worker itself may make no device.
        root = "/proc/$(docker inspect -f '{{.State.Pid}}' rocstack-worker)/root"
        deployed.ssh("n2", f"mknod -m {made[0]} {root}{DEVICE} {' '.join(made[1:])}")
        deployed.slurm("scontrol update nodename=n2 state=resume")
    assert deployed.ssh("n2", check) == ""
    deployed.idle()


def test_watched_until_ctrl_c(deployed: DeployedCluster, runs: Path) -> None:
    process = deployed.workspace.start("verify", "--watch", "--only", "munge", "--every", "1s")
    lines: list[str] = []

    def read() -> None:
        assert process.stderr
        lines.extend(iter(process.stderr.readline, ""))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        until(lambda: len([line for line in lines if "nodes pass" in line]) >= 2, 300, lambda: lines)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
    assert not any("Traceback" in line for line in lines)
    rows = [json.loads(line) for line in (runs / "history.jsonl").read_text().splitlines()]
    assert [row["passed"] for row in rows[:2]] == [True, True]
    assert deployed.jobs() == {} or "RUNNING" not in deployed.jobs().values()
