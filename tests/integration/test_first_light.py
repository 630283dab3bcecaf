"""`rocstack first-light` on two virtual nodes that run what it would deploy: every step, the file without a name of
theirs, and what `replay` makes of it elsewhere."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deployed_cluster import INVENTORY, DeployedCluster, until

from rocstack.deploy.plan import secrets
from rocstack.verify import first_light

pytestmark = pytest.mark.engine

IDENTIFIERS = (
    "hostname; hostname -I; cat /sys/class/net/*/address /sys/class/infiniband/*/node_guid"
    " /sys/class/infiniband/*/ports/*/gids/0 /sys/class/drm/card*/device/unique_id 2>/dev/null; true"
)


def images(deployed: DeployedCluster) -> tuple[str, ...]:
    """Those that it runs."""
    reference = deployed.workspace.reference
    return "--nic", "tcp", "--image", reference("worker"), "--control-image", reference("control")


def texts(value: Any, key: str = "") -> Iterator[str]:
    """All of a JSON value; libraries' bytes, which are packed, are no text."""
    if isinstance(value, dict):
        yield from (name for name in value)
        yield from (text for name, each in value.items() if name != "blobs" for text in texts(each, name))
    elif isinstance(value, list):
        yield from (text for each in value for text in texts(each))
    elif isinstance(value, str):
        yield value


def identifiers(deployed: DeployedCluster) -> set[str]:
    """What names the nodes and whoever works with them: as they say it themselves, and as it stands here."""
    inventory = deployed.workspace.folder / INVENTORY
    said = {word for node in ("n1", "n2") for word in deployed.ssh(node, IDENTIFIERS).split()}
    keys = set(re.findall(r"[A-Za-z0-9+/=_-]{16,}", secrets.beside(inventory).read_text()))
    known = {"n1", "n2", "alice", str(deployed.workspace.folder), str(Path.home())} | said | keys
    zeros = {word for word in known if not word.strip("0:f.") or word in ("/root", "localhost", "127.0.0.1")}
    return {word for word in known - zeros if len(word) > 1}


@pytest.mark.usefixtures("unverified")
def test_every_step_once_and_a_file_that_names_nobody(deployed: DeployedCluster, tmp_path: Path) -> None:
    file = tmp_path / "light.json.gz"
    before = [deployed.containers(node) for node in ("n1", "n2")]
    done = deployed.run("first-light", *images(deployed), "--level", "0", "--out", str(file), "--json")
    steps = {step["name"]: step for step in done.json["steps"]}
    states = {name: step["state"] for name, step in steps.items()}
    finished = dict.fromkeys(("probe", "deploy", "verify", "training"), "done")
    assert states == {**finished, "build": "skipped", "rccl-tests": "skipped"}, done.err
    assert done.json["virtual"], "that it is no hardware is said"
    assert [deployed.containers(node) for node in ("n1", "n2")] == before, "what ran there was changed"

    light = first_light.read(file)
    training = next(step for step in light.steps if step.name == "training")
    assert "done: step 20" in training.log
    assert [node.recording.host for node in light.nodes] == ["node-1", "node-2"]
    whole = list(texts(json.loads(light.model_dump_json(by_alias=True))))
    for name in identifiers(deployed):
        pattern = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])")
        assert [text[:200] for text in whole if pattern.search(text)] == [], name
        blobs = [data for node in light.nodes for data in node.recording.blobs.values()]
        assert len(name) < 6 or not any(name.encode() in data for data in blobs), name

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    out = elsewhere / "unpacked"
    replayed = deployed.json("replay", str(file), "--out", str(out))
    assert replayed["differences"] == []
    assert replayed["checks"] > 5
    profiles = deployed.json("probe", "--replay", str(out / "nodes"))["profiles"]
    assert [len(node["gpus"]) for node in profiles] == [8, 8]
    again = deployed.json("verify", "--evidence", str(out), "--level", "0", "--report", str(tmp_path / "again"))
    assert [each["state"] for each in again["results"]] == [each["state"] for each in light.report["results"]]


@pytest.mark.usefixtures("unverified")
def test_an_interrupt_leaves_what_there_is(deployed: DeployedCluster, tmp_path: Path) -> None:
    file = tmp_path / "light.json.gz"
    process = deployed.workspace.start("first-light", *images(deployed), "--level", "1", "--out", str(file))
    try:
        until(lambda: file.exists() and len(first_light.read(file).steps) >= 2, 300)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert f"what was done until then is in {file}" in err
    light = first_light.read(file)
    states = [(step.name, step.state) for step in light.steps]
    assert states[:2] == [("probe", "done"), ("build", "skipped")]
    assert states[-1][1] == "interrupted"
    assert len(light.nodes) == 2
    code, error = deployed.refused("first-light", "--out", str(file))
    assert (code, error) == (2, "not-empty"), "a file that nobody can make again is not overwritten"
    deployed.idle()
