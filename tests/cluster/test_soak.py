"""The same work for hours: products and sums whose result is known, while the kernel is to stay quiet."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import kernel
import pytest
from experiments import performance

from rocstack.verify.evidence import CheckSkipped, ClusterEvidence, NodeEvidence
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder, without
from rocstack.verify.result import Skip


@pytest.fixture(scope="session")
def soaked(
    evidence: Any, cluster: Any, cluster_evidence: ClusterEvidence, all_nodes: tuple[NodeEvidence, ...]
) -> dict[str, Any]:
    def fetch() -> dict[str, Any]:
        lacks = without(cluster_evidence.labels)
        if cluster.slurm.gpus and (why := lacks.get("framework:rocm")):
            raise CheckSkipped(why, Skip(kind="no-tool", nodes=tuple(node.name for node in all_nodes)))
        jax = "part:trainer" in lacks or bool(cluster.slurm.gpus and "framework:pytorch" in lacks)
        virtual = any(node.virtual for node in all_nodes)
        return performance.soak(cluster, performance.minutes(virtual, os.environ.get(performance.VARIABLE)), jax=jax)

    results: dict[str, Any] = evidence.take("soak", fetch)
    return results


@check(
    name="soak",
    title="Repeating the same work gives no wrong result and no kernel error",
    cannot="faults that need longer, or other work, to show",
    level=4,
    core=True,
    needs=("jobs", "training"),
    cause="a GPU, its memory, a NIC or a link fails under load or heat",
    next_step="check `dmesg -T` and `amd-smi metric --ecc` on that node; drain it and run `rvs` there",
    source="AMD cluster networking guide, 8 hours of RCCL",
)
def test_soak(record: Recorder, soaked: dict[str, Any]) -> None:
    asked = f"{soaked['minutes']:g} minutes"
    ended = broken_off(soaked)
    for node, number, why, text in ended:
        record.failed(node, f"step {number} of {asked}{why}", evidence=text)
    for node, number in soaked.get("lost", {}).items():
        record.failed(node, f"the allocation lost it after step {number} of {asked}")
    ill = {*(node for node, *_ in ended), *soaked.get("lost", {})}
    real = {node.name for node in record.nodes if not node.virtual}
    for node in (node.name for node in record.nodes if node.name in soaked["nodes"]):
        each = [[answer for answer in step["answers"] if answer["node"] == node] for step in soaked["steps"]]
        mine = [answer for answers in each for answer in answers]
        rounds = sum(answers[0]["rounds"] for answers in each if answers)
        heard = [line for line in soaked["kernels"].get(node) or () if kernel.bad(line)]
        wrong = {what: sum(answer[f"wrong_{what}"] for answer in mine) for what in ("sums", "products")}
        for what, count in wrong.items():
            if count:
                record.failed(node, f"{count} wrong {what} in {rounds} rounds", count, f"wrong {what}", wanted="0")
        if heard:
            record.failed(
                node, f"the kernel said: {heard[0]}", len(heard), "lines", wanted="0", evidence="\n".join(heard)
            )
        unread = node in real and soaked["kernels"].get(node) is None
        if unread:
            record.failed(node, "its kernel's log could not be read")
        slow = soaked.get("gpus") and {answer["backend"] for answer in mine} - {"nccl"}
        if slow:
            record.failed(node, f"the GPUs were not used: it took {', '.join(sorted(slow))}", wanted="nccl")
        if mine and not (heard or unread or slow or node in ill or any(wrong.values())):
            slowest = max(answer["slowest_ms"] for answer in mine)
            about = f"{asked}, {mine[0]['ranks']} ranks, {mine[0]['backend']}; slowest round {slowest:.1f} ms"
            about += "" if node in real else "; virtual: its kernel's log is that of another machine"
            record.passed(node, rounds, "rounds", wanted="all of them right", evidence=about)


def broken_off(soaked: dict[str, Any]) -> list[tuple[str, int, str, str]]:
    """Node, step, why, and what the step said. Where ranks gave no answer it is due to their nodes, whatever it did
    to the others."""
    failures = []
    for number, step in enumerate(soaked["steps"], 1):
        counts = Counter(answer["node"] for answer in step["answers"])
        nodes = step.get("nodes", soaked["nodes"])
        silent = [node for node in nodes if counts[node] < soaked["ranks"]]
        errors = {answer["node"]: answer["error"] for answer in step["answers"] if answer.get("error")}
        if silent or (step["code"] and not errors):
            failures += [(node, number, f" ended with {step['code']}", step["said"]) for node in silent or nodes]
        else:
            failures += [(node, number, f": {why}", step["said"]) for node, why in errors.items()]
    return failures
