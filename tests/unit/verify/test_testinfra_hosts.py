"""Which nodes pytest's `--hosts` means, and by which way they are reached afterwards."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocstack.base.errors import BadInput
from rocstack.deploy.read import inventory as inventories
from rocstack.deploy.read.facts import Gathered
from rocstack.deploy.state.cluster_state import ClusterState
from rocstack.edge import ssh
from rocstack.probe.recordings import ProbeFailure
from rocstack.verify import session, suite, testinfra_hosts
from rocstack.verify.deployed_cluster import DeployedCluster, likeliest
from rocstack.verify.session import Suite

BOTH, WORKER = ("/rocstack-control n1", "/rocstack-worker n1"), ("/rocstack-worker n2",)


@pytest.fixture
def edge(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Address -> the lines with which it answers, or (exit status, what it complains); "asked": ssh's words."""
    answers: dict[str, Any] = {"asked": {}}

    def captured(words: Sequence[str], seconds: float) -> Any:
        line = shlex.split(words[-1])
        name = next(word for word in line[1:] if word in answers)
        answers["asked"][name] = line[1:-2]
        said = answers[name]
        code, out, err = (said[0], "", said[1]) if said and isinstance(said[0], int) else (0, "\n".join(said), "")
        return subprocess.CompletedProcess(words, code, out.encode(), err.encode())

    monkeypatch.setattr(ssh, "captured", captured)
    return answers


def made(named: str, folder: Path, config: str | None = None, identity: str | None = None) -> dict[str, Any]:
    """By node: its variables, and under "groups" the names of each."""
    path = testinfra_hosts.inventory_of(named, folder, config, identity)
    groups = {group: each["hosts"] for group, each in json.loads(path.read_text()).items()}
    return {**groups["control"], **groups["workers"], "groups": {group: list(nodes) for group, nodes in groups.items()}}


def refused(named: str, folder: Path) -> BadInput:
    with pytest.raises(BadInput) as raised:
        testinfra_hosts.inventory_of(named, folder, None, None)
    assert raised.value.code == "bad-hosts"
    assert not list(folder.iterdir())
    return raised.value


def test_the_host_with_our_controller_is_the_control_node(edge: dict[str, Any], tmp_path: Path) -> None:
    edge |= {"n1": BOTH, "n2": WORKER, "login": ()}
    found = made("ssh://n1, ssh://n2,ssh://login,ssh://n1", tmp_path)
    assert found["groups"] == {"control": ["n1"], "workers": ["n1", "n2"]}
    assert (found["n1"], found["n2"]) == ({"ansible_host": "n1"}, {"ansible_host": "n2"})
    assert "BatchMode=yes" in edge["asked"]["n1"], "nobody is asked anything"


def test_nodes_are_called_as_slurm_calls_them(edge: dict[str, Any], tmp_path: Path) -> None:
    edge |= {"10.0.0.1": BOTH, "fd00::2": WORKER}
    found = made("ssh://10.0.0.1,ssh://[fd00::2]:2222", tmp_path)
    assert found["groups"] == {"control": ["n1"], "workers": ["n1", "n2"]}
    assert found["n2"] == {"ansible_host": "fd00::2", "ansible_port": 2222}


def test_they_are_reached_as_they_were_named(
    edge: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ansible, and then our own ssh, read what was written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    edge |= {"gate": BOTH, "far": WORKER}
    path = testinfra_hosts.inventory_of("ssh://ann@gate:2201?sudo=true,ssh://root@far", tmp_path, "my config", "~/key")
    ssh_hosts = ssh.ssh_hosts(path)
    words = ssh_hosts["n1"].argv(["true"])
    assert words[-2:] == ["gate", "sudo -n -u root true"]
    assert {f'IdentityFile="{tmp_path / "key"}"', 'User="ann"', "Port=2201"} <= {*words}
    assert words[words.index("-F") + 1] == str(tmp_path / "my config")
    assert ssh_hosts["n2"].argv(["true"])[-2:] == ["far", "true"]
    assert {"Port=2201", "-i", str(tmp_path / "key"), str(tmp_path / "my config")} <= {*edge["asked"]["gate"]}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((255, "Warning: x\nssh: connect to host n2 port 22: No route to host"), "ssh://n2: ssh: connect to host n2"),
        ((1, "permission denied while trying to connect to the Docker daemon"), "ssh://n2: permission denied while"),
        ((255, ""), "it gave no reason (exit status 255)"),
    ],
)
def test_a_host_that_does_not_answer_is_named(answer: Any, says: str, edge: dict[str, Any], tmp_path: Path) -> None:
    edge |= {"n1": BOTH, "n2": answer}
    error = refused("ssh://n1,ssh://n2", tmp_path)
    assert says in error.what
    assert "`ssh n2 docker ps`" in str(error.next_step)


@pytest.mark.parametrize(
    ("answers", "says"),
    [("yes", "an answer of more than"), ("exec sleep 600", "no answer within"), ("head -c 9000 /dev/zero >&2", "\0")],
)
def test_a_host_that_answers_without_an_end_is_named(
    answers: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text(f"#!/bin/sh\n{answers}\nexit 1\n")
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "made").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(ssh, "LONGEST", 10_000)
    monkeypatch.setattr(testinfra_hosts, "_SECONDS", -29.0)  # and 30 more for ssh itself
    error = refused("ssh://n1", tmp_path / "made")
    assert says in error.what
    assert len(error.what) < 400


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("ssh://n2", "no controller of ours"),
        ("ssh://head", "no worker of ours"),
        ("ssh://n2,docker://n1", "docker://n1: nodes are reached by ssh"),
        ("ansible://all", "ansible://all: nodes are reached by ssh"),
        ("n1", "--hosts=n1: nodes are reached by ssh"),
    ],
)
def test_what_is_no_cluster(named: str, says: str, edge: dict[str, Any], tmp_path: Path) -> None:
    edge |= {"n2": WORKER, "head": ("/rocstack-control head",)}
    assert says in refused(named, tmp_path).what


LIARS = {
    "another worker": ("/rocstack-worker n1",),
    "in other letters": ("/rocstack-worker N1",),
    "the control node": ("/rocstack-worker n2", "/rocstack-control c1"),
    "a second control node": ("/rocstack-worker n2", "/rocstack-control c2"),
    "the control node's name": ("/rocstack-worker c1",),
}
BAD_NAMES = ("n[1:200000]", "n[1-9]", "n1,n2", "", "all", "-x", "n 1", "{{ x }}", "../n1", "n" * 64)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("lie", LIARS)
def test_a_host_does_not_take_another_ones_place(lie: str, last: bool, edge: dict[str, Any], tmp_path: Path) -> None:
    edge |= {"n1h": ("/rocstack-worker n1",), "c1h": ("/rocstack-control c1",), "n2h": LIARS[lie]}
    error = refused("ssh://c1h,ssh://n1h,ssh://n2h" if last else "ssh://n2h,ssh://n1h,ssh://c1h", tmp_path)
    assert "both say that they are" in error.what
    assert "ssh://n2h" in error.what


@pytest.mark.parametrize("container", ["worker", "control"])
@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_no_node_can_have(name: str, container: str, edge: dict[str, Any], tmp_path: Path) -> None:
    edge |= {"n1h": BOTH, "n2h": (f"/rocstack-{container} {name}",)}
    error = refused("ssh://n1h,ssh://n2h", tmp_path)
    assert error.what.startswith("--hosts=ssh://n2h: its container says")
    assert len(error.what) < 200


def test_other_containers_are_no_nodes(edge: dict[str, Any], tmp_path: Path) -> None:
    edge |= {"n1h": BOTH, "n2h": ("/other n1", "/rocstack-worker n2", "/ x", "/")}
    assert made("ssh://n1h,ssh://n2h", tmp_path)["groups"] == {"control": ["n1"], "workers": ["n1", "n2"]}


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> ClusterState:
    path = tmp_path_factory.mktemp("looked") / "inventory.ini"
    path.write_text("[control]\nhead\n[rack1]\nn1\nn2\n[rack2]\nn3\n[workers:children]\nrack1\nrack2\n[other]\nx1\n")
    failures = tuple(ProbeFailure(name, "unreachable", "no route") for name in ("n2", "n3"))
    return ClusterState(inventories.load(path), Gathered((), failures, {}))


@pytest.mark.parametrize(
    ("named", "workers"),
    [
        ("ansible://all", "n1 n2 n3"),
        ("ansible://", "n1 n2 n3"),
        ("ansible://workers", "n1 n2 n3"),
        ("ansible://rack1", "n1 n2"),
        ("ansible://n3", "n3"),
        ("ansible://rack2,ansible://n1", "n1 n3"),
        ("ansible://n[12]", "n1 n2"),
    ],
)
def test_only_the_named_workers_are_judged(named: str, workers: str, looked: ClusterState) -> None:
    found = testinfra_hosts.limited(looked, named)
    assert [host.name for host in found.inventory.workers] == workers.split()
    assert [host.name for host in found.inventory.nodes] == ["head", *workers.split()], "who finds the control node?"
    assert {failure.node for failure in found.gathered.failures} == {"n2", "n3"} & {*workers.split()}
    assert replace(found, inventory=looked.inventory, gathered=looked.gathered) == looked


@pytest.mark.parametrize("named", ["ansible://rack3", "ansible://control", "ansible://other", "ansible://n1,ssh://n2"])
def test_a_group_that_names_no_worker_is_refused(named: str, looked: ClusterState) -> None:
    with pytest.raises(BadInput) as raised:
        testinfra_hosts.limited(looked, named)
    assert raised.value.code == "bad-hosts"
    assert str(looked.inventory.path) in raised.value.what


def test_pytest_reaches_the_named_ones_only(looked: ClusterState, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"hosts": "ansible://rack1", "ansible_inventory": str(looked.inventory.path)}
    config: Any = SimpleNamespace(getoption=given.get)
    reached: Any = dict.fromkeys(("head", "n1", "n3"), "host")
    nothing: Any = None
    every = DeployedCluster(looked, nothing, reached, nothing)
    monkeypatch.setattr(session, "connect", lambda *_, **__: every)
    named = Suite(config)._read()
    assert {*named.hosts} == {"head", "n1"}
    assert {*named.unnamed} == {"n3"}, "n2 is of that rack and was not reached"
    del given["hosts"]
    assert Suite(config)._read() is every


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--hosts=ssh://n1,ssh://n2", "ssh: connect to host port 22: No route to host"),
        ("--hosts=ansible://all", "nodes are reached by ssh"),
        ("", "which cluster?"),
    ],
)
def test_plain_pytest_says_what_is_wrong_and_ends(line: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\necho 'ssh: connect to host port 22: No route to host' >&2\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "rocstack.verify.pytest_plugin",
        "-c",
        os.devnull,
        str(suite.checks()),
    ]
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([*words, *line.split()], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert says in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == (2 if line else pytest.ExitCode.USAGE_ERROR)


def test_a_node_that_answers_without_an_end_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "LONGEST", 1000)
    done = testinfra_hosts.SshBackend(ssh.SshHost("n1")).run("yes", seconds=20)
    assert done.rc == ssh.FAILED
    assert "an answer of more than" in done.stderr


def test_one_worker_does_not_say_for_all_what_their_image_is() -> None:
    true, lie = {"nic": "broadcom", "stack": "debian-13", "rdma": "56"}, {"nic": "tcp", "stack": "debian-13"}
    assert likeliest([lie, true, true], {}) == true
    assert likeliest([lie, true], {"nic": "broadcom"}) == true, "as the journal has it"
    assert likeliest([lie, true, true], {"nic": "mellanox"}) == true, "another was deployed before"
    assert likeliest([], {"nic": "broadcom"}) == {}
    deployed = {"nic": "broadcom"}
    one, other = {**deployed, "rccl": "2.27"}, {**deployed, "rccl": "9.9"}
    assert likeliest([other, one], deployed) == deployed, "of two that differ, what both say"
