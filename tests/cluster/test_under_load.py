"""What the network does when all send at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from experiments import congestion, rdma

from rocstack.base.errors import CheckFailed
from rocstack.base.text import listed
from rocstack.verify.evidence import ClusterEvidence
from rocstack.verify.parsers import rccl
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder

SHOWN = 4  # counters
TOLD = {"lost": "packets lost by", "paused": "PFC's pauses of"}  # kind -> what is said where a card doesn't tell of it


@check(
    name="congestion",
    title="When all GPUs send to all, and all to one, PFC or ECN keeps ports from losing packets",
    cannot=(
        "how many lost packets are too many where PFC or ECN acts, or where the host has no `ethtool` to read "
        "PFC's counters: they are told; nor what switches count; whether packets were lost or only overtook each "
        "other, where switches spread them over several ways (adaptive routing) and a card counts both alike"
    ),
    level=3,
    needs=("jobs", "gpu", "rdma", "real", "nodes:2", "tool:alltoall_perf", "tool:gather_perf"),
    cause=(
        "PFC, ECN or DCQCN isn't set on NICs or switches, or not for the same traffic class (DSCP) on both; or a cable "
        "or a transceiver is bad"
    ),
    next_step=(
        "compare the NIC's QoS (`mlnx_qos`, `niccli`, `nicctl show qos`) and NCCL_IB_TC with the switch's; check the "
        "cable of a port that counts alone"
    ),
    source="AMD system acceptance, RCCL pre-checks: PFC, DCQCN, DSCP; RCCL's table of NIC counters",
)
def test_congestion(record: Recorder, evidence: Any, cluster: Any, cluster_evidence: ClusterEvidence) -> None:
    """Packets that are lost though PFC or ECN acted are told, and not judged: no source says how many are usual."""
    ran = evidence.take("congestion", lambda: congestion.run(cluster, [node.name for node in record.nodes]))
    ended = [why for tool, run in ran["loads"].items() if (why := _idle(tool, run, ran.get("ranks", 0)))]
    for node in record.nodes:
        before, after = (ran[when].get(node.name) for when in ("before", "after"))
        cards = rdma.used(cluster_evidence, node)
        if node.name not in ran["nodes"]:
            record.skipped(node.name, "Slurm gave the node to other jobs")
        elif ended:
            text = "\n".join(run["out"] for run in ran["loads"].values())
            record.failed(node.name, "; ".join(ended), evidence=text)
        elif unread := [card for card in cards if not (_read(before, card) and _read(after, card))]:
            record.failed(node.name, f"counters of {listed(unread)} could not be read")
        else:
            grown = congestion.grown(before, {card: after[card] for card in cards})
            judge(record, node.name, grown)


def _idle(tool: str, run: Mapping[str, Any], ranks: int) -> str:
    """Why not all of them sent to each other."""
    if run["code"]:
        return f"{tool} ended with {run['code']}"
    try:
        output = rccl.parse(run["out"], tool)
    except CheckFailed as error:
        return error.what
    few = ranks and output.ranks and output.ranks != ranks
    return f"{tool}: {output.ranks} ranks took part, not {ranks}: is it built with MPI?" if few else ""


def _read(counters: Any, card: str) -> bool:
    row = counters.get(card) if isinstance(counters, Mapping) else None
    return isinstance(row, Mapping) and bool(row) and all(isinstance(number, int) for number in row.values())


def judge(record: Recorder, node: str, grown: Mapping[str, Mapping[str, int]]) -> None:
    sums = {kind: _of(grown, pattern) for kind, pattern in congestion.KINDS.items()}
    lost, paused, marked, broken = (sum(sums[kind].values()) for kind in ("lost", "paused", "marked", "broken"))
    back = [device for device, counters in grown.items() if any(number < 0 for number in counters.values())]
    untold = {kind: [card for card, row in grown.items() if not congestion.counts(row, kind)] for kind in sums}
    blind = any(name.startswith(f"{card} ") for card in untold["paused"] for name in sums["lost"])
    said = [f"{paused} pauses by PFC, {marked} marks and notifications of ECN, {lost} packets lost"]
    said += [f"{TOLD[kind]} {listed(untold[kind])} could not be read" for kind in TOLD if untold[kind]]
    more = {
        "wanted": "0 lost",
        "evidence": "\n".join([*said, *(f"{kind}: {_most(rows)}" for kind, rows in sums.items())]),
    }
    if back:
        record.failed(node, f"counters of {listed(back)} went backwards: the device began anew meanwhile", **more)
    elif broken:
        record.failed(node, f"links or connections broke: {_most(sums['broken'])}", broken, "events", **more)
    elif lost and not (paused or marked or blind):
        why = f"packets were lost, and neither PFC nor ECN acted: {_most(sums['lost'])}"
        record.failed(node, why, lost, "packets", **more)
    elif lost or untold["lost"]:
        record.measured(node, lost, "packets", **more)
    else:
        record.passed(node, 0, "packets lost", **more)


def _of(grown: Mapping[str, Mapping[str, int]], pattern: str) -> dict[str, int]:
    return {
        f"{device} {name}": number
        for device, counters in grown.items()
        for name, number in counters.items()
        if number and re.fullmatch(pattern, name)
    }


def _most(rows: Mapping[str, int]) -> str:
    """The largest."""
    largest = sorted(rows.items(), key=lambda row: -row[1])
    return listed([f"{name} {number}" for name, number in largest[:SHOWN]]) or "none"
