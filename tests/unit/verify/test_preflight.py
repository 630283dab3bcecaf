"""rocstack-preflight: no unfit node is called fit, whatever nodes and steps say."""

from __future__ import annotations

import json
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SCRIPT = Path(__file__).parents[3] / "images/rootfs/worker/usr/local/bin/rocstack-preflight"
FIT = {"faults": [], "gpus": 0, "tools": ["rocstack-train"]}
RIGHT = "gloo: all-reduce is right on {} rank(s) (srun); 8 MiB took 3.0 ms\n"


def load() -> ModuleType:
    loader = SourceFileLoader("preflight", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


preflight = load()


class World:
    """What steps do on nodes of which some are broken: `own` is what a node says, None where no task starts on it."""

    def __init__(self, own: dict[str, Any], broken: set[str] = frozenset(), cut: set[frozenset[str]] = frozenset()):  # type: ignore[assignment]
        self.own, self.broken, self.cut = own, broken, cut
        self.steps: list[tuple[list[str], int, list[str], tuple[str, ...]]] = []

    def __call__(
        self, nodes: list[str], tasks: int, command: list[str], seconds: float, *options: str
    ) -> tuple[int, str, str]:
        nodes = list(nodes)
        self.steps.append((nodes, tasks, command, options))
        if "--node" in command:
            if any(self.own[node] is None for node in nodes):
                return (
                    1,
                    "",
                    "srun: error: Task launch for StepId=1.0 failed on node x: Communication connection failure",
                )
            rows = (
                f"{i}: {node if isinstance(node, str) else json.dumps(node)}"
                for i, node in enumerate(self.own[n] for n in nodes)
            )
            return 0, "".join(f"{row}\n" for row in rows), ""
        if self.broken & set(nodes) or frozenset(nodes) in self.cut:
            return 1, "", "rank 1 of 2 didn't come within 30 s\n"
        return 0, RIGHT.format(len(nodes)), ""


def judged(monkeypatch: pytest.MonkeyPatch, world: World) -> dict[str, str]:
    monkeypatch.setattr(preflight, "step", world)
    faults, _ = preflight.judge(list(world.own))
    return dict(faults)


def names(count: int) -> list[str]:
    return [f"n{i + 1}" for i in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 65])
def test_fit_nodes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    world = World(dict.fromkeys(names(count), FIT))
    assert judged(monkeypatch, world) == {}
    tried = {node for nodes, _, command, _ in world.steps if "--node" not in command for node in nodes}
    assert tried == set(names(count)), "each has added up with somebody"


def test_one_on_which_no_task_starts_is_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = judged(monkeypatch, World({**dict.fromkeys(names(6), FIT), "n3": None}))
    assert list(faults) == ["n3"]
    assert "no answer: srun: error: Task launch" in faults["n3"]


def test_what_a_node_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {**dict.fromkeys(names(4), FIT), "n2": {**FIT, "faults": ["munge: no round trip", "/tmp is full"]}}
    assert judged(monkeypatch, World(own)) == {"n2": "munge: no round trip; /tmp is full"}


@pytest.mark.parametrize(
    "words",
    [
        "",
        "{}",
        "[]",
        '{"faults": 3, "gpus": 0, "tools": []}',
        "x" * 5000,
        '{"faults": []}',
        '{"faults": [], "gpus": 1e999, "tools": []}',
        '{"faults": [], "gpus": 1e99, "tools": []}',
        '{"faults": [], "gpus": -8, "tools": []}',
        f'{{"faults": [], "gpus": {"9" * 5000}, "tools": []}}',
        "[" * 200_000,
    ],
    ids=range(11),
)
def test_one_that_speaks_nonsense_is_unfit(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    assert "n2" in judged(monkeypatch, World({**dict.fromkeys(names(4), FIT), "n2": words}))


@pytest.mark.parametrize("breaks", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_what_else_breaks_a_line_begins_no_answer(breaks: str) -> None:
    """Only a newline has srun's label behind it."""
    said = "1: x" + breaks + f"0: {json.dumps(FIT)}"
    _, out, _ = preflight.run(["printf", "%s\\n", said], 5)
    answers: dict[str, Any] = {}
    preflight.take(out, names(2), answers)
    assert answers == {}


def test_nobody_speaks_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    lie = json.dumps(FIT) + "\n2: " + json.dumps({**FIT, "faults": ["broken"]}) + "\n1: x"
    faults = judged(monkeypatch, World({"n1": FIT, "n2": FIT, "n3": FIT, "n4": {**FIT, "faults": [lie]}}))
    assert set(faults) == {"n4"}


def test_two_that_cannot_add_up_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = judged(monkeypatch, World(dict.fromkeys(names(6), FIT), cut={frozenset(("n3", "n4"))}))
    assert list(faults) == ["n4"]
    assert faults["n4"].startswith("adds up with other nodes, but not with n3: rank 1 of 2 didn't come")


def test_of_two_nodes_nobody_knows_which(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(judged(monkeypatch, World(dict.fromkeys(names(2), FIT), broken={"n1"}))) == {"n1", "n2"}


def test_fewer_gpus_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {node: {"faults": [], "gpus": 8, "tools": ["all_reduce_perf"]} for node in names(4)}
    world = World({**own, "n3": {**own["n1"], "gpus": 7}})
    assert judged(monkeypatch, world)["n3"] == "7 GPUs, not 8 as others"


def test_one_node_does_not_say_how_many_gpus_are_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {node: {"faults": [], "gpus": 8, "tools": ["all_reduce_perf"]} for node in names(4)}
    world = World({**own, "n3": {**own["n1"], "gpus": 64}})
    assert judged(monkeypatch, world)["n3"] == "64 GPUs, not 8 as others"


@pytest.mark.parametrize(
    ("without", "named"),
    [(["n3"], ["n3"]), (["n3", "n7"], ["n3", "n7"]), (names(4), names(4)), (names(5), names(8)), (names(8), names(8))],
)
def test_one_node_does_not_say_what_the_others_lack(
    monkeypatch: pytest.MonkeyPatch, without: list[str], named: list[str]
) -> None:
    """Where most lack it, the sums can't be compared at all, and nobody is called fit."""
    own = {node: {**FIT, "tools": [] if node in without else FIT["tools"]} for node in names(8)}
    found = judged(monkeypatch, World(own))
    assert sorted(found) == sorted(named)
    why = "rocstack-train is not in its image, as in others'" if len(without) <= 4 else "no program of this image can"
    assert all(why in found[node] for node in without)


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ("8", {}),
        ("88", {}),
        ("87", {"n1": "8 GPUs, and as many nodes have 7", "n2": "7 GPUs, and as many nodes have 8"}),
        ("8870", {"n3": "7 GPUs, not 8 as others", "n4": "0 GPUs, not 8 as others"}),
        ("007", {"n3": "7 GPUs, not 0 as others"}),
        (
            "88774",
            {
                **dict.fromkeys(("n1", "n2"), "8 GPUs, and as many nodes have 7"),
                **dict.fromkeys(("n3", "n4"), "7 GPUs, and as many nodes have 8"),
                "n5": "4 GPUs, not 8 or 7 as others",
            },
        ),
        ("", {}),
    ],
)
def test_the_commonest_number_of_gpus_is_right(counts: str, found: dict[str, str]) -> None:
    assert preflight.odd_counts({f"n{i + 1}": int(count) for i, count in enumerate(counts)}) == found


RCCL = "#  Out of bounds values : 0 OK\n# Avg bus bandwidth    : 300\n"


@pytest.mark.parametrize(
    ("answer", "hca", "why"),
    [
        ((0, RCCL, ""), "=bnxt_re0", ""),
        ((0, "".join(f"#  Rank {i:2} Pid 7 on n{i // 8 + 1}\n" for i in range(16)) + RCCL, ""), "=bnxt_re0", ""),
        ((0, 16 * f"#  Rank  0 Group  0 Pid 7 on n1\n{RCCL}", ""), "=bnxt_re0", "each rank added up by itself"),
        ((0, RCCL.replace("0 OK", "3 FAILED"), ""), "", "# Avg bus bandwidth : 300"),
        ((1, "", "n1: Test NCCL failure common.cu:1279 'unhandled system error'"), "", "n1: Test NCCL failure"),
        ((0, "", ""), "", "ended with 0"),
        ((124, "", ""), "", "no end within 30 s"),
        ((0, RCCL + "n1:7:9 [0] NCCL INFO Using network Socket\n", ""), "=bnxt_re0", "RCCL sends over TCP"),
        ((0, RCCL + "n1:7:9 [0] NCCL INFO Using network Socket\n", ""), "", ""),
    ],
)
def test_gpus_add_up_by_rccl_tests(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str, str], hca: str, why: str
) -> None:
    steps: list[Any] = []
    monkeypatch.setattr(preflight, "step", lambda *words: steps.append(words) or answer)
    monkeypatch.setenv("NCCL_IB_HCA", hca)
    found = preflight.add_up(["n1", "n2"], 8, {"all_reduce_perf"})
    assert found.startswith(why) if why else found == ""
    assert steps[0][:2] == (["n1", "n2"], 8)
    assert steps[0][-1] == "--mpi=pmix"


@pytest.mark.parametrize(("gpus", "tools"), [(8, {"rocstack-train"}), (0, {"all_reduce_perf"}), (0, set())])
def test_what_cannot_be_tried_is_not_fit(gpus: int, tools: set[str]) -> None:
    assert "no program of this image can compare sums" in preflight.add_up(["n1", "n2"], gpus, tools)


@pytest.mark.parametrize(
    ("answer", "faults"),
    [
        ((0, "GPU 0 (gfx942): the kernel's result is right\n" * 8, ""), []),
        ((0, "GPU 0 (gfx942): the kernel's result is right\n" * 7, ""), ["7 of 8 GPUs compute"]),
        ((3, "no GPU here\n", ""), ["0 of 8 GPUs compute: no GPU here"]),
        ((1, "GPU 3 (gfx942): element 5 is 7\n", ""), ["0 of 8 GPUs compute: GPU 3 (gfx942): element 5 is 7"]),
        ((124, "", ""), ["a kernel on each GPU took longer than 20 s"]),
        ((127, "", "python3: not found"), ["0 of 8 GPUs compute: python3: not found"]),
    ],
)
def test_a_nodes_gpus(monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str, str], faults: list[str]) -> None:
    monkeypatch.setattr(preflight, "run", lambda *words, **named: answer)
    assert preflight.look_at_gpus(8) == faults


def test_a_program_that_hangs_is_ended() -> None:
    code, *_ = preflight.run(["sh", "-c", "trap '' TERM; echo said; while :; do sleep 0.1; done"], 0.2)
    assert code == 124
    assert preflight.run(["/does/not/exist"], 1)[0] == 127


def test_the_jobs_own_options_are_not_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(preflight, "run", lambda words, seconds, env: seen.update(env=env, words=words) or (0, "", ""))
    for name in ("SLURM_JOB_ID", "SLURM_CPU_BIND", "SLURM_MEM_PER_NODE", "PMIX_RANK", "NCCL_IB_HCA"):
        monkeypatch.setenv(name, "7")
    preflight.step(["n1", "n2"], 4, ["true"], 5, "--mpi=pmix")
    assert {name for name in seen["env"] if name.startswith(("SLURM_", "PMI", "NCCL"))} == {
        "SLURM_JOB_ID",
        "NCCL_IB_HCA",
    }
    assert {"--overlap", "--nodelist=n1,n2", "--ntasks=8", "--mpi=pmix"} <= set(seen["words"])


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 40), st.data())
def test_no_broken_node_is_called_fit(count: int, data: st.DataObject) -> None:
    """Property: whichever nodes can add up with nobody, all of them are named; and nobody else, where at least half of
    the pairs are fit."""
    nodes = names(count)
    broken = data.draw(st.sets(st.sampled_from(nodes)))
    cut = {frozenset(pair) for pair in data.draw(st.lists(st.tuples(st.sampled_from(nodes), st.sampled_from(nodes))))}

    def together(pair: tuple[str, str]) -> str:
        return "no" if broken & set(pair) or frozenset(pair) in cut else ""

    if count > 1:
        faults = preflight.pair_up(nodes, together)
        assert broken <= set(faults)
        first = [set(pair) for pair in zip(nodes[::2], nodes[1::2], strict=False)]
        assert all(pair & set(faults) for pair in first if frozenset(pair) in cut)
        if not cut and 2 * sum(not (broken & pair) for pair in first) >= len(first) > 1:
            assert set(faults) == broken


def test_it_is_no_job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(preflight.sys, "argv", ["rocstack-preflight"])
    assert preflight.main() == 2
    assert "start it in a job script" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "broken"), [(3, "n1"), (3, "n2"), (4, "n1 n3"), (4, "n2 n4"), (5, "n1 n3"), (6, "n1 n3 n6")]
)
def test_fit_nodes_that_each_met_an_unfit_one_first(monkeypatch: pytest.MonkeyPatch, count: int, broken: str) -> None:
    found = judged(monkeypatch, World(dict.fromkeys(names(count), FIT), broken={*broken.split()}))
    assert set(found) == {*broken.split()}


@pytest.mark.parametrize("count", [3, 4, 7, 8])
def test_in_each_round_others_meet(count: int) -> None:
    rounds = [preflight.others(names(count), number) for number in range(count - 1 + count % 2)]
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len({*met}) == count * (count - 1) / 2
    assert all(len({*sum(pairs, ())}) == 2 * len(pairs) for pairs in rounds)
