"""MPI of two deployed nodes with one of them made ill: each fault turns its check red, and no other."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from deployed_cluster import INVENTORY, DeployedCluster
from evidence_replay import good, red, replay, states

from rocstack.settings import settings
from rocstack.verify.deployed_cluster import connect
from rocstack.verify.result import CheckResult
from rocstack.verify.suite import checks

sys.path.append(str(checks()))
from experiments import mpi

PACKAGES = "/usr/lib/python3/dist-packages"  # of the worker image
CHECKS = {"mpi-launch", "mpi-ring", "mpi-latency", "mpi-bandwidth", "mpi-collectives"}
# MPI's world as a program's author would not want it: what `{method}` says is done instead.
FAULT = """\
import importlib.util, sys, time
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "mpi4py.MPI":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            begin = module.Init
            class Faulty(module.Intracomm):
                def Split(self, *words):
                    return Faulty(super().Split(*words))
                {method}
            def init():
                begin()
                module.COMM_WORLD = Faulty(module.COMM_WORLD)
            module.Init = init
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Finder())
"""
OTHER_DATA = "def Sendrecv(self, sent, *more): super().Sendrecv(-sent, *more)"
LATE = "def Send(self, *words): time.sleep(0.02); super().Send(*words)"
WRONG_SUM = """\
def Allreduce(self, given, got, operation):
                    super().Allreduce(given, got, operation)
                    got[:1] += got.dtype.name == "float32" and got.size == 17"""


@contextmanager
def faulty(deployed: DeployedCluster, method: str) -> Iterator[None]:
    """On n2 every Python that imports mpi4py."""
    text = FAULT.format(method=method)
    inside(deployed, f"echo import fault >{PACKAGES}/fault.pth && printf %s {shlex.quote(text)} >{PACKAGES}/fault.py")
    try:
        yield
    finally:
        inside(deployed, f"rm {PACKAGES}/fault.pth {PACKAGES}/fault.py")


@contextmanager
def shaped(deployed: DeployedCluster, rate: str) -> Iterator[None]:
    """What n2 sends."""
    deployed.ssh("n2", f"tc qdisc replace dev eno1 root tbf rate {rate} burst 32k latency 200ms")
    try:
        yield
    finally:
        deployed.ssh("n2", "tc qdisc del dev eno1 root")


@contextmanager
def without_pmix(deployed: DeployedCluster) -> Iterator[None]:
    """On n2 Slurm's plugin finds no library."""
    library = inside(deployed, "readlink -f $(ldconfig -p | sed -n 's/.*libpmix.so.2 .*=> //p')").strip()
    inside(deployed, f"mv {library} {library}.away")
    try:
        yield
    finally:
        inside(deployed, f"mv {library}.away {library}")


def inside(deployed: DeployedCluster, command: str) -> str:
    return deployed.ssh("n2", f"docker exec rocstack-worker sh -c {shlex.quote(command)}")


@pytest.fixture(scope="module")
def verify(deployed: DeployedCluster) -> Iterator[Callable[[], dict[str, CheckResult]]]:
    """What the checks of MPI say of the cluster as it is now; one allocation for all."""
    folder = deployed.workspace.folder
    cluster = connect(folder / INVENTORY, settings.load({}, {}, folder)[0].cluster, level=1)

    def once() -> dict[str, CheckResult]:
        found: dict[str, Any] = mpi.launched(cluster.slurm, cluster.allocated(), shared=True)
        return replay({**good(), "mpi": found}, only="mpi-*", level=1)

    yield once
    cluster.slurm.close()


Verify = Callable[[], dict[str, CheckResult]]


@pytest.mark.slow
def test_good(verify: Verify) -> None:
    found = verify()
    assert states(found) == dict.fromkeys(CHECKS, "passed")
    assert "ranks 0, 1 of 4, PML ucx, over tcp/eno1" in found["mpi-launch"].measures[0].evidence
    for measure in found["mpi-collectives"].measures:
        assert isinstance(measure.value, int)
        assert measure.value > 500
    (drawn,) = found["mpi-bandwidth"].drawings["matrix"]["quantities"]
    assert drawn["nodes"] == ["n1", "n2"]
    assert [[value is None for value in row] for row in drawn["values"]] == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("check", "fault", "says"),
    [
        ("mpi-ring", OTHER_DATA, "values wrong from rank 3"),
        ("mpi-latency", LATE, "expected at most 5000 us"),
        ("mpi-collectives", WRONG_SUM, "Allreduce SUM of 17 float32"),
        ("mpi-bandwidth", "20mbit", "expected at least 0.02 GB/s"),
    ],
)
def test_ill(deployed: DeployedCluster, verify: Verify, check: str, fault: str, says: str) -> None:
    with shaped(deployed, fault) if check == "mpi-bandwidth" else faulty(deployed, fault):
        found = verify()
    assert states(found) == {**dict.fromkeys(CHECKS, "passed"), check: "failed"}
    assert says in found[check].why


@pytest.mark.slow
def test_a_node_on_which_mpi_does_not_start(deployed: DeployedCluster, verify: Verify) -> None:
    """It is named, and the other one is verified."""
    with without_pmix(deployed):
        found = verify()
    assert red(found) == {"mpi-launch"}
    assert {m.node: m.state for m in found["mpi-launch"].measures} == {"n1": "passed", "n2": "failed"}
    for name in ("mpi-ring", "mpi-collectives"):
        assert found[name].state == "passed"
        assert {m.node: m.why for m in found[name].measures} == {"n1": "", "n2": "MPI does not start"}
