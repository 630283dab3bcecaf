"""What is measured under load: the tools of the field on whole nodes with GPUs, and our own sums where there are none.

What a tool printed is the evidence; the checks read it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstack.errors import BadInput
from rocstack.verify.parsers import transport

PROGRAMS = Path(__file__).parents[1] / "programs"
RCCL = "all_reduce_perf"
OTHERS = {
    "all_gather_perf": "all-gather-busbw",
    "reduce_scatter_perf": "reduce-scatter-busbw",
    "alltoall_perf": "alltoall-busbw",
    "broadcast_perf": "broadcast-busbw",
    "reduce_perf": "reduce-busbw",
    "sendrecv_perf": "sendrecv-busbw",
}  # -> quantity
RANKS = 2  # of a node, on CPUs
SIZES = ("4096,65536,1048576,16777216", "4096,65536,1048576,16777216,268435456,1073741824")  # on CPUs, on GPUs
CHUNK = 600.0  # seconds of a soak's step
VARIABLE = "ROCSTACK_VERIFY_SOAK"  # minutes of a soak
MINUTES, VIRTUAL = 480.0, 0.25  # of AMD's guide; where nothing can wear out

KEPT = 60_000  # characters of a tool's words
RANK = re.compile(r"^# +Rank +\d+ ")
BENCH = ["python3", "-m", "rocstack_trainer.bench", "all-reduce", "--json"]
BIG, ROOMY = 8 << 30, 128e9  # bytes: of a sum that thresholds are about, and of a GPU that has room for it

Batch = Mapping[str, Sequence[str]]


def whole(cluster: Any, minutes: int) -> Any:
    """An allocation of which so much is left, a new one if need be; the names of its nodes."""
    cluster.slurm.minutes = max(cluster.slurm.minutes, minutes)
    if cluster.slurm.left < minutes * 60:
        cluster.slurm.release()
    return cluster.allocated()


def shares(cluster: Any, tasks: int) -> list[str]:
    """srun's options for `tasks` on a node that take all of it; on nodes without GPUs a task has one CPU."""
    if not cluster.slurm.gpus:
        return []
    cpus = min(cluster.looked.slurm.nodes[name]["cpus"] for name in cluster.allocated())
    return [f"--cpus-per-task={max(1, cpus // tasks)}", f"--gres=gpu:{cluster.slurm.gpus}"]


def tools(
    cluster: Any, nodes: Sequence[str], batches: Sequence[Batch], *, seconds: float, minutes: int, keep: str = ""
) -> dict[str, Any]:
    """node -> name -> {"code", "out"}, on all nodes at once. `seconds` is what one command may take, `minutes` all."""
    whole(cluster, max(minutes, math.ceil(seconds * len(batches) / 60) + 2))
    asked = json.dumps({"batches": [dict(batch) for batch in batches], "seconds": seconds, "keep": keep})
    options = shares(cluster, 1)
    step = cluster.slurm.python(
        PROGRAMS / "tools.py", asked, nodes=nodes, seconds=seconds * len(batches) + 30, options=options
    )
    return {answer["node"]: answer["said"] for answer in step.answers}


def gemm(cluster: Any, nodes: Sequence[str]) -> dict[str, Any]:
    """node -> the answer of programs/gemm.py."""
    whole(cluster, 60)
    options = shares(cluster, 1)
    step = cluster.slurm.python(PROGRAMS / "gemm.py", nodes=nodes, seconds=300, options=options)
    return {answer["node"]: answer for answer in step.answers}


def collectives(cluster: Any, tools_of: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """All-reduce by size: rccl-tests on each node and on all of them, where there are GPUs and the image has it; else
    our own benchmark on all."""
    cluster.allocated()
    nodes = whole(cluster, 30 if cluster.slurm.gpus else 5)
    if cluster.slurm.gpus and all(RCCL in tools_of.get(node, ()) for node in nodes):
        return _rccl(cluster, nodes, cluster.slurm.gpus)
    ranks, sizes = (cluster.slurm.gpus, SIZES[1]) if cluster.slurm.gpus else (RANKS, SIZES[0])
    options = shares(cluster, ranks)
    of_run = {"tool": "bench", "nodes": list(nodes), "ranks": ranks * len(nodes), "gpus": bool(cluster.slurm.gpus)}

    def bench(side: str, sizes: str) -> dict[str, Any]:
        words = [*BENCH, f"--sides={side}", f"--sizes={sizes}", "--rounds=3"]
        step = cluster.slurm.step(*words, tasks=ranks, seconds=120 + len(nodes), options=options)
        return {"code": step.code, "out": step.out, "said": step.said}

    found = of_run | bench("ring", sizes)
    profiles = [cluster.looked.gathered.node(node).profile for node in nodes] if cluster.slurm.gpus else []
    if profiles and all((gpu.memory or 0) >= ROOMY for profile in profiles for gpu in profile.gpus):
        found["big"] = bench("flat", str(BIG))
    return found


def _rccl(cluster: Any, nodes: Sequence[str], gpus: int) -> dict[str, Any]:
    one = [RCCL, "-b", "8", "-e", "8G", "-f", "2", "-g", str(gpus)]
    each = tools(cluster, nodes, [{RCCL: one}], seconds=600, minutes=60)
    found: dict[str, Any] = {"tool": "rccl-tests", "nodes": list(nodes), "gpus": gpus, "each": each, "all": {}}
    if len(nodes) == 1:
        return found
    ask = f"for tool in {' '.join(OTHERS)}; do command -v $tool; done; true"
    others = {Path(line).name for line in cluster.slurm.step("sh", "-c", ask, nodes=nodes[:1]).out.splitlines()}
    for tool, begin in ((RCCL, "1024"), *((other, "8G") for other in OTHERS if other in others)):
        words = [tool, "-b", begin, "-e", "8G", "-f", "2", "-g", "1"]
        env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"} if tool == RCCL else {}
        options = ["--mpi=pmix", *shares(cluster, gpus)]
        step = cluster.slurm.step(*words, tasks=gpus, seconds=600, env=env, options=options)
        found["all"][tool] = {"code": step.code, "out": short(f"{step.out}\n{step.err}")}
    return found


def short(text: str) -> str:
    """Each way that data take, once; of each rank its number; and the end of the tool's own lines."""
    own = [line for line in text.splitlines() if "NCCL INFO" not in line]
    ranks = [found[0] for line in own if (found := RANK.match(line))]
    rest = "\n".join(line for line in own if not RANK.match(line))
    return "\n".join([*transport.brief(text), *ranks, rest[-KEPT:]])


def minutes(virtual: bool, said: str | None) -> float:
    """That a soak takes, by default or as the variable says.

    Raises:
        BadInput: it says no number of minutes, or more than a week's.
    """
    if not said:
        return VIRTUAL if virtual else MINUTES
    try:
        found = float(said)
    except ValueError:
        found = 0
    if 0 < found <= 7 * 24 * 60:
        return found
    raise BadInput(
        f"{VARIABLE}={said} is no number of minutes",
        code="bad-setting",
        cause="a soak takes up to a week",
        next_step=f"such as {VARIABLE}=60",
    )


def soak(cluster: Any, lasting: float) -> dict[str, Any]:
    """Products and sums for so long, in steps of ten minutes at most; and what the kernels of real nodes said
    meanwhile. `lasting` minutes."""
    nodes = whole(cluster, math.ceil(lasting) + 15)
    ranks = cluster.slurm.gpus or RANKS
    size, count = (4096, 1 << 26) if cluster.slurm.gpus else (128, 1 << 16)
    real = [node for node in nodes if not cluster.looked.gathered.node(node).profile.virtual]
    uptimes = _uptimes(cluster, real) if real else {}
    backend = "nccl" if cluster.slurm.gpus else "gloo"
    steps, left = [], lasting * 60
    while left > 0:
        took = min(left, CHUNK)
        words = [f"{took:.0f}", str(size), str(count), backend]
        options = shares(cluster, ranks)
        step = cluster.slurm.python(
            PROGRAMS / "soak.py", *words, tasks=ranks, seconds=took + 120, options=options, env={"OMP_NUM_THREADS": "1"}
        )
        steps.append({"seconds": took, "code": step.code, "answers": step.answers, "said": step.said})
        left -= took
    kernels = _kernels(cluster, uptimes) if uptimes else {}
    about = {"minutes": lasting, "nodes": list(nodes), "ranks": ranks, "gpus": bool(cluster.slurm.gpus)}
    return about | {"steps": steps, "kernels": kernels}


def _uptimes(cluster: Any, nodes: Sequence[str]) -> dict[str, float]:
    said = cluster.everywhere("cat /proc/uptime", nodes)
    return {node: float(done.stdout.split()[0]) for node, done in said.items() if done.rc == 0}


def _kernels(cluster: Any, uptimes: Mapping[str, float]) -> dict[str, list[str]]:
    """Of the nodes whose log can be read."""
    said = cluster.everywhere("dmesg", list(uptimes))
    return {node: _since(done.stdout, uptimes[node]) for node, done in said.items() if done.rc == 0}


def _since(log: str, begun: float) -> list[str]:
    """The kernel's lines from `begun` on, in seconds after its start."""
    found = []
    for line in log.splitlines():
        stamp = line.partition("]")[0].lstrip("[ ")
        if stamp.replace(".", "", 1).isdecimal() and float(stamp) >= begun:
            found.append(line)
    return found[-500:]
