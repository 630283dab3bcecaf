"""The worker's start on nodes that it fits and doesn't: the entrypoint, the gate and Slurm's prologs of this checkout,
with the inbox provider of the image under them. No RDMA hardware is here, so no device is ever opened."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from workspace import REPO, engine

from rocstack.image import node_package
from rocstack.stack import component
from rocstack.virtual import faults, machine, model
from rocstack.virtual.tree import record

pytestmark = pytest.mark.engine
PROVIDER = "libbnxt_re-rdmav34.so"
VERBS = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"
OWN = f"/usr/lib/x86_64-linux-gnu/libibverbs/{PROVIDER}"
PYTHON = "/usr/local/lib/rocstack/python"
BIN = "/usr/local/bin"
NODES = "mkdir -p /dev/infiniband; for i in 0 1 2 3 4 5 6 7; do mknod /dev/infiniband/uverbs$i c 231 $((192 + i)); done"
READY = "no MUNGE key"  # where the daemons' start ends in these tests
REFUSED = "this image does not work on this node, so no daemon starts"
BLIND = "whether this image fits this node is not known"


@dataclass(frozen=True)
class Worker:
    """The image, what is mounted into it, and how it is started."""

    image: str
    folder: Path
    mounts: dict[str, Path]
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    def on(self, *wrong: str, real: bool = False) -> Worker:
        """On a virtual node; `real`: it doesn't say that it is one."""
        tree = self.folder / "-".join(["tree", *wrong, *(["real"] if real else [])])
        if not tree.exists():
            virtual = faults.apply(machine.expand(model.load("mi300x-thor2")), map(faults.parse, wrong))
            record(virtual).write_tree(tree)
            if real:
                (tree / "devices/virtual/rocstack/model").unlink()
        return replace(self, mounts={**self.mounts, "/sys": tree})

    def over(self, path: str, data: bytes) -> Worker:
        file = self.folder / hashlib.sha256(path.encode() + data).hexdigest()
        file.write_bytes(data)
        return replace(self, mounts={**self.mounts, path: file})

    def with_env(self, **env: str) -> Worker:
        return replace(self, env={**self.env, **env})

    def run(self, script: str) -> tuple[int, str]:
        """A script in the container, and all that it says."""
        volumes = [f"--volume={source}:{target}:ro" for target, source in self.mounts.items()]
        env = [f"--env={name}={value}" for name, value in self.env.items()]
        line = ("--rm", "--network=none", *volumes, *env, *self.flags, "--entrypoint=/bin/bash", self.image)
        done = engine("run", *line, "-c", f"exec 2>&1; {script}", check=False)
        return done.returncode, done.stdout

    def start(self, after: str = "true") -> tuple[int, str, str]:
        """The daemons' start: its code, what it says, and what `after` says then."""
        code, out = self.run(f"{NODES}; {BIN}/rocstack-entrypoint; echo ==$?==; {after}")
        said, _, rest = out.partition("==")
        ended, _, rest = rest.partition("==\n")
        return int(ended), said, rest + f"rc={code}"


@pytest.fixture(scope="module")
def worker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    """A worker image of the default stack, any that is here: all that is tested is mounted into it."""
    labels = ("io.rocstack.role=worker", "io.rocstack.stack=debian-13", "io.rocstack.nic=tcp")
    found = engine("images", "--quiet", *(f"--filter=label={label}" for label in labels)).stdout.split()
    image = found[0] if found else request.getfixturevalue("built").worker
    folder = tmp_path_factory.mktemp("start")
    mounts = {}
    for path, file in node_package.files(component.library("nic")).items():
        if path.startswith(node_package.FOLDER):
            target = folder / "python" / path.removeprefix(node_package.FOLDER + "/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.data)
    mounts[PYTHON] = folder / "python"
    for side in ("common", "worker"):
        tree = REPO / "images/rootfs" / side
        for script in (*tree.glob("usr/local/bin/*"), *tree.glob("usr/local/lib/rocstack/service/*")):
            mounts[f"/{script.relative_to(tree)}"] = script
    plain = Worker(image, folder, mounts)
    sha = plain.run(f"sha256sum <{OWN}")[1].split()[0]
    provider = {
        "place": "inbox", "way": "inbox", "driver": "bnxt_re", "path": OWN, "version": "56.1-1", "private_abi": 34,
        "kernel_abi": [1, 1], "sha256": sha,
    }  # fmt: skip
    facts = {"nic.modules": "bnxt_en,bnxt_re", "nic.pci": "14e4:1760", "verbs.private-abi": "34", "glibc": "2.41"}
    facts |= {"verbs.sha256": plain.run(f"sha256sum <{VERBS}")[1].split()[0], "nic.cards": '{"14e4:1760":"50"}'}
    manifest = {"nic": "broadcom", "role": "worker", "facts": {**facts, "nic.providers": json.dumps([provider])}}
    return plain.over("/etc/rocstack/manifest.json", json.dumps(manifest).encode())


PROLOG = f"cat /run/rocstack/gate; env -i {BIN}/rocstack-prolog; echo prolog=$?; {BIN}/rocstack-node gate; echo gate=$?"


def test_it_fits(worker: Worker) -> None:
    code, said, after = worker.on("abi=1").start(f"{PROLOG}; {BIN}/rocstack-task-prolog; rocstack-node prove")
    assert (code, READY in said) == (3, True), said
    assert "virtual mi300x-thor2: its devices can't be opened, none was tried" in said
    assert after.startswith("fits ")
    assert "prolog=0\n" in after
    assert "gate=0\n" in after
    assert "export NCCL_IB_HCA==bnxt_re0:1," in after
    assert after.endswith("rc=1"), "nothing was proved"


def test_it_does_not_fit(worker: Worker) -> None:
    code, said, after = worker.on("abi=6").start(PROLOG)
    assert code == 1
    assert "kernel ABI 6, the image's bnxt_re supports 1-1" in said
    assert REFUSED in said
    assert READY not in said
    assert after.startswith("refuse ")
    assert "prolog=1\n" in after
    code, out = worker.on("abi=6").run(f"{NODES}; {BIN}/rocstack-entrypoint env")
    assert code == 0
    assert "doesn't fit" in out
    assert "\nNCCL_IB_HCA==bnxt_re0:1," in out


@pytest.mark.parametrize("gate", ["warn", "off"])
def test_the_gate_reaches_the_prolog(worker: Worker, gate: str) -> None:
    code, said, after = worker.on("abi=6").with_env(ROCSTACK_GATE=gate).start(PROLOG)
    assert (code, READY in said) == (3, True), said
    assert ("doesn't fit" in said) == (gate == "warn")
    assert after.startswith(f"{gate} ")
    assert "prolog=0\n" in after
    assert "gate=1\n" in after


def test_real_devices_are_tried(worker: Worker) -> None:
    """The kernel shows eight, and none can be opened."""
    code, said, after = worker.on("abi=1", real=True).start(f"{PROLOG}; rocstack-node prove")
    assert code == 1
    assert all(f"bnxt_re{index}: " in said for index in range(8))
    assert REFUSED in said
    assert after.startswith("refuse ")


def test_wrong_variables(worker: Worker) -> None:
    wrong = {"ROCSTACK_GATE": "no", "ROCSTACK_DATA_SUBNETS": "10.1.2.0/16", "ROCSTACK_CONTROLLER": "ctl:x"}
    there = worker.on("abi=1").with_env(**wrong)
    code, said, _ = there.start()
    assert code == 2
    assert all(name in said for name in wrong)
    code, out = there.run(f"{NODES}; {BIN}/rocstack-entrypoint env")
    assert code == 0
    assert "\nNCCL_IB_HCA==bnxt_re0:1," in out


def test_another_library_in_its_place(worker: Worker) -> None:
    there = worker.on("abi=1").over(OWN, b"of the host")
    code, said, after = there.start(PROLOG)
    assert code == 1
    assert "doesn't fit: " in said
    assert f"libibverbs would load {OWN}, which is not the bnxt_re that the image was built with" in said
    assert "prolog=1\n" in after


def test_another_libibverbs_in_its_place(worker: Worker) -> None:
    """It loads, and may look for other providers than the one that was judged, which is still there."""
    real = worker.run(f"readlink -f {VERBS}")[1].strip()
    data = base64.b64decode(worker.run(f"base64 {VERBS}")[1])
    code, said, after = worker.on("abi=1").over(real, data + b"\0").start(PROLOG)
    assert code == 1
    assert f"the loader takes {real}, which is not the libibverbs that the image was built with" in said
    assert "prolog=1\n" in after


def test_what_the_container_brings_changes_nothing(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError\n")
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    there = replace(worker.on("abi=1"), mounts={**worker.on("abi=1").mounts, "/mine": tmp_path})
    path = "/mine:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    code, said, after = there.with_env(PATH=path, PYTHONPATH="/mine", PYTHONHOME="/mine").start(PROLOG)
    assert (code, READY in said) == (3, True), said
    assert "prolog=0\n" in after


@pytest.mark.parametrize(("path", "data"), [("/etc/rocstack/manifest.json", b"{"), (f"{PYTHON}/__main__.py", b"1 +")])
@pytest.mark.parametrize("gate", ["", "warn", "off"])
def test_a_crash_does_not_read_as_unfitting(worker: Worker, path: str, data: bytes, gate: str) -> None:
    there = worker.on("abi=1").over(path, data).with_env(ROCSTACK_GATE=gate)
    code, said, after = there.start(f"cat /run/rocstack/gate; env -i {BIN}/rocstack-prolog; echo prolog=$?")
    assert code == 3
    assert BLIND in said
    assert REFUSED not in said
    assert (READY in said) == bool(gate)
    assert ("prolog=0\n" in after) == bool(gate)
    code, out = there.run(f"{BIN}/rocstack-entrypoint echo hello")
    assert (code, out.splitlines()[-1]) == (0, "hello")


@pytest.mark.parametrize("flags", [("--read-only",), ("--read-only", "--user=1000:1000"), ("--user=1000:1000",)])
def test_a_command_runs_where_nothing_can_be_written(worker: Worker, flags: tuple[str, ...]) -> None:
    there = replace(worker.on("abi=1").with_env(ROCSTACK_GATE="off"), flags=flags)
    code, out = there.run(f"{BIN}/rocstack-entrypoint env")
    assert code == 0, out
    assert "\nGLOO_SOCKET_IFNAME=eno1\n" in out
    code, out = there.run(f"{BIN}/rocstack-task-prolog")
    assert (code, out.count("\n")) == (0, 3)
    writable = "--read-only" not in flags
    assert ("export TMPDIR=/tmp/rocstack-1000" in out) == writable
    assert ("no folder of this user's own for temporary files: " in out) != writable
    assert "no fabric environment for this task" in out
    assert "no rendezvous for this task" in out


SILENT = "import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 53)); time.sleep(60)"


def test_a_dead_name_server_is_not_waited_for(worker: Worker) -> None:
    """It takes questions and never answers: the resolver waits 10 s for each of the two names."""
    asked = worker.on("abi=1").with_env(ROCSTACK_CONTROLLER="ctl1,ctl2:6817")
    there = asked.over("/etc/resolv.conf", b"nameserver 127.0.0.1\n")
    before = f'python3 -c "{SILENT}" & sleep 1; timeout 4 getent hosts ctl1; echo waited=$?'
    code, out = there.run(f"{before}; time {BIN}/rocstack-entrypoint true")
    assert code == 0
    assert "waited=124" in out, "the name server is not silent"
    assert float(out.partition("real\t0m")[2].partition("s")[0]) < 10, out


def waited(worker: Worker, before: str, **env: str) -> tuple[int, str]:
    there = worker.on("abi=1").with_env(ROCSTACK_WAIT_FOR="/dev/null /dev/kfd /dev/dri/renderD128", **env)
    return there.run(f"{NODES}; {before}\n{BIN}/rocstack-entrypoint; echo code=$?; {BIN}/rocstack-health")


def test_devices_that_come_late_are_waited_for(worker: Worker) -> None:
    late = (
        "(until [ -s /run/rocstack/waiting ]; do sleep 0.1; done; mknod /dev/kfd c 1 3; mkdir /dev/dri;"
        " touch /dev/dri/renderD128; while grep -q kfd /run/rocstack/waiting; do sleep 0.1; done;"
        " rm /dev/dri/renderD128; mknod /dev/dri/renderD128 c 1 3) &"
    )
    _, out = waited(worker, late)
    assert "rocstack-worker: waiting: no device /dev/kfd /dev/dri/renderD128 (1 of 15 s)" in out
    assert "rocstack-worker: waiting: no device /dev/dri/renderD128 (" in out, "a plain file is no device"
    assert READY in out


def test_devices_that_do_not_come(worker: Worker) -> None:
    code, out = waited(worker, "true", ROCSTACK_WAIT="2")
    assert "rocstack-worker: no device /dev/kfd /dev/dri/renderD128 after 2 s, so slurmd does not start" in out
    assert "seen by its next start" in out, "this container has a /dev of its own"
    assert "code=3\n" in out
    assert (code, out.splitlines()[-1]) == (1, "waiting: no device /dev/kfd /dev/dri/renderD128"), "the health check"
