"""How tools are started on whole nodes: what Slurm is asked for, with one that answers as it was recorded; and the
program that runs them, on this machine."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evidence_replay import good, replay

from rocstack.base.errors import BadInput
from rocstack.verify import suite
from rocstack.verify.slurm_session import INDEPENDENT, StepOutput

SAMPLES = Path(__file__).parents[1] / "data/verify/parsers"
PROGRAM = suite.checks() / "programs/tools.py"
NODES = ("n1", "n2")


def module(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, suite.checks() / path)
    assert spec
    assert spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


sys.path.append(str(suite.checks()))
performance = module("experiments/performance.py")


class Slurm:
    """Answers each step by its program's name."""

    def __init__(self, gpus: int, answers: dict[str, StepOutput]) -> None:
        self.gpus, self.minutes, self.released = gpus, 30, 0
        self.left = 1800.0
        self.answers, self.steps = answers, list[tuple[str, tuple[str, ...], dict[str, Any]]]()
        self.dead: set[str] = set()

    def release(self) -> None:
        self.released += 1
        self.left = self.minutes * 60.0

    def kept(self, nodes: Sequence[str]) -> list[str]:
        return [name for name in nodes if name not in self.dead]

    def step(self, *command: str, **more: Any) -> StepOutput:
        self.steps.append((Path(command[0]).name, command[1:], more))
        return self.answers[Path(command[0]).name]

    def python(self, program: Path, *arguments: str, **more: Any) -> StepOutput:
        return self.step(program.name, *arguments, **more)


def fake(gpus: int, answers: dict[str, StepOutput]) -> Any:
    node = SimpleNamespace(profile=SimpleNamespace(virtual=None, gpus=[SimpleNamespace(memory=206e9)] * gpus))
    state = SimpleNamespace(
        slurm=SimpleNamespace(nodes={name: {"cpus": 192} for name in NODES}),
        gathered=SimpleNamespace(node=lambda name: node),
    )
    slurm = Slurm(gpus, answers)
    return SimpleNamespace(slurm=slurm, state=state, allocated=lambda: tuple(slurm.kept(NODES)))


def text(case: str) -> str:
    return (SAMPLES / f"{case}.txt").read_text(encoding="utf-8")


def test_collectives_on_gpus_from_the_start_to_the_verdict() -> None:
    one = {"all_reduce_perf": {"code": 0, "out": text("rccl/mi300x-one-node")}}
    each = "".join(f"@rocstack {json.dumps({'node': node, 'said': one})}\n" for node in NODES)
    answers = {
        "tools.py": StepOutput(0, each, ""),
        "sh": StepOutput(0, "/opt/rccl-tests/alltoall_perf\n", ""),
        "all_reduce_perf": StepOutput(0, text("rccl/mi300x-two-nodes"), ""),
        "alltoall_perf": StepOutput(0, text("rccl/alltoall-two-nodes"), ""),
    }
    cluster = fake(8, answers)
    found = performance.collectives(cluster, {node: ["all_reduce_perf"] for node in NODES})
    steps = {name: (words, more) for name, words, more in cluster.slurm.steps}
    assert list(steps) == list(answers)
    asked = json.loads(steps["tools.py"][0][0])
    assert asked["batches"] == [{"all_reduce_perf": ["all_reduce_perf", "-b", "8", "-e", "8G", "-f", "2", "-g", "8"]}]
    assert steps["tools.py"][1]["options"] == ["--cpus-per-task=192", "--gres=gpu:8"]
    assert steps["tools.py"][1]["independent"]
    assert steps["all_reduce_perf"][1]["tasks"] == 8
    assert steps["all_reduce_perf"][1]["options"] == ["--mpi=pmix", "--cpus-per-task=24", "--gres=gpu:8"]
    assert steps["all_reduce_perf"][1]["env"]["NCCL_DEBUG"] == "INFO"
    evidence = good() | {"collective_performance": found}
    (result,) = replay(json.loads(json.dumps(evidence)), "collective-performance").values()
    assert result.state == "passed"


@pytest.mark.parametrize(("gpus", "tools", "ranks"), [(0, ["all_reduce_perf"], 2), (8, [], 8)])
def test_without_gpus_or_rccl_tests_it_is_our_own_benchmark(gpus: int, tools: list[str], ranks: int) -> None:
    cluster = fake(gpus, {"python3": StepOutput(0, "{}", "")})
    found = performance.collectives(cluster, dict.fromkeys(NODES, tools))
    assert (found["tool"], found["ranks"], found["gpus"]) == ("bench", 2 * ranks, bool(gpus))
    assert [words[1] for _, words, _ in cluster.slurm.steps] == ["rocstack_trainer.bench"] * (2 if gpus else 1)
    assert {more["tasks"] for *_, more in cluster.slurm.steps} == {ranks}
    assert not gpus or "--sizes=8589934592" in cluster.slurm.steps[1][1]


def test_what_takes_longer_than_is_left_has_an_allocation_of_its_own() -> None:
    cluster = fake(8, {})
    for needed, left, released in ((20, 1500, 0), (20, 900, 1), (90, 1800, 2)):
        cluster.slurm.left = left
        performance.whole(cluster, needed)
        assert cluster.slurm.released == released
        assert cluster.slurm.left >= needed * 60


@pytest.mark.parametrize("dead", [{"n2"}, {"n1", "n2"}])
def test_a_node_that_died_takes_no_answers_of_others(dead: set[str]) -> None:
    said = '@rocstack {"node": "n1", "said": {"x": {"code": 0, "out": ""}}, "gpus": [], "error": ""}\n'
    cluster = fake(8, dict.fromkeys(("tools.py", "gemm.py"), StepOutput(1, said, "")))
    cluster.slurm.dead = dead
    tools = performance.tools(cluster, NODES, [{"x": ["x"]}], seconds=1, minutes=5)
    gemm = performance.gemm(cluster, NODES)
    assert tools["n2"] is gemm["n2"] is None
    assert [more["nodes"] for *_, more in cluster.slurm.steps] == [["n1"]] * (2 if dead == {"n2"} else 0)
    assert all(more["independent"] for *_, more in cluster.slurm.steps)
    if dead == {"n2"}:
        assert tools["n1"] == {"x": {"code": 0, "out": ""}}
        assert gemm["n1"]["node"] == "n1"


def test_jobs_with_gpus_do_not_wait_for_each_other() -> None:
    program, lines = module("experiments/gpus.py"), list[tuple[str, ...]]()
    cluster = fake(8, {"gpus.py": StepOutput(1, '@rocstack {"node": "n1"}\n', "")})
    assert program._job(cluster, list(NODES), 8, ())["n1"] == {"node": "n1"}
    assert cluster.slurm.steps[0][2]["independent"]
    done = SimpleNamespace(rc=1, stdout='@rocstack {"node": "n1"}\n', stderr="")
    slurm = SimpleNamespace(gpus=0, name="x", partition="", run=lambda *words, seconds: lines.append(words) or done)
    assert program._job(SimpleNamespace(slurm=slurm), list(NODES), 8, ())["n1"] == {"node": "n1"}
    assert set(INDEPENDENT) < set(lines[0])


def test_training_cleans_the_nodes_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(suite.checks())
    training = module("experiments/training.py")
    monkeypatch.setattr(training, "run", lambda *_: {})
    monkeypatch.setattr(training, "scratch", lambda *_: ("/tmp/x", False))
    for dead, left in (({"n2"}, [["n1"]]), (set(NODES), [])):
        cluster = fake(0, dict.fromkeys(("mkdir", "rm"), StepOutput(0, "", "")))
        cluster.allocated = lambda: NODES
        cluster.slurm.dead = dead
        training.on_cpus(cluster)
        assert [list(more["nodes"]) for name, _, more in cluster.slurm.steps if name == "rm"] == left


def soaking(answers: Sequence[str] = ("n1", "n2")) -> Any:
    """On CPUs, of two ranks each."""
    lines = [f'@rocstack {{"node": "{node}"}}\n' for node in answers for _ in range(2)]
    cluster = fake(0, {"soak.py": StepOutput(0, "".join(lines), "")})
    cluster.everywhere = lambda command, names: {}
    return cluster


def test_a_soak_ends_by_the_clock_however_long_its_steps_take_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now, cluster = [0.0], soaking()
    step = cluster.slurm.step

    def slow(*words: str, **more: Any) -> Any:
        now[0] += float(words[1]) + 70
        return step(*words, **more)

    monkeypatch.setattr(performance, "time", SimpleNamespace(monotonic=lambda: now[0]))
    cluster.slurm.step = slow
    performance.soak(cluster, 480)
    assert 480 * 60 <= now[0] <= 480 * 60 + 70
    assert cluster.slurm.minutes == 495


def test_a_soak_goes_on_without_the_nodes_that_failed_or_are_gone() -> None:
    cluster = soaking(["n1"])
    found = performance.soak(cluster, 25)
    assert [step["nodes"] for step in found["steps"]] == [["n1", "n2"], ["n1"], ["n1"]]
    assert found["lost"] == {}
    cluster = soaking()
    cluster.slurm.dead = {"n2"}
    cluster.allocated = lambda: NODES
    found = performance.soak(cluster, 25)
    assert [step["nodes"] for step in found["steps"]] == [["n1", "n2"], ["n1"], ["n1"]]
    assert found["lost"] == {"n2": 1}
    assert len(performance.soak(soaking([]), 25)["steps"]) == 1


def test_sums_of_a_soak_are_exact_in_fp32() -> None:
    program = module("programs/soak.py")
    for ranks in (1, 2, 2189, 16000):
        largest = 7 * program.total(ranks)
        assert largest == sum(7 * program.share(rank) for rank in range(ranks)) < 1 << 24
    assert len({program.share(rank) for rank in range(64)}) == 64, "a rank that another stands in for is noticed"


def test_a_soak_goes_in_steps_in_an_allocation_that_lasts() -> None:
    chatter = "".join(f"[  111.0] audit: type={number}\n" for number in range(2000))
    log = f"[   90.0] amdgpu: GPU reset\n[  110.5] amdgpu: GPU reset\n{chatter}[  120.0] eth0: link is up\nno time\n"
    lines = [f'@rocstack {{"node": "{node}"}}\n' for node in NODES for _ in range(8)]
    cluster = fake(8, {"soak.py": StepOutput(0, "".join(lines), "")})
    said = {"cat /proc/uptime": "100.25 800.0\n", "dmesg": log}
    done = {command: SimpleNamespace(rc=0, stdout=out) for command, out in said.items()}
    cluster.everywhere = lambda command, names: dict.fromkeys(names, done[command])
    found = performance.soak(cluster, 25)
    assert [step["seconds"] for step in found["steps"]] == [600, 600, 300]
    assert (cluster.slurm.minutes, cluster.slurm.released) == (40, 1)
    assert found["kernels"]["n1"] == ["[  110.5] amdgpu: GPU reset"], "no chatter takes its place"


def run(**asked: Any) -> dict[str, Any]:
    done = subprocess.run([sys.executable, PROGRAM, json.dumps(asked)], capture_output=True, text=True, check=True)
    (answer,) = StepOutput(0, done.stdout, "").answers
    said: dict[str, Any] = answer["said"]
    return said


def test_the_program_says_how_each_tool_ended() -> None:
    said = run(
        seconds=2,
        keep="met",
        batches=[
            {"good": ["sh", "-c", "seq 9; echo met"], "bad": ["sh", "-c", "echo no >&2; exit 3"]},
            {"none": ["rocstack-no-such-tool"], "slow": ["sh", "-c", "echo met; exec sleep 60"]},
        ],
    )
    assert said["good"] == {"code": 0, "out": "met\n"}
    assert said["bad"] == {"code": 3, "out": "no\n"}
    assert said["none"]["code"] == -1
    assert "No such file" in said["none"]["out"]
    assert said["slow"] == {"code": -1, "out": "met\nstopped after 2 s\n"}


def test_minutes_of_a_soak() -> None:
    assert [performance.minutes(virtual, None) for virtual in (False, True)] == [480, 0.25]
    assert performance.minutes(True, "90") == 90
    for text in ("-1", "0", "8h", "nan", "99999"):
        with pytest.raises(BadInput) as raised:
            performance.minutes(False, text)
        assert raised.value.code == "bad-setting"


@pytest.mark.parametrize("root", ["opt/rocm", "venv/lib/python3.12/site-packages/_rocm_sdk_devel"])
def test_rvs_has_its_configurations_where_it_is_itself(root: str, tmp_path: Path) -> None:
    source = (suite.checks() / "test_tools.py").read_text(encoding="utf-8")
    script = source.partition('RUN_RVS = """')[2].partition('"""')[0]
    conf = tmp_path / root / "share/rocm-validation-suite/conf"
    (conf / "MI300X").mkdir(parents=True)
    for name in ("MI300X/gst_single.conf", "gst_single.conf", "mem.conf"):
        (conf / name).touch()
    rvs = tmp_path / root / "bin/rvs"
    rvs.parent.mkdir()
    rvs.write_text("#!/bin/sh\necho $0 $*\n")
    rvs.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/rvs").symlink_to(rvs)
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}

    def ran(module: str) -> Any:
        words = ["sh", "-c", script, "MI300X", module]
        return subprocess.run(words, capture_output=True, text=True, check=False, env=env)

    assert ran("gst_single").stdout.split()[1:] == ["-c", str(conf / "MI300X/gst_single.conf")]
    assert ran("mem").stdout.split()[1:] == ["-c", str(conf / "mem.conf")]
    none = ran("pbqt_single")
    assert none.returncode == 3
    assert none.stdout == f"[ERROR ] no configuration pbqt_single.conf for MI300X in {conf}\n"
