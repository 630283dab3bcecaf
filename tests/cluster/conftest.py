"""Evidence that several files of checks judge, each read once a run; rocstack.verify.pytest_plugin has the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kernel
import pytest
from experiments import gpus

from rocstack.base.errors import CheckFailed

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def in_jobs(evidence: Any, cluster: Any, described: Any) -> dict[str, Any]:
    """What each worker says of itself inside a job: node -> the answer of programs/worker.py, of those that gave one.

    Raises:
        CheckFailed: none did.
    """

    def fetch() -> dict[str, Any]:
        cluster.allocated()
        names = sorted({name for env in described["fabric"].values() for name in env})
        step = cluster.slurm.python(PROGRAMS / "worker.py", *names, seconds=60, alone=True)
        return {answer["node"]: answer for answer in step.expect("the look at each worker")}

    found: dict[str, Any] = evidence.take("in_jobs", fetch)
    return found


@pytest.fixture(scope="session")
def tools(in_jobs: dict[str, Any]) -> dict[str, list[str]]:
    """node -> programs that its worker image has, of those that said it."""
    return {node: answer["tools"] for node, answer in in_jobs.items()}


@pytest.fixture(scope="session")
def described(suite: Any) -> Any:
    """What the run is about: the cluster's nodes, images and release."""
    return suite.described()


@pytest.fixture(scope="session")
def in_containers(evidence: Any, cluster: Any) -> dict[str, Any]:
    """What each worker's container says of itself, whether or not jobs run: node -> the answer of
    programs/container.py, or {"error": why}."""

    def fetch() -> Any:
        names = [host.name for host in cluster.looked.inventory.workers]
        return cluster.python(PROGRAMS / "container.py", seconds=90, inside=True, arguments=names)

    found: dict[str, Any] = evidence.take("in_containers", fetch)
    return found


@pytest.fixture(scope="session")
def controller(evidence: Any, cluster: Any) -> dict[str, Any]:
    """What Slurm's daemons at the control node answer: programs/controller.py.

    Raises:
        CheckFailed: they could not be asked.
    """

    def fetch() -> Any:
        said = cluster.python(PROGRAMS / "controller.py", [cluster.control], arguments=[cluster.slurm.name])
        return said[cluster.control]

    found: dict[str, Any] = evidence.take("controller", fetch)
    if "error" in found:
        raise CheckFailed(f"the control node could not be looked at: {found['error']}", code="step-failed")
    return found


@pytest.fixture(scope="session")
def on_hosts(evidence: Any, cluster: Any) -> dict[str, Any]:
    """What each worker says beside its containers: node -> the answer of programs/host.py, or {"error": why}."""

    def fetch() -> Any:
        return cluster.python(PROGRAMS / "host.py", cluster.workers, arguments=kernel.KEPT)

    found: dict[str, Any] = evidence.take("on_hosts", fetch)
    return found


@pytest.fixture(scope="session")
def gpu_jobs(evidence: Any, cluster: Any, controller: dict[str, Any]) -> dict[str, Any]:
    """What jobs with GPUs see: as experiments/gpus.py says."""
    found: dict[str, Any] = evidence.take("gpu_jobs", lambda: gpus.run(cluster, controller))
    return found
