"""Which way RCCL takes between nodes, and what is kept of what it says of that."""

from __future__ import annotations

import sys

import pytest
from evidence_replay import red, replay
from rdma_evidence import of, real, sample

from rocstack.verify.parsers import rccl as parsers_rccl
from rocstack.verify.suite import checks

sys.path.append(str(checks()))
from experiments import rccl


@pytest.mark.parametrize(
    ("nic", "way", "good"),
    [
        ("broadcom", "IB", True),
        ("broadcom", "Socket", False),
        ("broadcom", "RCCL-ANP", False),
        ("ainic", "RCCL-ANP", True),
        ("ainic", "IB", True),
        ("ainic", "IB-CAST", True),
        ("ainic", "ROCM-IB", True),
        ("ainic", "IB-ROCM", True),
        ("ainic", "IB-Other", False),
        ("broadcom", "IB-CAST", True),
        ("broadcom", "ROCM-IB", True),
        ("broadcom", "IB-ROCM", False),
        ("mellanox", "IB-CAST", True),
        ("mellanox", "ROCM-IB", True),
        ("mellanox", "IBext_v8", True),
        ("mellanox", "Socket", False),
        ("slingshot", "AWS Libfabric", True),
        ("slingshot", "Socket", False),
    ],
)
def test_what_is_rdma_depends_on_the_card(nic: str, way: str, good: bool) -> None:
    """As training says it, in an image that has no rccl-tests."""
    evidence = real()
    evidence["cluster"]["labels"]["io.rocstack.nic"] = nic
    for node in evidence["cluster"]["nodes"]:
        for card in node["profile"]["nics"]:
            card["nic"] = card["nic"] and nic
            card["verbs"] = None if nic == "slingshot" else card["verbs"]
        node["profile"]["verbs"] = [] if nic == "slingshot" else node["profile"]["verbs"]
    for answer in evidence["in_jobs"].values():
        answer["tools"].remove("all_reduce_perf")
    evidence["rccl"]["runs"] = {}
    for row in evidence["training_gpus"]["answers"]:
        row["rccl"] = [line.replace("NET/IB", f"NET/{way}") for line in row["rccl"]]
    found = replay(evidence, only="transport")["transport"]
    assert found.state == ("passed" if good else "failed")
    assert f"NET/{way}" in str(found.measures[0].value)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (slice(None), "GPU memory to NIC partly directly"),
        (slice(0, 2), "GPU memory to NIC directly"),
        (slice(2, 3), "GPU memory to NIC by host memory"),
    ],
)
def test_whether_host_memory_is_in_the_way_is_said(lines: slice, says: str) -> None:
    evidence = real()
    for node in evidence["cluster"]["nodes"] if "by host" in says else ():
        for link in node["profile"]["affinity"]:
            link["via"] = "root"
    evidence["training_gpus"]["answers"] = []
    text = sample("transport/net-ib").splitlines(keepends=True)
    ways = [line for line in text if "via NET/IB" in line]
    said = "".join([sample("rccl/mi300x-one-node"), *(line for line in text if line not in ways), *ways[lines]])
    evidence["rccl"]["runs"]["all_reduce_perf"]["out"] = said
    first, second = replay(evidence, only="transport")["transport"].measures
    assert (first.state, second.state, second.value) == ("passed", "measured", says)


def test_host_memory_in_the_way_of_cards_beside_their_gpus_is_a_fault() -> None:
    evidence = real()
    evidence["training_gpus"]["answers"] = []
    text = sample("transport/net-ib").splitlines(keepends=True)
    said = [line for line in text if "GDRDMA" not in line]
    evidence["rccl"]["runs"]["all_reduce_perf"]["out"] = "".join([sample("rccl/mi300x-one-node"), *said])
    bad = [each for each in replay(evidence, only="transport")["transport"].measures if each.state == "failed"]
    assert ["which share PCIe switches" in each.why for each in bad] == [True]


def test_training_that_says_nothing_of_its_way_is_not_passed() -> None:
    evidence = real()
    for row in evidence["training_gpus"]["answers"]:
        row["rccl"] = []
    assert red(of(evidence)) == {"transport"}


def test_of_many_ranks_one_line_a_way_is_kept_and_the_ranks() -> None:
    ways = sample("transport/net-ib").splitlines()
    ranks = [f"#  Rank {rank:4} Group  0 Pid 4100 on   n{rank // 8} device  0 [0x05] MI300X" for rank in range(8000)]
    kept = rccl.short("\n".join([*ranks, *ways * 8000, sample("rccl/mi300x-one-node")]))
    assert len(kept) < 300_000
    assert kept.count(" via NET/IB") == 2
    assert parsers_rccl.parse_transport(kept).net == ("NET/IB",)
    assert parsers_rccl.parse(kept).ranks == 8000


def test_a_row_that_rccl_interrupts_is_kept_once() -> None:
    text = sample("rccl/rows-interrupted-by-info")
    kept = rccl.short(text)
    assert parsers_rccl.parse(kept).rows == parsers_rccl.parse(text).rows
    assert parsers_rccl.parse_transport(kept).direct == 1


def test_what_rccl_says_of_each_channel_is_kept_before_the_table() -> None:
    text = sample("rccl/mi300x-one-node") + sample("transport/net-ib")
    assert "via NET/IB/0/GDRDMA" in rccl.short(text)
    assert "Avg bus bandwidth" in rccl.short(text)
    assert "Using [0]bnxt_re0" not in rccl.short(text)


@pytest.mark.parametrize("table", [0, 1, 2])
def test_what_a_thousand_ranks_warn_of_pushes_no_table_out(table: int) -> None:
    """UCX warns on standard output, libibverbs on the other, which stands behind it."""
    ucx = [
        f"[1732712345.{n:06}] [n{n // 8}:{4100 + n}:0] parser.c:2036 UCX  WARN  unused variable" for n in range(1024)
    ]
    verbs = [f"libibverbs: Warning: no userspace device-specific driver found for uverbs{n}" for n in range(1024)]
    texts = ["\n".join(ucx), "\n".join(verbs)]
    said = sample("rccl/mi300x-two-nodes")
    kept = rccl.short("\n".join([*texts[:table], said, *texts[table:]]))
    assert parsers_rccl.parse(kept).rows == parsers_rccl.parse(said).rows
    assert "UCX  WARN" in kept
    assert "libibverbs: Warning" in kept
