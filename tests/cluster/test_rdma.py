"""RDMA between the nodes, by the field's own tools; only where devices are real: virtual ones carry nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
from experiments import rdma

from rocstack.errors import CheckFailed
from rocstack.verify.parsers import perftest, pingpong
from rocstack.verify.plugin import check
from rocstack.verify.record import Node, Recorder

PROVED = re.compile(r"(\S+): (?:device, PD, CQ and )?(\d+)(?: of \d+)? queue pairs?")


@pytest.fixture(scope="session")
def between(evidence: Any, cluster: Any, described: Any, all_nodes: tuple[Node, ...]) -> Any:
    """What a tool said between the nodes: takes its name."""

    def take(tool: str) -> Mapping[str, Any]:
        def fetch() -> dict[str, Any]:
            free = set(cluster.allocated())
            nodes = [node for node in rdma.fit(all_nodes) if node.name in free]
            return rdma.between(cluster.slurm, rdma.of_cluster(described, nodes), tool)

        found: Mapping[str, Any] = evidence.take(tool, fetch)
        return found

    return take


def pairs(record: Recorder, found: Mapping[str, Any]) -> Iterator[tuple[str, str, list[Mapping[str, Any]]]]:
    """Two nodes that met, with what both ends of each rail said. Nodes that could not meet are written down."""
    names = [node.name for node in record.nodes]
    for name in names:
        if name not in found["rails"]:
            record.skipped(name, "Slurm gave it to others")
        elif not found["rails"][name]:
            record.failed(name, "none of its RDMA ports can be used", evidence="`rocstack probe` says why")
    able = [name for name in names if found["rails"].get(name)]
    for one, other in combinations(able, 2):
        said = [answer for answer in found["answers"] if {answer["node"], answer["peer"]} == {one, other}]
        yield one, other, said


def words(said: Sequence[Mapping[str, Any]], rail: int) -> str:
    """Of both ends; the server's first."""
    ends = sorted((each for each in said if each["rail"] == rail), key=lambda each: not each["server"])
    return "\n".join(f"{each['node']} {each['device']} GID {each['gid']}: {each['said'].strip()}" for each in ends)


@check(
    name="rdma-reachability",
    title="Every two nodes reach each other over RDMA, on every rail",
    level=2,
    needs=("jobs", "rdma", "real", "nodes:2", "tool:ibv_rc_pingpong"),
    cause="a port that is down, a GID index of another network, rails on different subnets or VLANs, or a switch that "
    "drops UDP port 4791",
    next_step="`rocstack probe` shows ports and GIDs; `ibv_rc_pingpong -d DEVICE -g INDEX` between the two by hand",
    source="cvs, preflight: RDMA connectivity",
)
def test_reachability(record: Recorder, between: Any) -> None:
    """A measure for each pair that doesn't, and for each node that reaches all."""
    found = between(rdma.PINGPONG)
    apart: set[str] = set()
    together: Counter[str] = Counter()
    for one, other, said in pairs(record, found):
        wanted = min(len(found["rails"][one]), len(found["rails"][other]))
        wrong = {rail: why for rail in range(wanted) if (why := unreached(said, rail))}
        if wrong:
            why = "; ".join(f"rail {rail}: {text}" for rail, text in list(wrong.items())[:2])
            evidence = words(said, next(iter(wrong))) or found["said"]
            more = {"wanted": f"{wanted} rails", "peer": other, "evidence": evidence}
            record.failed(one, why, wanted - len(wrong), "rails", **more)
            apart |= {one, other}
        together.update([one, other])
    for name, count in together.items():
        if name not in apart:
            record.passed(name, count, "peers", evidence=f"on {len(found['rails'][name])} rails")


def unreached(said: Sequence[Mapping[str, Any]], rail: int) -> str:
    """Why; empty where messages went and came."""
    client = next((each for each in said if each["rail"] == rail and not each["server"]), None)
    if client is None:
        return "it was not tried in time"
    try:
        pingpong.parse(client["said"])
    except CheckFailed as error:
        return error.what
    return f"it ended with {client['code']}" if client["code"] else ""


@check(
    name="rdma-write-bandwidth",
    title="RDMA writes reach the NIC's bandwidth between nodes",
    level=3,
    needs=("jobs", "rdma", "real", "nodes:2", "tool:ib_write_bw"),
    cause="a link at a lower speed or width, a small MTU, PFC or ECN that isn't set, or a NIC behind another socket",
    next_step="look at the checks of PCIe links and MTU; `ib_write_bw` between the two by hand, in both directions",
    source="AMD cluster networking guide, ib_write_bw",
)
def test_write_bandwidth(record: Recorder, between: Any) -> None:
    """The slowest rail of a pair is judged."""
    found = between(rdma.WRITE)
    for one, other, said in pairs(record, found):
        clients = [each for each in said if not each["server"]]
        values: dict[int, float] = {}
        for each in clients:
            try:
                values[each["rail"]] = perftest.parse(each["said"]).best.average
            except CheckFailed as error:
                record.failed(one, f"rail {each['rail']}: {error.what}", peer=other, evidence=words(said, each["rail"]))
        if values and len(values) == len(clients):
            rail = min(values, key=lambda each: values[each])
            rates = ", ".join(f"rail {each}: {value:.0f}" for each, value in sorted(values.items()))
            record.judge(one, values[rail], "rdma-write-bandwidth", peer=other, evidence=f"Gb/s of {rates}")
    tried = {each["node"] for each in found["answers"]}
    for name in [node.name for node in record.nodes if found["rails"].get(node.name)]:
        if name not in tried:
            record.failed(name, "it was not tried in time", evidence=found["said"])


@pytest.fixture(scope="session")
def queue_pairs(evidence: Any, cluster: Any, all_nodes: tuple[Node, ...]) -> dict[str, Any]:
    """node -> what `rocstack-node prove --many` said in a job there."""

    def fetch() -> dict[str, Any]:
        names = [node.name for node in rdma.fit(all_nodes)]
        chosen = [name for name in cluster.allocated() if name in names] if names else []
        if not chosen:
            return {}
        step = cluster.slurm.step("python3", "-c", rdma.source("queue_pairs.py"), nodes=chosen)
        return {answer["node"]: answer for answer in step.answers}

    found: dict[str, Any] = evidence.take("queue_pairs", fetch)
    return found


@check(
    name="queue-pairs",
    title="512 queue pairs can be made from 8 threads at once on every RDMA device",
    level=2,
    needs=("jobs", "rdma", "real"),
    cause="the provider library doesn't fit the kernel module, locked memory is limited, or the NIC's limit is low",
    next_step="`rocstack-node prove --many` in the worker's container; `rocstack doctor` knows its errors",
    source="ROCm/MAD, pull request 200",
)
def test_queue_pairs(record: Recorder, queue_pairs: dict[str, Any]) -> None:
    for node in record.nodes:
        said = queue_pairs.get(node.name, {"code": -1, "said": "no answer from the node"})
        counts = {device: int(count) for device, count in PROVED.findall(said["said"])}
        if said["code"] and (not counts or min(counts.values()) >= 512):
            lines = said["said"].strip().splitlines() or ["rocstack-node said nothing"]
            record.failed(node.name, lines[-1], evidence=said["said"])
        else:
            record.judge(node.name, min(counts.values(), default=None), "queue-pairs", evidence=said["said"])
