"""`rocstack probe` over SSH: virtual nodes with sshd, one of them with a fault; and this host without root."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from workspace import REPO, Workspace, engine

INVENTORY = ".rocstack/local/inventory.yml"
needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh client")
PYTHON = shutil.which("python3", path="/usr/bin")


@pytest.fixture(scope="module")
def cluster(base: str, prefix: str, made: set[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Two virtual nodes; on n2 a port is down."""
    workspace = Workspace(tmp_path_factory.mktemp("probe"), prefix, made=made)
    try:
        up = workspace.run("local", "up", "--nodes", "2", "--fault", "n2:port-down=bnxt_re3", "--json")
        assert up.code == 0, up.err + up.out
        yield workspace
    finally:
        assert workspace.run("local", "down", "--json").code == 0


def changes(workspace: Workspace) -> dict[str, set[str]]:
    """Node -> what differs from its image."""
    return {node: set(engine("diff", ident).stdout.splitlines()) for node, ident in workspace.nodes().items()}


@pytest.mark.engine
@needs_ssh
def test_nodes_are_read_in_one_round_and_stay_as_they_are(cluster: Workspace) -> None:
    log = cluster.folder / "ssh.log"
    wrapper = cluster.folder / "ssh"
    wrapper.write_text(f'#!/bin/sh\necho "$*" >>{log}\nexec ssh "$@"\n')
    wrapper.chmod(0o755)
    before = changes(cluster)
    done = cluster.with_env(ANSIBLE_SSH_EXECUTABLE=str(wrapper)).run(
        "probe", INVENTORY, "--json", "--out", "nodes.json"
    )
    assert done.code == 0, done.err
    assert len(log.read_text().splitlines()) == 2, "one command over one connection for each node"
    assert changes(cluster) == before
    found = json.loads((cluster.folder / "nodes.json").read_text())
    assert done.json == found
    jsonschema.validate(found, json.loads((REPO / "docs" / "node-profile.schema.json").read_text()))
    first, second = found["profiles"]
    assert (first["name"], second["name"]) == ("n1", "n2")
    assert first["virtual"] == second["virtual"] == "mi300x-thor2"
    assert [gpu["gfx"] for gpu in first["gpus"]] == ["gfx942"] * 8
    assert {device["kernel_abi"] for device in first["verbs"]} == {6}
    assert states(first) == {"ACTIVE": 8}
    assert states(second) == {"ACTIVE": 7, "DOWN": 1}
    assert all(gpu["render_minor"] for gpu in first["gpus"])
    assert len(first["affinity"]) == 8


def states(profile: dict[str, Any]) -> dict[str, int]:
    found = [port["state"] for device in profile["verbs"] for port in device["ports"]]
    return {state: found.count(state) for state in found}


@pytest.mark.engine
@needs_ssh
def test_what_a_person_sees(cluster: Workspace) -> None:
    done = cluster.run("probe", INVENTORY)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert all("(virtual mi300x-thor2)" in line for line in lines[1:3])
    assert "1 of 8 RDMA ports not active" in lines[2]
    assert any(line.startswith("RDMA ports: ") for line in lines)
    env = cluster.run("probe", INVENTORY, "--env")
    assert "NCCL_IB_HCA==bnxt_re0:1,bnxt_re1:1,bnxt_re2:1,bnxt_re3:1,bnxt_re4:1" in env.out
    assert "NCCL_IB_HCA==bnxt_re0:1,bnxt_re1:1,bnxt_re2:1,bnxt_re4:1" in env.out, "n2 does without its dead port"
    assert "differs" in env.err


@pytest.mark.engine
@needs_ssh
def test_a_recording_of_a_node_over_ssh_replays(cluster: Workspace) -> None:
    done = cluster.run("probe", INVENTORY, "--record", "masked", "--json")
    assert done.code == 0, done.err
    text = "".join(file.read_text() for file in (cluster.folder / "masked").glob("*.json"))
    addresses = {a["address"].partition("/")[0] for node in done.json["profiles"] for a in node["addresses"]}
    assert addresses
    assert [a for a in addresses if a in text and not a.startswith("127.")] == []
    again = cluster.run("probe", "--replay", "masked", "--json").json["profiles"]
    for one, other in zip(done.json["profiles"], again, strict=True):
        assert [gpu["pci"] for gpu in one["gpus"]] == [gpu["pci"] for gpu in other["gpus"]]
        assert states(one) == states(other)


@pytest.mark.engine
@needs_ssh
def test_an_unknown_host_key_is_a_reason_and_no_question(cluster: Workspace) -> None:
    inventory = (cluster.folder / INVENTORY).read_text()
    address = re.findall(r"ansible_host: (\S+?)}", inventory)[0]
    key = cluster.folder / ".rocstack/local/id_ed25519"
    (cluster.folder / "unknown").write_text(
        f"n1 ansible_host={address} ansible_user=root ansible_ssh_private_key_file={key} "
        "ansible_ssh_common_args='-F none -o UserKnownHostsFile=/dev/null'\n"
    )
    fresh = cluster.with_env(ANSIBLE_SSH_CONTROL_PATH_DIR=str(cluster.folder / "cp"))
    done = fresh.run("probe", "unknown", timeout=60)
    assert done.code == 1
    assert "n1: unreachable: Host key verification failed." in done.err


@pytest.mark.engine
@needs_ssh
def test_a_stopped_node_is_named_and_the_others_are_read(cluster: Workspace) -> None:
    engine("stop", "--time", "0", cluster.nodes()["n2"])
    done = cluster.run("probe", INVENTORY, "--json")
    assert done.code == 1
    assert [node["name"] for node in done.json["profiles"]] == ["n1"]
    assert "n2: unreachable: " in done.err


@pytest.mark.skipif(os.geteuid() != 0 or PYTHON is None, reason="only root can try to be nobody")
def test_it_works_without_root() -> None:
    code = "import json; from node.collect import collect; print(json.dumps(collect('/')))"
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(REPO / "cli/rocstack/node", Path(folder, "node"), ignore=shutil.ignore_patterns("__pycache__"))
        Path(folder).chmod(0o755)
        done = subprocess.run(
            [str(PYTHON), "-c", code],
            cwd=folder,
            user=65534,
            group=65534,
            extra_groups=[],
            env={"PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["files"]["/proc/sys/kernel/osrelease"] == Path("/proc/sys/kernel/osrelease").read_text()
    assert all(isinstance(why, str) and why for why in found["unread"].values())
