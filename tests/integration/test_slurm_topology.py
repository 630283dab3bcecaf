"""topology.conf as it is made here, given to the real Slurm: a job of two nodes gets such that share a switch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from slurm_containers import Cluster, Node, until
from workspace import Built

from rocstack.cluster import topology
from rocstack.cluster.settings import ClusterSettings

pytestmark = pytest.mark.engine

NODES = """\
NodeName=n[1-4] CPUs=2 State=UNKNOWN
PartitionName=train Nodes=ALL Default=YES State=UP
TopologyPlugin=topology/{plugin}
"""
# Not in the order in which Slurm would take them.
SWITCHES = {"a": ["n1", "n3"], "b": ["n2", "n4"]}
PLUGINS = {
    "tree": "tree",
    "dragonfly": "tree\nTopologyParam=Dragonfly",
    "block": "block",
}


@pytest.fixture(scope="module")
def cluster(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(built, tmp_path_factory.mktemp("topology"), NODES.format(plugin="tree"))
    describe(made, "tree")
    try:
        for name in ("n1", "n2", "n3", "n4"):
            made.start(name, "worker", "--env=ROCSTACK_CONTROLLER=ctl", look="30s")
        made.start("ctl", "control", made.settings(), look="30s")
        yield made
    finally:
        made.close()


def describe(cluster: Cluster, kind: str) -> None:
    wanted = ClusterSettings.model_validate({"topology": {"kind": kind, "switches": SWITCHES}}).topology
    assert wanted
    conf = cluster.folder / "etc/slurm.conf"
    own = conf.read_text().partition("NodeName=")[0]
    conf.write_text(own + NODES.format(plugin=PLUGINS[kind]))
    (cluster.folder / "etc/topology.conf").write_text(topology.text(wanted, SWITCHES))


@pytest.mark.parametrize("kind", list(PLUGINS))
def test_a_job_gets_nodes_that_are_near_each_other(cluster: Cluster, kind: str) -> None:
    control: Node = cluster.made[-1]
    until(lambda: said(control, "sinfo", "--noheader", "--format=%D %T"), "4 idle", control)
    describe(cluster, kind)
    control.run("scontrol", "reconfigure")
    until(lambda: said(control, "sinfo", "--noheader", "--format=%D %T"), "4 idle", control)
    assert where(control, 2) in SWITCHES.values()
    job = said(
        control, "sbatch", "--parsable", "--nodelist=n1", "--exclusive", "--output=/dev/null", "--wrap=sleep 300"
    )
    try:
        until(lambda: said(control, "squeue", "--noheader", "--format=%T"), "RUNNING", control)
        assert where(control, 2) == ["n2", "n4"]
    finally:
        control.run("scancel", job)
    until(lambda: said(control, "squeue", "--noheader"), "", control)
    assert where(control, 4) == ["n1", "n2", "n3", "n4"], "no switch has so many"


def said(control: Node, *command: str) -> str:
    return control.run(*command, check=False).stdout.strip()


def where(control: Node, nodes: int) -> list[str]:
    return sorted(control.run("srun", f"--nodes={nodes}", "hostname").stdout.split())
