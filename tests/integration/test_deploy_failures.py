"""What goes wrong while an image is on its way: a node, the registry, the network, the person. Others go on, the node
is named, and `--resume` finishes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from deployed_cluster import INVENTORY, DeployedCluster, until
from workspace import engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

BOTH = ("n1", "n2")
AT_ONCE = ("--canary", "0", "--wave", "100%", "--failures", "2")
LAYER = "RUN head -c 24000000 /dev/urandom >/large"
MID = 8_000_000  # bytes of it
_ROW = re.compile(r"^\s*eno1:\s*(\d+)", re.MULTILINE)


class Update:
    """A deploy of another image whose way to n2 takes a while."""

    def __init__(self, deployed: DeployedCluster, image: str) -> None:
        self.deployed = deployed
        self.began = self.received()
        self.process = deployed.workspace.start("deploy", "--json", "--image", image, *AT_ONCE)

    def received(self) -> int:
        found = _ROW.search(self.deployed.ssh("n2", "cat /proc/net/dev"))
        assert found
        return int(found[1])

    def comes_to_the_middle(self) -> None:
        until(lambda: self.received() > self.began + MID or self.process.poll() is not None, 120, most_s=0.2)
        assert self.process.poll() is None, self.process.communicate()

    def end(self, code: int) -> dict[str, object]:
        out, err = self.process.communicate(timeout=300)
        assert self.process.returncode == code, err + out
        print(err)
        said: dict[str, object] = json.loads(out)
        return said


@pytest.fixture(scope="module", autouse=True)
def as_before(deployed: DeployedCluster) -> Iterator[None]:
    yield
    deployed.run("deploy", *AT_ONCE)
    deployed.idle()


@pytest.fixture
def update(deployed: DeployedCluster) -> Iterator[Update]:
    """On a link of 30 Mbit/s."""
    image = deployed.image("large", LAYER)
    deployed.ssh("n1", "tc qdisc replace dev eno1 root tbf rate 30mbit burst 256k latency 200ms")
    running = Update(deployed, image)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        deployed.ssh("n1", "tc qdisc del dev eno1 root")
        engine("rmi", image, check=False)


def workers(deployed: DeployedCluster) -> list[str]:
    return [deployed.containers(node).get("rocstack-worker", ("", ""))[1] for node in BOTH]


def resumed(deployed: DeployedCluster) -> None:
    done = deployed.run("deploy", "--resume", "--json", *AT_ONCE)
    assert (done.json["ok"], done.json["ready"]) == (True, list(BOTH))
    assert workers(deployed) == [done.json["images"]["worker"]] * 2
    assert deployed.nodes() == {"n1": "idle", "n2": "idle"}
    code, error = deployed.refused("deploy", "--resume")
    assert (code, error) == (2, "nothing-to-resume")


def test_a_node_dies_and_the_other_goes_on(deployed: DeployedCluster, update: Update) -> None:
    before = workers(deployed)
    update.comes_to_the_middle()
    engine("kill", deployed.power("n2"))
    died = time.monotonic()
    said = update.end(1)
    print(f"ended {time.monotonic() - died:.1f} s after the node had died: {said['failed']}")
    assert (said["changed"], list(said["failed"])) == (["n1"], ["n2"])
    assert deployed.containers("n1")["rocstack-worker"][1] == said["images"]["worker"] != before[0]
    assert deployed.nodes()["n1"] == "idle"
    deployed.run("local", "up", "--nodes", "2")
    resumed(deployed)


def test_the_registry_dies(deployed: DeployedCluster, update: Update) -> None:
    update.comes_to_the_middle()
    deployed.ssh("n1", "docker kill rocstack-registry")
    time.sleep(3)
    deployed.ssh("n1", "docker start rocstack-registry")
    said = update.end(0)
    assert (said["failed"], said["ready"]) == ({}, list(BOTH))
    assert workers(deployed) == [said["images"]["worker"]] * 2


def test_a_node_is_cut_off_for_a_moment(deployed: DeployedCluster, update: Update) -> None:
    update.comes_to_the_middle()
    deployed.run("local", "cut", "n2")
    time.sleep(8)
    deployed.run("local", "heal", "n2")
    said = update.end(0)
    assert (said["failed"], said["ready"]) == ({}, list(BOTH))


def left_behind(deployed: DeployedCluster) -> list[str]:
    """Processes of ours that still speak to a node, but for ssh's shared connections, which end by themselves."""
    mine = str(deployed.workspace.folder / INVENTORY.parent)
    said = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if mine in line and "[mux]" not in line]


def test_a_person_stops_it_twice(deployed: DeployedCluster, update: Update) -> None:
    update.comes_to_the_middle()
    update.process.send_signal(signal.SIGINT)
    _, err = update.process.communicate(timeout=60)
    assert update.process.returncode == 130, err
    assert "run the same command again to continue" in err
    assert left_behind(deployed) == []

    again = deployed.workspace.start("deploy", "--resume", "--json", *AT_ONCE)
    log = deployed.workspace.folder / ".rocstack/deploy/ansible.log"
    until(lambda: "TASK [Containers]" in log.read_text(), 90, most_s=0.2)  # the workers are being replaced
    again.send_signal(signal.SIGINT)
    _, err = again.communicate(timeout=60)
    assert again.returncode == 130, err
    assert left_behind(deployed) == []
    resumed(deployed)
