"""Faults of real (virtual) nodes, each found by its check and by no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from deployed_cluster import DeployedCluster, until

pytestmark = pytest.mark.engine
CHECKS = "g*"  # of GPUs, and of how Slurm gives them to jobs
KFD, AWAY = "/dev/kfd", "/dev/.kfd"


def states(deployed: DeployedCluster, code: int) -> dict[str, str]:
    """Check -> its state, of a run."""
    said = deployed.json("verify", "--level", "2", "--only", CHECKS, code=code)
    return {each["check"]["name"]: each["state"] for each in said["results"]}


def red(found: dict[str, str]) -> set[str]:
    return {name for name, state in found.items() if state in ("failed", "error")}


@contextmanager
def without_device(deployed: DeployedCluster) -> Iterator[None]:
    deployed.ssh("n2", f"docker exec rocstack-worker mv {KFD} {AWAY}")
    try:
        yield
    finally:
        deployed.ssh("n2", f"docker exec rocstack-worker mv {AWAY} {KFD}")


@contextmanager
def counted_wrong(deployed: DeployedCluster) -> Iterator[None]:
    def count(before: int, after: int) -> None:
        deployed.ssh("n1", f"sed -i s/gpu:mi300x:{before}/gpu:mi300x:{after}/ /etc/rocstack/slurm/slurm.conf")
        deployed.slurm("scontrol reconfigure")
        until(lambda: f"Gres=gpu:mi300x:{after}" in deployed.slurm("scontrol show node n2"), 30)

    count(8, 7)
    try:
        yield
    finally:
        count(7, 8)
        deployed.idle()


def test_a_device_file_that_is_not_there(deployed: DeployedCluster) -> None:
    with without_device(deployed):
        found = states(deployed, 1)
    assert red(found) == {"gpu-devices"}
    assert {"gpu-tools", "gres", "gres-worker", "gres-job", "gres-each"} <= {
        name for name, s in found.items() if s == "passed"
    }


def test_a_gres_count_that_is_wrong(deployed: DeployedCluster) -> None:
    with counted_wrong(deployed):
        found = states(deployed, 1)
    # The GPU that Slurm doesn't know is kept from nobody, and that is so.
    assert red(found) == {"gres", "gres-each", "gres-isolation"}
    assert found["gpu-devices"] == "passed"
