"""Nodes and services of a deployed cluster that break, fill up or restart, and what the next deploy makes of them."""

from __future__ import annotations

import time

import pytest
from deployed_cluster import DeployedCluster, until

pytestmark = pytest.mark.engine

BOTH = ("n1", "n2")
KEY = "/etc/rocstack/keys/munge.key"


def test_a_node_restarts(deployed: DeployedCluster) -> None:
    before = deployed.containers("n2")
    boot = deployed.ssh("n2", "cat /proc/sys/kernel/random/boot_id")
    began = time.monotonic()
    deployed.run("local", "reboot", "n2")
    assert deployed.ssh("n2", "cat /proc/sys/kernel/random/boot_id") != boot
    until(lambda: deployed.containers("n2") == before, 60)
    deployed.slurm("srun -w n2 --immediate=60 true")
    deployed.idle()
    print(f"jobs run {time.monotonic() - began:.1f} s after the reboot was asked for")
    assert deployed.json("deploy")["plan"]["changes"] == 0


def test_the_controller_is_made_again_with_jobs_queued(deployed: DeployedCluster) -> None:
    """Its state is in a volume; the job that runs doesn't notice."""
    wait = "until [ -e /tmp/enough ]; do sleep 0.2; done; rm /tmp/enough"
    batch = "sbatch --parsable --exclusive --nodelist=n2 --output=/dev/null --wrap"
    first, second = (int(deployed.slurm(f"{batch} {each}")) for each in (f"'{wait}'", "true"))
    until(lambda: deployed.jobs() == {first: "RUNNING", second: "PENDING"}, 30, deployed.jobs)
    time.sleep(6)  # slurmctld writes its state within 5 s; what is younger is lost if it is killed
    deployed.ssh("n1", "docker rm --force rocstack-control")
    done = deployed.json("deploy")
    assert {(each["kind"], each["what"]) for node in done["plan"]["nodes"] for each in node["changes"]} == {
        ("start", "rocstack-control")
    }
    assert (done["changed"], done["ready"]) == (["n1"], list(BOTH))
    assert deployed.jobs() == {first: "RUNNING", second: "PENDING"}
    deployed.ssh("n2", "docker exec rocstack-worker touch /tmp/enough")
    asked = f"sacct --noheader --parsable2 --allocations --format=State,Restarts --jobs={first},{second}"
    until(lambda: deployed.slurm(asked).split() == ["COMPLETED|0"] * 2, 60, lambda: deployed.slurm(asked))
    deployed.idle()


def test_a_wrong_key_on_one_node(deployed: DeployedCluster) -> None:
    right = deployed.ssh("n2", f"sha256sum {KEY}")
    deployed.ssh("n2", f"head -c 1024 /dev/urandom >{KEY}; docker restart rocstack-worker")
    said = deployed.ssh("n2", "docker exec rocstack-worker rocstack-health || echo not healthy")
    assert said.splitlines()[-1] == "not healthy"
    plan = deployed.json("deploy", "--plan")["nodes"]
    found = {(each["kind"], each["what"]): each["why"] for each in plan[1]["changes"]}
    assert found == {("file", KEY): "differs", ("replace", "rocstack-worker"): f"{KEY} changed"}
    assert plan[0]["changes"] == []
    done = deployed.json("deploy")
    assert (done["changed"], done["ready"]) == (["n2"], list(BOTH))
    assert deployed.ssh("n2", f"sha256sum {KEY}") == right
    deployed.slurm("srun -N2 true")
    deployed.idle()


@pytest.mark.slow
def test_a_full_disk_on_one_node(deployed: DeployedCluster) -> None:
    """Its engine has another, small disk for a while, on which nothing is."""
    image = deployed.image("wide")
    deployed.ssh("n2", "pkill -TERM -x dockerd; while pgrep -x dockerd >/dev/null; do sleep 0.1; done", check=False)
    small = "mount -t tmpfs -o size=300m small /var/lib/docker; pkill -TERM -x dockerd"
    deployed.ssh("n2", small, check=False)
    up = "docker info --format '{{.DockerRootDir}}'"
    try:
        until(lambda: deployed.ssh("n2", up, check=False), 30)
        until(lambda: deployed.ssh("n2", "docker ps --all --quiet", check=False) == "", 30)
        done = deployed.run("deploy", "--image", image, "--json", code=1).json
        blocked = done["plan"]["nodes"][1]
        assert blocked["result"] == "blocked"
        (found,) = [each for each in blocked["findings"] if each["level"] == "error"]
        assert found["code"] == "disk-low"
        assert "300 MiB free at /var/lib/docker, but 1." in found["what"]
        assert (done["changed"], done["ready"]) == (["n1"], ["n1"])
        assert "rocstack: update failed: 300 MiB free at /var/lib/docker" in deployed.nodes()["n2"]
    finally:
        deployed.ssh(
            "n2", "pkill -TERM -x dockerd; sleep 1; umount -l /var/lib/docker; pkill -TERM -x dockerd", check=False
        )
        until(lambda: "rocstack-worker" in deployed.ssh("n2", "docker ps --all", check=False), 30)
    assert deployed.json("deploy")["ready"] == list(BOTH)
    deployed.idle()


@pytest.mark.slow
def test_a_node_that_the_nic_library_does_not_fit(deployed: DeployedCluster) -> None:
    """The image's library is rdma-core's, for kernel ABI 1; n2 has the vendor's driver, and no worker yet."""
    inbox = deployed.run("build", "--nic", "broadcom", "--role", "worker", "--json").json["images"][0]["reference"]
    deployed.run("local", "up", "--nodes", "2", "--fault", "n1:abi=1")
    deployed.ssh("n2", "docker rm --force rocstack-worker")
    try:
        done = deployed.run("deploy", "--image", inbox, code=1)
        assert "error nic-unfit (n2): " in done.out
        assert "1 node changed, 1 ready for jobs" in done.out
        assert "rocstack: update failed: " in deployed.nodes()["n2"]
        assert deployed.nodes()["n1"] == "idle"
        assert deployed.ssh("n2", "docker ps --all --quiet") == ""
    finally:
        deployed.run("local", "up", "--nodes", "2")
        healed = deployed.json("deploy")
    assert healed["ready"] == list(BOTH)
    deployed.idle()
