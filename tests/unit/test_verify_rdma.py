"""RDMA's and RCCL's checks, each on evidence in which it fails; which ports of two nodes meet."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from replay import good, red, replay

from rocstack.node.profile import NodeProfile
from rocstack.verify.parsers import rccl as parsers_rccl
from rocstack.verify.suite import checks

sys.path.append(str(checks()))
from experiments import rccl, rdma

DATA = Path(__file__).parent / "data/verify/parsers"
RAILS = [["bnxt_re0", 1, 3], ["bnxt_re1", 1, 3]]


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
    for tool, name in ((rdma.PINGPONG, "pingpong/good"), (rdma.WRITE, "perftest/all-sizes")):
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
        for rail, (device, port, gid) in enumerate(RAILS)
        for node, peer in (("n1", "n2"), ("n2", "n1"))
    ]


def proved(count: int) -> str:
    text = f"{count} of 512 queue pairs: Cannot allocate memory (9 times)"
    good = "device, PD, CQ and 512 queue pairs work"
    return f"rocstack: bnxt_re0: {good if count == 512 else text}\nrocstack: bnxt_re1: {good}\n"


NAMES = {"rdma-reachability", "rdma-write-bandwidth", "queue-pairs", "rccl-collectives", "transport"}


def of(evidence: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in replay(evidence, only="[qrt]*").items() if name in NAMES}


def client(evidence: dict[str, Any], tool: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in evidence[tool]["answers"] if not each["server"])
    return found


def test_good() -> None:
    found = of(real())
    assert {name: each.state for name, each in found.items()} == dict.fromkeys(NAMES, "passed")
    assert found["transport"].measures[0].value == "NET/IB"
    assert found["queue-pairs"].measures[0].value == 512


def test_no_virtual_device_carries_anything() -> None:
    evidence = real()
    for node in evidence["cluster"]["nodes"]:
        node["virtual"] = "mi300x-thor2"
    assert {each.state for each in of(evidence).values()} == {"skipped"}


@pytest.mark.parametrize(
    ("check", "tool", "said", "says"),
    [
        ("rdma-reachability", rdma.PINGPONG, "pingpong/transport-retry", "rail 0: ibv_rc_pingpong: the two ends"),
        ("rdma-reachability", rdma.PINGPONG, "pingpong/no-device", "IB device bnxt_re0 not found"),
        ("rdma-reachability", rdma.PINGPONG, "pingpong/invalid-data", "what arrived isn't what was sent"),
        ("rdma-write-bandwidth", rdma.WRITE, "perftest/no-peer", "rail 0: ib_write_bw: "),
        ("rdma-write-bandwidth", rdma.WRITE, "perftest/megabytes", "at least 385 Gb/s wanted"),
    ],
)
def test_a_tool_that_fails_between_two_nodes(check: str, tool: str, said: str, says: str) -> None:
    evidence = real()
    client(evidence, tool)["said"] = sample(said)
    found = of(evidence)
    assert red(found) == {check}
    (bad,) = [each for each in found[check].measures if each.state == "failed"]
    assert {bad.node, bad.peer} == {"n1", "n2"}
    assert says in bad.why


@pytest.mark.parametrize(
    ("check", "tool"), [("rdma-reachability", rdma.PINGPONG), ("rdma-write-bandwidth", rdma.WRITE)]
)
def test_a_pair_without_an_answer_fails(check: str, tool: str) -> None:
    evidence = real()
    evidence[tool]["answers"] = []
    found = of(evidence)
    assert red(found) == {check}
    assert "it was not tried in time" in found[check].why


def test_a_rail_that_was_never_tried_fails() -> None:
    for tool, check in ((rdma.PINGPONG, "rdma-reachability"), (rdma.WRITE, "rdma-write-bandwidth")):
        evidence = real()
        evidence[tool]["answers"] = [each for each in evidence[tool]["answers"] if each["rail"] == 0]
        found = of(evidence)
        assert red(found) == {check}
        assert "rail 1: it was not tried in time" in found[check].why


@pytest.mark.parametrize("server", [True, False])
def test_an_end_that_fails_is_heard_whatever_was_measured(server: bool) -> None:
    for tool, check in ((rdma.PINGPONG, "rdma-reachability"), (rdma.WRITE, "rdma-write-bandwidth")):
        evidence = real()
        next(each for each in evidence[tool]["answers"] if each["server"] is server)["code"] = 1
        found = of(evidence)
        assert red(found) == {check}
        assert f"{'server on n1' if server else 'client on n2'} ended with 1" in found[check].why


def test_a_node_with_a_rail_less_than_it_has_cards_fails() -> None:
    for names in (("n2",), ("n1", "n2")):  # or all nodes
        evidence = real()
        for tool in (rdma.PINGPONG, rdma.WRITE):
            evidence[tool]["rails"] |= dict.fromkeys(names, RAILS[:1])
        found = of(evidence)
        assert red(found) == {"rdma-reachability", "rdma-write-bandwidth"}
        assert {m.node for m in found["rdma-reachability"].measures if m.state == "failed"} == {*names}
        assert found["rdma-reachability"].why == "1 of 2 RDMA ports can be used"


def test_of_rails_that_did_well_their_number_is_enough() -> None:
    evidence = real()
    evidence[rdma.PINGPONG]["answers"] = [{"node": "n2", "peer": "n1", "well": [0, 1]}]
    assert not red(of(evidence))
    evidence[rdma.PINGPONG]["answers"][0]["well"] = [0]
    assert red(of(evidence)) == {"rdma-reachability"}


def test_a_node_without_a_usable_port_fails() -> None:
    evidence = real()
    for tool in (rdma.PINGPONG, rdma.WRITE):
        evidence[tool]["rails"] = {"n1": RAILS, "n2": []}
    found = of(evidence)
    assert red(found) == {"rdma-reachability", "rdma-write-bandwidth"}
    assert found["rdma-reachability"].why == "none of its RDMA ports can be used"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"code": 1, "said": proved(300)}, "300 , at least 512 wanted"),
        ({"code": 1, "said": "rocstack: bnxt_re0: it can't be opened: EPERM\n"}, "it can't be opened: EPERM"),
        ({"code": 1, "said": ""}, "rocstack-node said nothing"),
        ({"code": 0, "said": proved(512).splitlines()[0]}, "nothing is said of bnxt_re1"),
    ],
)
def test_too_few_queue_pairs(answer: dict[str, Any], says: str) -> None:
    evidence = real()
    evidence["queue_pairs"]["n2"] = answer
    found = of(evidence)
    assert red(found) == {"queue-pairs"}
    assert says in found["queue-pairs"].why


@pytest.mark.parametrize(
    ("check", "said", "says"),
    [
        ("rccl-collectives", sample("rccl/wrong-sums") + sample("transport/net-ib"), "1024 elements"),
        ("rccl-collectives", sample("rccl/not-checked") + sample("transport/net-ib"), "compared nothing"),
        ("rccl-collectives", sample("transport/net-ib"), "no size was measured"),
        ("transport", sample("rccl/mi300x-one-node") + sample("transport/net-socket"), "NET/Socket"),
        ("transport", sample("rccl/mi300x-one-node") + sample("transport/not-asked"), "says which network is used"),
    ],
)
def test_rccl_is_wrong_or_goes_another_way(check: str, said: str, says: str) -> None:
    evidence = real()
    evidence["rccl"]["runs"]["all_reduce_perf"]["out"] = said
    found = of(evidence)
    assert red(found) == {check}
    assert says in found[check].why


@pytest.mark.parametrize(
    ("nic", "way", "good"),
    [
        ("broadcom", "IB", True),
        ("broadcom", "Socket", False),
        ("broadcom", "RCCL-ANP", False),
        ("ainic", "RCCL-ANP", True),
        ("ainic", "IB", True),
        ("mellanox", "IBext_v8", True),
        ("mellanox", "Socket", False),
    ],
)
def test_what_is_rdma_depends_on_the_card(nic: str, way: str, good: bool) -> None:
    """As training says it, in an image that has no rccl-tests."""
    evidence = real()
    evidence["cluster"]["labels"]["io.rocstack.nic"] = nic
    for node in evidence["cluster"]["nodes"]:
        for card in node["profile"]["nics"]:
            card["nic"] = card["nic"] and nic
    for answer in evidence["in_jobs"].values():
        answer["tools"].remove("all_reduce_perf")
    evidence["rccl"]["runs"] = {}
    for row in evidence["training_gpus"]["answers"]:
        row["rccl"] = [line.replace("NET/IB", f"NET/{way}") for line in row["rccl"]]
    found = replay(evidence, only="transport")["transport"]
    assert found.state == ("passed" if good else "failed")
    assert f"NET/{way}" in str(found.measures[0].value)


def test_training_that_says_nothing_of_its_way_is_not_passed() -> None:
    evidence = real()
    for row in evidence["training_gpus"]["answers"]:
        row["rccl"] = []
    assert red(of(evidence)) == {"transport"}


def test_an_image_without_rdma_need_not_use_it() -> None:
    evidence = real()
    evidence["cluster"]["labels"]["io.rocstack.nic"] = "tcp"
    found = of(evidence)
    assert {name for name, each in found.items() if each.state != "skipped"} == {"rccl-collectives"}, found
    assert {each.why for name, each in found.items() if name != "rccl-collectives"} == {"the image has no RDMA"}


def test_of_many_ranks_one_line_a_way_is_kept_and_the_ranks() -> None:
    ways = sample("transport/net-ib").splitlines()
    ranks = [f"#  Rank {rank:4} Group  0 Pid 4100 on   n{rank // 8} device  0 [0x05] MI300X" for rank in range(8000)]
    kept = rccl.short("\n".join([*ranks, *ways * 8000, sample("rccl/mi300x-one-node")]))
    assert len(kept) < 300_000
    assert kept.count(" via NET/IB") == 2
    assert rccl.transport.parse(kept).net == ("NET/IB",)
    assert parsers_rccl.parse(kept).ranks == 8000


def test_what_rccl_says_of_each_channel_is_kept_before_the_table() -> None:
    text = sample("rccl/mi300x-one-node") + sample("transport/net-ib")
    assert "via NET/IB/0/GDRDMA" in rccl.short(text)
    assert "Avg bus bandwidth" in rccl.short(text)
    assert "Using [0]bnxt_re0" not in rccl.short(text)


def profile() -> NodeProfile:
    node = next(each for each in good()["cluster"]["nodes"] if each["profile"]["verbs"])
    return TypeAdapter(NodeProfile).validate_json(json.dumps(node["profile"]))


def test_rails_are_the_ports_and_gids_of_the_workers_own_environment() -> None:
    nic = rdma.nic_of("broadcom")
    by_rule = rdma.rails(profile(), {}, nic)
    assert [rail[0] for rail in by_rule] == [f"bnxt_re{number}" for number in range(8)]
    assert {rail[2] for rail in by_rule} == {1}
    said = {"NCCL_IB_HCA": "=bnxt_re5:1,bnxt_re2:1", "NCCL_IB_GID_INDEX": "3"}
    assert rdma.rails(profile(), said, nic) == [["bnxt_re5", 1, 3], ["bnxt_re2", 1, 3]]
    assert rdma.rails(profile(), {}, rdma.nic_of("tcp")) == []
