"""MPI: it starts, its ranks talk, every pair of nodes is as fast as it should be, every collective is right."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from experiments import links
from experiments.links import BETTER, UNITS, Pair
from experiments.mpi import PARTS, TASKS, launched, others, seconds, wanted
from experiments.performance import whole
from experiments.rdma import not_for

from rocstack.verify.evidence import ClusterEvidence, NodeEvidence
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder

RDMA = ("rc", "dc", "ud", "gga", "srd")  # UCX's transports over verbs: rc_verbs, dc_mlx5, ...
LAUNCH = "MPI does not start"


@pytest.fixture(scope="session")
def mpi(evidence: Any, cluster: Any, all_nodes: tuple[NodeEvidence, ...]) -> dict[str, Any]:
    """What the ranks of programs/mpi.py answered; `others`: the nodes on which jobs of others ran meanwhile."""

    def fetch() -> dict[str, Any]:
        nodes = cluster.allocated()
        whole(cluster, math.ceil((seconds(len(nodes)) * len(PARTS)) / 60) + 1)
        before = others(cluster.slurm, nodes)
        results = launched(cluster.slurm, nodes, shared=any(node.virtual for node in all_nodes))
        return results | {"others": sorted(before | others(cluster.slurm, nodes))}

    results: dict[str, Any] = evidence.take("mpi", fetch)
    return results


def by_node(mpi: dict[str, Any], part: str) -> dict[str, list[dict[str, Any]]]:
    answers_of = defaultdict(list)
    for answer in mpi["answers"]:
        if answer["part"] == part:
            answers_of[answer["node"]].append(answer)
    return answers_of


def taking_part(record: Recorder, mpi: dict[str, Any], part: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Each node with its answers of a part. What is wrong with the part itself is written down."""
    answers_of = by_node(mpi, part)
    for name in [node.name for node in record.nodes]:
        answers = answers_of.get(name, [])
        if mpi["failed"] or name in mpi["broken"]:
            record.skipped(name, LAUNCH)
        elif name not in mpi["asked"]:
            record.skipped(name, "Slurm gave the node to other jobs")
        elif part in mpi["ended"] and len(answers) < wanted(part):
            record.failed(name, "it did not end", evidence=mpi["ended"][part])
        elif wrong := [answer["error"] for answer in answers if "error" in answer]:
            record.failed(name, wrong[0])
        elif answers:
            yield name, answers


@check(
    name="mpi-launch",
    title="MPI starts on all nodes at once, with every rank on its node",
    cannot="how fast jobs of many ranks start: it starts two on each node",
    level=1,
    core=True,
    item=6,
    needs=("jobs", "part:openmpi"),
    cause="Slurm's PMIx plugin, or the image's PMIx or Open MPI, doesn't work on the node",
    next_step="`rocstack doctor --log FILE` explains messages of MPI and PMIx; `srun --mpi=list` must list pmix",
)
def test_launch(record: Recorder, mpi: dict[str, Any]) -> None:
    if mpi["failed"] and not mpi["broken"]:
        record.failed("", "MPI starts on each node alone, but not on all together", evidence=mpi["failed"])
        return
    world = TASKS * len(mpi["nodes"])
    layers = {(end["node"], end["rank"]): end for end in mpi["answers"] if end["part"] == "end"}
    everyone = [answer for answer in mpi["answers"] if answer["part"] == "launch"]
    for name in [node.name for node in record.nodes]:
        own = {answer["rank"]: answer for answer in everyone if answer["node"] == name}
        if name in mpi["broken"]:
            record.failed(name, f"{LAUNCH} there", evidence=mpi["broken"][name])
        elif name not in mpi["asked"]:
            record.skipped(name, "Slurm gave the node to other jobs")
        else:
            others = {answer["rank"] for answer in everyone if answer["node"] != name}
            layer = layers.get((name, min(own, default=-1)), {"pml": [], "lanes": []})
            about = f"ranks {', '.join(map(str, sorted(own)))} of {world}"
            about += f", PML {' '.join(layer['pml']) or 'unknown'}, over {' '.join(layer['lanes']) or 'unknown'}"
            wrong = _misplaced(own, others, world)
            value = max((answer["seconds"] for answer in own.values()), default=None)
            if wrong:
                record.failed(name, wrong, value, "s", evidence=about)
            else:
                record.passed(name, value, "s", wanted=f"{TASKS} ranks of {world}", evidence=about)


def _misplaced(own: dict[int, dict[str, Any]], others: set[int], world: int) -> str:
    worlds = {answer["world"] for answer in own.values()}
    if worlds - {world}:
        return f"a rank sees a world of {min(worlds - {world})}, not {world}: it was started without PMIx"
    if len(own) != TASKS or set(own) & others:
        return f"ranks {sorted(own)}, expected {TASKS} that no other node has"
    hosts = {answer["host"] for answer in own.values()}
    return f"its ranks see {len(hosts)} hosts: {', '.join(sorted(hosts))}" if len(hosts) > 1 else ""


@check(
    name="mpi-ring",
    title="Every MPI rank receives exactly what the rank before it sent",
    cannot="paths between nodes that aren't neighbours in the ring",
    level=1,
    item=7,
    needs=("jobs", "part:openmpi"),
    cause="the network drops or corrupts messages between nodes, or UCX chose a device without a route",
    next_step="check UCX_NET_DEVICES in the node's environment (`rocstack-node env` in its container)",
)
def test_ring(record: Recorder, mpi: dict[str, Any]) -> None:
    for name, answers in taking_part(record, mpi, "ring"):
        wrong = next((f"rank {a['rank']}: {a['wrong']}" for a in answers if a["wrong"]), "")
        right = sum(not answer["wrong"] for answer in answers)
        record.equal(name, right, len(answers), "ranks", why=wrong)


def pairs(record: Recorder, mpi: dict[str, Any], quantity: str) -> list[Pair]:
    """All of them, drawn as a matrix."""
    rows = {name: answers[0]["row"] for name, answers in taking_part(record, mpi, "links")}
    names, key = list(rows), {"latency": "latency_us", "bandwidth": "bandwidth"}[quantity]
    values = [[rows[a][b][key] if b in rows[a] else None for b in names] for a in names]
    drawn = {"name": quantity, "unit": UNITS[quantity], "better": BETTER[quantity], "nodes": names, "values": values}
    record.draw("matrix", {"quantities": [drawn]})
    return [
        Pair(a, b, row.get(b, {}).get(key), row.get(b, {}).get("wrong", 0) if quantity == "bandwidth" else 0)
        for a, row in rows.items()
        for b in names
        if a < b or (a != b and quantity == "bandwidth")
    ]


def judge_pairs(record: Recorder, mpi: dict[str, Any], what: str) -> None:
    quick = {name for name, answers in by_node(mpi, "end").items() if over_rdma(answers)}
    links.judge(record, pairs(record, mpi, what), what, quick, mpi.get("others", ()))


@check(
    name="mpi-latency",
    title="Small MPI messages are fast between any two nodes",
    cannot=(
        "what an application sees under load; its floor is a sanity floor, and between virtual nodes nothing is "
        "compared"
    ),
    level=1,
    item=8,
    needs=("jobs", "part:openmpi", "nodes:2"),
    cause="a long or congested route between the two, or MPI on the wrong network",
    next_step="compare `ping` between these two nodes and others; check the devices that mpi-launch names",
)
def test_latency(record: Recorder, mpi: dict[str, Any]) -> None:
    judge_pairs(record, mpi, "latency")


@check(
    name="mpi-bandwidth",
    title="Large MPI messages are fast between any two nodes and arrive unchanged",
    cannot="the NICs' full speed, which `rdma-write-bandwidth` measures; its floor is a sanity floor",
    level=1,
    item=8,
    needs=("jobs", "part:openmpi", "nodes:2"),
    cause="a slow, rate-limited or congested link, or MPI on the wrong network",
    next_step="check the link speed of both nodes (`ethtool`) and the devices that mpi-launch names",
)
def test_bandwidth(record: Recorder, mpi: dict[str, Any]) -> None:
    judge_pairs(record, mpi, "bandwidth")


@check(
    name="mpi-collectives",
    title="Every MPI collective gives numpy's result, for every type and at odd sizes",
    cannot="large messages, and how fast they are",
    level=1,
    item=9,
    needs=("jobs", "part:openmpi"),
    cause="a node's Open MPI, UCX or network corrupts data",
    next_step="try OMPI_MCA_coll=basic: if it helps, the algorithm is at fault; otherwise replace the node",
)
def test_collectives(record: Recorder, mpi: dict[str, Any]) -> None:
    for name, answers in taking_part(record, mpi, "collectives"):
        least = min(answers, key=lambda answer: answer["right"] - answer["cases"])
        about = f"{least['cases']} of {least['planned']} cases were run"
        about += f"; this MPI has no {', '.join(least['lacking'])}" if least["lacking"] else ""
        if least["kinds"] < least["kinds_planned"]:
            kinds = f"only {least['kinds']} of {least['kinds_planned']} collectives and types were run in time"
            record.failed(name, kinds, least["right"], "cases", evidence=about)
            continue
        wrong = f"rank {least['rank']}: {'; '.join(least['wrong'])}"
        record.equal(name, least["right"], least["cases"], "cases", why=wrong, evidence=about)


@check(
    name="mpi-transport",
    title="MPI uses RDMA between nodes that have it",
    cannot="how fast it is, and ways of MPI implementations other than the image's",
    level=2,
    item=6,
    needs=("jobs", "part:openmpi", "rdma", "real", "nodes:2"),
    cause="Open MPI or UCX found no RDMA device it may use and silently took TCP",
    next_step="run `ucx_info -d` in the worker's container; UCX_TLS and UCX_NET_DEVICES must allow the RDMA ports",
    source="OpenMPI's pml_ucx_devices and pml_ucx_tls: what they don't list is left to ob1",
)
def test_transport(record: Recorder, mpi: dict[str, Any], cluster_evidence: ClusterEvidence) -> None:
    unfit = {node.name: why for node in record.nodes if (why := not_for(cluster_evidence, node))}
    for name, why in unfit.items():
        record.skipped(name, why)
    for name, answers in taking_part(record, mpi, "end"):
        pmls = sorted({pml for answer in answers for pml in answer["pml"]})
        lanes = sorted({lane for answer in answers for lane in answer["lanes"]})
        chosen = f"{' '.join(pmls) or 'unknown'} over {' '.join(lanes) or 'unknown'}"
        if name in unfit:
            continue
        if over_rdma(answers):
            record.passed(name, chosen, wanted="ucx over RDMA")
        else:
            record.failed(name, f"{chosen}: not RDMA", chosen, wanted="ucx over RDMA")


def over_rdma(answers: Iterable[dict[str, Any]]) -> bool:
    """Whether all lanes to other nodes are."""
    ends = list(answers)
    lanes = [lane for answer in ends for lane in answer.get("lanes", ())]
    pmls = {pml for answer in ends for pml in answer.get("pml", ())}
    return pmls == {"ucx"} and bool(lanes) and all(lane.split("_")[0] in RDMA for lane in lanes)
