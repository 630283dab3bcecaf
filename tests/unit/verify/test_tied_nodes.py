"""Where as many nodes are of one kind as of another, nobody knows which is right: none is blamed alone. But what one
lost makes no other one wrong."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from evidence_replay import replay
from test_node_checks import real, recorded

from rocstack.verify.suite import checks

sys.path.append(str(checks()))
import states
from experiments import ranks

Evidence = dict[str, Any]


def profile(evidence: Evidence, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(node["profile"] for node in evidence["cluster"]["nodes"] if node["name"] == name)
    return found


def blamed(evidence: Evidence, check: str) -> dict[str, str]:
    return {m.node: m.why for m in replay(evidence, only=check)[check].measures if m.state == "failed"}


def without_a_card(evidence: Evidence) -> None:
    """Its NIC fell off the bus."""
    own = profile(evidence, "n2")
    own["verbs"] = [device for device in own["verbs"] if device["name"] != "bnxt_re7"]
    own["nics"] = [nic for nic in own["nics"] if nic["verbs"] != "bnxt_re7"]
    own["affinity"] = own["affinity"][:7]


@pytest.mark.parametrize("check", ["rdma-devices", "topology"])
def test_a_card_that_one_of_two_lost_is_missed_there(check: str) -> None:
    evidence = real(recorded())
    without_a_card(evidence)
    assert list(blamed(evidence, check)) == ["n2"]


def other_names(evidence: Evidence) -> None:
    own = profile(evidence, "n2")
    for device in own["verbs"]:
        device["name"] = device["name"].replace("bnxt_re", "rocep")


def other_slots(evidence: Evidence) -> None:
    first, second = profile(evidence, "n1")["affinity"][:2]
    first["nic"], second["nic"] = second["nic"], first["nic"]


def other_firmware(evidence: Evidence) -> None:
    for name, version in (("n1", "33"), ("n2", "34")):
        rows = [{"gpu": gpu, "fw_list": [{"fw_id": "RLC", "fw_version": version}]} for gpu in range(8)]
        evidence["gpu_jobs"][name]["all"]["amd_smi"] = {"firmware": json.dumps(rows)}


def other_environment(evidence: Evidence) -> None:
    for name, traffic in (("n1", "104"), ("n2", "106")):
        evidence["cluster"]["fabric"][name]["NCCL_IB_TC"] = traffic
        evidence["in_jobs"][name]["env"]["NCCL_IB_TC"] = traffic


@pytest.mark.parametrize(
    ("check", "change", "why"),
    [
        ("rdma-devices", other_names, "is not on as many others"),
        ("topology", other_slots, "GPU 0, GPU 1: connected differently from as many others"),
        ("gpu-firmware", other_firmware, "as many have 3"),
        ("fabric-env", other_environment, "different from as many others: NCCL_IB_TC=104, NCCL_IB_TC=106"),
    ],
)
def test_of_two_that_differ_both_are_named(check: str, change: Any, why: str) -> None:
    evidence = real(recorded())
    change(evidence)
    found = blamed(evidence, check)
    assert set(found) == {"n1", "n2"}
    assert all(why in each for each in found.values())


def test_weights_that_differ_by_node_are_as_wrong_on_one_as_on_the_other() -> None:
    rows = [
        {"node": node, "run": "all", "rank": rank, "world": 4, "before": "a", "after": node}
        for rank, node in enumerate(("n1", "n1", "n2", "n2"))
    ]
    found = ranks.strangers(rows)
    assert {name: why.partition(" has ")[0] for name, why in found.items()} == {
        "n1": "rank 0 of 4",
        "n2": "rank 2 of 4",
    }
    assert "than as many of all ranks" in found["n1"]


def test_the_commonest() -> None:
    assert states.commonest(["a", "b", "a"]) == ("a",)
    assert states.commonest(["a", "b"]) == ("a", "b")
    assert states.commonest(["a", "bb"], len) == ("bb",)
    assert states.commonest([]) == ()


def lone(*losses: float, ends: str = "") -> dict[str, Any]:
    """Ranks that trained alone on GPUs of n1, n2 ..., by their last losses."""
    rows = [
        {"node": f"n{number}", "run": "alone", "rank": 0, "device": "MI300X", "losses": [9.0, loss]}
        | {"after": ends or f"{number}"}
        for number, loss in enumerate(losses, 1)
    ]
    return {"answers": rows}


@pytest.mark.parametrize(
    ("losses", "odd", "many"),
    [
        ((5.0, 5.01, 5.02, 5.01), set(), "most"),
        ((6.0, 5.01, 5.0, 5.02), {"n1"}, "most"),
        ((5.0, 5.01, 6.0, 5.0), {"n3"}, "most"),
        ((5.0, 6.0), {"n1", "n2"}, "as many"),
        ((5.0,), set(), "most"),
    ],
)
def test_of_gpus_that_end_with_other_bits_each_the_first_one_is_no_measure(
    losses: tuple[float, ...], odd: set[str], many: str
) -> None:
    found, words = ranks.unlike(lone(*losses), "MI300X", 0.02, to_the_bit=False)
    assert (set(found), words) == (odd, many)
