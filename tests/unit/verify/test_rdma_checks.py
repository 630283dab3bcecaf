"""RDMA's and RCCL's checks, each on evidence in which it fails."""

from __future__ import annotations

import base64
import json
import sys
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from evidence_replay import red, replay
from rdma_evidence import JUDGED, NAMES, RAILS, met, of, proved, real, sample

from rocstack.verify.evidence import CLUSTER
from rocstack.verify.suite import checks

sys.path.append(str(checks()))
from experiments import rdma

Edit = Callable[[dict[str, Any]], object]


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


def client_says(tool: str, name: str) -> Edit:
    return lambda evidence: client(evidence, tool).update(said=sample(name))


def queue_pairs(code: int, said: str) -> Edit:
    return lambda evidence: evidence["queue_pairs"].update(n2={"code": code, "said": said})


def rccl_says(*names: str) -> Edit:
    return lambda evidence: evidence["rccl"]["runs"]["all_reduce_perf"].update(out="".join(map(sample, names)))


FAULTS: list[tuple[str, Edit, str]] = [
    ("rdma-reachability", client_says(rdma.PINGPONG, "pingpong/transport-retry"), "rail 0: ibv_rc_pingpong: the two"),
    ("rdma-reachability", client_says(rdma.PINGPONG, "pingpong/no-device"), "IB device bnxt_re0 not found"),
    ("rdma-reachability", client_says(rdma.PINGPONG, "pingpong/invalid-data"), "what arrived isn't what was sent"),
    ("rdma-write-bandwidth", client_says(rdma.WRITE, "perftest/no-peer"), "rail 0: ib_write_bw: "),
    ("rdma-write-bandwidth", client_says(rdma.WRITE, "perftest/megabytes"), "expected at least 280 Gb/s"),
    ("rdma-write-both-ways", client_says(rdma.BOTH_WAYS, "perftest/all-sizes"), "expected at least 560 Gb/s"),
    ("rdma-gpu-memory", client_says(rdma.GPU_WRITE, "perftest/megabytes"), "expected at least 280 Gb/s"),
    ("rdma-gpu-memory", client_says(rdma.GPU_WRITE, "perftest/no-peer"), "rail 0: ib_write_bw: "),
    ("queue-pairs", queue_pairs(1, proved(300)), "300, expected at least 512"),
    ("queue-pairs", queue_pairs(1, "rocstack: bnxt_re0: it can't be opened: EPERM\n"), "it can't be opened: EPERM"),
    ("queue-pairs", queue_pairs(1, ""), "rocstack-node said nothing"),
    ("queue-pairs", queue_pairs(0, proved(512).splitlines()[0]), "no answer about bnxt_re1"),
    ("rccl-collectives", rccl_says("rccl/wrong-sums", "transport/net-ib"), "1024 elements"),
    ("rccl-collectives", rccl_says("rccl/not-checked", "transport/net-ib"), "compared nothing"),
    ("rccl-collectives", rccl_says("transport/net-ib"), "no size was measured"),
    ("transport", rccl_says("rccl/mi300x-one-node", "transport/net-socket"), "NET/Socket"),
    ("transport", rccl_says("rccl/mi300x-one-node"), "says which network is used"),
]


@pytest.mark.parametrize(("check", "edit", "says"), FAULTS, ids=[f"{each[0]}-{each[2][:20]}" for each in FAULTS])
def test_one_fact_turns_its_check_red(check: str, edit: Edit, says: str) -> None:
    evidence = real()
    edit(evidence)
    found = of(evidence)
    assert red(found) == {check}
    (bad,) = [each for each in found[check].measures if each.state == "failed"]
    assert not check.startswith("rdma-") or {bad.node, bad.peer} == {"n1", "n2"}
    assert says in bad.why


@pytest.mark.parametrize(("gpus", "kind"), [(8, "no-tool"), (0, "no-jobs")])
def test_sums_that_nobody_compared_leave_the_level_unproved(gpus: int, kind: str) -> None:
    evidence = real()
    evidence["rccl"] = {"nodes": ["n1"], "gpus": gpus, "runs": {}}
    sums = of(evidence)["rccl-collectives"]
    assert (sums.state, sums.skip_kinds) == ("skipped", {kind})
    assert sums.missed or sums.no_tool


@pytest.mark.parametrize(("tool", "check"), JUDGED.items())
def test_where_nothing_was_tried_no_node_fails_but_the_check_does(check: str, tool: str) -> None:
    evidence = real()
    evidence[tool] |= {"answers": [], "said": "srun: error: timed out"}
    found = of(evidence)
    assert red(found) == {check}
    (bad,) = [each for each in found[check].measures if each.state == "failed"]
    assert (bad.node, bad.evidence) == ("", "srun: error: timed out")
    assert "2 nodes were not tried in time" in bad.why
    skipped = [each for each in found[check].measures if each.state == "skipped"]
    assert [each.node for each in skipped] == ["n1", "n2"]
    assert all(each.why.startswith("no time was left: ") for each in skipped)


def test_a_rail_that_was_never_tried_is_not_passed() -> None:
    for tool, check in JUDGED.items():
        evidence = real()
        evidence[tool]["answers"] = [each for each in evidence[tool]["answers"] if each["rail"] == 0]
        found = of(evidence)
        assert red(found) == {check}
        assert not [each for each in found[check].measures if each.state == "passed"]


def three() -> dict[str, Any]:
    """n1 fails with n2, and no time was left for n3."""
    evidence = real()
    nodes = evidence["cluster"]["nodes"]
    third = next(json.loads(json.dumps(node)) for node in nodes if node["name"] == "n2")
    third["name"] = third["profile"]["name"] = "n3"
    nodes.append(third)
    for part in (evidence["in_jobs"], evidence["queue_pairs"]):
        part["n3"] = part["n2"]
    for tool in JUDGED:
        evidence[tool]["rails"]["n3"] = RAILS
    return evidence


def test_who_was_not_tried_is_skipped_where_another_is_at_fault() -> None:
    for tool, check, name in (
        (rdma.PINGPONG, "rdma-reachability", "pingpong/transport-retry"),
        (rdma.WRITE, "rdma-write-bandwidth", "perftest/no-peer"),
    ):
        evidence = three()
        client(evidence, tool)["said"] = sample(name)
        measures = replay(evidence, only=check)[check].measures
        (bad,) = [each for each in measures if each.state == "failed"]
        assert {bad.node, bad.peer} == {"n1", "n2"}
        (left,) = [each for each in measures if each.state == "skipped"]
        assert left.node == "n3"
        assert left.why.startswith("no time was left: ")


def test_what_the_server_alone_finds_changed_fails() -> None:
    """ibv_rc_pingpong's client compares nothing and ends well; the server says so and ends with 0."""
    evidence = real()
    server, *_ = evidence[rdma.PINGPONG]["answers"]
    assert server["server"]
    server["said"] = sample("pingpong/invalid-data")
    evidence[rdma.PINGPONG]["answers"] = [server, {"node": "n2", "peer": "n1", "well": [0, 1]}]
    found = of(evidence)
    assert red(found) == {"rdma-reachability"}
    assert "rail 0: ibv_rc_pingpong: what arrived isn't what was sent" in found["rdma-reachability"].why


def test_rails_that_a_node_lacks_are_not_asked_for() -> None:
    """The others keep their numbers."""
    evidence = three()
    for tool in JUDGED:
        evidence[tool]["rails"] = {"n1": RAILS, "n2": [None, RAILS[1]]}
        evidence[tool]["answers"] = [each for each in evidence[tool]["answers"] if each["rail"] == 1]
    found = of(evidence)
    for check in JUDGED.values():
        (bad,) = [each for each in found[check].measures if each.state == "failed"]
        assert (bad.node, bad.why) == ("n2", "1 of 2 RDMA ports can be used")


def test_nodes_without_a_rail_in_common_are_not_said_to_reach_each_other() -> None:
    evidence = real()
    evidence[rdma.PINGPONG] |= {"rails": {"n1": [RAILS[0], None], "n2": [None, RAILS[1]]}, "answers": []}
    measures = of(evidence)["rdma-reachability"].measures
    assert not [each for each in measures if each.state == "passed"]
    assert "rail of the other's" in next(each.why for each in measures if each.peer)


@pytest.mark.parametrize("server", [True, False])
def test_an_end_that_fails_is_heard_whatever_was_measured(server: bool) -> None:
    for tool, check in JUDGED.items():
        evidence = real()
        next(each for each in evidence[tool]["answers"] if each["server"] is server)["code"] = 1
        found = of(evidence)
        assert red(found) == {check}
        assert f"{'server on n1' if server else 'client on n2'} ended with 1" in found[check].why


def test_a_node_with_a_rail_less_than_it_has_cards_fails() -> None:
    for names in (("n2",), ("n1", "n2")):  # or all nodes
        evidence = real()
        for tool in JUDGED:
            evidence[tool]["rails"] |= dict.fromkeys(names, RAILS[:1])
        found = of(evidence)
        assert red(found) == {*JUDGED.values()}
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
    for tool in JUDGED:
        evidence[tool]["rails"] = {"n1": RAILS, "n2": []}
    found = of(evidence)
    assert red(found) == {*JUDGED.values()}
    assert found["rdma-reachability"].why == "none of its RDMA ports can be used"


def test_an_image_without_rdma_need_not_use_it() -> None:
    evidence = real()
    evidence["cluster"]["labels"]["io.rocstack.nic"] = "tcp"
    found = of(evidence)
    assert {name for name, each in found.items() if each.state != "skipped"} == {"rccl-collectives"}, found
    assert {each.why for name, each in found.items() if name != "rccl-collectives"} == {"the image has no RDMA"}


def test_which_memory_was_written_from_is_said() -> None:
    found = of(real())
    assert found["rdma-gpu-memory"].measures[0].evidence.endswith(", from GPU memory")
    assert found["rdma-write-bandwidth"].measures[0].evidence.endswith(", from host memory")


def test_a_perftest_without_rocm_says_nothing_of_gpu_memory() -> None:
    """Whether its help leaves that out, or promises it and the tool then refuses."""
    for answers in (
        [{"node": "n1", "able": True}, {"node": "n2", "able": False}],
        [{"node": "n1", "able": True}, *met("Unsupported memory type\n")],
    ):
        evidence = real()
        evidence[rdma.GPU_WRITE]["answers"] = answers
        found = of(evidence)["rdma-gpu-memory"]
        assert (found.state, "only host memory" in found.why) == ("skipped", True)


def test_gpu_memory_is_asked_of_the_gpu_beside_the_nic_and_by_dma_buf_where_peer_memory_fails() -> None:
    class Session:
        def __init__(self) -> None:
            self.asked: list[dict[str, Any]] = []

        def step(self, *words: str, **more: Any) -> Any:
            self.asked.append(json.loads(zlib.decompress(base64.b64decode(words[-1]))))
            said = met("a table") if self.asked[-1]["dmabuf"] else [{**each, "code": 1} for each in met("")]
            return SimpleNamespace(answers=said, code=0, said="")

    evidence = real()
    far = {**evidence["cluster"]["nodes"][0]["profile"]["affinity"][1], "via": "root"}
    evidence["cluster"]["nodes"][0]["profile"]["affinity"][1] = far
    nodes = [each for each in CLUSTER.validate_json(json.dumps(evidence["cluster"])).nodes if each.name in ("n1", "n2")]
    session = Session()
    found = rdma.from_gpus(session, {"n1": RAILS, "n2": RAILS}, nodes, ["--gres=gpu:8"])
    assert [each["dmabuf"] for each in session.asked] == [False, True]
    assert session.asked[0]["gpus"]["n2"] | {"bnxt_re0": 0, "bnxt_re1": 1} == session.asked[0]["gpus"]["n2"]
    assert session.asked[0]["rails"]["n1"] == [RAILS[0], None]
    assert {each["code"] for each in found["answers"]} == {0}
