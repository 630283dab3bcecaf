"""Evidence that several files of checks judge, each read once a run; rocstack.verify.pytest_plugin has the rest."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kernel
import pytest
from experiments import gpus, qos, scheduling

from rocstack.base.errors import CheckFailed
from rocstack.verify.evidence import (
    CONTROLLER,
    IN_CONTAINERS,
    IN_JOBS,
    ON_HOSTS,
    ClusterEvidence,
    ContainerAnswer,
    ControllerAnswer,
    Evidence,
    HostAnswer,
    JobAnswer,
    NoAnswer,
)
from rocstack.verify.session import Suite

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def in_jobs(evidence: Evidence, cluster: Any, cluster_evidence: ClusterEvidence) -> dict[str, JobAnswer]:
    """What each worker sees inside a job: node -> the answer of programs/worker.py, where there is one.

    Raises:
        CheckFailed: none did.
    """

    def fetch() -> dict[str, Any]:
        cluster.allocated()
        names = sorted({name for env in cluster_evidence.fabric.values() for name in env})
        step = cluster.slurm.python(PROGRAMS / "worker.py", *names, seconds=60, independent=True)
        return {answer["node"]: answer for answer in step.expect("the look at each worker")}

    return evidence.parsed("in_jobs", IN_JOBS, fetch)


@pytest.fixture(scope="session")
def tools(in_jobs: dict[str, JobAnswer]) -> dict[str, tuple[str, ...]]:
    """node -> programs that its worker image has, of those that said it."""
    return {node: answer.tools for node, answer in in_jobs.items()}


@pytest.fixture(scope="session")
def cluster_evidence(suite: Suite) -> ClusterEvidence:
    """What the run is about: the cluster's nodes, images and release."""
    return suite.cluster_evidence()


@pytest.fixture(scope="session")
def in_containers(evidence: Evidence, cluster: Any) -> dict[str, ContainerAnswer | NoAnswer]:
    """What each worker's container answers, whether or not jobs run there."""

    def fetch() -> Any:
        names = [host.name for host in cluster.state.inventory.workers]
        return cluster.python(PROGRAMS / "container.py", seconds=90, in_worker=True, arguments=names)

    return evidence.parsed("in_containers", IN_CONTAINERS, fetch)


@pytest.fixture(scope="session")
def controller(evidence: Evidence, cluster: Any) -> ControllerAnswer:
    """What Slurm's daemons on the control node answer.

    Raises:
        CheckFailed: they could not be asked.
    """

    def fetch() -> Any:
        answers_of = cluster.python(PROGRAMS / "controller.py", [cluster.control], arguments=[cluster.slurm.name])
        return answers_of[cluster.control]

    answer = evidence.parsed("controller", CONTROLLER, fetch)
    if isinstance(answer, NoAnswer):
        raise CheckFailed(f"the control node could not be inspected: {answer.error}", code="step-failed")
    return answer


@pytest.fixture(scope="session")
def on_hosts(evidence: Evidence, cluster: Any) -> dict[str, NoAnswer | HostAnswer]:
    """What each worker's host answers, outside the containers."""

    def fetch() -> Any:
        return cluster.python(PROGRAMS / "host.py", cluster.workers, arguments=kernel.KEPT)

    return evidence.parsed("on_hosts", ON_HOSTS, fetch)


@pytest.fixture(scope="session")
def gpu_jobs(evidence: Evidence, cluster: Any, controller: ControllerAnswer) -> dict[str, Any]:
    """What jobs with GPUs see: as experiments/gpus.py says."""
    jobs: dict[str, Any] = evidence.take("gpu_jobs", lambda: gpus.run(cluster, controller))
    return jobs


@pytest.fixture(scope="session")
def tried(evidence: Any, cluster: Any, controller: ControllerAnswer) -> Iterator[dict[str, Future[Any]]]:
    """Both experiments at once: they mostly wait. On nodes without GPUs training begins them, and goes on meanwhile."""
    if evidence.replayed:
        yield {}
        return
    cluster.allocated()  # or it says why nothing can be tried
    if cluster.slurm.gpus:
        cluster.slurm.release()  # it has the nodes as a whole
    scheduling.clear(cluster.slurm)
    rows = controller.nodes
    counted = "gres/gpu" in controller.settings.get("AccountingStorageTRES", "").split(",")
    gpus = counted and any("gpu" in (row.gres or "") for row in rows)
    exclude = [row.name for row in rows if row.name not in cluster.ready]
    threads = max((row.threads or 1 for row in rows), default=1)
    with ThreadPoolExecutor(2) as pool:
        yield {
            "competed": pool.submit(scheduling.run, cluster.slurm, cluster.ready),
            "limited": pool.submit(qos.run, cluster.slurm, exclude, gpus=gpus, threads=threads),
        }
