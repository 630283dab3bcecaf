"""playbooks/host-nic.yml on a node container over SSH: what it changes, that a second run changes nothing and that
--check changes nothing at all."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from workspace import REPO, STACK, engine

from rocstack.settings.settings import Settings
from rocstack.stack import stack
from rocstack.virtual import faults, machine, model, node_image, tree

pytestmark = pytest.mark.engine
ROLE = REPO / "playbooks/roles/host_nic"
START = """
install -d -m 0700 /root/.ssh; install -d -m 0755 /run/sshd
printf '%s\\n' "$KEY" >/root/.ssh/authorized_keys; ssh-keygen -q -A
exec /usr/sbin/sshd -D -e -o UsePAM=no
"""
# Nothing here that reaches beyond the container: kernel.* would be the whole machine's.
SYSCTL = {"net.ipv4.conf.all.arp_ignore": 2, "net.ipv4.conf.all.arp_announce": 1, "net.ipv4.conf.all.rp_filter": 2}
FEW = {"host_nic_packages": ["rdma-core", "ethtool"], "host_nic_sysctl": SYSCTL, "host_nic_modules": ["ib_uverbs"]}
# What every login leaves behind.
FLEETING = re.compile(r". (/run|/tmp|/root|/var/tmp|/etc/ssh|/var/log/(wtmp|lastlog|btmp))|. /(etc|var|var/log)$")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str

    def recap(self, name: str) -> int:
        found = re.search(rf"\b{name}=(\d+)", self.out.rpartition("PLAY RECAP")[2])
        assert found, self.out
        return int(found[1])


@dataclass(frozen=True)
class Node:
    container: str
    inventory: Path

    def play(self, *options: str, **variables: Any) -> Ran:
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(self.inventory), *options]
        command += ["-e", json.dumps({**FEW, **variables}), str(REPO / "playbooks/host-nic.yml")]
        env = {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "ANSIBLE_INJECT_FACT_VARS": "False",
            "HOME": str(self.inventory.parent),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_PIPELINING": "True",
        }
        done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=self.inventory.parent)
        return Ran(done.returncode, done.stdout + done.stderr)

    def run(self, *command: str) -> str:
        return engine("exec", self.container, *command).stdout.strip()

    def changes(self) -> set[str]:
        """What differs from the image, but for what comes and goes with every login."""
        lines = engine("diff", self.container).stdout.splitlines()
        return {line for line in lines if not FLEETING.match(line) and "__pycache__" not in line}


@pytest.fixture(scope="module")
def image(client: docker.DockerClient, base: str, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("image")
    return node_image.ensure(client, stack.load(STACK), Settings(image_prefix=prefix), folder, print)


@pytest.fixture(scope="module")
def node(image: str, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder, name = tmp_path_factory.mktemp("node"), f"{prefix}-host-nic"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    key = f"KEY={(folder / 'key.pub').read_text().strip()}"
    options = ("--detach", "--privileged", "--name", name, "--hostname", "h1", "--env", key, "--entrypoint", "sh")
    engine("run", *options, image, "-c", START)
    address = engine("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name).stdout
    inventory = folder / "inventory.yml"
    common = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -F /dev/null"
    host = {
        "ansible_host": address.strip(),
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(folder / "key"),
        "ansible_ssh_common_args": common,
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    inventory.write_text(json.dumps({"workers": {"hosts": {"h1": host}}}))
    made = Node(name, inventory)
    for _ in range(50):
        if engine("exec", name, "pgrep", "-x", "sshd", check=False).returncode == 0:
            break
        time.sleep(0.1)
    yield made
    engine("rm", "--force", "--volumes", name)


def test_check_shows_and_changes_nothing(node: Node) -> None:
    before = node.changes()
    done = node.play("--check", "--diff")
    assert done.code == 0, done.out
    assert "+* hard memlock unlimited" in done.out
    assert re.search(r"would install .*rdma-core", done.out)
    assert done.recap("changed") >= 3
    assert "arp_ignore is 0, not 2" in done.out
    assert node.changes() == before
    assert node.run("sysctl", "-n", "net.ipv4.conf.all.arp_ignore") == "0"


def test_it_changes_what_is_needed_and_then_nothing(node: Node) -> None:
    """And strict, it fails where something is wrong all the same."""
    done = node.play()
    assert done.code == 0, done.out
    assert done.recap("changed") >= 4
    assert "installed" in node.run("dpkg-query", "-W", "-f", "${db:Status-Status}", "rdma-core")
    assert "* hard memlock unlimited" in node.run("cat", "/etc/security/limits.d/90-rocstack-nic.conf")
    assert "LimitMEMLOCK=infinity" in node.run("cat", "/etc/systemd/system/slurmd.service.d/90-rocstack-nic.conf")
    for name, value in SYSCTL.items():
        assert node.run("sysctl", "-n", name) == str(value)
        assert f"{name} = {value}" in node.run("cat", "/etc/sysctl.d/90-rocstack-nic.conf")
    assert "no RDMA device" in done.out
    assert "real hardware" in done.out

    again = node.play(rocstack_nic_strict=True)
    assert (again.code != 0, again.recap("changed"), again.recap("failed")) == (True, 0, 1), again.out
    assert "no RDMA device" in again.out

    node.run("sysctl", "-w", "net.ipv4.conf.all.arp_ignore=0")
    mended = node.play()
    assert (mended.code, mended.recap("changed")) == (0, 1), mended.out
    assert node.run("sysctl", "-n", "net.ipv4.conf.all.arp_ignore") == "2"


def deb(node: Node, name: str, version: str, folder: Path) -> Path:
    """A package without content, made by the real tool."""
    fields = {"Package": name, "Version": version, "Architecture": "all", "Maintainer": "x <x@example.com>"}
    control = "".join(f"{key}: {value}\n" for key, value in {**fields, "Description": "x"}.items())
    ready = "mkdir -p /tmp/d/DEBIAN && cd /tmp"
    program = f"{ready} && printf %s '{control}' >d/DEBIAN/control && dpkg-deb -b d out.deb"
    node.run("sh", "-c", program)
    file = folder / f"{name}_{version}_all.deb"
    engine("cp", f"{node.container}:/tmp/out.deb", str(file))
    return file


@pytest.mark.slow
def test_a_driver_from_packages_in_a_bundle(node: Node, tmp_path: Path) -> None:
    inner = tmp_path / "bcm_900" / "drivers_linux"
    inner.mkdir(parents=True)
    for name in ("bnxt-en-dkms", "bnxt-re-dkms"):
        deb(node, name, "900.0.56.1", inner)
    bundle = tmp_path / "bcm_900.tar.gz"
    with tarfile.open(bundle, "w:gz") as tar:
        tar.add(tmp_path / "bcm_900", "bcm_900")
    shown = node.play("--check", rocstack_nic_bundle=str(bundle))
    assert shown.code == 0, shown.out
    assert "bnxt-re-dkms" not in node.run("dpkg-query", "--show")
    done = node.play(rocstack_nic_bundle=str(bundle))
    assert done.code == 0, done.out
    assert node.run("dpkg-query", "-W", "-f", "${Version}", "bnxt-re-dkms") == "900.0.56.1"
    for form in (bundle, tmp_path / "bcm_900"):
        again = node.play(rocstack_nic_bundle=str(form))
        assert (again.code, again.recap("changed")) == (0, 0), again.out
    for name in ("bnxt-en-dkms", "bnxt-re-dkms"):
        (inner / f"{name}_900.0.56.1_all.deb").unlink()
        deb(node, name, "900.0.57.0", inner)
    newer = node.play(rocstack_nic_bundle=str(tmp_path / "bcm_900"))
    assert newer.code == 0, newer.out
    assert node.run("dpkg-query", "-W", "-f", "${Version}", "bnxt-en-dkms") == "900.0.57.0"


MAKEFILE = r"""
VERSION := 1.10.3-900.0.56.1
KERNEL := $(shell uname -r)
all:
	printf '.section .modinfo,"a"\n.asciz "version=$(VERSION)"\n.asciz "name=bnxt_en"\n' >module.s
	gcc -c module.s -o bnxt_en.ko
install:
	install -D -m 0644 bnxt_en.ko /lib/modules/$(KERNEL)/updates/bnxt_en.ko
	touch /lib/modules/$(KERNEL)/modules.order /lib/modules/$(KERNEL)/modules.builtin
	depmod $(KERNEL)
"""


def source(folder: Path) -> Path:
    """What a vendor's source release looks like, with a module that only says its version."""
    file = folder / "netxtreme-bnxt_en-1.10.3-900.0.56.1.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        item = tarfile.TarInfo("netxtreme-bnxt_en-1.10.3-900.0.56.1/Makefile")
        item.size = len(MAKEFILE)
        tar.addfile(item, io.BytesIO(MAKEFILE.encode()))
    return file


@pytest.mark.slow
def test_a_driver_from_source(node: Node, tmp_path: Path) -> None:
    source(tmp_path)
    few = {"host_nic_build_packages": ["gcc", "libc6-dev", "make"]}
    shown = node.play("--check", rocstack_nic_bundle=str(tmp_path), **few)
    assert shown.code == 0, shown.out
    done = node.play(rocstack_nic_bundle=str(tmp_path), **few)
    assert done.code == 0, done.out
    assert node.run("modinfo", "-F", "version", "bnxt_en") == "1.10.3-900.0.56.1"
    again = node.play(rocstack_nic_bundle=str(tmp_path), **few)
    assert (again.code, again.recap("changed")) == (0, 0), again.out


@pytest.mark.slow
@pytest.mark.parametrize("case", ["missing", "empty", "two", "not an archive"])
def test_a_bundle_that_is_of_no_use_is_refused(node: Node, tmp_path: Path, case: str) -> None:
    bundle = tmp_path / "bundle"
    if case != "missing":
        bundle.mkdir()
    if case == "two":
        source(bundle)
        (bundle / "netxtreme-bnxt_en-1.10.3-901.0.0.0.tar.gz").write_bytes(b"")
    if case == "not an archive":
        bundle = tmp_path / "b.tar.gz"
        bundle.write_bytes(b"no archive")
    before = node.changes()
    done = node.play(rocstack_nic_bundle=str(bundle))
    assert done.code != 0
    assert done.recap("failed") == 1
    assert node.changes() == before
    if case in ("missing", "empty", "two"):
        assert {"missing": "no bundle", "empty": "it holds none", "two": "901.0.0.0"}[case] in done.out


def test_what_is_wrong_with_a_virtual_node(image: str, tmp_path: Path) -> None:
    """The last task's program on a /sys tree with faults."""
    asked = [faults.parse(text) for text in ("port-down=bnxt_re2", "mtu=bnxt_re3:1500")]
    made = faults.apply(machine.expand(model.load("mi300x-thor2")), asked)
    tree.record(made).write_tree(tmp_path)
    mounts = ("--volume", f"{tmp_path}:/sys:ro", "--volume", f"{ROLE / 'files/look'}:/look:ro")
    words = ("/look", "4200", "ib_uverbs", "none_such", "net.ipv4.conf.all.arp_ignore=7")
    done = engine("run", "--rm", *mounts, "--entrypoint", "sh", image, *words)
    said = done.stdout.splitlines()
    assert said[0] == "virtual (mi300x-thor2): its hardware isn't real"
    assert any(re.match(r"bnxt_re2: port is DOWN", line) for line in said)
    assert any(re.match(r"bnxt_re3: rdma3 has MTU 1500", line) for line in said)
    assert "module none_such is not loaded, and modprobe can't load it" in said
    assert not any("ib_uverbs is not loaded" in line for line in said)
    assert "net.ipv4.conf.all.arp_ignore is 0, not 7" in said
    assert not any("bnxt_re1" in line for line in said)


def test_a_card_for_management_may_have_a_small_mtu(image: str, tmp_path: Path) -> None:
    """In a bond, and with the default route; the same card is named where it has neither."""
    for name in ("mixed-broken", "mi300x-cx7"):
        tree.record(faults.apply(machine.expand(model.load(name)), [])).write_tree(tmp_path / name)
    look = ("--volume", f"{ROLE / 'files/look'}:/look:ro", "--entrypoint", "sh")
    named = "ip link set eth0 down && ip link set eth0 name eno1 && ip link set eno1 up"
    routed = f"{named} && ip route add default dev eno1"

    def said(name: str, before: str = ":") -> str:
        script = f"cd / && {before} && sh /look 4200"
        words = ("--cap-add=NET_ADMIN", "--volume", f"{tmp_path / name}:/sys:ro", *look, image, "-c", script)
        return engine("run", "--rm", *words).stdout

    assert "rdma6 has MTU 1500" in said("mixed-broken")
    assert "eno1" not in said("mixed-broken")
    assert "eno1 has MTU 1500" in said("mi300x-cx7", named)
    assert "eno1" not in said("mi300x-cx7", routed)


@pytest.mark.slow
def test_all_packages_exist(node: Node) -> None:
    """The lists for Debian, as they are."""
    text = (ROLE / "vars/Debian.yml").read_text()
    names = re.findall(r"^  - ([a-z0-9.+-]+)$", text, re.MULTILINE)
    assert len(names) > 20
    node.run("apt-get", "-q", "update")
    node.run("apt-get", "install", "--simulate", "--no-install-recommends", *names)
