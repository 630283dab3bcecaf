"""The facts of nodes over SSH and what is checked on them: virtual nodes, whose engine, ports and network are real."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace import Workspace, engine

from rocstack.base.findings import Finding
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.plan.prepare import precheck
from rocstack.deploy.plan.scope import Scope
from rocstack.deploy.read import facts, inventory
from rocstack.deploy.read.facts import Gathered
from rocstack.deploy.read.inventory import Inventory
from rocstack.node.image_facts import LABEL_PREFIX
from rocstack.stack import component

INVENTORY = ".rocstack/local/inventory.yml"
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh client"),
]


@pytest.fixture(scope="module")
def cluster(base: str, prefix: str, made: set[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path_factory.mktemp("facts"), prefix, made=made)
    try:
        up = workspace.run("local", "up", "--nodes", "2", "--json")
        assert up.code == 0, up.err + up.out
        yield workspace
    finally:
        assert workspace.run("local", "down", "--json").code == 0


@pytest.fixture(scope="module")
def listed(cluster: Workspace) -> Inventory:
    return inventory.load(cluster.folder / INVENTORY)


def on(workspace: Workspace, node: str, command: str) -> str:
    return engine("exec", workspace.nodes()[node], "sh", "-c", command).stdout


def check(listed: Inventory, found: Gathered, nic: str = "tcp") -> list[Finding]:
    said = {"nic": nic, "gfx": "gfx942", "stack": "debian-13", "control": "2"}
    labels = {LABEL_PREFIX + name: value for name, value in said.items()}
    images = {role: Image(role, f"sha256:{role}", role, labels) for role in ("worker", "control")}
    return list(precheck(Scope(listed, found, images, component.nic_profiles())))


def test_healthy_nodes_have_no_finding(cluster: Workspace, listed: Inventory) -> None:
    found = facts.gather(listed, uids={"root": 0, "nobody-here": 64030})
    assert found.failures == ()
    assert [node.name for node in found.nodes] == ["n1", "n2"]
    for node in found.nodes:
        assert node.engine.problem == ""
        assert node.engine.free_bytes
        assert node.profile.virtual == "mi300x-thor2"
        assert (node.passwd, node.ids) == ({"0": "root"}, {"root": 0})
        assert list(node.reach.values()) == [""]
        assert node.behind <= 0 <= node.ahead, "one clock on one machine"
    assert len({node.machine for node in found.nodes}) == 2
    assert check(listed, found) == []


def test_what_is_broken_is_found_on_its_node(cluster: Workspace, listed: Inventory) -> None:
    serve = "import socket, time; s = socket.create_server(('', 298)); time.sleep(600)"
    on(cluster, "n2", f'nohup python3 -c "{serve}" >/dev/null 2>&1 & echo $! >/tmp/pid')
    on(
        cluster,
        "n1",
        "mkdir -p /var/lib/rocstack; echo '{' >/var/lib/rocstack/deploy.json; mkdir -p /etc/rocstack/keys",
    )
    on(cluster, "n1", "echo secret >/etc/rocstack/keys/database")
    on(cluster, "n2", "cp /bin/sleep /tmp/munged; nohup /tmp/munged 600 >/dev/null 2>&1 & sleep 0.2")
    try:
        found = facts.gather(listed)
        assert [(each.node, each.code) for each in check(listed, found)] == [
            ("n2", "port-taken"),
            ("n1", "things-unread"),
            ("n2", "daemons-beside"),
        ]
        assert found.nodes[1].ports["298"].program == "python3"
        assert list(found.nodes[0].files) == ["/etc/rocstack/keys/database"]
        assert re.fullmatch("[0-9a-f]{64}", found.nodes[0].files["/etc/rocstack/keys/database"])
    finally:
        on(cluster, "n2", "kill $(cat /tmp/pid); killall munged 2>/dev/null || kill $(pgrep -x munged)")
        on(cluster, "n1", "rm -r /var/lib/rocstack/deploy.json /etc/rocstack/keys")
    assert check(listed, facts.gather(listed)) == []


def test_our_own_container_takes_no_port_from_us(cluster: Workspace, listed: Inventory) -> None:
    # An image of links only: its programs are the node's own.
    pack = (
        "mkdir -p /tmp/root/usr && cd /tmp/root && ln -s usr/bin bin && ln -s usr/lib lib && ln -s usr/lib64 lib64 && "
    )
    pack += "tar -c . | docker import -c 'LABEL io.rocstack.role=worker' - own/worker:1"
    on(cluster, "n2", pack)
    serve = "import socket, time; s = socket.create_server(('', 298)); time.sleep(600)"
    labels = "--label io.rocstack.service=worker --label io.rocstack.spec=abc --volume /usr:/usr:ro"
    on(cluster, "n2", f'docker run -d --name rocstack-worker --network host {labels} own/worker:1 python3 -c "{serve}"')
    try:
        found = facts.gather(listed)
        node = found.nodes[1]
        (ours,) = node.containers
        assert (ours.name, ours.service, ours.spec, ours.status) == ("rocstack-worker", "worker", "abc", "running")
        assert [image.id for image in node.images] == [ours.image]
        assert node.ports["298"].service == "worker"
        assert check(listed, found) == []
    finally:
        on(cluster, "n2", "docker rm -f rocstack-worker; docker rmi own/worker:1; rm -r /tmp/root")


def test_an_engine_that_is_down_and_a_node_that_is_gone(cluster: Workspace, listed: Inventory) -> None:
    on(cluster, "n1", "kill -STOP $(cat /run/docker.pid)")
    engine("pause", cluster.nodes()["n2"])
    try:
        found = facts.gather(listed, timeout=25)
    finally:
        engine("unpause", cluster.nodes()["n2"])
        on(cluster, "n1", "kill -CONT $(cat /run/docker.pid)")
    said = {(each.node, each.code) for each in check(listed, found)}
    assert {("n1", "engine-silent"), ("n2", "node-unreached")} <= said
    assert "no answer within" in found.nodes[0].engine.error


def test_a_user_who_is_not_root_is_told_so(cluster: Workspace, tmp_path: Path) -> None:
    make = "useradd --create-home ops && cp -r /root/.ssh /home/ops/ && chown -R ops:ops /home/ops && passwd -d ops"
    for node in ("n1", "n2"):
        on(cluster, node, make)
    text = (cluster.folder / INVENTORY).read_text().replace("ansible_user: root", "ansible_user: ops")
    (tmp_path / "inventory.yml").write_text(text)
    other = inventory.load(tmp_path / "inventory.yml")
    codes = [(each.node, each.code) for each in check(other, facts.gather(other))]
    assert ("n1", "not-root") in codes
    assert ("n2", "engine-denied") in codes
