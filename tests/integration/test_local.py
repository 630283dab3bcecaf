"""`rocstack local`: node containers that answer over SSH, changed, healed and removed."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from workspace import STACK, Workspace, engine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh client"),
]
LABEL = "io.rocstack.local"


def ssh(workspace: Workspace, node: str, command: str) -> str:
    """What a person gets who uses the written configuration."""
    config = workspace.folder / ".rocstack/local/ssh_config"
    done = subprocess.run(["ssh", "-F", str(config), node, command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def containers(workspace: Workspace) -> dict[str, str]:
    """Node name -> id of the containers whose names begin with this run's prefix and that are labelled."""
    form = f'{{{{.Label "{LABEL}.node"}}}} {{{{.ID}}}} {{{{.Label "{LABEL}"}}}}'
    lines = engine("ps", "--all", "--no-trunc", "--filter", f"name=^{workspace.prefix}-local", "--format", form).stdout
    return {words[0]: words[1] for words in map(str.split, lines.splitlines())}


def disks(workspace: Workspace) -> set[str]:
    """The nodes whose disks are there."""
    form = f'{{{{.Label "{LABEL}.node"}}}}'
    return set(engine("volume", "ls", "--filter", f"name=^{workspace.prefix}-local", "--format", form).stdout.split())


def networks(workspace: Workspace) -> list[str]:
    return engine(
        "network", "ls", "--filter", f"name=^{workspace.prefix}-local", "--format", "{{.Name}}"
    ).stdout.split()


def nodes(outcome: Any) -> dict[str, Any]:
    assert outcome.code == 0, outcome.err + outcome.out
    return {node["name"]: node for node in outcome.json["nodes"]}


@pytest.fixture
def cluster(private_workspace: Workspace) -> Iterator[Workspace]:
    """A folder whose cluster is removed in the end, with the image that it needed."""
    yield private_workspace
    done = private_workspace.run("local", "down", "--all", "--json")
    assert done.code == 0, done.err
    assert containers(private_workspace) == {}
    assert networks(private_workspace) == []
    assert disks(private_workspace) == set()


def test_two_nodes_up_changed_healed_and_down(cluster: Workspace) -> None:
    """One life of a cluster, in one test: each step begins where the last one ended."""
    workspace = cluster
    first = workspace.run("local", "up", "--nodes", "2", "--json")
    up = nodes(first)
    assert {name: (n["virtual"], n["model"], n["gpus"], n["nics"], n["reachable"]) for name, n in up.items()} == {
        "n1": (True, "mi300x-thor2", 8, 8, True),
        "n2": (True, "mi300x-thor2", 8, 8, True),
    }

    # What a node looks like from the inside.
    assert ssh(workspace, "n2", "hostname").strip() == "n2"
    assert ssh(workspace, "n1", "cat /sys/devices/virtual/rocstack/model").strip() == "mi300x-thor2"
    assert len(ssh(workspace, "n1", "lspci -d 1002:74a1").splitlines()) == 8
    assert ssh(workspace, "n1", "test -c /dev/kfd && stat -c %G /dev/kfd").strip() == "render"
    assert len(ssh(workspace, "n1", "ls /dev/infiniband/uverbs* /dev/dri/renderD*").splitlines()) == 16
    assert "virtual node n1" in ssh(workspace, "n1", "cat /etc/motd")
    assert ssh(workspace, "n1", "ip -4 -o addr show dev eno1").split()[3] == f"{up['n1']['address']}/24"
    assert "1 received" in ssh(workspace, "n1", "ping -c 1 -W 5 n2")
    assert "Python 3" in ssh(workspace, "n1", "python3 --version")
    assert ssh(workspace, "n1", "docker version --format '{{.Server.Version}}'").strip() == up["n1"]["engine"]

    # The inventory is one that Ansible reads; its key is for nobody else.
    local = workspace.folder / ".rocstack/local"
    inventory = local / "inventory.yml"
    workers = yaml.safe_load(inventory.read_text())["all"]["children"]["workers"]["hosts"]
    assert {name: host["ansible_host"] for name, host in workers.items()} == {n: up[n]["address"] for n in ("n1", "n2")}
    assert (local / "id_ed25519").stat().st_mode & 0o777 == 0o600
    assert first.json["inventory"] == str(inventory)
    other_key = (local / "known_hosts").read_text().splitlines()
    assert len({line.split()[2] for line in other_key}) == 2, "each node has a host key of its own"

    # The same again changes nothing.
    before = containers(workspace)
    assert set(nodes(workspace.run("local", "up", "--nodes", "2", "--json"))) == {"n1", "n2"}
    assert containers(workspace) == before

    # A node that died is started again, one that was removed is made again, under the same addresses.
    engine("kill", before["n1"])
    engine("rm", "--force", before["n2"])
    down = workspace.run("local", "status", "--json")
    assert down.code == 1
    assert [(n["name"], n["state"], n["reachable"]) for n in down.json["nodes"]] == [("n1", "exited", False)]
    healed = nodes(workspace.run("local", "up", "--nodes", "2", "--json"))
    assert {name: node["address"] for name, node in healed.items()} == {n: up[n]["address"] for n in ("n1", "n2")}
    assert containers(workspace)["n1"] == before["n1"]
    assert ssh(workspace, "n1", "ls /sys/class/infiniband").split() == [f"bnxt_re{i}" for i in range(8)]

    # Another wish changes only the node that it is about.
    before = containers(workspace)
    changed = nodes(workspace.run("local", "up", "--nodes", "3", "--fault", "n2:port-down=bnxt_re3", "--json"))
    assert {name: node["faults"] for name, node in changed.items()} == {
        "n1": [], "n2": ["port-down=bnxt_re3"], "n3": [],
    }  # fmt: skip
    after = containers(workspace)
    assert (after["n1"] == before["n1"], after["n2"] == before["n2"]) == (True, False)
    state = "cat /sys/class/infiniband/bnxt_re3/ports/1/state"
    assert [ssh(workspace, name, state).strip() for name in ("n1", "n2")] == ["4: ACTIVE", "1: DOWN"]

    # Fewer nodes, another model.
    fewer = nodes(workspace.run("local", "up", "--nodes", "1", "--model", "mi250x-slingshot", "--json"))
    assert {name: node["model"] for name, node in fewer.items()} == {"n1": "mi250x-slingshot"}
    assert set(containers(workspace)) == {"n1"}
    assert disks(workspace) == {"n1", "n2", "n3"}, "those that were left out keep theirs"
    assert ssh(workspace, "n1", "ls /dev").split().count("cxi0") == 1

    # Down takes what is the cluster's, and nothing else.
    mine = local / "notes.txt"
    mine.write_text("mine")
    (local / "rocstack-secrets.yml").write_text("keys of what was deployed there\n")
    removed = workspace.run("local", "down", "--json")
    assert removed.json == {
        "schema": 1,
        "virtual": True,
        "removed": {"nodes": 1, "disks": 3, "networks": 1, "files": 8, "images": 0},
    }
    assert [path.name for path in local.iterdir()] == ["notes.txt"]
    again = workspace.run("local", "down")
    assert (again.code, again.out.strip()) == (0, "no virtual cluster here: nothing to remove")
    missing = workspace.run("local", "status", "--json")
    assert (missing.code, missing.json["error"]["code"]) == (3, "no-cluster")
    assert engine("images", "--quiet", f"{workspace.prefix}/node").stdout.strip(), "the image stays for the next time"


def ask(workspace: Workspace, *command: str) -> Any:
    done = workspace.run("local", *command, "--json")
    assert done.code == 0, done.err + done.out
    return done.json


def comes(workspace: Workspace, command: str, wanted: str) -> None:
    until = time.monotonic() + 30
    while (said := ssh(workspace, "n1", command).strip()) != wanted:
        assert time.monotonic() < until, f"{said!r} is not {wanted!r}"
        time.sleep(0.3)


def test_a_node_runs_containers_that_survive_what_happens_to_it(cluster: Workspace) -> None:
    """One life of a node's engine: its containers see the virtual hardware, and are back after each bad day."""
    workspace = cluster
    nodes(workspace.run("local", "up", "--nodes", "1", "--json"))
    image = next(tag for tag in engine("images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
                 if tag.startswith(f"{workspace.prefix}/base:"))  # fmt: skip
    config = workspace.folder / ".rocstack/local/ssh_config"
    ship = f"docker save {image} | ssh -F {shlex.quote(str(config))} n1 docker load"
    assert subprocess.run(ship, shell=True, capture_output=True, text=True, check=True).stdout.strip().endswith(image)

    # The virtual hardware is handed on; cgroups are the node's own; the network behind the bridge works.
    flags = (
        "--init --network host --ipc host -v /sys:/sys:ro -v /sys/fs/cgroup:/sys/fs/cgroup -v /etc/rocstack:/given:ro"
    )
    ssh(workspace, "n1", "echo ours >/etc/rocstack/file")
    ssh(
        workspace,
        "n1",
        f"docker run -d --name job --privileged --restart unless-stopped {flags} {image} sleep infinity",
    )
    seen = "ls /sys/class/infiniband | wc -l; ls -d /sys/fs/cgroup/*/ >/dev/null && cat /given/file; ls /dev/kfd"
    assert ssh(workspace, "n1", f'docker exec job sh -c "{seen}"').split() == ["8", "ours", "/dev/kfd"]
    assert len(ssh(workspace, "n1", "docker exec job cat /proc/self/cgroup").splitlines()[0].split("/")) <= 3
    dial = f"echo >/dev/tcp/{ssh(workspace, 'n1', 'hostname -i').strip()}/22 && echo through"
    assert ssh(workspace, "n1", f"docker run --rm {image} bash -c '{dial}'").strip() == "through"

    running = "docker ps --format '{{.Names}}'"
    boot = "cat /proc/sys/kernel/random/boot_id"
    first = ssh(workspace, "n1", boot)
    ssh(workspace, "n1", "touch /run/left-over")
    assert ask(workspace, "reboot", "n1")["engine"]
    comes(workspace, running, "job")
    assert ssh(workspace, "n1", boot) != first
    assert ssh(workspace, "n1", "ls /run").count("left-over") == 0

    engine("kill", containers(workspace)["n1"])  # the power
    nodes(workspace.run("local", "up", "--nodes", "1", "--json"))
    comes(workspace, running, "job")

    ssh(workspace, "n1", "pkill -9 dockerd")
    comes(
        workspace,
        "docker version --format '{{.Server.Version}}' 2>/dev/null || true",
        ask(workspace, "heal", "n1")["engine"],
    )
    ssh(workspace, "n1", "docker start job")

    # Another card in the server: its disk is the same.
    before = containers(workspace)["n1"]
    nodes(workspace.run("local", "up", "--nodes", "1", "--fault", "gpu-missing=3", "--json"))
    assert containers(workspace)["n1"] != before
    comes(workspace, running, "job")
    assert ssh(workspace, "n1", "docker exec job sh -c 'cat /given/file; ls /dev/dri | wc -l'").split() == [
        "ours",
        "14",
    ]


def test_a_node_is_cut_off_and_healed(cluster: Workspace) -> None:
    nodes(cluster.run("local", "up", "--nodes", "1", "--json"))
    assert ask(cluster, "cut", "n1") == {"schema": 1, "virtual": True, "cut": "n1"}
    cut = cluster.run("local", "status", "--json")
    assert (cut.code, [(n["state"], n["reachable"]) for n in cut.json["nodes"]]) == (1, [("running", False)])
    assert ask(cluster, "heal", "n1")["reachable"]
    route = ssh(cluster, "n1", "ip -4 route show default")
    ask(cluster, "cut", "n1")
    engine("pause", containers(cluster)["n1"])
    asked = cluster.run("local", "cut", "n1", "--json")
    assert (asked.code, asked.json["error"]["what"]) == (1, "virtual node n1: it is paused")
    nodes(cluster.run("local", "up", "--nodes", "1", "--json"))
    assert ssh(cluster, "n1", "ip -4 route show default") == route
    wrong = cluster.run("local", "reboot", "n2", "--json")
    assert (wrong.code, wrong.json["error"]["code"]) == (2, "unknown-node")
    assert wrong.json["error"]["what"] == "no virtual node 'n2': known: n1"


def test_two_folders_have_two_clusters(cluster: Workspace, tmp_path: Path) -> None:
    other = Workspace(tmp_path / "the other one", cluster.prefix)
    other.folder.mkdir()
    here = nodes(cluster.run("local", "up", "--nodes", "1", "--json"))
    try:
        there = nodes(other.run("local", "up", "--nodes", "1", "--model", "mixed-broken", "--json"))
        assert here["n1"]["address"] != there["n1"]["address"]
        assert ssh(other, "n1", "ip -4 -o addr show dev bond0").split()[3] == f"{there['n1']['address']}/24"
    finally:
        done = other.run("local", "down", "--json")
    assert done.json["removed"]["nodes"] == 1
    assert ssh(cluster, "n1", "hostname").strip() == "n1", "the first one still runs"


def test_an_interrupted_start_leaves_nothing_that_down_cannot_remove(cluster: Workspace) -> None:
    nodes(cluster.run("local", "up", "--nodes", "1", "--json"))  # the image is there now
    process = cluster.start("local", "up", "--nodes", "4")
    until = time.monotonic() + 60
    while len(containers(cluster)) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopped" in err
    assert cluster.run("local", "down", "--json").json["removed"]["networks"] == 1
    assert containers(cluster) == {}
    assert not (cluster.folder / ".rocstack/local").exists()


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--model", "mi300-thor2"), "unknown-model", "did you mean 'mi300x-thor2'"),
        (("--fault", "gpu-mising=1"), "bad-fault", "did you mean 'gpu-missing'"),
        (("--fault", "n5:gpu-missing=1"), "bad-fault", "there is no node n5"),
        (("--nodes", "0"), "usage", "greater than or equal to 1"),
        (("--stack", "nothing"), "unknown-stack", "no stack 'nothing'"),
    ],
)
def test_bad_input_changes_nothing(private_workspace: Workspace, args: tuple[str, ...], code: str, says: str) -> None:
    done = private_workspace.run("local", "up", "--json", *args)
    error = done.json["error"]
    assert (done.code, error["code"]) == (2, code)
    assert says in error["what"]
    assert not (private_workspace.folder / ".rocstack").exists()
    assert containers(private_workspace) == {}


def test_models_and_faults_are_listed(private_workspace: Workspace) -> None:
    shown = private_workspace.run("local", "models", "--json").json
    assert {"mi300x-thor2", "mi250x-slingshot"} <= {model["name"] for model in shown["models"]}
    assert "port-down" in {fault["name"] for fault in shown["faults"]}
    assert json.dumps(shown).count("sources") == len(shown["models"])


def test_no_key_is_in_the_image(cluster: Workspace) -> None:
    nodes(cluster.run("local", "up", "--nodes", "1", "--json"))
    image = engine("images", "--format", "{{.Repository}}:{{.Tag}}", f"{cluster.prefix}/node").stdout.split()[0]
    assert f"/node:{STACK}-" in image
    found = engine("run", "--rm", "--entrypoint=find", image, "/etc/ssh", "/root", "-name", "*_key*")
    assert found.stdout == ""
    local = cluster.folder / ".rocstack/local"
    key = (local / "id_ed25519").read_text().splitlines()[1]
    (node,) = containers(cluster).values()
    assert key not in engine("inspect", node).stdout + engine("logs", node).stdout
