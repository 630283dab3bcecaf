"""rccl-tests for the results alone: every collective, type and operation on a few small, odd sizes."""

from __future__ import annotations

from typing import Any

from experiments.performance import shares

TOOLS = (
    "all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "broadcast_perf", "reduce_perf", "alltoall_perf",
    "sendrecv_perf", "gather_perf", "scatter_perf",
)  # fmt: skip
WORDS = (
    "-b",
    "1000",
    "-e",
    "2000003",
    "-f",
    "13",
    "-d",
    "all",
    "-o",
    "all",
    "-n",
    "2",
    "-w",
    "0",
    "-c",
    "1",
    "-g",
    "1",
)
ENV = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}
KEPT = 60_000  # characters of a tool's words


def functional(cluster: Any) -> dict[str, Any]:
    """A rank for each GPU of all nodes; nothing where there are no real GPUs."""
    nodes = cluster.allocated()
    gpus = cluster.slurm.gpus
    runs: dict[str, Any] = {}
    for tool in TOOLS if gpus else ():
        options = ["--mpi=pmix", *shares(cluster, gpus)]
        step = cluster.slurm.step(tool, *WORDS.split(), tasks=gpus, seconds=180, env=ENV, options=options)
        runs[tool] = {"code": step.code, "out": short(f"{step.out}\n{step.err}")}
    return {"nodes": list(nodes), "gpus": gpus, "runs": runs}


def short(text: str) -> str:
    """The tool's own lines, and those of RCCL that say which way data take: each of these once."""
    lines = text.splitlines()
    ways = [line for line in lines if "NCCL INFO" in line and ("Using network" in line or " via " in line)]
    return "\n".join([*ways[:400], *(line for line in lines if "NCCL INFO" not in line)])[-KEPT:]
