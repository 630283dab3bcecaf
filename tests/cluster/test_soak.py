"""The same work for hours: products and sums whose result is known, while the kernel is to stay quiet."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from experiments import performance

from rocstack.verify.plugin import check
from rocstack.verify.record import Node, Recorder

KERNEL = re.compile(
    r"amdgpu.*(error|fail|reset|hang|fault)|\bRAS\b|uncorrect|call trace|link is down|cq error|out of memory",
    re.IGNORECASE,
)


@pytest.fixture(scope="session")
def soaked(evidence: Any, cluster: Any, all_nodes: tuple[Node, ...]) -> dict[str, Any]:
    def fetch() -> dict[str, Any]:
        virtual = any(node.virtual for node in all_nodes)
        return performance.soak(cluster, performance.minutes(virtual, os.environ.get(performance.VARIABLE)))

    found: dict[str, Any] = evidence.take("soak", fetch)
    return found


@check(
    name="soak",
    title="The same work over and over gives no wrong result, and the kernel stays quiet",
    level=4,
    needs=("jobs",),
    cause="a GPU, its memory, a NIC or a link is failing under load or heat",
    next_step="`dmesg -T` and `amd-smi metric --ecc` on that node; drain it and run `rvs` there",
    source="AMD cluster networking guide, 8 hours of RCCL",
)
def test_soak(record: Recorder, soaked: dict[str, Any]) -> None:
    asked = f"{soaked['minutes']:g} minutes"
    answers = [answer for step in soaked["steps"] for answer in step["answers"]]
    for number, step in enumerate(soaked["steps"], 1):
        if step["code"] or len(step["answers"]) < soaked["ranks"] * len(soaked["nodes"]):
            heard = {answer["node"] for answer in step["answers"]}
            silent = [node for node in soaked["nodes"] if node not in heard] or soaked["nodes"]
            for node in silent:
                record.failed(node, f"step {number} of {asked} ended with {step['code']}", evidence=step["said"])
    real = {node.name for node in record.nodes if not node.virtual}
    for node in (node.name for node in record.nodes if node.name in soaked["nodes"]):
        mine = [answer for answer in answers if answer["node"] == node]
        rounds = sum(answer["rounds"] for answer in mine if answer["rank"] == mine[0]["rank"])
        heard = [line for line in soaked["kernels"].get(node) or () if KERNEL.search(line)]
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
            record.failed(node, f"the GPUs were not used: PyTorch took {', '.join(sorted(slow))}", wanted="nccl")
        if mine and not (heard or unread or slow or any(wrong.values())):
            slowest = max(answer["slowest_ms"] for answer in mine)
            about = f"{asked}, {mine[0]['ranks']} ranks, {mine[0]['backend']}; slowest round {slowest:.1f} ms"
            about += "" if node in real else "; virtual: its kernel's log is that of another machine"
            record.passed(node, rounds, "rounds", wanted="all of them right", evidence=about)
