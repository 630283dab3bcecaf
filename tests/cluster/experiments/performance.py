"""What is measured under load: the tools of the field on whole nodes with GPUs, and our own sums where there are none.

What a tool printed is the evidence; the checks read it.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import kernel

from rocstack.base.errors import BadInput
from rocstack.verify import parsers
from rocstack.verify.deployed_cluster import usual
from rocstack.verify.evidence import LOG_LINE, NodeEvidence
from rocstack.verify.parsers import rccl as rccl_parser

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
ENDING = 300.0  # seconds more that it may take: to start, and where a rank is gone until the others notice
SPARE = 15  # minutes of an allocation beyond the soak's own: of the last step's ending
VARIABLE = "ROCSTACK_VERIFY_SOAK"  # minutes of a soak
MINUTES, VIRTUAL = 480.0, 0.25  # of AMD's guide; where nothing can wear out

KEPT = 60_000  # characters of a tool's words
ALIKE = 20  # lines of ranks that say the same but for numbers
LINES = 500  # of a kernel's log
RANK = re.compile(r"^# +Rank +\d+ ")
BIG, ROOMY = 8 << 30, 128e9  # bytes: of a sum that thresholds are about, and of a GPU that has room for it

Batch = Mapping[str, Sequence[str]]


def gpus(nodes: Iterable[NodeEvidence]) -> int:
    """That most of them have: those with another number are left out of jobs."""
    return usual(sum(gpu.kfd_node is not None for gpu in node.profile.gpus) for node in nodes if node.profile)


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
    cpus = min(cluster.state.slurm.nodes[name]["cpus"] for name in cluster.allocated())
    return [f"--cpus-per-task={max(1, cpus // tasks)}", f"--gres=gpu:{cluster.slurm.gpus}"]


def tools(
    cluster: Any, nodes: Sequence[str], batches: Sequence[Batch], *, seconds: float, minutes: int, keep: str = ""
) -> dict[str, Any]:
    """node -> name -> {"code", "out"}, as `on_each` has it. `seconds` is what one command may take, `minutes` all."""
    minutes = max(minutes, math.ceil(seconds * len(batches) / 60) + 2)
    asked = json.dumps({"batches": [dict(batch) for batch in batches], "seconds": seconds, "keep": keep})
    outputs = on_each(cluster, nodes, "tools.py", asked, seconds=seconds * len(batches) + 30, minutes=minutes)
    return {node: answer and answer["said"] for node, answer in outputs.items()}


def gemm(cluster: Any, nodes: Sequence[str]) -> dict[str, Any]:
    """node -> the answer of programs/gemm.py, as `on_each` has it."""
    return on_each(cluster, nodes, "gemm.py", seconds=300, minutes=60)


def on_each(
    cluster: Any, nodes: Sequence[str], program: str, *arguments: str, seconds: float, minutes: int
) -> dict[str, Any]:
    """node -> the program's answer, on all nodes at once and on each by itself. None: the node was not got; one that
    is missing gave no answer."""
    got = whole(cluster, minutes)
    outputs: dict[str, Any] = {node: None for node in nodes if node not in got}
    if chosen := [node for node in nodes if node in got]:
        more: dict[str, Any] = {"nodes": chosen, "options": shares(cluster, 1), "independent": True}
        step = cluster.slurm.python(PROGRAMS / program, *arguments, seconds=seconds, **more)
        outputs |= {answer["node"]: answer for answer in step.answers}
    return outputs


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

    def bench(sizes: str) -> dict[str, Any]:
        words = ["nccl" if cluster.slurm.gpus else "gloo", sizes, "3"]
        more: dict[str, Any] = {"tasks": ranks, "seconds": 120 + len(nodes), "options": options}
        step = cluster.slurm.python(PROGRAMS / "all_reduce.py", *words, **more)
        return {"code": step.code, "out": step.out, "said": step.said}

    results = of_run | bench(sizes)
    profiles = [cluster.state.gathered.node(node).profile for node in nodes] if cluster.slurm.gpus else []
    if profiles and all((gpu.memory or 0) >= ROOMY for profile in profiles for gpu in profile.gpus):
        results["big"] = bench(str(BIG))
    return results


def _rccl(cluster: Any, nodes: Sequence[str], gpus: int) -> dict[str, Any]:
    one = [RCCL, "-b", "8", "-e", "8G", "-f", "2", "-g", str(gpus)]
    each = tools(cluster, nodes, [{RCCL: one}], seconds=600, minutes=60)
    nodes = [node for node in nodes if each.get(node, {}) is not None]
    results: dict[str, Any] = {"tool": "rccl-tests", "nodes": list(nodes), "gpus": gpus, "each": each, "all": {}}
    if len(nodes) < 2:
        return results
    ask = f"for tool in {' '.join(OTHERS)}; do command -v $tool; done; true"
    others = {Path(line).name for line in cluster.slurm.step("sh", "-c", ask, nodes=nodes[:1]).out.splitlines()}
    for tool, begin in ((RCCL, "1024"), *((other, "8G") for other in OTHERS if other in others)):
        words = [tool, "-b", begin, "-e", "8G", "-f", "2", "-g", "1"]
        env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"} if tool == RCCL else {}
        options = ["--mpi=pmix", *shares(cluster, gpus)]
        step = cluster.slurm.step(*words, tasks=gpus, seconds=600, env=env, options=options)
        results["all"][tool] = {"code": step.code, "out": short(f"{step.out}\n{step.err}")}
    return results


def short(text: str) -> str:
    """Each way that data take, once; of each rank its number; and the end of the tool's own lines, without what many
    ranks say alike: a thousand warnings would push its table out."""
    words = [(line, rccl_parser.without_rccl(line)) for line in parsers.lines(text)]
    own = [own for line, own in words if "NCCL INFO" not in line or own.strip()]
    ranks = [rank[0] for line in own if (rank := RANK.match(line))]
    said = Counter[str]()
    rest = "\n".join(line for line in own if not RANK.match(line) and _is_new(line, said))
    return "\n".join([*rccl_parser.brief(text), *ranks, rest[-KEPT:]])


def _is_new(line: str, said: Counter[str]) -> bool:
    """Whether it is of the table, or few such were `said` before, whatever numbers they have."""
    kind = re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "", line)
    said[kind] += 1
    return said[kind] <= ALIKE or bool(re.match(r"\s*[#0-9]", line))


def minutes(virtual: bool, text: str | None) -> float:
    """That a soak takes, by default or as the variable says.

    Raises:
        BadInput: it says no number of minutes, or more than a week's.
    """
    if not text:
        return VIRTUAL if virtual else MINUTES
    try:
        parsed = float(text)
    except ValueError:
        parsed = 0
    if 0 < parsed <= 7 * 24 * 60:
        return parsed
    raise BadInput(
        f"{VARIABLE}={text} is no number of minutes",
        code="bad-setting",
        cause="a soak takes up to a week",
        next_step=f"such as {VARIABLE}=60",
    )


def soak(cluster: Any, lasting: float, *, jax: bool = False) -> dict[str, Any]:
    """Products and sums for `lasting` minutes, with PyTorch or `jax`, in steps of ten minutes at most; and what the
    kernels of real nodes said meanwhile. A node on which a rank gave no answer takes no part in later steps; `lost`:
    those that the allocation had no more, by the step after which."""
    nodes = whole(cluster, math.ceil(lasting) + SPARE)
    ranks = cluster.slurm.gpus or RANKS
    size, count = (4096, 1 << 26) if cluster.slurm.gpus else (128, 1 << 16)
    real = [node for node in nodes if not cluster.state.gathered.node(node).profile.virtual]
    uptimes = _uptimes(cluster, real) if real else {}
    kernels: dict[str, list[str]] = {node: [] for node in uptimes}
    backend = "nccl" if cluster.slurm.gpus else "gloo"
    # A rank whose peer is gone is to say so: RCCL would end it.
    more: dict[str, Any] = {"tasks": ranks, "options": shares(cluster, ranks), "independent": True}
    more |= {"env": {"OMP_NUM_THREADS": "1", "TORCH_NCCL_BLOCKING_WAIT": "1"}}
    going, left = list(nodes), lasting * 60
    steps, lost = list[dict[str, Any]](), dict[str, int]()
    while left > 0 and going:
        took, began = min(left, CHUNK), time.monotonic()
        words = [f"{took:.0f}", str(size), str(count), backend]
        step = cluster.slurm.python(
            PROGRAMS / ("jax_soak.py" if jax else "soak.py"), *words, nodes=going, seconds=took + ENDING, **more
        )
        answers = step.answers
        steps.append({"nodes": going, "seconds": took, "code": step.code, "answers": answers, "said": step.said})
        if uptimes:
            _heard(cluster, uptimes, kernels)
        left -= max(took, time.monotonic() - began)  # with what it took to start: the allocation ends by the clock
        heard = Counter(answer["node"] for answer in answers)
        well = [node for node in going if heard[node] == ranks]
        going = list(cluster.slurm.kept(well)) if left > 0 else []
        lost |= {node: len(steps) for node in well if left > 0 and node not in going}
    about = {"minutes": lasting, "nodes": list(nodes), "ranks": ranks, "gpus": bool(cluster.slurm.gpus)}
    return about | {"steps": steps, "lost": lost, "kernels": kernels}


def _uptimes(cluster: Any, nodes: Sequence[str]) -> dict[str, float]:
    outputs = cluster.everywhere("cat /proc/uptime", nodes)
    return {node: float(done.stdout.split()[0]) for node, done in outputs.items() if done.rc == 0}


def _heard(cluster: Any, uptimes: dict[str, float], kernels: dict[str, list[str]]) -> None:
    """Adds what the kernels said since `uptimes`, which become now's: a log of hours may have lost its beginning. Of
    nodes whose log can't be read all is taken away."""
    now = _uptimes(cluster, list(uptimes))
    outputs = cluster.everywhere("dmesg", list(uptimes))
    for node, done in outputs.items():
        if done.rc or node not in now:
            kernels.pop(node, None)
        elif node in kernels:
            news = [line for line in _since(done.stdout, uptimes[node]) if line not in kernels[node]]
            kernels[node] = (kernels[node] + news)[:LINES]  # the first ones tell most
            uptimes[node] = now[node]


def _since(log: str, begun: float) -> list[str]:
    """The kernel's lines from `begun` on, in seconds after its start, that tell of a fault; the last of them."""
    lines = []
    for line in (row[:LOG_LINE] for row in log.splitlines()):
        stamp = line.partition("]")[0].lstrip("[ ")
        if stamp.replace(".", "", 1).isdecimal() and float(stamp) >= begun and kernel.bad(line):
            lines.append(line)
    return lines[-LINES:]
