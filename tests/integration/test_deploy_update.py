"""Updates of a deployed cluster: under a running job, broken, healed, and back."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from deployed_cluster import INVENTORY, DeployedCluster, until
from workspace import engine, inspect

pytestmark = pytest.mark.engine

BOTH = ("n1", "n2")


def worker(deployed: DeployedCluster, node: str) -> tuple[str, str]:
    """The worker's container and image."""
    return deployed.containers(node).get("rocstack-worker", ("", ""))


@contextlib.contextmanager
def process_lists(words: list[str]) -> Iterator[list[str]]:
    """Command lines and environments with one of these words, of all processes here and on the nodes meanwhile."""
    seen: list[str] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.1):
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    text = (process / "cmdline").read_bytes().decode(errors="replace")
                    seen.extend(text for word in words if word in text)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def second(deployed: DeployedCluster) -> Iterator[str]:
    """The worker image with one small layer more, which is what a change of the trainer makes."""
    image = deployed.image("second")
    yield image
    engine("rmi", image, check=False)


def test_an_update_under_a_running_job(deployed: DeployedCluster, second: str) -> None:
    before, now = worker(deployed, "n2"), inspect(second)["Id"]
    script = "until [ -e /tmp/enough ]; do sleep 0.2; done"
    job = deployed.slurm(f"sbatch --parsable --nodelist=n2 --output=/dev/null --wrap '{script}'").strip()
    until(lambda: deployed.jobs()[int(job)] == "RUNNING", 30)
    keys = yaml.safe_load((deployed.workspace.folder / INVENTORY.with_name("rocstack-secrets.yml")).read_text())
    with process_lists([keys["registry_password"], keys["database_password"]]) as seen:
        process = deployed.workspace.start("deploy", "--json", "--image", second)
        try:
            until(lambda: "drain" in deployed.nodes()["n2"], 120, deployed.nodes)
            assert worker(deployed, "n1")[1] == now, "the canary has it"
            assert worker(deployed, "n2") == before, "the job's node runs on"
            assert deployed.nodes() == {"n1": "idle", "n2": "draining: rocstack: update"}
            assert now[7:19] in deployed.ssh("n2", "docker images --quiet"), "shipped while the job ran"
            other = deployed.workspace.run("deploy", "--image", second)
            assert other.code == 1
            assert "another deploy of this cluster is running: " in other.err
            assert f"(process {process.pid}) since 20" in other.err
            assert deployed.jobs()[int(job)] == "RUNNING"
            deployed.ssh("n2", "docker exec rocstack-worker touch /tmp/enough")
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, err + out
    said = json.loads(out)
    assert (said["ok"], said["changed"], said["ready"]) == (True, list(BOTH), list(BOTH))
    assert all(row["bytes"] < 2e6 for row in said["shipped"]), said["shipped"]
    assert said["published"]["bytes_sent"] < 2e6
    assert [worker(deployed, node)[1] for node in BOTH] == [now, now]
    accounted = "sacct --noheader --parsable2 --allocations --format=State,ExitCode,Restarts,NodeList --job"
    assert deployed.slurm(f"{accounted} {job}").strip() == "COMPLETED|0:0|0|n2"
    assert deployed.nodes() == {"n1": "idle", "n2": "idle"}
    assert seen == [], "keys are in no process list"


def test_back(deployed: DeployedCluster, second: str) -> None:
    before = inspect(deployed.workspace.reference("worker"))["Id"]
    plan = deployed.json("rollback", "--plan")
    assert {change["kind"] for node in plan["nodes"] for change in node["changes"]} == {"replace"}
    deployed.ssh("n1", "docker pause rocstack-registry")  # not needed for it, and in order afterwards
    done = deployed.run("rollback", "--json")
    assert "rocstack-registry" in {row["what"] for row in done.json["plan"]["nodes"][0]["changes"]}
    assert deployed.ssh("n1", "docker inspect --format '{{.State.Status}}' rocstack-registry") == "running\n"
    assert (done.json["ok"], done.json["shipped"], done.json["changed"]) == (True, [], list(BOTH))
    assert "back to the release of 20" in done.err
    assert [worker(deployed, node)[1] for node in BOTH] == [before, before]
    deployed.idle()


def test_a_broken_image_stops_at_the_canary_and_the_next_heals(deployed: DeployedCluster) -> None:
    before = {node: deployed.containers(node) for node in BOTH}
    broken = deployed.image("broken", 'ENTRYPOINT ["sh", "-c", "echo no such library; exit 3"]')
    done = deployed.workspace.run("deploy", "--image", broken)
    assert done.code == 1, done.err + done.out
    assert "failed n1: rocstack-worker ended" in done.out
    assert "exit code 3: no such library (the previous container runs again)" in done.out
    assert "not reached: n2" in done.out
    assert "stopped: " in done.out
    assert "canary" in done.out
    assert {node: deployed.containers(node) for node in BOTH} == before
    until(lambda: deployed.nodes()["n1"].startswith("drained: rocstack: "), 30, deployed.nodes)
    assert deployed.nodes()["n2"] == "idle"
    assert deployed.ssh("n1", "docker ps --all --quiet --filter name=old") == ""

    journal = json.loads(deployed.ssh("n1", "cat /var/lib/rocstack/deploy.json"))
    assert journal["current"]["nodes"]["n1"]["step"] == "failed"
    good = deployed.run("deploy", "--json").json
    assert (good["ok"], good["ready"]) == (True, list(BOTH))
    assert {node: deployed.containers(node) for node in BOTH} == before
    assert deployed.nodes() == {"n1": "idle", "n2": "idle"}
    engine("rmi", broken)
