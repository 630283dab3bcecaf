"""The recorded evidence as real nodes with RDMA would give it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from evidence_replay import good, replay

from rocstack.verify.suite import checks

sys.path.append(str(checks()))
from experiments import rdma

DATA = Path(__file__).parents[1] / "data/verify/parsers"


RAILS = [["bnxt_re0", 1, 3, 4096], ["bnxt_re1", 1, 3, 4096]]


SAID = {
    rdma.PINGPONG: "pingpong/good",
    rdma.WRITE: "perftest/all-sizes",
    rdma.BOTH_WAYS: "perftest/bidirectional",
    rdma.GPU_WRITE: "perftest/all-sizes",
}


JUDGED = {
    rdma.PINGPONG: "rdma-reachability",
    rdma.WRITE: "rdma-write-bandwidth",
    rdma.BOTH_WAYS: "rdma-write-both-ways",
    rdma.GPU_WRITE: "rdma-gpu-memory",
}


def sample(name: str) -> str:
    return (DATA / f"{name}.txt").read_text()


def real() -> dict[str, Any]:
    """As recorded, but of real nodes with all tools, on which everything was right."""
    evidence = good()
    for node in evidence["cluster"]["nodes"]:
        node["virtual"] = node["profile"]["virtual"] = None
    evidence["cluster"]["labels"]["io.rocstack.nic"] = "broadcom"
    for answer in evidence["in_jobs"].values():
        answer["tools"] += ["all_reduce_perf"]
    rows = [row | {"rccl": sample("transport/net-ib").splitlines()} for row in evidence["training"]["answers"]]
    evidence["training_gpus"] = evidence["training"] | {"answers": rows}
    ends = {"n1": RAILS, "n2": RAILS}
    for tool, name in SAID.items():
        evidence[tool] = {"rails": ends, "said": "", "answers": met(sample(name))}
    for node in evidence["cluster"]["nodes"]:
        own = node["profile"] or {"nics": [], "affinity": []}
        own["nics"] = [nic for nic in own["nics"] if nic["verbs"] in (None, "bnxt_re0", "bnxt_re1")]
    evidence["queue_pairs"] = {name: {"code": 0, "said": proved(512)} for name in ("n1", "n2")}
    said = sample("rccl/mi300x-one-node") + sample("transport/net-ib")
    evidence["rccl"] = {"nodes": ["n1"], "gpus": 8, "runs": {"all_reduce_perf": {"code": 0, "out": said}}}
    return evidence


def met(said: str) -> list[dict[str, Any]]:
    """n1 serves, n2 is the client, on both rails."""
    return [
        {"node": node, "peer": peer, "rail": rail, "device": f"{device}:{port}", "gid": gid, "server": node == "n1"}
        | {"code": 0, "said": said}
        for rail, (device, port, gid, _) in enumerate(RAILS)
        for node, peer in (("n1", "n2"), ("n2", "n1"))
    ]


def proved(count: int) -> str:
    text = f"{count} of 512 queue pairs: Cannot allocate memory (9 times)"
    good = "device, PD, CQ and 512 queue pairs work"
    return f"rocstack: bnxt_re0: {good if count == 512 else text}\nrocstack: bnxt_re1: {good}\n"


NAMES = {*JUDGED.values(), "queue-pairs", "rccl-collectives", "transport"}


def of(evidence: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in replay(evidence, only="[qrt]*").items() if name in NAMES}
