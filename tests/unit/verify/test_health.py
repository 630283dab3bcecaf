"""The node's own health check, over folders that stand for a node's: each fault is found, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rocstack.cluster import slurm_files
from rocstack.cluster.settings import ClusterSettings

SCRIPT = Path(__file__).parents[3] / "images/rootfs/worker/usr/local/bin/rocstack-node-health"
ENV = """\
# Environment of n1's fabric
NCCL_IB_HCA==bnxt_re0:1,bnxt_re1:1
NCCL_SOCKET_IFNAME==eno1
UCX_NET_DEVICES=eno1
"""


def load() -> ModuleType:
    loader = SourceFileLoader("node_health", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def health(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A pipe stands for a device: to make one of those takes root."""
    found = load()
    monkeypatch.setattr(found.stat, "S_ISCHR", found.stat.S_ISFIFO)
    monkeypatch.setattr(found.time, "sleep", lambda seconds: None)
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A healthy node."""
    files = {
        "etc/rocstack/fabric.env": ENV,
        "sys/class/infiniband/bnxt_re0/ports/1/state": "4: ACTIVE\n",
        "sys/class/infiniband/bnxt_re1/ports/1/state": "4: ACTIVE\n",
        "sys/class/net/eno1/operstate": "up\n",
        "sys/class/drm/card0/device/ras/umc_err_count": "ue: 0\nce: 7\n",
        "sys/devices/system/edac/mc/mc0/ue_count": "0\n",
        "run/rocstack/gate": "refuse",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "tmp").mkdir()
    for name in ("dev/kfd", "dev/dri/renderD128", "dev/dri/renderD129", "dev/infiniband/uverbs0"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / name)
    return tmp_path


def test_nothing_is_wrong(health: ModuleType, root: Path) -> None:
    assert list(health.faults(root)) == []
    assert len((root / health.SEEN).read_text().splitlines()) == 4


def write(name: str, text: str) -> Callable[[Path], Any]:
    return lambda root: (root / name).write_text(text)


def remove(*names: str) -> Callable[[Path], Any]:
    return lambda root: [(root / name).unlink() for name in names]


@pytest.mark.parametrize(
    ("break_it", "fault"),
    [
        (remove("dev/dri/renderD129"), "device gone: /dev/dri/renderD129"),
        (remove("dev/kfd", "dev/infiniband/uverbs0"), "devices gone: /dev/infiniband/uverbs0, /dev/kfd"),
        (write("sys/class/infiniband/bnxt_re1/ports/1/state", "1: DOWN\n"), "port bnxt_re1:1 is DOWN"),
        (remove("sys/class/infiniband/bnxt_re0/ports/1/state"), "port bnxt_re0:1 is gone"),
        (write("sys/class/net/eno1/operstate", "down\n"), "eno1 is down"),
        (
            write("sys/class/drm/card0/device/ras/umc_err_count", "ue: 2\nce: 7\n"),
            "card0: 2 uncorrectable errors of umc",
        ),
        (write("sys/devices/system/edac/mc/mc0/ue_count", "1\n"), "memory controller mc0: 1 uncorrectable errors"),
    ],
)
def test_each_fault_is_found_and_no_other(
    break_it: Callable[[Path], Any], fault: str, health: ModuleType, root: Path
) -> None:
    assert list(health.faults(root)) == []
    break_it(root)
    assert list(health.faults(root)) == [fault]


def test_what_has_come_since_is_no_fault(health: ModuleType, root: Path) -> None:
    list(health.faults(root))
    os.mkfifo(root / "dev/dri/renderD130")
    assert list(health.faults(root)) == []


def test_a_file_where_a_device_was(health: ModuleType, root: Path) -> None:
    list(health.faults(root))
    remove("dev/kfd")(root)
    write("dev/kfd", "")(root)
    assert list(health.faults(root)) == ["device gone: /dev/kfd"]


@pytest.mark.parametrize("text", ["NCCL_IB_DISABLE=1\n", "NCCL_IB_HCA=^=bnxt_re9\n", "NCCL_IB_HCA=mlx5\n", ""])
def test_devices_that_the_fabric_does_not_name_are_not_looked_at(text: str, health: ModuleType, root: Path) -> None:
    write("etc/rocstack/fabric.env", text)(root)
    write("sys/class/infiniband/bnxt_re1/ports/1/state", "1: DOWN")(root)
    assert list(health.faults(root)) == []


@pytest.mark.parametrize(
    ("free", "inodes", "said"), [(100 << 20, 9, "is full: 100 MiB left"), (9 << 30, 0, "no inode")]
)
def test_no_room(
    free: int, inodes: int, said: str, health: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Found:
        f_frsize, f_bavail, f_files, f_favail = 1, free, 10, inodes

    monkeypatch.setattr(health.os, "statvfs", lambda folder: Found)
    found = list(health.faults(root))
    assert [each.partition(" ")[0] for each in found] == ["/", "/tmp"]
    assert all(said in each for each in found)


def test_what_cant_be_looked_at_is_a_fault(health: ModuleType, root: Path) -> None:
    (root / "tmp").rmdir()
    (found,) = health.faults(root)
    assert found.startswith("rooms can't be looked at")


class Asked:
    """Commands that answer with what is set here."""

    def __init__(self, health: ModuleType, monkeypatch: pytest.MonkeyPatch, **answers: tuple[int, str]) -> None:
        self.answers, self.lines = answers, list[str]()
        monkeypatch.setattr(health, "ask", self.ask)
        monkeypatch.setattr(health.socket, "gethostname", lambda: "n1")
        monkeypatch.setattr(health, "faults", lambda: iter(()))
        monkeypatch.setattr(health, "SETTING", "nonexistent/health")

    def ask(self, *command: str, feed: Any = None) -> tuple[int, str]:
        self.lines.append(" ".join(command))
        name = os.path.basename(command[0])
        return self.answers.get("show" if "show" in command else name, (0, ""))


UNFIT = {"rocstack-prolog": (1, "looking\nrocstack: ABI 5 wanted")}
DRAIN = "scontrol update NodeName=n1 State=drain Reason=rocstack-health: the gate: ABI 5 wanted"


def test_well(health: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(health, monkeypatch)
    assert health.main([]) == 0
    assert not any("update" in line for line in asked.lines)


def test_a_fault_drains_it(health: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(health, monkeypatch, **UNFIT, show=(0, "NodeName=n1 State=IDLE Reason="))
    assert health.main([]) == 1
    assert asked.lines[-1] == DRAIN


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "MIXED+DRAIN", "DOWN+DRAIN+NOT_RESPONDING", "IDLE+FAIL"])
def test_another_reason_stays(state: str, health: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(health, monkeypatch, **UNFIT, show=(0, f"NodeName=n1 State={state} Reason=fan"))
    assert health.main([]) == 1
    assert not any("update" in line for line in asked.lines)


def test_only_to_be_told(
    health: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked(health, monkeypatch, **UNFIT)
    assert health.main(["--say"]) == 1
    (tmp_path / "health").write_text("say\n")
    monkeypatch.setattr(health, "SETTING", str(tmp_path / "health"))
    assert health.main([]) == 1
    assert not any("scontrol" in line for line in asked.lines)
    assert capsys.readouterr().out == "the gate: ABI 5 wanted\n" * 2


def test_a_munged_that_starts_again_is_waited_for(health: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(health, monkeypatch, munge=(1, "no socket"))
    monkeypatch.setattr(health.time, "sleep", lambda seconds: asked.answers.pop("munge", None))
    assert health.main([]) == 0
    asked.answers["unmunge"] = (1, "Rewound credential")
    assert list(health.munge()) == ["munge: no round trip: Rewound credential"]


def test_a_program_that_hangs_or_is_not_there(health: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SECONDS", 0.1)
    assert health.ask("sleep", "5") == (124, "no answer within 0.1 s")
    assert health.ask("/nonexistent")[0] == 127


def lines(**health: Any) -> list[str]:
    cluster = ClusterSettings.model_validate({"health": health})
    files = slurm_files.files(cluster, slurm_files.Control("head", "10.0.0.1"), [], password="pass-word-1")
    return [line for line in files.texts["slurm.conf"].splitlines() if line.startswith("HealthCheck")]


def test_slurm_runs_it() -> None:
    program = "HealthCheckProgram=/usr/local/bin/rocstack-node-health"
    assert lines() == [program, "HealthCheckInterval=300", "HealthCheckNodeState=ANY,CYCLE"]
    assert lines(every="1h")[1] == "HealthCheckInterval=3600"
    assert lines(every="infinite") == []
    assert program.endswith(SCRIPT.name)
    assert os.access(SCRIPT, os.X_OK)


@pytest.mark.parametrize("every", ["29s", "19h", "1d", "5", "never"])
def test_an_interval_that_slurm_has_not(every: str) -> None:
    with pytest.raises(ValueError, match="every"):
        ClusterSettings.model_validate({"health": {"every": every}})
