"""Who passes, who is to blame, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import check, on, pairs, result, run
from simulated_run import simulated_run

from rocstack.verify import verdict
from rocstack.verify.result import CheckResult, Measure, NodeSeen, Run, State


def test_everything_passes() -> None:
    found = verdict.judge(run(result(on("n1"), on("n2"))))
    assert found.names("passing") == ("n1", "n2")
    assert found.sentence == "2 of 2 nodes pass level 1"


def test_a_rehearsal_image_is_called_one() -> None:
    rehearsed = run(result(on("n1"), on("n2"))).model_copy(
        update={"labels": {"io.rocstack.rehearsal": "no code for x"}}
    )
    assert verdict.judge(rehearsed).sentence == "2 of 2 nodes pass level 1; rehearsal image: no code for x"


def test_a_failing_node_is_named_with_its_reason() -> None:
    found = verdict.judge(run(result(on("n1"), on("n2", "failed", "munged is gone"))))
    assert found.nodes[1].reasons == (verdict.Reason("one", "munged is gone"),)
    assert found.sentence == "1 of 2 nodes passes, 1 fails: n2; level 0 is proved"


@pytest.mark.parametrize("broken", [{"n3"}, {"n2", "n5"}])
def test_a_failing_pair_is_the_fault_of_the_one_that_fails_with_most(broken: set[str]) -> None:
    names = [f"n{i}" for i in range(1, 7)]
    assert set(verdict.judge(run(pairs(names, broken), nodes=6)).names("failing")) == broken


def test_of_two_nodes_both_are_to_blame() -> None:
    assert verdict.judge(run(pairs(["n1", "n2"], {"n2"}))).names("failing") == ("n1", "n2")


def test_what_fails_of_the_cluster_is_no_nodes_fault() -> None:
    qos = result(Measure(state="failed", why="the job ran"), name="qos")
    found = verdict.judge(run(result(on("n1"), on("n2")), qos))
    assert found.names("passing") == ("n1", "n2")
    assert found.cluster == (verdict.Reason("qos", "the job ran"),)
    assert found.sentence == "the cluster as a whole fails: qos; 2 of 2 nodes pass; level 0 is proved"


def test_a_check_that_broke_off_is_the_clusters() -> None:
    found = verdict.judge(run(result(on("n1"), on("n2"), state="error", why="no step started")))
    assert found.cluster == (verdict.Reason("one", "no step started"),)


def test_an_absent_node_is_named_and_not_judged() -> None:
    seen = (NodeSeen(name="n1", roles=("worker",)), NodeSeen(name="n2", roles=("worker",), absent="no route"))
    found = verdict.judge(run(result(on("n1")), seen=seen))
    assert found.nodes[1].why == "no route"
    assert found.sentence == "1 of 2 nodes passes level 1, 1 is absent: n2"


def test_a_node_of_which_all_was_skipped_is_not_judged() -> None:
    found = verdict.judge(run(result(on("n1"), on("n2", "skipped", "no GPU on node n2"))))
    assert (found.nodes[1].state, found.nodes[1].why) == ("not judged", "no GPU on node n2")


def test_skipped_checks_are_counted_by_reasons_without_names() -> None:
    gpu = result(on("n1", "skipped", "no GPU on node n1"), on("n2", "skipped", "no GPU on node n2"), name="gpu")
    tool = result(state="skipped", why="no GPU on node n1; no rvs in the image", name="rvs")
    found = verdict.judge(run(result(on("n1"), on("n2")), gpu, tool))
    assert found.skipped == {"no GPU": ("gpu", "rvs"), "no rvs in the image": ("rvs",)}
    assert found.sentence == (
        "2 of 2 nodes pass level 1; level 1 is proved without rvs: no tool for that in the image; "
        "2 checks skipped: no GPU, no rvs in the image"
    )


def lacking(name: str, level: int, why: str = "no x in the image") -> CheckResult:
    return result(name=name, level=level, state="skipped", why=why)


def test_what_was_proved_without_its_tool_is_named() -> None:
    tools = (lacking("rvs", 3), lacking("babelstream", 3, "2 nodes are needed, 1 can take part (no y in the image)"))
    others = (lacking("far", 3, "no GPU on node n1"), lacking("old", 3, "the ROCm in the image is a distribution's"))
    levels = tuple(result(on("n1"), on("n2"), name=f"l{level}", level=level) for level in (1, 2, 3))
    said = verdict.judge(run(*levels, *tools, *others, level=3)).parts
    assert said[:2] == (
        "2 of 2 nodes pass level 3",
        "level 3 is proved without rvs, babelstream: no tool for that in the image",
    )
    lower = verdict.judge(run(*levels[:2], result(on("n1", "failed", "slow"), name="hbm", level=3), *tools, level=3))
    assert lower.parts[1] == "level 2 is proved", "what is not proved needs no such words"


@pytest.mark.parametrize(
    ("training", "why", "proved"),
    [
        ("passed", "no all_reduce_perf in the image", 2),
        ("skipped", "no all_reduce_perf in the image", 1),
        ("skipped", "no GPU on node n1", 2),
        ("skipped", "virtual node (mi300x-thor2): it computes and carries nothing", 2),
    ],
)
def test_nothing_proves_rccl_that_has_not_compared_its_sums(training: State, why: str, proved: int) -> None:
    trained = result(name="training-gpus-in-node", level=2, state=training, why="no rocstack-train in the image")
    levels = (result(on("n1"), on("n2")), result(on("n1"), on("n2"), name="gpu-count", level=2))
    found = run(*levels, lacking("rccl-collectives", 2, why), trained, level=2)
    assert found.proved == proved
    if proved == 1:
        reason = "level 2 is not proved: nothing compared RCCL's sums on GPUs: no all_reduce_perf in the image"
        assert reason in verdict.judge(found).parts


@pytest.mark.parametrize(
    ("workers", "training", "why", "proved"),
    [
        (2, {"training-on-nodes": "passed"}, "no Open MPI in the image", 1),
        (2, {"training-on-nodes": "skipped", "training-in-node": "passed"}, "no Open MPI in the image", 0),
        (1, {"training-in-node": "passed"}, "no Open MPI in the image", 1),
        (2, {"training-on-nodes": "passed"}, "Slurm gave the node to other jobs", 0),
    ],
)
def test_ranks_that_meet_in_training_stand_for_mpi_where_the_image_has_none(
    workers: int, training: dict[str, State], why: str, proved: int
) -> None:
    names = [f"n{number + 1}" for number in range(workers)]
    checks = [result(*map(on, names), name=name, level=level) for level, name in enumerate(("image", "workers"))]
    checks += [result(state=state, why="not run", name=name) for name, state in training.items()]
    launch = lacking("mpi-launch", 1, why)
    launch = launch.model_copy(update={"check": launch.check.model_copy(update={"core": True})})
    seen = tuple(NodeSeen(name=name, roles=("worker",)) for name in names)
    assert run(*checks, launch, seen=seen).proved == proved


@pytest.mark.parametrize(("absent", "proved"), [("", 0), ("no route", 1)])
def test_no_rank_of_a_node_that_training_left_out_has_met_another(absent: str, proved: int) -> None:
    seen = tuple(NodeSeen(name=f"n{at}", roles=("worker",), absent=absent if at == 3 else "") for at in (1, 2, 3))
    left_out = [] if absent else [on("n3", "skipped", "Slurm did not allocate it")]
    trained = result(on(""), *left_out, name="training-on-nodes")
    launch = lacking("mpi-launch", 1, "no Open MPI in the image")
    launch = launch.model_copy(update={"check": launch.check.model_copy(update={"core": True})})
    assert run(trained, launch, seen=seen).proved == proved


def test_a_name_is_dropped_only_where_it_is_a_nodes() -> None:
    assert verdict.nameless("no job can start on n1: DOWN", {"n1"}) == "no job can start: DOWN"
    assert verdict.nameless("no driver on node n10", {"n1"}) == "no driver on node n10"
    assert verdict.nameless("no MUNGE on the host n1", {"n1"}) == "no MUNGE on the host"
    assert verdict.nameless("2 nodes are needed, 1 can take part (no GPU on node n1)", {"n1"}) == "no GPU"
    both = "2 nodes are needed, 0 can take part (no GPU on node n1; no GPU on node n2)"
    assert verdict.nameless(both, {"n1", "n2"}) == "no GPU"


def test_virtual_nodes_are_called_so() -> None:
    seen = tuple(NodeSeen(name=f"n{i}", roles=("worker",), virtual=model) for i, model in ((1, "mi300x"), (2, None)))
    both = result(on("n1"), on("n2"))
    assert verdict.judge(run(both, seen=seen[:1])).sentence == "1 of 1 virtual node passes level 1"
    assert verdict.judge(run(both, seen=seen)).sentence == "2 of 2 nodes pass level 1 (1 is virtual)"


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"level": 3}, "2 of 2 nodes pass level 1; nothing was judged at level 2 and 3"),
        ({"only": "o*"}, "2 of 2 nodes pass 1 check called 'o*'"),
        ({"complete": False}, "2 of 2 nodes pass; the run was interrupted, so nothing is proved"),
    ],
)
def test_no_more_is_said_to_be_proved_than_was(about: dict[str, Any], says: str) -> None:
    assert verdict.judge(run(result(on("n1"), on("n2")), **about)).sentence == says


RESTART = result(Measure(state="passed", value=4.2, unit="s"), Measure(state="passed"), name="training-restart")


@pytest.mark.parametrize(
    ("restart", "seen", "says"),
    [
        (RESTART, {}, "the cluster of 2 nodes passes 1 check called 'training-*'"),
        (RESTART, {"virtual": "mi300x"}, "the cluster of 2 virtual nodes passes 1 check called 'training-*'"),
        (
            result(*RESTART.measures, on("n2", "skipped", "not even one rank trains there"), name="training-restart"),
            {},
            "the cluster of 2 nodes passes 1 check called 'training-*', 1 could not be judged: n2",
        ),
        (
            result(Measure(state="failed", why="other weights"), name="training-restart"),
            {},
            "the cluster as a whole fails: training-restart; none of 2 nodes was judged by itself",
        ),
        (
            result(state="skipped", why="no rocstack-train in the image", name="training-restart"),
            {},
            "0 of 2 nodes pass 1 check called 'training-*', 2 could not be judged: n[1-2]; "
            "1 check skipped: no rocstack-train in the image",
        ),
    ],
)
def test_what_was_asked_of_the_cluster_alone_is_said_of_the_cluster(
    restart: CheckResult, seen: dict[str, Any], says: str
) -> None:
    nodes = tuple(NodeSeen(name=f"n{i}", roles=("worker",), **seen) for i in (1, 2))
    found = verdict.judge(run(restart, only="training-*", seen=nodes))
    assert found.sentence == says
    assert found.run.passed == (restart.state == "passed")


def test_a_thousand_nodes_are_judged_and_the_sentence_stays_short() -> None:
    found = verdict.judge(simulated_run(1000, bad=[f"n{i}" for i in range(3, 300, 7)], absent=("n1000",)))
    assert len(found.names("failing")) == 43
    assert len(found.sentence) < 300
    assert ", 43 fail: n3, n10, n17 and 40 more, 1 is absent: n1000" in found.sentence


@pytest.mark.parametrize("whole", [False, True])
def test_a_busy_node_is_not_judged_though_it_looks_well(whole: bool) -> None:
    why = "no job can start on n2: it is alloc for longer than the 300 s"
    jobs = result(on("n1"), on("n2", "skipped", why), name="jobs")
    if whole:
        jobs = result(name="mpi", state="skipped", why=f"2 nodes are needed, 1 can take part ({why})")
    found = verdict.judge(run(result(on("n1"), on("n2")), jobs))
    assert (found.names("passing"), found.names("not judged")) == (("n1",), ("n2",))
    assert "1 could not be judged: n2; level 1 is not proved: not all of it was judged" in found.sentence


def test_a_busy_cluster_is_nobodys_failure() -> None:
    why = "all workers are busy with jobs (waited 5 min)"
    found = run(result(on("n1"), on("n2")), result(name="qos", state="skipped", why=why))
    assert (found.passed, found.failed, found.proved) == (False, False, 0)
    assert verdict.judge(found).names("not judged") == ("n1", "n2")
    assert verdict.judge(found).sentence == (
        "0 of 2 nodes pass level 0, 2 could not be judged: n[1-2]; level 1 is not proved: all workers are busy with "
        "jobs; 1 check skipped: all workers are busy with jobs"
    )


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(["passed", "failed", "error", "skipped", "measured"]),
            st.sampled_from(["", "no GPU on node n1", "no job can start on n1: DOWN", "not recorded: in_jobs"]),
        ),
        max_size=12,
    ),
    st.integers(0, 4),
)
def test_no_level_is_proved_above_one_that_failed_or_was_not_tried(rows: list[Any], level: int) -> None:
    results = tuple(
        result(name=f"c{n}", level=at, state=state, why=why if state in ("skipped", "failed") else "")
        for n, (at, state, why) in enumerate(rows)
        if at <= level
    )
    fixed = {"rocstack": "0", "id": "1", "cluster": "c", "control": "n1", "who": "w", "when": "t", "seconds": 1.0}
    proved = Run(**fixed, level=level, results=results).proved
    for below in range((-1 if proved is None else proved) + 1):
        here = [each for each in results if each.check.level == below]
        assert {"passed"} <= {each.state for each in here} <= {"passed", "skipped", "measured"}
        assert not any(each.state == "skipped" and each.why.startswith(("no job", "not")) for each in here)
    if proved is None or proved < level:
        above = [each for each in results if each.check.level == (0 if proved is None else proved + 1)]
        states = {each.state for each in above}
        assert "passed" not in states or states & {"failed", "error"} or any(each.missed for each in above)


def core(name: str, *measures: Measure, why: str = "", scope: str = "node", **more: Any) -> CheckResult:
    found = result(*measures, name=name, level=2, **({"state": "skipped", "why": why} if why else {}))
    needs = more.pop("needs", ())
    return found.model_copy(update={"check": check(name, 2, core=True, scope=scope, needs=needs), **more})


VIRTUAL = "virtual node (mi300x-thor2): it computes and carries nothing"
ALL = on("n1"), on("n2")


@pytest.mark.parametrize(
    ("others", "nodes", "proved", "says"),
    [
        ((core("reach", *ALL),), 2, 2, ""),
        ((core("reach", why=VIRTUAL),), 2, 1, "level 2 is not proved: count was shown, reach was not"),
        ((core("reach", on("n1"), on("n2", "skipped", VIRTUAL)),), 2, 1, "count was shown, reach was not"),
        ((core("reach", on("n1")),), 2, 1, "count was shown, reach was not"),
        ((core("sum", Measure(state="passed"), scope="cluster"),), 2, 2, ""),
        (
            (core("sum", why=VIRTUAL, scope="cluster"), core("gpus", *ALL)),
            2,
            1,
            "count, gpus were shown, sum was not",
        ),
        ((core("reach", on("n1"), on("n2", "skipped", "no GPU on node n2")),), 2, 2, ""),
        ((core("reach", why="2 nodes are needed, 1 can take part", needs=("nodes:2",)),), 1, 2, ""),
        ((core("reach", why="no RDMA device on node n1; no RDMA device on node n2"),), 2, 2, ""),
        (
            (core("speed", on("n1", "measured", wanted="no floor known"), on("n2")),),
            2,
            1,
            "count was shown, speed was not; measured, no floor known: speed",
        ),
    ],
)
def test_a_level_is_proved_by_each_of_its_core_checks_on_each_node(
    others: tuple[CheckResult, ...], nodes: int, proved: int, says: str
) -> None:
    here = [on(f"n{number + 1}") for number in range(nodes)]
    found = run(result(*here), core("count", *here), *others, nodes=nodes, level=2)
    assert found.proved == proved
    assert says in verdict.judge(found).sentence
