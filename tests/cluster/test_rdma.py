"""RDMA between the nodes, by the field's own tools; only where devices are real: virtual ones carry nothing."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
from experiments import rdma
from experiments.performance import shares, whole

from rocstack.base.errors import CheckFailed
from rocstack.verify.evidence import ClusterEvidence, NodeEvidence
from rocstack.verify.parsers import rdma_tools
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder

NO_RAIL = "none of its RDMA ports that can be used is on a rail of the other's"
UNBUILT = "unsupported memory type"  # perftest whose help promises more than it can
PROVED = re.compile(r"(?<!\S)(\S{1,64}): (?:device, PD, CQ and )?(\d{1,9})(?: of \d+)? queue pairs?")


@pytest.fixture(scope="session")
def between(evidence: Any, cluster: Any, cluster_evidence: ClusterEvidence, all_nodes: tuple[NodeEvidence, ...]) -> Any:
    """What a tool said between the nodes: takes its name in rdma.MORE."""

    def take(tool: str) -> Mapping[str, Any]:
        def fetch() -> dict[str, Any]:
            free = set(cluster.allocated())
            nodes = [node for node in rdma.fit(all_nodes, cluster_evidence) if node.name in free]
            whole(cluster, math.ceil(rdma.seconds(len(nodes)) / 60) + 1)
            ends = rdma.of_cluster(cluster_evidence, nodes)
            if tool == rdma.GPU_WRITE:
                return rdma.from_gpus(cluster.slurm, ends, nodes, shares(cluster, 1))
            return rdma.between(cluster.slurm, ends, tool)

        results: Mapping[str, Any] = evidence.take(tool, fetch)
        return results

    return take


def pairs(
    record: Recorder, results: Mapping[str, Any], cluster_evidence: ClusterEvidence
) -> Iterator[tuple[str, str, list[Mapping[str, Any]]]]:
    """Two nodes that met, with what both ends of each rail said. Nodes that could not meet, or not on all rails, are
    written down."""
    counts = {name: rails_of(results, name) for name in results["rails"]}
    usual = max(sorted(counts.values(), reverse=True), key=list(counts.values()).count, default=0)
    able = []
    for node in record.nodes:
        name, wanted = node.name, max(usual, rdma.rails_of_gpus(cluster_evidence, node))
        if why := rdma.not_for(cluster_evidence, node):
            record.skipped(name, why)
        elif name not in counts:
            record.skipped(name, "Slurm gave the node to other jobs")
        elif not counts[name]:
            record.failed(name, "none of its RDMA ports can be used", evidence="`rocstack probe` says why")
        else:
            able.append(name)
            if counts[name] < wanted:
                why = f"{counts[name]} of {wanted} RDMA ports can be used"
                record.failed(name, why, counts[name], "rails", wanted=f"{wanted} rails")
    answers_of = defaultdict(list)
    for answer in results["answers"]:
        answers_of[frozenset((answer["node"], answer["peer"]))].append(answer)
    for one, other in combinations(able, 2):
        yield one, other, answers_of.get(frozenset((one, other)), [])


def words(answers: Sequence[Mapping[str, Any]], rail: int) -> str:
    """Of both ends; the server's first."""
    ends = sorted((each for each in answers if each.get("rail") == rail), key=lambda each: not each["server"])
    return "\n".join(f"{each['node']} {each['device']} GID {each['gid']}: {each['said'].strip()}" for each in ends)


@check(
    name="rdma-reachability",
    title="Every two nodes reach each other over RDMA on every rail",
    cannot="that large or many messages pass: it sends a hundred of 64 KiB",
    level=2,
    core=True,
    needs=("jobs", "rdma", "real", "nodes:2", "tool:ibv_rc_pingpong"),
    cause=(
        "a port is down, a GID index belongs to another network, rails are on different subnets or VLANs, or a switch "
        "drops UDP port 4791"
    ),
    next_step=(
        "check ports and GIDs with `rocstack probe`; run `ibv_rc_pingpong -d DEVICE -g INDEX` between the two nodes"
    ),
    source="cvs, preflight: RDMA connectivity",
)
def test_reachability(record: Recorder, between: Any, cluster_evidence: ClusterEvidence) -> None:
    """A measure for each pair that doesn't, and for each node that reaches all."""
    results = between(rdma.PINGPONG)
    apart: set[str] = set()
    together: Counter[str] = Counter()
    untried: Counter[str] = Counter()
    for one, other, ends in pairs(record, results, cluster_evidence):
        common = rdma.shared(results["rails"][one], results["rails"][other])
        if not common:
            record.skipped(one, NO_RAIL, peer=other)
            continue
        tried = [rail for rail in common if was_tried(ends, rail)]
        wrong = {rail: why for rail in tried if (why := unreached(ends, rail))}
        if wrong:
            why = "; ".join(f"rail {rail}: {text}" for rail, text in list(wrong.items())[:2])
            more = {"wanted": f"{len(common)} rails", "peer": other, "evidence": words(ends, next(iter(wrong)))}
            record.failed(one, why, len(tried) - len(wrong), "rails", **more)
            apart |= {one, other}
        (together if len(tried) == len(common) else untried).update([one, other])
    for name, count in together.items():
        if name not in apart and not untried[name]:
            record.passed(name, count, "peers", evidence=f"on {rails_of(results, name)} rails")
    missed = {name: f"{count} of its peers were not tried" for name, count in untried.items() if name not in apart}
    left_over(record, results, missed)


def rails_of(results: Mapping[str, Any], name: str) -> int:
    return sum(rail is not None for rail in results["rails"][name])


def left_over(record: Recorder, results: Mapping[str, Any], missed: Mapping[str, str]) -> None:
    """That it was not tried is no node's failure; where there is no other, it is the cluster's."""
    for name, why in missed.items():
        record.skipped(name, f"no time was left: {why}", evidence=results["said"])
    if missed and all(measure.state != "failed" for measure in record.measures):
        why = f"{len(missed)} nodes were not tried in time, or not on all rails with all others"
        record.failed("", why, evidence=results["said"])


def was_tried(ends: Sequence[Mapping[str, Any]], rail: int) -> bool:
    """Whether the client came to an end; of a rail that did well at both ends there is but its number."""
    clients = (each for each in ends if each.get("rail") == rail and not each["server"])
    return any(clients) or any(rail in each.get("well", ()) for each in ends)


def unreached(answers: Sequence[Mapping[str, Any]], rail: int) -> str:
    """Why; empty where messages went and came. The server alone compares what arrived, and ends with 0 all the same;
    one that was ended only waited for its client."""
    ends = [each for each in answers if each.get("rail") == rail]
    for each in sorted(ends, key=lambda end: bool(end["server"])):
        if each["server"] and each["code"]:
            continue
        try:
            rdma_tools.check_pingpong(each["said"])
        except CheckFailed as error:
            return error.what
    return ended(ends)


def ended(ends: Sequence[Mapping[str, Any]]) -> str:
    """Which end failed, whatever was measured."""
    bad = next((each for each in ends if each["code"]), None)
    return f"the {'server' if bad['server'] else 'client'} on {bad['node']} ended with {bad['code']}" if bad else ""


@check(
    name="rdma-write-bandwidth",
    title="RDMA writes between nodes reach 70 % of the NIC's bandwidth on each rail, with 8 queue pairs",
    cannot=(
        "GPU memory, since perftest sends from host memory here; congestion by many senders; more than 70 % of the port"
    ),
    level=3,
    core=True,
    needs=("jobs", "rdma", "real", "nodes:2", "tool:ib_write_bw"),
    cause="a link with a lower speed or width, a small MTU, missing PFC or ECN, or a NIC on another socket",
    next_step="look at the PCIe and MTU checks first; then run `ib_write_bw` between the two nodes in both directions",
    source="AMD cluster networking guide, ib_write_bw",
)
def test_write_bandwidth(record: Recorder, between: Any, cluster_evidence: ClusterEvidence) -> None:
    bandwidth(record, between(rdma.WRITE), cluster_evidence, "rdma-write-bandwidth")


@check(
    name="rdma-write-both-ways",
    title="RDMA writes in both directions at once reach 70 % of the NIC's bandwidth on each rail",
    cannot=(
        "the same as `rdma-write-bandwidth`; the 770 Gb/s that AMD's acceptance asks of a 400G port at the best of all "
        "sizes: it sends one size, and passes from 560 on"
    ),
    level=3,
    needs=("jobs", "rdma", "real", "nodes:2", "tool:ib_write_bw"),
    cause=(
        "if one direction alone is fast: pause frames or ECN slow the other, or the IOMMU or the path from the NIC to "
        "memory is slow"
    ),
    next_step="check rdma-write-bandwidth first; then run `ib_write_bw -b` between the two nodes",
    source="AMD cluster networking guide, ib_write_bw -b",
)
def test_write_both_ways(record: Recorder, between: Any, cluster_evidence: ClusterEvidence) -> None:
    bandwidth(record, between(rdma.BOTH_WAYS), cluster_evidence, "rdma-write-both-ways")


@check(
    name="rdma-gpu-memory",
    title="RDMA writes from GPU memory to GPU memory reach 70 % of the NIC's bandwidth",
    cannot=(
        "anything where perftest is built without ROCm, as distributions build it, or no NIC shares a PCIe "
        "switch with a GPU: then it is skipped, and `transport` alone tells what RCCL used"
    ),
    level=3,
    needs=("jobs", "gpu", "rdma", "real", "nodes:2", "tool:ib_write_bw"),
    cause=(
        "the NIC can't reach GPU memory (no peer memory or dma-buf in the kernel or driver), or the way is slow: the "
        "IOMMU or ACS sends it through the processor"
    ),
    next_step=(
        "if rdma-write-bandwidth passes: look at kernel-parameters and acs; run `ib_write_bw --use_rocm=GPU`, also "
        "with `--use_rocm_dmabuf`, between the two nodes"
    ),
    source="linux-rdma/perftest, rocm_memory.c; ROCm/rdma-perftest",
)
def test_gpu_memory(record: Recorder, between: Any, cluster_evidence: ClusterEvidence) -> None:
    """On rails whose NIC has a GPU on its PCIe switch, where all nodes' perftest can."""
    results = between(rdma.GPU_WRITE)
    answers = [each for each in results["answers"] if "able" not in each]
    unable = {each["node"] for each in results["answers"] if each.get("able") is False}
    unable |= {each["node"] for each in answers if UNBUILT in each.get("said", "").lower()}
    if unable:
        for node in record.nodes:
            record.skipped(node.name, "its ib_write_bw, or a peer's, is built without ROCm: only host memory was used")
    elif not any(rails_of(results, name) for name in results["rails"]):
        for node in record.nodes:
            record.skipped(node.name, "no NIC that can be used shares a PCIe switch with a GPU")
    else:
        bandwidth(record, {**results, "answers": answers}, cluster_evidence, "rdma-gpu-memory")


def bandwidth(record: Recorder, results: Mapping[str, Any], cluster_evidence: ClusterEvidence, quantity: str) -> None:
    """The slowest rail of a pair is judged."""
    tried: set[str] = set()
    missed: dict[str, str] = {}
    for one, other, ends in pairs(record, results, cluster_evidence):
        tried |= {one, other} if ends else set()
        values: dict[int, float] = {}
        wanted = rdma.shared(results["rails"][one], results["rails"][other]) if ends else []
        for rail in wanted:
            if not was_tried(ends, rail):
                missed[one] = f"rail {rail} to {other} was not tried"
                continue
            try:
                values[rail] = written([each for each in ends if each["rail"] == rail])
            except CheckFailed as error:
                record.failed(one, f"rail {rail}: {error.what}", peer=other, evidence=words(ends, rail))
        if values and len(values) == len(wanted):
            rail = min(values, key=lambda each: values[each])
            rates = ", ".join(f"rail {each}: {value:.0f}" for each, value in sorted(values.items()))
            memory = "GPU" if quantity == "rdma-gpu-memory" else "host"
            record.judge(one, values[rail], quantity, peer=other, evidence=f"Gb/s of {rates}, from {memory} memory")
    able = [node.name for node in record.nodes if not rdma.not_for(cluster_evidence, node)]
    missed |= {name: "it was not tried" for name in able if name not in tried and any(results["rails"].get(name, ()))}
    left_over(record, results, missed)


def written(ends: Sequence[Mapping[str, Any]]) -> float:
    """Gb/s, of one rail between two nodes.

    Raises:
        CheckFailed: it wasn't measured, or an end failed.
    """
    client = next(each for each in ends if not each["server"])
    rate = max(average for _, average in rdma_tools.parse_perftest(client["said"]))
    if why := ended(ends):
        raise CheckFailed(why, code="bad-output")
    return rate


@pytest.fixture(scope="session")
def queue_pairs(
    evidence: Any, cluster: Any, cluster_evidence: ClusterEvidence, all_nodes: tuple[NodeEvidence, ...]
) -> dict[str, Any]:
    """node -> what `rocstack-node prove --many` said in a job there."""

    def fetch() -> dict[str, Any]:
        names = [node.name for node in rdma.fit(all_nodes, cluster_evidence)]
        return rdma.queue_pairs(cluster.slurm, [name for name in cluster.allocated() if name in names] if names else [])

    counts: dict[str, Any] = evidence.take("queue_pairs", fetch)
    return counts


@check(
    name="queue-pairs",
    title="Every RDMA device can create 512 queue pairs from 8 threads at once",
    cannot="whether they carry anything",
    level=2,
    needs=("jobs", "rdma", "real"),
    cause="the provider library doesn't match the kernel module, locked memory is limited, or the NIC's limit is low",
    next_step="run `rocstack-node prove --many` in the worker's container; `rocstack doctor` explains its errors",
    source="ROCm/MAD, pull request 200",
)
def test_queue_pairs(record: Recorder, queue_pairs: dict[str, Any], cluster_evidence: ClusterEvidence) -> None:
    for node in record.nodes:
        if why := rdma.not_for(cluster_evidence, node):
            record.skipped(node.name, why)
            continue
        answer = queue_pairs.get(node.name, {"code": -1, "said": "no answer from the node"})
        counts = {device: int(count) for device, count in PROVED.findall(answer["said"])}
        lacking = sorted(rdma.devices(cluster_evidence, node) - counts.keys()) if counts else []
        if lacking and not answer["code"]:
            why = f"no answer about {', '.join(lacking)}"
            record.failed(node.name, why, len(counts), "devices", evidence=answer["said"])
        elif answer["code"] and (not counts or min(counts.values()) >= 512):
            lines = answer["said"].strip().splitlines() or ["rocstack-node said nothing"]
            record.failed(node.name, lines[-1], evidence=answer["said"])
        else:
            record.judge(node.name, min(counts.values(), default=None), "queue-pairs", evidence=answer["said"])
