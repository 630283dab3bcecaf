"""How tools are started on whole nodes: what Slurm is asked for, with one that answers as it was recorded; and the
program that runs them, on this machine."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from replay import good, replay

from rocstack.errors import BadInput
from rocstack.verify import suite
from rocstack.verify.slurm import Step

SAMPLES = Path(__file__).parent / "data/verify/parsers"
PROGRAM = suite.checks() / "programs/tools.py"
NODES = ("n1", "n2")
spec = importlib.util.spec_from_file_location("performance", suite.checks() / "experiments/performance.py")
assert spec
assert spec.loader
performance = importlib.util.module_from_spec(spec)
spec.loader.exec_module(performance)


class Slurm:
    """Answers each step by its program's name."""

    def __init__(self, gpus: int, answers: dict[str, Step]) -> None:
        self.gpus, self.minutes, self.released = gpus, 30, 0
        self.left = 1800.0
        self.answers, self.steps = answers, list[tuple[str, tuple[str, ...], dict[str, Any]]]()

    def release(self) -> None:
        self.released += 1
        self.left = self.minutes * 60.0

    def step(self, *command: str, **more: Any) -> Step:
        self.steps.append((Path(command[0]).name, command[1:], more))
        return self.answers[Path(command[0]).name]

    def python(self, program: Path, *arguments: str, **more: Any) -> Step:
        return self.step(program.name, *arguments, **more)


def fake(gpus: int, answers: dict[str, Step]) -> Any:
    node = SimpleNamespace(profile=SimpleNamespace(virtual=None, gpus=[SimpleNamespace(memory=206e9)] * gpus))
    looked = SimpleNamespace(
        slurm=SimpleNamespace(nodes={name: {"cpus": 192} for name in NODES}),
        gathered=SimpleNamespace(node=lambda name: node),
    )
    return SimpleNamespace(slurm=Slurm(gpus, answers), looked=looked, allocated=lambda: NODES)


def text(case: str) -> str:
    return (SAMPLES / f"{case}.txt").read_text(encoding="utf-8")


def test_collectives_on_gpus_from_the_start_to_the_verdict() -> None:
    one = {"all_reduce_perf": {"code": 0, "out": text("rccl/mi300x-one-node")}}
    each = "".join(f"@rocstack {json.dumps({'node': node, 'said': one})}\n" for node in NODES)
    answers = {
        "tools.py": Step(0, each, ""),
        "sh": Step(0, "/opt/rccl-tests/alltoall_perf\n", ""),
        "all_reduce_perf": Step(0, text("rccl/mi300x-two-nodes"), ""),
        "alltoall_perf": Step(0, text("rccl/alltoall-two-nodes"), ""),
    }
    cluster = fake(8, answers)
    found = performance.collectives(cluster, {node: ["all_reduce_perf"] for node in NODES})
    steps = {name: (words, more) for name, words, more in cluster.slurm.steps}
    assert list(steps) == list(answers)
    asked = json.loads(steps["tools.py"][0][0])
    assert asked["batches"] == [{"all_reduce_perf": ["all_reduce_perf", "-b", "8", "-e", "8G", "-f", "2", "-g", "8"]}]
    assert steps["tools.py"][1]["options"] == ["--cpus-per-task=192", "--gres=gpu:8"]
    assert steps["all_reduce_perf"][1]["tasks"] == 8
    assert steps["all_reduce_perf"][1]["options"] == ["--mpi=pmix", "--cpus-per-task=24", "--gres=gpu:8"]
    assert steps["all_reduce_perf"][1]["env"]["NCCL_DEBUG"] == "INFO"
    evidence = good() | {"collective_performance": found}
    (result,) = replay(json.loads(json.dumps(evidence)), "collective-performance").values()
    assert result.state == "passed"


@pytest.mark.parametrize(("gpus", "tools", "ranks"), [(0, ["all_reduce_perf"], 2), (8, [], 8)])
def test_without_gpus_or_rccl_tests_it_is_our_own_benchmark(gpus: int, tools: list[str], ranks: int) -> None:
    cluster = fake(gpus, {"python3": Step(0, "{}", "")})
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


def test_a_soak_goes_in_steps_in_an_allocation_that_lasts() -> None:
    log = "[   90.0] amdgpu: GPU reset\n[  110.5] amdgpu: ring timeout\n[  120.0] eth0: up\nno time\n"
    cluster = fake(8, {"soak.py": Step(0, '@rocstack {"node": "n1"}\n', "")})
    said = {"cat /proc/uptime": "100.25 800.0\n", "dmesg": log}
    done = {command: SimpleNamespace(rc=0, stdout=out) for command, out in said.items()}
    cluster.everywhere = lambda command, names: dict.fromkeys(names, done[command])
    found = performance.soak(cluster, 25)
    assert [step["seconds"] for step in found["steps"]] == [600, 600, 300]
    assert (cluster.slurm.minutes, cluster.slurm.released) == (40, 1)
    assert found["kernels"]["n1"] == ["[  110.5] amdgpu: ring timeout", "[  120.0] eth0: up"]


def run(**asked: Any) -> dict[str, Any]:
    done = subprocess.run([sys.executable, PROGRAM, json.dumps(asked)], capture_output=True, text=True, check=True)
    (answer,) = Step(0, done.stdout, "").answers
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
