"""What a node's engine, ports, users and network are like: recorded answers of engines, and this machine itself."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocstack.deploy.read.facts import FactsAnswer, NodeContainer, NodeEngine, NodeImage
from rocstack.node import deploy_facts, engine_facts, names

DATA = Path(__file__).parents[1] / "data/engines"
NODE = Path(engine_facts.__file__).parent
PYTHON = shutil.which("python3", path="/usr/bin")
CASES = sorted(path.name for path in DATA.iterdir())
PROGRAM = """#!/bin/sh
cd {folder} || exit 9
case "$1 $2" in
"info --format") cat info.json 2>/dev/null; answer=info.json ;;
"ps -aq" | "image ls") [ -e error ] || echo 1 ;;
*"inspect") cat "$1.json" ;;
*) exit 8 ;;
esac
if [ -e error ]; then cat error >&2; exit 1; fi
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes this script the docker command."""

    def install(script: str) -> None:
        (tmp_path / "docker").write_text(script)
        (tmp_path / "docker").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return install


@pytest.mark.parametrize("case", CASES)
def test_every_engine(case: str, docker: Callable[[str], None]) -> None:
    docker(PROGRAM.format(folder=DATA / case))
    found = engine_facts.engine_facts()
    wanted: dict[str, Any] = yaml.safe_load((DATA / case / "expected.yml").read_text())["engine"]
    assert {key: found["engine"][key] for key in wanted} == wanted
    NodeEngine.model_validate(found["engine"])
    assert set(found["engine"]) == set(NodeEngine.model_fields), "the controller reads exactly what the node sends"
    if wanted["problem"]:
        assert found["engine"]["error"].strip()
        assert (found["containers"], found["images"]) == ([], [])
        return
    (container,), (image,) = found["containers"], found["images"]
    assert (container["name"], container["service"], container["spec"]) == (
        "rocstack-worker",
        "worker",
        "0123456789abcdef",
    )
    assert container["status"] == "running"
    assert container["pid"] > 0
    assert image["id"] == container["image"]
    assert image["id"].startswith("sha256:")
    assert (image["role"], image["stack"], image["nic"], image["content"]) == ("worker", "debian-13", "tcp", "abc")
    assert len(image["layers"]) == 1
    NodeContainer.model_validate(container)
    NodeImage.model_validate({**image, **{key: tuple(image[key]) for key in ("names", "digests", "layers")}})
    assert (set(container), set(image)) == (set(NodeContainer.model_fields), set(NodeImage.model_fields))


def test_podman_says_health_and_restarts(docker: Callable[[str], None]) -> None:
    docker(PROGRAM.format(folder=DATA / "podman"))
    (container,) = engine_facts.engine_facts()["containers"]
    assert (container["health"], container["restarts"]) == ("healthy", 2)


def test_no_engine(docker: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    docker("neither a program nor a script\0")
    assert engine_facts.engine_facts()["engine"]["problem"] == "failed"
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert engine_facts.ask("info")[1:] == ("absent", "there is no docker command")


def test_an_engine_that_hangs(docker: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    docker("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(engine_facts, "TIMEOUT_S", 0.2)
    assert engine_facts.engine_facts()["engine"]["problem"] == "silent"


def test_an_engine_that_lists_what_it_cant_show(docker: Callable[[str], None]) -> None:
    docker("#!/bin/sh\n[ $2 = inspect ] || echo 1\n")
    found = engine_facts.engine_facts()
    assert (found["engine"]["problem"], found["containers"]) == ("failed", [])


def test_an_engine_that_cant_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/bin/docker")
    monkeypatch.setattr(subprocess, "run", no_process)
    assert engine_facts.ask("info") == ("", "failed", "docker: Resource temporarily unavailable")


def test_nonsense_is_no_engine(docker: Callable[[str], None]) -> None:
    docker("#!/bin/sh\necho '[17'\n")
    found = engine_facts.engine_facts()
    assert found["engine"]["version"] == ""
    assert found["images"] == []


MOUNTS = {
    "v2": ("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev 0 0", True),
    "v2 fixed": ("cgroup2 /sys/fs/cgroup cgroup2 ro,nosuid,nodev 0 0", False),
    "v1": ("cgroup /sys/fs/cgroup/devices cgroup rw,nosuid,devices 0 0", True),
    "v1 fixed": ("cgroup /sys/fs/cgroup/devices cgroup ro,nosuid,devices 0 0", False),
    "v1 without devices": ("cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0", False),
    "none": ("proc /proc proc rw 0 0", False),
}


@pytest.mark.parametrize("case", MOUNTS)
def test_cgroups(case: str) -> None:
    text, writable = MOUNTS[case]
    assert engine_facts.cgroup_writable(f"tmpfs /sys/fs/cgroup tmpfs rw 0 0\n{text}\n") is writable


def test_listening() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1AA1 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0\n"
        "   1: 0100007F:1AA2 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0\n"
    )
    assert deploy_facts.listening([table, ""]) == {6817: {"4711": 0}}


@pytest.mark.parametrize(("uid", "service"), [(0, "worker"), (2000, "")])
def test_what_a_job_listens_on_is_none_of_ours(uid: int, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who listens on an old port of slurmd would keep a deploy from all of its nodes."""
    row = f"   0: 00000000:1AA2 00000000:0000 0A 0:0 0:0 0 {uid} 0 4711 1 0\n"
    monkeypatch.setattr(deploy_facts, "read_text", lambda path: f"head\n{row}" if path == "/proc/net/tcp" else "")
    monkeypatch.setattr(deploy_facts, "socket_owners", lambda inodes: [7] if "4711" in inodes else [])
    found = deploy_facts.listening_services([6818], {7: ("slurmd", 5), 5: ("tini", 1)}, {5: "worker"})
    assert found == {"6818": {"program": "slurmd", "service": service}}


def test_a_taken_port_has_an_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, known = server.getsockname()[1], deploy_facts.processes()
        mine = Path("/proc/self/stat").read_text().partition("(")[2].rpartition(")")[0]
        assert deploy_facts.listening_services([port], known, {}) == {str(port): {"program": mine, "service": ""}}
        assert deploy_facts.listening_services([port], known, {os.getppid(): "control"})[str(port)] == {
            "program": mine,
            "service": "control",
        }
    assert deploy_facts.listening_services([port], known, {}) == {}


def test_processes_of_a_container_are_those_below_its_first() -> None:
    known = {1: ("init", 0), 10: ("tini", 5), 11: ("slurmd", 10), 12: ("slurmstepd", 11), 20: ("slurmd", 1)}
    assert [deploy_facts.service_of(pid, known, {10: "worker"}) for pid in (10, 11, 12, 20, 99)] == [
        "worker",
        "worker",
        "worker",
        "",
        "",
    ]


def test_reach_and_resolve() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_port = server.getsockname()[1]
        found = deploy_facts.try_addresses([f"127.0.0.1:{open_port}", "127.0.0.1:1", "nonsense", "127.0.0.1:x"])
    assert found[f"127.0.0.1:{open_port}"] == found["127.0.0.1:1"] == "", "a refusal is an answer"
    assert found["nonsense"]
    assert found["127.0.0.1:x"]
    resolved = names.resolve(["localhost", "no such name"], 2)
    assert {"127.0.0.1", "::1"} & set(resolved["localhost"])
    assert resolved["no such name"] == []


def test_a_silent_name_server_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [never.wait(5)][1:])
    assert names.resolve(["head"], 0.1) == {"head": []}
    never.set()


def test_files_and_documents(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/a").write_text("secret")
    unread: dict[str, str] = {}
    assert list(deploy_facts.written_files(unread, str(tmp_path))) == [str(tmp_path / "keys/a")]
    assert "secret" not in str(deploy_facts.written_files(unread, str(tmp_path)))
    assert deploy_facts.written_files(unread, str(tmp_path / "nope")) == {}
    (tmp_path / "good").write_text('{"image": "x"}')
    (tmp_path / "bad").write_text('{"image": ')
    assert deploy_facts.json_file(str(tmp_path / "good"), unread) == {"image": "x"}
    assert deploy_facts.json_file(str(tmp_path / "nope"), unread) is None
    assert unread == {}
    assert deploy_facts.json_file(str(tmp_path / "bad"), unread) is None
    assert unread == {str(tmp_path / "bad"): "not JSON"}
    assert deploy_facts.json_file("/proc/self/mem", unread) is None
    assert unread["/proc/self/mem"] == os.strerror(errno.EIO), "opened, but not read"


@pytest.mark.skipif(os.geteuid() != 0 or PYTHON is None, reason="only root can try to be nobody")
def test_without_root_it_says_what_it_could_not_read() -> None:
    code = (
        "import json, sys; from node import deploy_facts\n"
        "unread = {}; deploy_facts.written_files(unread, 'closed'); "
        "found = deploy_facts.collect_facts(ports=[22], uids=[0])\n"
        "print(json.dumps([unread, found['deploy']['user']['uid'], found['deploy']['schema']]))"
    )
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(NODE, Path(folder, "node"), ignore=shutil.ignore_patterns("__pycache__"))
        Path(folder, "closed/keys").mkdir(parents=True)
        Path(folder, "closed/keys").chmod(0o700)
        Path(folder).chmod(0o755)
        done = subprocess.run(
            [str(PYTHON), "-B", "-c", code],
            cwd=folder,
            user=65534,
            group=65534,
            extra_groups=[],
            env={},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == '[{"closed/keys": "Permission denied"}, 65534, 1]'


def test_the_controller_reads_exactly_what_the_node_sends() -> None:
    sent = deploy_facts.collect_facts(names=["localhost"], uids=[0], users=["root", "nobody at all"])["deploy"]
    assert set(sent) == {field.alias or name for name, field in FactsAnswer.model_fields.items()}
    assert (sent["passwd"], sent["ids"]) == ({"0": "root"}, {"root": 0})
    assert sent["user"]["uid"] == os.geteuid()
