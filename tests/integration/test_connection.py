"""Deploy's own ssh, on virtual nodes with real sshd: the lock that a lost laptop gives back, and the tunnel."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
from conftest import tag_base
from workspace import REPO, Workspace, engine

from rocstack.base.errors import CheckFailed
from rocstack.deploy.read import journal
from rocstack.edge import locks, ssh
from rocstack.edge.ssh import SshHost

FOLDER = "/var/lib/rocstack/test"
HOLDER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
from pathlib import Path
from rocstack.deploy.read import journal
from rocstack.edge import locks
from rocstack.edge import ssh
ssh_host = ssh.ssh_hosts(Path(sys.argv[1]))["n1"]
with locks.cluster_lock(ssh_host, journal.lock(sys.argv[2])) as held, ssh.tunnel(ssh_host, "127.0.0.1", 22):
    held.write("from the first")
    print("held", flush=True)
    time.sleep(300)
"""


@pytest.fixture(scope="module")
def workspace(
    client: docker.DockerClient, prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path_factory.mktemp("connection"), f"{prefix}-ssh")
    tag_base(client, workspace.prefix)
    done = workspace.run("local", "up", "--nodes", "2", "--json")
    try:
        assert done.code == 0, done.err
        yield workspace
    finally:
        workspace.run("local", "down", "--all")


@pytest.fixture(scope="module")
def inventory(workspace: Workspace) -> Path:
    """The cluster's own; and by other ways to the same nodes: behind a jump host, as users with and without sudo."""
    folder = workspace.folder / ".rocstack/local"
    for user, rights in (("joe", "NOPASSWD: ALL"), ("poor", "ALL")):
        node("n1", workspace, f"useradd --create-home --password x {user}")
        node("n1", workspace, f"echo '{user} ALL=(ALL) {rights}' >/etc/sudoers.d/{user}")
        keys = f"/home/{user}/.ssh/authorized_keys"
        public = (folder / "id_ed25519.pub").read_text().strip()
        node(
            "n1",
            workspace,
            f"install -d -o {user} -m 700 /home/{user}/.ssh; echo '{public}' >{keys}; chown {user} {keys}",
        )
    extra = f"""\
all:
  hosts:
    far:
      ansible_host: n2
      ansible_ssh_extra_args: -o 'ProxyCommand=ssh -F "{folder}/ssh_config" -W %h:%p n1'
    joe: {{ansible_host: n1, ansible_user: joe, ansible_become: true}}
    poor: {{ansible_host: n1, ansible_user: poor, ansible_become: true}}
    nobody: {{ansible_host: n1, ansible_user: nobody}}
    closed: {{ansible_host: n1, ansible_port: 5}}
"""
    both = workspace.folder / "inventories"
    both.mkdir()
    (both / "1.yml").write_text((folder / "inventory.yml").read_text())
    (both / "2.yml").write_text(extra)
    return both


@pytest.fixture(scope="module")
def ssh_hosts(inventory: Path) -> dict[str, SshHost]:
    return ssh.ssh_hosts(inventory)


def node(name: str, workspace: Workspace, script: str) -> str:
    return engine("exec", workspace.nodes()[name], "sh", "-c", script).stdout


def until(true: Callable[[], object], seconds: float) -> float:
    """How long it took."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() < started + seconds, f"not within {seconds} s"
        time.sleep(0.1)
    return time.monotonic() - started


@pytest.mark.parametrize("host", ["n1", "joe", "far"])
def test_one_holds_and_writes_and_the_other_hears_who(
    host: str, ssh_hosts: dict[str, SshHost], workspace: Workspace
) -> None:
    there = "n2" if host == "far" else "n1"
    folder = f"{FOLDER}/{host}"
    with locks.cluster_lock(ssh_hosts[host], journal.lock(folder)) as held:
        assert (held.text, held.lost) == ("", "")
        held.write("1")
        for number in range(200):
            held.write(f"{number} " + "x" * 100_000, wait=False)
        with (
            pytest.raises(CheckFailed, match=f"{locks.operator()} .process {os.getpid()}. since 20") as refused,
            locks.cluster_lock(ssh_hosts["n2" if host == "far" else "n1"], journal.lock(folder)),
        ):
            pytest.fail("two hold it")
        assert refused.value.code == "deploy-running"
    assert (
        node(there, workspace, f"head -c 4 {folder}/deploy.json; stat -c %a:%u {folder}/deploy.json") == "199 600:0\n"
    )
    with locks.cluster_lock(ssh_hosts[host], journal.lock(folder)) as held:
        assert held.text.startswith("199 ")


def test_a_full_disk_is_said_and_the_old_journal_stays(ssh_hosts: dict[str, SshHost], workspace: Workspace) -> None:
    node("n1", workspace, "mkdir -p /full; mount -t tmpfs -o size=64k full /full")
    with locks.cluster_lock(ssh_hosts["n1"], journal.lock("/full")) as held:
        held.write("before")
        with pytest.raises(CheckFailed, match="No space left") as refused:
            held.write("x" * 200_000)
        assert refused.value.code == "journal-unwritten"
        held.check()
        held.write("after")
    assert node("n1", workspace, "cat /full/deploy.json") == "after"


def start(inventory: Path, folder: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(inventory), folder],
        env={**os.environ, "PYTHONPATH": str(REPO / "cli")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_whoever_dies_leaves_no_lock_and_no_ssh(
    number: signal.Signals, ssh_hosts: dict[str, SshHost], inventory: Path, workspace: Workspace
) -> None:
    folder = f"{FOLDER}/{number}"
    first = start(inventory, folder)
    ours = [int(pid) for pid in Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()]
    assert len(ours) == 2
    first.send_signal(number)
    first.wait(10)

    def free() -> bool:
        try:
            with locks.cluster_lock(ssh_hosts["n1"], journal.lock(folder)) as held:
                return held.text == "from the first"
        except CheckFailed:
            return False

    until(free, 5)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ours), 10)


def test_cut_off_we_know_before_anybody_else_can_have_it(ssh_hosts: dict[str, SshHost], workspace: Workspace) -> None:
    """The link goes down, as with a laptop that is carried away."""
    folder, silence = f"{FOLDER}/cut", 9
    holding = f"exec 9<>{folder}/deploy.lock; flock -n 9 && echo free || true"
    device = node("n1", workspace, "cat /sys/devices/virtual/rocstack/netdev").strip()
    try:
        with locks.cluster_lock(ssh_hosts["n1"], journal.lock(folder), silence=silence) as held:
            held.write("before")
            node("n1", workspace, f"ip link set {device} down")
            until(lambda: held.lost, silence)
            assert node("n1", workspace, holding) == "", "still ours there"
            with pytest.raises(CheckFailed, match="has not answered for") as refused:
                held.check()
            assert refused.value.code == "lock-lost"
            with pytest.raises(CheckFailed, match="lost"):
                held.write("after")
            until(lambda: node("n1", workspace, holding) == "free\n", silence)
    finally:
        node("n1", workspace, f"ip link set {device} up")
    assert node("n1", workspace, f"cat {folder}/deploy.json") == "before"


def test_if_ssh_dies_it_is_lost_at_once(ssh_hosts: dict[str, SshHost]) -> None:
    with locks.cluster_lock(ssh_hosts["n1"], journal.lock(f"{FOLDER}/dies")) as held:
        held._program.kill()
        until(lambda: held.lost, 2)
        with pytest.raises(CheckFailed, match="has ended"):
            held.write("x")


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("poor", "sudo: a password is required"),
        ("nobody", "Permission denied"),
        ("closed", "Connection refused"),
    ],
)
def test_why_there_is_no_lock(host: str, why: str, ssh_hosts: dict[str, SshHost]) -> None:
    with pytest.raises(CheckFailed, match=why) as refused, locks.cluster_lock(ssh_hosts[host], journal.lock(FOLDER)):
        pytest.fail("no lock without a log-in")
    assert refused.value.code == "ssh-failed"


@pytest.mark.parametrize("host", ["n1", "far"])
def test_a_tunnel_to_what_only_the_node_reaches(host: str, ssh_hosts: dict[str, SshHost], workspace: Workspace) -> None:
    there = "n2" if host == "far" else "n1"
    node(there, workspace, "cd /etc && nohup python3 -m http.server --bind 127.0.0.1 5999 >/dev/null 2>&1 & sleep 1")
    with ssh.tunnel(ssh_hosts[host], "127.0.0.1", 5999) as near:
        web = http.client.HTTPConnection(*near, timeout=10)
        web.request("GET", "/hostname")
        assert web.getresponse().read().decode().strip() == there
        web.close()
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection(*near, timeout=1).connect()


def test_a_tunnel_that_leads_nowhere(ssh_hosts: dict[str, SshHost]) -> None:
    with (
        ssh.tunnel(ssh_hosts["n1"], "127.0.0.1", 1) as near,
        socket.create_connection(near, timeout=10) as through,
    ):
        assert through.recv(1) == b""
    with (
        pytest.raises(CheckFailed, match=r"no tunnel to nobody: .*Permission denied"),
        ssh.tunnel(ssh_hosts["nobody"], "127.0.0.1", 22),
    ):
        pytest.fail("no tunnel without a log-in")


def test_this_machine_may_be_the_control_node(tmp_path: Path) -> None:
    (tmp_path / "inventory").write_text("here ansible_connection=local\n")
    here = ssh.ssh_hosts(tmp_path / "inventory")["here"]
    with locks.cluster_lock(here, journal.lock(str(tmp_path))) as held:
        held.write(json.dumps({"schema": 1}))
        with pytest.raises(CheckFailed, match="another deploy"), locks.cluster_lock(here, journal.lock(str(tmp_path))):
            pytest.fail("two hold it")
    assert json.loads((tmp_path / "deploy.json").read_text()) == {"schema": 1}
    with ssh.tunnel(here, "127.0.0.1", 7) as near:
        assert near == ("127.0.0.1", 7)
