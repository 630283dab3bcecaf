"""RCCL's collectives between GPUs: that they are right, and which way they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from experiments import training
from experiments.rccl import IB, WAYS, astray, functional
from experiments.rdma import not_for

from rocstack.base.errors import CheckFailed
from rocstack.node.image_facts import from_labels
from rocstack.verify.evidence import ClusterEvidence, NodeEvidence
from rocstack.verify.parsers import rccl
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder, without


@pytest.fixture(scope="session")
def collectives(evidence: Any, cluster: Any, tools: Mapping[str, list[str]]) -> Mapping[str, Any]:
    """What rccl-tests said of each collective, checked by itself."""
    results: Mapping[str, Any] = evidence.take("rccl", lambda: functional(cluster, tools))
    return results


@pytest.fixture(scope="session")
def trained(evidence: Any, cluster: Any, cluster_evidence: ClusterEvidence) -> Mapping[str, Any]:
    """As test_training.py has it."""
    labels = cluster_evidence.labels
    lacks = without(labels)
    if why := lacks.get("framework:rocm") or lacks.get("training"):
        return {"answers": [], "left_out": why, "kind": "no-tool"}
    framework = from_labels("the worker image", labels).framework
    results: Mapping[str, Any] = evidence.take("training_gpus", lambda: training.on_gpus(cluster, framework))
    return results


# Whose RCCL transport says GDRDMA where it goes directly; Slingshot's plugin has words of its own.
DIRECT = ("broadcom", "mellanox", "ainic")


@check(
    name="rccl-collectives",
    title="Every RCCL collective gives the right result for every type and operation, at odd sizes",
    cannot="speed: `collective-performance` measures it",
    level=2,
    core=True,
    item=9,
    needs=("jobs", "gpu", "real", "tool:all_reduce_perf"),
    scope="cluster",
    cause="a GPU, an XGMI link or a NIC corrupts data, or the image's RCCL has a defect on these GPUs",
    next_step=(
        "run the named rccl-test with -c 1 on one node after the other; then run RVS on the node with wrong results"
    ),
    source="rccl-tests: -c 1",
)
def test_rccl_collectives(record: Recorder, collectives: Mapping[str, Any]) -> None:
    """A measure for each collective: how many rows were right."""
    if not collectives["runs"]:
        if collectives["gpus"]:
            record.skipped("", "no all_reduce_perf in the image of every node", "no-tool")
        else:
            record.skipped("", "no node with GPUs was free as a whole", "no-jobs")
    ranks = collectives["gpus"] * len(collectives["nodes"])
    for tool, run in collectives["runs"].items():
        try:
            output = rccl.parse(run["out"], tool)
        except CheckFailed as error:
            record.unread("", error, run["out"])
            continue
        timings = [(row, timing) for row in output.rows for timing in (row.out_of_place, row.in_place)]
        wrong = [row for row, timing in timings if timing.wrong]
        unchecked = all(timing.wrong is None for _, timing in timings)
        right = len(timings) - len(wrong)
        why = f"{tool}: {output.wrong} elements of {output.out_of_bounds or len(wrong)} results are wrong"
        if wrong:
            why += f", first with {wrong[0].size} bytes of {wrong[0].dtype} {wrong[0].redop}"
        if run["code"] and not output.wrong:
            record.failed("", f"{tool} ended with {run['code']}", right, "results", evidence=run["out"])
        elif unchecked:
            record.failed("", f"{tool} compared nothing", evidence=run["out"])
        elif output.ranks and output.ranks != ranks:
            record.failed("", f"{tool}: {output.ranks} ranks took part, not {ranks}", output.ranks, "ranks")
        elif output.wrong:
            record.failed("", why, right, "results", evidence=run["out"])
        else:
            record.passed("", right, "results", wanted=f"{len(timings)} results", evidence=f"{tool}, {ranks} ranks")


def _beside(node: NodeEvidence) -> bool:
    """Whether each of its GPUs has a NIC on its own PCIe switch."""
    links = node.profile.affinity if node.profile else ()
    return bool(links) and all(link.via == "switch" for link in links)


@check(
    name="transport",
    title="RCCL uses RDMA between nodes, not sockets, and reads GPU memory directly where it can",
    cannot="that every channel goes directly: some that don't are told, not judged",
    level=2,
    core=True,
    needs=("jobs", "gpu", "real", "nodes:2"),  # not "rdma": Slingshot has no verbs device
    scope="cluster",
    cause=(
        "RCCL found no RDMA port it may use: NCCL_IB_DISABLE=1, NCCL_IB_HCA names other ports, the provider library "
        "doesn't match the driver, or the GID index isn't RoCE v2; on Slingshot, the image has no libfabric plugin; by "
        "host memory: ACS is on, or neither DMA-BUF nor a peer memory module works"
    ),
    next_step=(
        "run with NCCL_DEBUG=INFO: it shows why NET/IB isn't used; `rocstack doctor --log FILE` explains the lines"
    ),
    source="AMD cluster networking guide; RCCL, src/transport/net_ib.cc",
)
def test_transport(
    record: Recorder, collectives: Mapping[str, Any], trained: Mapping[str, Any], cluster_evidence: ClusterEvidence
) -> None:
    """By what RCCL says in training and in rccl-tests, of which an image may have none. That all channels pass host
    memory is a fault where each GPU has a NIC on its PCIe switch; that some do is only said: no source says which
    channels of a healthy node don't."""
    unfit = {why for node in record.nodes if (why := not_for(cluster_evidence, node))}
    texts = {name: run["out"] for name, run in collectives["runs"].items() if name == "all_reduce_perf"}
    rows = [row for row in trained["answers"] if row["run"] == "all"]
    if any(row["code"] == 0 for row in rows):
        texts["training"] = "\n".join(line for row in rows for line in row.get("rccl", ()))
    if unfit or not texts:
        why = next(iter(sorted(unfit)), "")
        kind = "" if why else trained.get("kind", "")
        record.skipped("", why or trained.get("left_out") or "nothing was summed between nodes", kind)
        return
    nic = cluster_evidence.labels["io.rocstack.nic"]
    for name, text in texts.items():
        try:
            output = rccl.parse_transport(text)
        except CheckFailed as error:
            record.failed("", f"{name}: {error.what}", evidence=text)
            continue
        networks = ", ".join(output.net or output.networks)
        evidence = f"{name}, RCCL {output.version}: {', '.join(output.ways) or networks}"
        wanted = f"NET/{WAYS.get(nic, IB)}"
        if wrong := astray(output, nic):
            record.failed("", f"{', '.join(wrong)}, not {wanted}", networks, wanted=wanted, evidence=evidence)
            continue
        record.passed("", networks, wanted=wanted, evidence=evidence)
        if channels := sum(output.ways[way] for way in output.net):
            beside = all(_beside(node) for node in record.nodes)
            if not output.direct and beside and nic in DIRECT:
                why = f"none of {channels} channels goes directly between GPU memory and NIC, which share PCIe switches"
                record.failed("", why, 0, "channels", wanted="GDRDMA", evidence=evidence)
                continue
            part = "directly" if output.direct == channels else "partly directly" if output.direct else "by host memory"
            record.measured("", f"GPU memory to NIC {part}", evidence=evidence)
