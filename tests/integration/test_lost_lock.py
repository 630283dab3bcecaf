"""A laptop sleeps in the middle of a deploy, another deploy takes over and ends, and the laptop wakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployed_cluster import DeployedCluster, until
from workspace import engine

from rocstack.deploy.read import journal

pytestmark = pytest.mark.engine

ONE_BY_ONE = ("--canary", "0", "--wave", "100%", "--failures", "2", "--forks", "1")
SLOW = "HEALTHCHECK --interval=5s CMD sleep 8 && rocstack-health"
SPEC = journal.lock()
FREE = f"flock --nonblock {SPEC.path} true && echo free || true"
# All that a deploy makes: containers with their starts, files with their contents.
STATE = (
    "docker ps --all --no-trunc --format '{{.ID}} {{.Names}} {{.Image}} {{.Status}}' | sed 's/ Up .*/ Up/' | sort;"
    " docker inspect --format '{{.State.StartedAt}}' $(docker ps --all --quiet) | sort;"
    " cat /var/lib/rocstack/*.json; find /etc/rocstack -type f | sort | xargs sha256sum"
)


def family(pid: int) -> list[int]:
    """The process and all that it has started; ssh's shared connections have left it."""
    children = [int(each) for task in Path(f"/proc/{pid}/task").iterdir() for each in read(task / "children").split()]
    return [pid, *(each for child in children for each in family(child))]


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def ansible(pids: list[int]) -> list[int]:
    return [pid for pid in pids if "ansible-playbook" in read(Path(f"/proc/{pid}/cmdline"))]


def state(deployed: DeployedCluster) -> dict[str, str]:
    return {node: deployed.ssh(node, STATE) for node in ("n1", "n2")}


def worker(deployed: DeployedCluster, node: str) -> str:
    return deployed.containers(node).get("rocstack-worker", ("", ""))[1]


@pytest.fixture
def images(deployed: DeployedCluster) -> Iterator[tuple[str, str]]:
    """Of the laptop, and of whoever comes then."""
    both = (deployed.image("asleep", SLOW), deployed.image("awake"))
    yield both
    deployed.run("deploy", *ONE_BY_ONE)
    deployed.idle()
    engine("rmi", *both, check=False)


def test_a_laptop_that_slept_changes_nothing(deployed: DeployedCluster, images: tuple[str, str]) -> None:
    before = worker(deployed, "n1")
    asleep_id = engine("image", "inspect", "--format", "{{.Id}}", images[0]).stdout.strip()
    laptop = deployed.workspace.start("deploy", "--json", "--image", images[0], *ONE_BY_ONE)
    asleep: list[int] = []
    try:
        until(lambda: worker(deployed, "n1") not in (before, ""), 300, laptop.poll, 0.3)  # and n2's turn comes then
        asleep = family(laptop.pid)
        for pid in asleep:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: deployed.ssh("n1", FREE) == "free\n", 90)
        assert worker(deployed, "n2") == before, "it sleeps before n2's turn"
        other = deployed.json("deploy", "--image", images[1], *ONE_BY_ONE)
        assert other["changed"] == ["n1", "n2"]
        now = state(deployed)

        # First all that it had begun, on which it can't look now: the nodes refuse it.
        for pid in asleep[1:]:
            os.kill(pid, signal.SIGCONT)
        until(lambda: not ansible(asleep[1:]) or refused(deployed), 120)
        time.sleep(2)  # what a node would do now
        assert state(deployed) == now
        # Then itself: it ends what still runs, and says why.
        os.kill(laptop.pid, signal.SIGCONT)
        out, err = laptop.communicate(timeout=60)
        assert laptop.returncode == 1, out + err
        error = json.loads(out)["error"]
        assert error["code"] == "lock-lost"
        assert "has not answered for" in error["what"] or "has ended" in error["what"]
        assert "status --history" in error["next"]
        assert state(deployed) == now
        slept, took_over = deployed.json("status", "--history")["deploys"][-2:]
        assert (slept["outcome"], slept["nodes"], slept["image"]) == ("interrupted", ["n1", "n2"], asleep_id)
        assert "nothing was heard" in slept["why"]
        assert (took_over["outcome"], took_over["nodes"]) == ("done", ["n1", "n2"])
        assert slept["fence"] < took_over["fence"]
        assert not any(Path(f"/proc/{pid}").exists() for pid in asleep)
        assert refused(deployed)
    finally:
        for pid in asleep:
            subprocess.run(["kill", "-CONT", str(pid)], check=False, capture_output=True)
        laptop.kill()
        laptop.wait()


def refused(deployed: DeployedCluster) -> bool:
    log = deployed.workspace.folder / ".rocstack/deploy/ansible.log"
    return "has taken the cluster's lock since" in log.read_text()
