"""The images at work: a controller and a worker on a network, with a MUNGE key and the smallest slurm.conf."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import testinfra
from slurm_containers import Cluster, Node, until
from workspace import Built, engine

pytestmark = pytest.mark.engine

NODES = """\
NodeName=n1 CPUs=4 State=UNKNOWN
NodeName=n2 CPUs=4 State=FUTURE
PartitionName=train Nodes=ALL Default=YES State=UP
"""
RANKS = """\
from mpi4py import MPI
world = MPI.COMM_WORLD
print(f"rank {world.rank} of {world.size}: sum {world.allreduce(world.rank + 1)}")
"""


@pytest.fixture(scope="module")
def cluster(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(built, tmp_path_factory.mktemp("cluster"), NODES)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def nodes(cluster: Cluster) -> tuple[Node, Node]:
    """Controller and worker. The worker is told only where the controller is; its settings come from there.
    It starts first: the controller waits long for the name of a node that isn't there."""
    worker = cluster.start("n1", "worker", "--env=ROCSTACK_CONTROLLER=ctl")
    control = cluster.start("ctl", "control", cluster.settings())
    until(control.health, "healthy", control)
    until(worker.health, "healthy", worker)
    until(lambda: control.run("sinfo", "--noheader", "--nodes=n1", "--format=%T").stdout.strip(), "idle", worker)
    return control, worker


@pytest.fixture
def control(nodes: tuple[Node, Node]) -> Node:
    return nodes[0]


@pytest.fixture
def worker(nodes: tuple[Node, Node]) -> Node:
    return nodes[1]


def test_daemons_become_healthy(control: Node, worker: Node) -> None:
    assert "is UP" in worker.run("scontrol", "ping").stdout
    host = testinfra.get_host(f"docker://{worker.name}")
    assert host.socket("tcp://0.0.0.0:6818").is_listening
    key = host.file("/etc/munge/munge.key")
    assert (key.user, key.group, key.mode, key.size) == ("munge", "munge", 0o400, 1024)
    assert testinfra.get_host(f"docker://{control.name}").socket("tcp://0.0.0.0:6817").is_listening
    assert control.run("stat", "-c", "%U", "/var/lib/slurm/slurmctld").stdout.strip() == "slurm"


def test_srun(worker: Node, control: Node) -> None:
    assert worker.run("srun", "-N1", "hostname").stdout == "n1\n"
    assert control.run("srun", "-N1", "hostname").stdout == "n1\n"
    failed = worker.run("srun", "-N1", "bash", "-c", "exit 9", check=False)
    assert failed.returncode == 9
    assert failed.stderr.startswith("srun: error: n1: task 0: Exited with exit code 9"), "and nothing of plugstack"


def test_mpi_ranks_under_slurm_talk_over_ucx(worker: Node) -> None:
    quiet = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_pml_base_verbose": "10"}
    done = worker.run("srun", "--mpi=pmix", "-n2", "python3", "-c", RANKS, **quiet)
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2: sum 3", "rank 1 of 2: sum 3"]
    assert "selected ucx" in done.stderr + done.stdout or "select: component ucx selected" in done.stderr


@pytest.mark.parametrize("configless", [False, True])
def test_wrong_key_is_unhealthy(cluster: Cluster, control: Node, configless: bool) -> None:
    """A key of another site: it stays outside, and says why."""
    source = "--env=ROCSTACK_CONTROLLER=ctl" if configless else cluster.settings()
    node = cluster.start("n2", "worker", source, key="wrong.key")
    until(node.health, "unhealthy", node)
    assert node.state()["Status"] == "running"
    until(lambda: str("the controller does not answer" in node.last_check()), "True", node)  # munged was not up before
    said = node if configless else control  # the one who reads the other's message
    until(lambda: str("authentication error" in said.log()), "True", node)
    node.remove()


def test_without_a_controller_it_is_unhealthy(control: Node, worker: Node) -> None:
    """Last: it takes the controller away."""
    assert worker.health() == "healthy"
    engine("kill", control.name)
    until(worker.health, "unhealthy", worker)
    assert "the controller does not answer" in worker.last_check()
