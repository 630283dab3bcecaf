"""rccl-tests for the results alone: every collective, type and operation on a few small, odd sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.performance import shares, short, whole

from rocstack.verify.parsers import rccl as rccl_parser

TOOLS = (
    "all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "broadcast_perf", "reduce_perf", "alltoall_perf",
    "sendrecv_perf", "gather_perf", "scatter_perf",
)  # fmt: skip
WORDS = "-b 1000 -e 2000003 -f 13 -d all -o all -n 2 -w 0 -c 1 -g 1"
ENV = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}
# Over RDMA, by NIC profile: a plugin's own transport takes the place of RCCL's NET/IB. Of RCCL itself are IB-CAST and
# ROCM-IB, by release; IBext is SHARP's plugin; RCCL-ANP (before ROCm 7.2.1) and IB-ROCM are AMD's; Libfabric's
# plugin is Slingshot's.
IB = "IB|IB-CAST|ROCM-IB"
WAYS = {"mellanox": rf"{IB}|IBext(_v\d+)?", "ainic": rf"{IB}|IB-ROCM|RCCL-ANP", "slingshot": r"OFI|(AWS )?Libfabric"}


def functional(cluster: Any, tools_of: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A rank for each GPU of all nodes; nothing where there are no real GPUs, or no rccl-tests."""
    nodes = whole(cluster, 30)
    gpus = cluster.slurm.gpus
    runs: dict[str, Any] = {}
    for tool in TOOLS if gpus and all(TOOLS[0] in tools_of.get(node, ()) for node in nodes) else ():
        options = ["--mpi=pmix", *shares(cluster, gpus)]
        step = cluster.slurm.step(tool, *WORDS.split(), tasks=gpus, seconds=180, env=ENV, options=options)
        runs[tool] = {"code": step.code, "out": short(f"{step.out}\n{step.err}")}
    return {"nodes": list(nodes), "gpus": gpus, "runs": runs}


def astray(output: rccl_parser.Transport, nic: str) -> list[str]:
    """What between nodes isn't RDMA of such cards; where ranks of several nodes have no way to another node, that."""
    ways = output.net or (("no network",) if output.ways else output.networks)
    return [way for way in ways if not re.fullmatch(WAYS.get(nic, IB), way.removeprefix("NET/"))]
