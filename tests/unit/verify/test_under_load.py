"""How tools are started on whole nodes: what Slurm is asked for, with one that answers as it was recorded; and the
program that runs them, on this machine."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evidence_replay import good, replay
from module_file import module_of

from rocstack.base import paths
from rocstack.base.errors import BadInput, CheckFailed
from rocstack.verify import suite
from rocstack.verify.parsers import rvs as rvs_parser
from rocstack.verify.slurm_session import INDEPENDENT, StepOutput

SAMPLES = Path(__file__).parents[1] / "data/verify/parsers"
PROGRAM = suite.checks() / "programs/tools.py"
NODES = ("n1", "n2")


sys.path.append(str(suite.checks()))


def module(path: str) -> Any:
    return module_of(suite.checks() / path)


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
    cluster = fake(gpus, {"all_reduce.py": StepOutput(0, "{}", "")})
    found = performance.collectives(cluster, dict.fromkeys(NODES, tools))
    assert (found["tool"], found["ranks"], found["gpus"]) == ("bench", 2 * ranks, bool(gpus))
    assert [words[0] for _, words, _ in cluster.slurm.steps] == (["nccl"] * 2 if gpus else ["gloo"])
    assert {more["tasks"] for *_, more in cluster.slurm.steps} == {ranks}
    assert not gpus or cluster.slurm.steps[1][1][1] == "8589934592"


def test_a_sum_that_is_no_number_is_the_worst_error() -> None:
    program = module("programs/all_reduce.py")
    assert program.worst([0.0, 1e-7, 3e-8]) == 1e-7
    assert [program.worst(each) for each in ([0.0, math.nan], [math.nan, 0.0], [math.inf])] == [math.inf] * 3


HIP = """#pragma once
#include <cstdlib>
#define __global__
struct hipDeviceProp_t { char gcnArchName[8]; };
enum hipError_t { hipSuccess, hipErrorNoDevice };
enum { hipMemcpyHostToDevice, hipMemcpyDeviceToHost };
struct { int x; } blockIdx, blockDim, threadIdx;
inline const char *hipGetErrorString(hipError_t) { return ""; }
inline hipError_t hipSetDevice(int) { return hipSuccess; }
inline hipError_t hipGetLastError() { return hipSuccess; }
inline hipError_t hipGetDeviceCount(int *count) { *count = 1; return hipSuccess; }
inline hipError_t hipGetDeviceProperties(hipDeviceProp_t *it, int) { *it = {"gfx942"}; return hipSuccess; }
inline hipError_t hipMalloc(float **to, size_t bytes) { *to = (float *)malloc(bytes); return hipSuccess; }
inline hipError_t hipMemcpy(float *to, const float *from, size_t bytes, int) {
    for (size_t i = 0; i < bytes / 4; i++) to[i] = from[i];
    return hipSuccess;
}
"""  # that of a GPU which computes on the processor, one element after the other


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
@pytest.mark.parametrize(("spoilt", "said"), [("", "result is right"), ("NAN", "is nan"), ("0.5f", "element 3 is 0.5")])
def test_hip_check_calls_no_wrong_result_right(spoilt: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "hip").mkdir()
    (tmp_path / "hip/hip_runtime.h").write_text(HIP)
    source = (paths.images() / "check/hip_check.hip").read_text()
    each = "for (blockDim.x = 1, blockIdx.x = 0; blockIdx.x < n; blockIdx.x++) sines(from, to, n);"
    source, launches = re.subn(
        r"sines<<<.*>>>\(from, to, n\);", each + (f" to[3] = {spoilt};" if spoilt else ""), source
    )
    assert launches == 1
    (tmp_path / "check.cpp").write_text(source)
    words = ["g++", "-I", tmp_path, '-DHIPCC_VERSION=""', "-o", tmp_path / "check", tmp_path / "check.cpp"]
    subprocess.run(words, check=True)
    done = subprocess.run([tmp_path / "check"], capture_output=True, text=True)
    assert said in done.stdout
    assert done.returncode == bool(spoilt)


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
    assert program._job(cluster, "all", list(NODES), 8).answers == [{"node": "n1"}]
    assert cluster.slurm.steps[0][2]["independent"]
    done = SimpleNamespace(rc=1, stdout='@rocstack {"node": "n1"}\n', stderr="")
    slurm = SimpleNamespace(gpus=0, name="x", partition="", run=lambda *words, seconds: lines.append(words) or done)
    slurm.heard = lambda done, names, tasks: StepOutput(done.rc, done.stdout, done.stderr)
    assert program._job(SimpleNamespace(slurm=slurm), "all", list(NODES), 8).answers == [{"node": "n1"}]
    assert {*INDEPENDENT, "--label"} < set(lines[0])


def test_of_a_gpus_three_runs_the_fastest_counts_and_ends_when_the_gpu_has() -> None:
    source = (suite.checks() / "programs/gemm.py").read_text(encoding="utf-8").partition("\nanswer = ")[0]
    program: dict[str, Any] = {}
    exec(source, program)
    now, queued, takes = [0.0], list[float](), iter([900.0, 30.0, 30.0, 10.0, 10.0, 20.0, 20.0])

    def wait(_: object) -> None:
        now[0] += sum(queued)
        queued.clear()

    program["time"] = SimpleNamespace(perf_counter=lambda: now[0])
    assert program["fastest"](lambda: queued.append(next(takes)), wait, 2) == 10.0, "the first warms up"
    found = program["measured"]("MI300X", 2 * 8192**3 / 600e12, 2 * (4 << 30) / 4500e9, 0.0)
    assert (found["tflops"], found["gb"]) == pytest.approx((600, 4500))


def test_training_cleans_the_nodes_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(suite.checks())
    training = module("experiments/training.py")
    monkeypatch.setattr(training, "run", lambda *_: {})
    monkeypatch.setattr(training, "scratch", lambda *_: ("/tmp/x", False))
    for dead, left in (({"n2"}, [["n1"]]), (set(NODES), [])):
        cluster = fake(0, dict.fromkeys(("rm",), StepOutput(0, "", "")))
        cluster.allocated = lambda: NODES
        cluster.slurm.dead = dead
        training.on_cpus(cluster)
        assert [list(more["nodes"]) for name, _, more in cluster.slurm.steps if name == "rm"] == left


def test_training_goes_on_in_no_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever made it first could put there what ranks read."""
    source = (suite.checks() / "programs/training.py").read_text()
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir()
    theirs.chmod(0o777)
    (tmp_path / "link").symlink_to(mine)
    for name, folder in (("theirs", theirs), ("link", tmp_path / "link"), ("mine", mine), ("again", mine)):
        plan = {"ranks": 1, "runs": [], "jax": "", "private": [str(folder)]}
        env = {**os.environ, "SLURMD_NODENAME": "n1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2"}
        done = subprocess.run(
            [sys.executable, "-c", source, json.dumps(plan)], env=env, capture_output=True, text=True, check=True
        )
        (answer,) = StepOutput(0, done.stdout, "").answers or [None]
        if folder == mine:
            assert answer is None, name
            assert mine.stat().st_mode & 0o777 == 0o700
        else:
            assert (answer["run"], answer["node"], answer["code"]) == ("start", "n1", 1)
            assert f"{folder} is there already, and isn't this user's alone" in answer["said"]
            assert not list(theirs.iterdir())


def test_training_asks_for_folders_of_its_own_on_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(suite.checks())
    training = module("experiments/training.py")
    monkeypatch.setattr(training.secrets, "token_hex", lambda size: "f0")
    cluster = fake(0, {"training.py": StepOutput(0, "", ""), "rm": StepOutput(0, "", "")})
    cluster.allocated = lambda: NODES
    cluster.settings = SimpleNamespace(mounts=())
    training.on_cpus(cluster)
    plan = json.loads(next(words[0] for name, words, _ in cluster.slurm.steps if name == "training.py"))
    assert plan["private"] == ["/tmp/rocstack-verify-f0-tmp", "/tmp/rocstack-verify-f0"]


def soaking(answers: Sequence[str] = ("n1", "n2"), program: str = "soak.py") -> Any:
    """On CPUs, of two ranks each."""
    lines = [f'@rocstack {{"node": "{node}"}}\n' for node in answers for _ in range(2)]
    cluster = fake(0, {program: StepOutput(0, "".join(lines), "")})
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


def test_a_soak_with_jax() -> None:
    found = performance.soak(soaking(program="jax_soak.py"), 0.25, jax=True)
    assert [len(step["answers"]) for step in found["steps"]] == [4]


def test_sums_of_a_soak_are_exact_in_fp32() -> None:
    program = module("programs/soak.py")
    for ranks in (1, 2, 2189, 16000):
        largest = 7 * program.total(ranks)
        assert largest == sum(7 * program.share(rank) for rank in range(ranks)) < 1 << 24
    assert len({program.share(rank) for rank in range(64)}) == 64, "a rank that another stands in for is noticed"


def test_a_soak_goes_in_steps_in_an_allocation_that_lasts() -> None:
    chatter = "".join(f"[  111.0] audit: type={number}\n" for number in range(2000))
    resets = "[   90.0] amdgpu: GPU reset begin!\n[  110.5] amdgpu: GPU reset begin!\n"
    log = f"{resets}{chatter}[  120.0] eth0: link is up\nno time\n"
    lines = [f'@rocstack {{"node": "{node}"}}\n' for node in NODES for _ in range(8)]
    cluster = fake(8, {"soak.py": StepOutput(0, "".join(lines), "")})
    said = {"cat /proc/uptime": "100.25 800.0\n", "dmesg": log}
    done = {command: SimpleNamespace(rc=0, stdout=out) for command, out in said.items()}
    cluster.everywhere = lambda command, names: dict.fromkeys(names, done[command])
    found = performance.soak(cluster, 25)
    assert [step["seconds"] for step in found["steps"]] == [600, 600, 300]
    assert (cluster.slurm.minutes, cluster.slurm.released) == (40, 1)
    assert found["kernels"]["n1"] == ["[  110.5] amdgpu: GPU reset begin!"], "once, and no chatter takes its place"


def test_a_soak_hears_what_a_log_has_lost_by_its_end() -> None:
    lines = [f'@rocstack {{"node": "{node}"}}\n' for node in NODES for _ in range(8)]
    cluster = fake(8, {"soak.py": StepOutput(0, "".join(lines), "")})
    logs, clock = ["[  110.5] amdgpu: GPU reset begin!\n", "[  777.0] amdgpu: RAS\n"], [100.0]

    def everywhere(command: str, names: Any) -> dict[str, Any]:
        if command == "dmesg":
            out = logs.pop(0) if len(logs) > 1 else logs[0]
        else:
            clock[0] += 300
            out = f"{clock[0] - 300:.2f} 8.0\n"
        return dict.fromkeys(names, SimpleNamespace(rc=0, stdout=out))

    cluster.everywhere = everywhere
    assert performance.soak(cluster, 15)["kernels"]["n1"] == ["[  110.5] amdgpu: GPU reset begin!"]


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


def test_tools_start_where_nobody_else_writes() -> None:
    """UCX reads ./ucx.conf, in which UCX_GDB_COMMAND is a command line."""
    said = run(seconds=5, batches=[{"one": ["sh", "-c", "pwd; stat -c %a .; stat -c %u .; ls -A; touch made"]}] * 2)
    folder, mode, owner = said["one"]["out"].split()
    assert (mode, owner) == ("700", str(os.getuid()))
    assert not Path(folder).exists()


def test_minutes_of_a_soak() -> None:
    assert [performance.minutes(virtual, None) for virtual in (False, True)] == [480, 0.25]
    assert performance.minutes(True, "90") == 90
    for text in ("-1", "0", "8h", "nan", "99999"):
        with pytest.raises(BadInput) as raised:
            performance.minutes(False, text)
        assert raised.value.code == "bad-setting"


@pytest.mark.parametrize("root", ["opt/rocm", "venv/lib/python3.12/site-packages/_rocm_sdk_devel"])
def test_rvs_has_its_configurations_where_it_is_itself(root: str, tmp_path: Path) -> None:
    conf = tmp_path / root / "share/rocm-validation-suite/conf"
    for folder in ("MI300X", "MI355X"):
        (conf / folder).mkdir(parents=True)
    for name in ("MI300X/gst_single", "MI355X/iet_stress", "gst_single", "iet_single", "mem"):
        (conf / f"{name}.conf").write_text("actions:\n- name: act\n  module: mem\n")
    rvs = tmp_path / root / "bin/rvs"
    rvs.parent.mkdir()
    rvs.write_text("#!/bin/sh\necho [RESULT ] met: $*\necho noise\n")
    rvs.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/rvs").symlink_to(rvs)
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}

    def ran(model: str, module: str) -> Any:
        words = [sys.executable, suite.checks() / "programs/rvs.py", model, module, "8", "600"]
        return subprocess.run(words, capture_output=True, text=True, check=False, env=env)

    head = "# rocstack: configuration {}.conf, at most 600 s\n# rocstack: action act\n[RESULT ] met: -c {}/{}.conf\n"
    for model, module, wanted in (
        ("MI300X", "gst_single", "MI300X/gst_single"),
        ("MI355X", "iet_single", "MI355X/iet_stress"),
        ("MI355X", "mem", "mem"),
        ("", "mem", "mem"),
    ):
        assert ran(model, module).stdout == head.format(wanted, conf, wanted)
    for model in ("MI300A", "MI250X", ""):
        assert ran(model, "gst_single").stdout.startswith(f"# rocstack: no targets for {model}")
    none = ran("MI300X", "pbqt_single")
    assert none.returncode == 3
    assert none.stdout == f"[ERROR ] no configuration pbqt_single.conf for MI300X in {conf}\n"


@pytest.mark.parametrize(
    ("device", "memory", "compute", "module", "wanted"),
    [
        ("0x74a1", "NPS1", "SPX", "gst_single", "MI300X/gst_single"),
        ("0x74a1", None, None, "gst_single", "MI300X/gst_single"),  # an older driver, or a guest
        ("0x74a1", "NPS2", "DPX", "gst_single", "MI300X/NPS2/DPX/gst_single"),
        ("0x74a1", "NPS1", "CPX", "gst_single", None),
        ("0x74a1", "NPS2", "DPX", "iet_single", None),
        ("0x74a1", "NPS2", "DPX", "pebb_single", "MI300X/pebb_single"),
        ("0x74a9", "NPS1", "SPX", "iet_single", "MI300X-HF/iet_stress"),
        ("0x74a9", "NPS1", "SPX", "pebb_single", "MI300X/pebb_single"),
    ],
)
def test_rvs_targets_are_those_of_the_board_and_of_how_its_gpus_are_divided(
    device: str, memory: str | None, compute: str | None, module: str, wanted: str | None, tmp_path: Path
) -> None:
    """Of whole GPUs no part reaches them; a board of more power has more to reach."""
    gpu = tmp_path / "devices/0000:05:00.0"
    gpu.mkdir(parents=True)
    modes = {"current_memory_partition": memory, "current_compute_partition": compute}
    for name, text in {"device": device, **modes}.items():
        if text:
            (gpu / name).write_text(f"{text}\n")
    for name in (
        *("MI300X/gst_single", "MI300X/iet_single", "MI300X/pebb_single", "MI300X/NPS2/DPX/gst_single"),
        *("MI300X-HF/gst_single", "MI300X-HF/iet_stress", "pebb_single"),
    ):
        path = tmp_path / f"conf/{name}.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    program = rvs_program()
    program["divided"].__globals__["PCI"] = f"{tmp_path}/devices/*/"
    found = program["configuration"](str(tmp_path / "conf"), "MI300X", module, program["divided"]())
    assert found == (wanted and f"{tmp_path}/conf/{wanted}.conf")


def rvs_program() -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "rvs"}
    exec((suite.checks() / "programs/rvs.py").read_text(), found)
    return found


@pytest.mark.parametrize("path", sorted((SAMPLES / "rvs").glob("*.txt")), ids=lambda path: path.stem)
def test_what_the_program_keeps_of_rvs_words_is_read_as_all_of_them(path: Path, tmp_path: Path) -> None:
    """Whatever the parser goes by is among it: `rvs` is a program that says a recorded output."""
    rvs = tmp_path / "rvs"
    rvs.write_text(f"#!/bin/sh\ngrep -v '^# rocstack' {path}\n")
    rvs.chmod(0o755)
    text = path.read_text(encoding="utf-8")
    own = "".join(line for line in text.splitlines(keepends=True) if line.startswith("# rocstack"))
    with redirect_stdout(StringIO()) as said:
        rvs_program()["run"](str(rvs), "x.conf", 60)
    assert read(own + said.getvalue()) == read(text)


def read(text: str) -> Any:
    try:
        return rvs_parser.parse(text)
    except CheckFailed as error:
        return error.code


def test_rvs_may_take_as_long_as_its_configuration_asks_for() -> None:
    """MI300X's gst_single: ten actions, a GPU after the other, 1,700 s; it was stopped after 1,200."""
    action = "- name: gst-{}\n  device: all\n  module: gst\n  ramp_interval: 5000\n  duration: 15000  # ms\n"
    program = rvs_program()
    asked = program["actions"]("# a head\nactions:\n" + "".join(action.format(number) for number in range(10)))
    assert [each["name"] for each in asked] == [f"gst-{number}" for number in range(10)]
    assert program["seconds"](asked, 8) == 10 * 8 * 22
    at_once = program["actions"]("- name: iet\n  module: iet\n  parallel: true\n  wait: 30000\n  duration: 600000\n")
    assert program["seconds"](at_once, 8) == 632


def test_rvs_that_hangs_is_stopped_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rvs = tmp_path / "rvs"
    rvs.write_text("#!/bin/sh\necho began\nexec sleep 60\n")
    rvs.chmod(0o755)
    assert rvs_program()["run"](str(rvs), "x.conf", 0.3) == -9
    assert capsys.readouterr().out.startswith("began\n[ERROR ] stopped after 0 s")


def test_counters_of_all_ports_of_a_device_are_added_up(tmp_path: Path) -> None:
    device = tmp_path / "sys/class/infiniband/bnxt_re0"
    for port, number in (("1", "5"), ("2", "7")):
        for folder, name in (("hw_counters", "oos_drop_count"), ("counters", "link_downed"), ("counters", "lifespan")):
            (device / "ports" / port / folder).mkdir(parents=True, exist_ok=True)
            (device / "ports" / port / folder / name).write_text(f"{number}\n")
    (device / "ports/1/hw_counters/np_cnp_sent").write_text("N/A\n")
    program = module("programs/counters.py")
    assert program.counted(tmp_path, "oos_drop_count|link_downed|np_cnp_sent") == {
        "bnxt_re0": {"oos_drop_count": 12, "link_downed": 12}
    }
