"""MPI's checks, each on evidence in which it fails, and what finds out which node or part is to blame."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evidence_replay import good, red, replay, states
from made_runs import checked
from module_file import module_of

from rocstack.verify.recorder import Recorder
from rocstack.verify.slurm_session import MARK, StepOutput
from rocstack.verify.suite import checks

sys.path.append(str(checks()))
from experiments import links, mpi

HANGS = "File <string>, line 7 in ring"
Edit = Callable[[dict[str, Any]], object]


def answers(evidence: dict[str, Any], part: str, node: str = "n2") -> list[dict[str, Any]]:
    return [each for each in evidence["mpi"]["answers"] if each["part"] == part and each["node"] == node]


def lost(part: str) -> Edit:
    """No rank of n2 came out of it."""

    def edit(evidence: dict[str, Any]) -> None:
        gone = answers(evidence, part)
        evidence["mpi"]["answers"] = [each for each in evidence["mpi"]["answers"] if each not in gone]
        evidence["mpi"]["ended"][part] = HANGS

    return edit


def changed(part: str, **values: Any) -> Edit:
    return lambda evidence: answers(evidence, part)[0].update(values)


def link(**values: Any) -> Edit:
    return lambda evidence: answers(evidence, "links", "n1")[0]["row"]["n2"].update(values)


def over_tcp(evidence: dict[str, Any]) -> None:
    """On real nodes, of which each has RDMA."""
    evidence["cluster"]["labels"]["io.rocstack.nic"] = "broadcom"
    for node in evidence["cluster"]["nodes"]:
        node["virtual"] = node["profile"]["virtual"] = None
    others = [each for each in evidence["mpi"]["answers"] if each["part"] != "end"]
    evidence["mpi"]["answers"] = [*others, *ends(["ucx"], ["tcp/eno1"])]


FAULTS: list[tuple[str, Edit, str]] = [
    ("mpi-launch", changed("launch", world=1), "a world of 1, not 4: it was started without PMIx"),
    ("mpi-launch", changed("launch", rank=0), "expected 2 that no other node has"),
    ("mpi-launch", changed("launch", host="n7"), "its ranks see 2 hosts"),
    ("mpi-ring", changed("ring", wrong="4099 of 4099 values wrong from rank 1"), "rank 2: 4099 of 4099 values wrong"),
    ("mpi-ring", changed("ring", error="Exception: MPI_ERR_TRUNCATE"), "MPI_ERR_TRUNCATE"),
    ("mpi-ring", lost("ring"), "it did not end"),
    ("mpi-latency", link(latency_us=50_043.0), "expected at most 5000 us"),
    ("mpi-latency", link(latency_us=None), "could not be measured"),
    ("mpi-bandwidth", link(bandwidth=0.000119), "expected at least 0.02 GB/s"),
    ("mpi-bandwidth", link(wrong=3), "3 messages arrived changed"),
    ("mpi-collectives", changed("collectives", right=1499, cases=1500, wrong=["Scan of 3 int8"]), "Scan of 3 int8"),
    ("mpi-collectives", changed("collectives", right=900, cases=900, kinds=284), "only 284 of 285 collectives"),
    ("mpi-collectives", changed("collectives", right=286, cases=286, kinds=0), "only 0 of 285 collectives"),
    ("mpi-collectives", lost("collectives"), "it did not end"),
    ("mpi-transport", over_tcp, "ucx over tcp/eno1: not RDMA"),
]


@pytest.mark.parametrize(("check", "edit", "says"), FAULTS, ids=[f"{each[0]}-{each[2][:20]}" for each in FAULTS])
def test_its_check_is_red_and_no_other(check: str, edit: Edit, says: str) -> None:
    evidence = good()
    edit(evidence)
    found = replay(evidence, only="mpi-*")
    assert red(found) == {check}
    assert says in found[check].why


def test_good() -> None:
    found = replay(good(), only="mpi-*", level=1)
    assert set(states(found).values()) == {"passed"}
    assert len(found) == 5


def test_links_that_did_not_end_are_neither_quick_nor_fast() -> None:
    evidence = good()
    lost("links")(evidence)
    assert red(replay(evidence, only="mpi-*", level=1)) == {"mpi-latency", "mpi-bandwidth"}


def test_nothing_is_said_of_nodes_on_which_mpi_does_not_start() -> None:
    evidence = good()
    evidence["mpi"] |= {"failed": "PMIx: unreachable", "answers": []}
    found = replay(evidence, only="mpi-*", level=1)
    assert red(found) == {"mpi-launch"}
    assert found["mpi-launch"].measures[0].node == ""
    assert {each.why for name, each in found.items() if name != "mpi-launch"} == {"MPI does not start"}


def test_a_node_that_slurm_gave_to_others_is_skipped() -> None:
    evidence = good()
    evidence["mpi"]["asked"] = evidence["mpi"]["nodes"] = ["n1"]
    for answer in evidence["mpi"]["answers"]:
        answer["world"] = 2
    evidence["mpi"]["answers"] = [each for each in evidence["mpi"]["answers"] if each["node"] == "n1"]
    found = replay(evidence, only="mpi-*", level=1)
    assert not red(found)
    assert {m.why for m in found["mpi-ring"].measures if m.node == "n2"} == {"Slurm gave the node to other jobs"}


def many(count: int, *, real: bool = True) -> dict[str, Any]:
    """Nodes with the same of everything."""
    evidence = good()
    names = [f"n{number}" for number in range(1, count + 1)]
    like = next(node for node in evidence["cluster"]["nodes"] if "worker" in node["roles"])
    evidence["cluster"]["nodes"] = [{**deepcopy(like), "name": name} for name in names]
    for node in evidence["cluster"]["nodes"] if real else ():
        node["virtual"] = node["profile"]["virtual"] = None
    pair = {"latency_us": 2.0, "bandwidth": 40.0, "bytes": 1 << 22, "wrong": 0}
    rows = [
        {"part": "links", "node": name, "rank": rank, "row": {other: dict(pair) for other in names if other != name}}
        for rank, name in enumerate(names)
    ]
    evidence["mpi"] |= {"asked": names, "nodes": names, "answers": rows}
    return evidence


@pytest.mark.parametrize(
    ("check", "values"), [("mpi-latency", {"latency_us": 90.0}), ("mpi-bandwidth", {"bandwidth": 15})]
)
def test_a_pair_unlike_the_others_fails_though_no_threshold_says_so(check: str, values: dict[str, float]) -> None:
    evidence = many(4)
    for one, other in (("n2", "n3"), ("n3", "n2")):
        answers(evidence, "links", one)[0]["row"][other].update(values)
    found = replay(evidence, only=check, level=1)[check]
    bad = {frozenset((m.node, m.peer)) for m in found.measures if m.state == "failed"}
    assert bad == {frozenset(("n2", "n3"))}
    assert "the median pair has" in found.why


@pytest.mark.parametrize(
    ("usual", "slow", "lanes", "state"),
    [
        (20.0, 45.0, ["tcp/eno1"], "passed"),
        (20.0, 60.0, ["tcp/eno1"], "failed"),
        (40.0, 60.0, ["tcp/eno1"], "passed"),
        (2.0, 9.0, ["rc_verbs/bnxt_re0:1"], "passed"),
        (2.0, 15.0, ["rc_verbs/bnxt_re0:1"], "failed"),
    ],
)
def test_a_latency_that_nobody_minds_is_not_slow(usual: float, slow: float, lanes: list[str], state: str) -> None:
    evidence = many(4)
    for answer in evidence["mpi"]["answers"]:
        for link in answer["row"].values():
            link["latency_us"] = usual
    answers(evidence, "links", "n2")[0]["row"]["n3"]["latency_us"] = slow
    evidence["mpi"]["answers"] += ends(["ucx"], lanes, ("n1", "n2", "n3", "n4"))
    assert replay(evidence, only="mpi-latency", level=1)["mpi-latency"].state == state


SLOW: list[tuple[str, dict[str, float]]] = [
    ("mpi-latency", {"latency_us": 90.0}),  # as others have it not
    ("mpi-latency", {"latency_us": 6000.0}),
    ("mpi-bandwidth", {"bandwidth": 15.0}),
    ("mpi-bandwidth", {"bandwidth": 0.001}),
]


@pytest.mark.parametrize(("check", "values"), SLOW)
@pytest.mark.parametrize("real", [True, False])
def test_a_node_on_which_others_compute_is_not_slow(check: str, values: dict[str, float], real: bool) -> None:
    """Not even below a threshold; and the same between two others fails."""
    evidence = many(4, real=real)
    answers(evidence, "links", "n2")[0]["row"]["n3"].update(values)
    alone = replay(evidence, only=check, level=1)[check]
    if alone.state == "passed":  # virtual nodes aren't compared with each other
        return
    assert alone.state == "failed"
    evidence["mpi"]["others"] = ["n3"]
    found = replay(evidence, only=check, level=1)[check]
    assert found.state == "passed"
    (odd,) = [measure for measure in found.measures if measure.state == "measured" and measure.why]
    assert {odd.node, odd.peer} == {"n2", "n3"}
    assert odd.value in values.values()
    assert odd.why.endswith("; other users' jobs ran on n3 meanwhile")
    evidence["mpi"]["others"] = ["n4"]
    assert red(replay(evidence, only=check, level=1)) == {check}


@pytest.mark.parametrize("values", [{"wrong": 3}, {"wrong": 3, "bandwidth": 0.001}, {"bandwidth": None}])
def test_jobs_of_others_explain_no_wrong_data_and_no_silence(values: dict[str, float | None]) -> None:
    evidence = many(4)
    answers(evidence, "links", "n2")[0]["row"]["n3"].update(values)
    evidence["mpi"]["others"] = ["n1", "n2", "n3", "n4"]
    assert red(replay(evidence, only="mpi-bandwidth", level=1)) == {"mpi-bandwidth"}


def test_among_many_nodes_one_with_others_jobs_hides_no_other() -> None:
    """The worst pair of n9 would be that with n4, which proves nothing."""
    evidence = many(30)
    for peer, bandwidth in (("n4", 0.001), ("n5", 0.002)):
        answers(evidence, "links", "n9")[0]["row"][peer]["bandwidth"] = bandwidth
    answers(evidence, "links", "n5")[0]["row"]["n4"]["bandwidth"] = 0.001
    evidence["mpi"]["others"] = ["n4"]
    found = replay(evidence, only="mpi-bandwidth", level=1)["mpi-bandwidth"]
    assert [(m.node, m.peer) for m in found.measures if m.state == "failed"] == [("n9", "n5")]


@pytest.mark.parametrize(
    ("said", "found"),
    [("5|n[1-2]\n7|n3\n  8_1|n4\n9|n9\n", {"n1", "n2"}), ("6|n3\n10|\n", {"n3"}), ("", set())],
)
def test_on_which_nodes_others_have_jobs(said: str, found: set[str]) -> None:
    """Also in hidden partitions, and those that only an administrator is shown; whatever they are called."""
    asked: list[str] = []

    def admin(*words: str) -> SimpleNamespace:
        asked.extend(words)
        return SimpleNamespace(stdout=said)

    own = {"rocstack-verify-54b718": ["7", "8_1"]}
    slurm = SimpleNamespace(admin=admin, name="rocstack-verify-54b718", jobs_named=own.get)
    assert mpi.others(slurm, ["n1", "n2", "n3", "n4"]) == found
    assert {"--all", "--states=running,completing", "--format=%i|%N"} <= {*asked}


def test_virtual_nodes_share_a_machine_and_are_not_compared() -> None:
    evidence = many(4, real=False)
    answers(evidence, "links", "n1")[0]["row"]["n2"]["latency_us"] = 90.0
    assert replay(evidence, only="mpi-latency", level=1)["mpi-latency"].state == "passed"


def test_of_many_pairs_the_worst_of_each_node_is_written_down() -> None:
    evidence = many(30)
    answers(evidence, "links", "n9")[0]["row"]["n4"]["bandwidth"] = 0.001
    found = replay(evidence, only="mpi-bandwidth", level=1)["mpi-bandwidth"]
    assert len(found.measures) <= 30
    assert [(m.node, m.peer) for m in found.measures if m.state == "failed"] == [("n9", "n4")]
    (drawn,) = found.drawings["matrix"]["quantities"]
    assert len(drawn["values"]) == 30


@pytest.mark.parametrize(
    ("pml", "lanes", "state"),
    [
        (["ucx"], ["rc_verbs/bnxt_re0:1", "rc_verbs/bnxt_re1:1"], "passed"),
        (["ucx"], ["dc_mlx5/mlx5_0:1"], "passed"),
        (["ucx"], ["tcp/eno1"], "failed"),
        (["ucx"], ["rc_verbs/bnxt_re0:1", "tcp/eno1"], "failed"),
        (["ob1"], [], "failed"),
        (["ucx"], [], "failed"),
    ],
)
def test_mpi_must_go_over_rdma_where_it_is(pml: list[str], lanes: list[str], state: str) -> None:
    evidence = many(2)
    evidence["cluster"]["labels"]["io.rocstack.nic"] = "broadcom"
    evidence["mpi"]["answers"] = ends(pml, lanes)
    assert replay(evidence, only="mpi-transport")["mpi-transport"].state == state


@pytest.mark.parametrize(
    "said",
    [
        # 1.15 and later, and before.
        "ucp_context_0 self cfg#0 tag(self/memory cma/memory)\nucp_context_0 intra-node cfg#1 tag(sysv/memory)\n"
        "ucp_context_0 inter-node cfg#2 tag(rc_verbs/bnxt_re0:1 tcp/eno1) ka(ud_verbs/bnxt_re0:1)",
        "ep_cfg[0]: tag(self/memory cma/memory rocm_copy/rocm)\nep_cfg[1]: tag(posix/memory rocm_ipc/rocm_ipc)\n"
        "ep_cfg[2]: tag(rc_verbs/bnxt_re0:1 tcp/eno1); rma(rc_verbs/bnxt_re0:1)",
    ],
)
def test_lanes_to_other_nodes_are_read_of_each_ucx(said: str) -> None:
    text = "".join(f"[1695332443.36] [n1:12:0]  ucp_worker.c:1855 UCX  INFO    {line}\n" for line in said.split("\n"))
    program = module_of(checks() / "programs/mpi.py")
    assert program.lanes_of(text) == ["rc_verbs/bnxt_re0:1", "tcp/eno1"]


def ends(pml: list[str], lanes: list[str], names: Sequence[str] = ("n1", "n2")) -> list[dict[str, Any]]:
    return [{"part": "end", "node": name, "rank": 0, "code": 0, "pml": pml, "lanes": lanes} for name in names]


def test_an_image_without_rdma_need_not_use_it() -> None:
    evidence = many(2)
    evidence["mpi"]["answers"] = ends(["ucx"], ["tcp/eno1"])
    found = replay(evidence, only="mpi-transport")["mpi-transport"]
    assert (found.state, found.why) == ("skipped", "the image has no RDMA")


@pytest.mark.parametrize(("lanes", "bad"), [(["rc_verbs/bnxt_re0:1"], True), (["tcp/eno1"], False)])
def test_over_rdma_it_must_be_as_fast_as_rdma(lanes: list[str], bad: bool) -> None:
    """All nodes of this 400G cluster alike."""
    evidence = many(2)
    for answer in evidence["mpi"]["answers"]:
        for link in answer["row"].values():
            link.update(bandwidth=0.1, latency_us=900.0)
    evidence["mpi"]["answers"] += ends(["ucx"], lanes)
    found = replay(evidence, only="mpi-[bl]a[nt]*", level=1)
    assert red(found) == ({"mpi-latency", "mpi-bandwidth"} if bad else set())
    assert not bad or "expected at least 12.5 GB/s" in found["mpi-bandwidth"].why


@pytest.mark.parametrize("count", range(3, 41))
@pytest.mark.parametrize("what", ["latency", "bandwidth"])
def test_one_bad_node_is_found_and_noise_is_not(what: str, count: int) -> None:
    """Whoever it is, all its pairs fail, and no other does."""
    dice = random.Random(count)
    names = [f"n{number:02}" for number in range(count)]
    worse = {"latency": 8.0, "bandwidth": 0.125}[what]
    for slow in (None, names[0], dice.choice(names), names[-1]):
        pairs = [
            links.Pair(a, b, dice.uniform(8, 12) * (worse if slow in (a, b) else 1))
            for a in names
            for b in names
            if a != b
        ]
        nodes = tuple(map(checked, names))
        record = Recorder(nodes, nodes)
        links.judge(record, pairs, what)
        failed = [{m.node, m.peer} for m in record.measures if m.state == "failed"]
        assert all(slow in pair for pair in failed)
        assert {name for pair in failed for name in pair} == ({*names} if slow else set())


class Srun:
    """Ranks that answer as they are told: `hangs` is a part, `ill` nodes on which MPI doesn't start; `apart`: it
    doesn't on more than one."""

    def __init__(self, hangs: str = "", ill: Sequence[str] = (), apart: bool = False) -> None:
        self.hangs, self.ill, self.apart = hangs, ill, apart
        self.asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    def step(self, *words: str, nodes: Sequence[str], **_: Any) -> StepOutput:
        parts = words[4:]
        self.asked.append((tuple(nodes), tuple(parts)))
        if set(nodes) & set(self.ill) or (self.apart and len(nodes) > 1):
            return StepOutput(1, "", "srun: error: PMIx")
        done = parts[: parts.index(self.hangs)] if self.hangs in parts else parts
        rows = [
            f'{MARK}{{"part": "{part}", "node": "{node}", "code": 0}}'
            for part in ("launch", *done)
            for node in nodes
            for _ in range(mpi.wanted(part))
        ]
        return StepOutput(int(len(done) < len(parts)), "\n".join(rows), HANGS)


class Sshd(Srun):
    """That of the control node: it drops connections while more than ten begin, and the first one to each node."""

    def __init__(self) -> None:
        super().__init__(apart=True)
        self.open, self.most = 0, 0
        self.dropped: set[str] = set()

    def step(self, *words: str, nodes: Sequence[str], **more: Any) -> StepOutput:
        (first, *others), self.open = nodes, self.open + 1
        self.most = max(self.most, self.open)
        time.sleep(0.02)
        self.open -= 1
        if not others and first not in self.dropped:
            self.dropped.add(first)
            return StepOutput(255, "", "kex_exchange_identification: Connection reset by peer")
        return super().step(*words, nodes=nodes, **more)


def test_a_connection_that_sshd_drops_is_no_fault_of_the_node() -> None:
    sshd = Sshd()
    found = mpi.launched(sshd, [f"n{number}" for number in range(40)], shared=True)
    assert found["broken"] == {}
    assert sshd.most <= 10


def test_what_comes_after_a_part_that_hangs_is_run_without_it() -> None:
    srun = Srun(hangs="links")
    found = mpi.launched(srun, ["n1", "n2"], shared=True)
    assert [parts for _, parts in srun.asked] == [("ring", "links", "collectives"), ("collectives",)]
    assert found["ended"] == {"links": HANGS}
    assert {each["part"] for each in found["answers"]} == {"launch", "ring", "collectives"}


def test_a_node_on_which_it_does_not_start_is_left_out() -> None:
    srun = Srun(ill=["n2"])
    found = mpi.launched(srun, ["n1", "n2", "n3"], shared=True)
    assert found["broken"] == {"n2": "srun: error: PMIx"}
    assert (found["nodes"], found["failed"]) == (["n1", "n3"], "")
    assert srun.asked[-1] == (("n1", "n3"), mpi.PARTS)


def test_it_starts_on_each_node_but_not_on_all() -> None:
    found = mpi.launched(Srun(apart=True), ["n1", "n2"], shared=True)
    assert (found["broken"], found["failed"], found["answers"]) == ({}, "srun: error: PMIx", [])


def test_it_starts_nowhere() -> None:
    found = mpi.launched(Srun(ill=["n1", "n2"]), ["n1", "n2"], shared=True)
    assert set(found["broken"]) == {"n1", "n2"}


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 31])
def test_everybody_meets_everybody_once(count: int) -> None:
    scope: dict[str, Any] = {}
    exec(Path(checks() / "programs/tournament.py").read_text(), scope)
    rounds = [list(pairs) for pairs in scope["tournament"](count)]
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(rounds) == count - 1 + count % 2
    assert len(met) == len(set(met)) == count * (count - 1) // 2
    for pairs in rounds:
        everyone = [node for pair in pairs for node in pair]
        assert len(everyone) == len(set(everyone))


def test_the_answers_of_one_node_do_not_stand_for_anothers() -> None:
    rows = [{"part": "ring", "node": "n1"}] * 4
    assert not mpi._Said(rows, "", 0).all("ring", ["n1", "n2"])
    assert mpi._Said([*rows, *[{"part": "ring", "node": "n2"}] * 2], "", 0).all("ring", ["n1", "n2"])
