"""Collectives, AMD's tools and the soak, judged on recorded output: two nodes with eight MI300X each, as if they were
real, and each fault turns its check red and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from evidence_replay import good, red, replay

from rocstack.verify.result import CheckResult

DATA = Path(__file__).parents[1] / "data/verify"
FAULTS = yaml.safe_load((DATA / "performance.yml").read_text())
NODES = ("n1", "n2")
TOOLS = ["all_reduce_perf", "rvs", "TransferBench", "hip-stream", "rocblas-bench"]
MINE = {"collective-performance", "rvs", "transferbench", "babelstream", "gemm-rocblas", "gemm", "soak"}
EXAMPLE = {1: (47.3,), 2: (48.6,), 3: (32.1, 39.2), 4: (1280.0,), 5: (40.0,), 6: (48.9,)}  # GB/s
Evidence = dict[str, Any]


def said(tool: str, case: str, code: int = 0) -> dict[str, Any]:
    return {"code": code, "out": (DATA / "parsers" / tool / f"{case}.txt").read_text(encoding="utf-8")}


def example(tests: dict[int, tuple[float, ...]]) -> str:
    lines = []
    for test, speeds in tests.items():
        lines += [
            f"Test {test}:",
            *(f" Transfer 0{i} | {gb:.3f} GB/s | 1 ms | 9 bytes | X" for i, gb in enumerate(speeds)),
        ]
    return "\n".join(lines)


def real() -> Evidence:
    """As the two recorded nodes would answer if they were no virtual ones."""
    found = good()
    for node in found["cluster"]["nodes"]:
        node["virtual"] = node["profile"]["virtual"] = None
        found["in_jobs"][node["name"]]["tools"] += TOOLS
    two = {"all_reduce_perf": said("rccl", "mi300x-two-nodes"), "alltoall_perf": said("rccl", "alltoall-two-nodes")}
    modules = {"gst_single": "gst", "iet_single": "iet", "mem": "mem", "pebb_single": "pebb", "pbqt_single": "pbqt"}
    bench = {"a2a": said("transferbench", "a2a"), "p2p": said("transferbench", "p2p")}
    bench |= {"example": {"code": 0, "out": example(EXAMPLE)}}
    gemm = {"rocblas-fp32 GPU 0": said("rocblas", "gemm-fp32"), "rocblas-bf16 GPU 0": said("rocblas", "gemm-batched")}
    gpu = {"name": "AMD Instinct MI300X", "tflops": 640.0, "gb": 4600.0, "error": 0.002}
    answer = {"rounds": 900, "wrong_sums": 0, "wrong_products": 0, "ranks": 16, "backend": "nccl", "slowest_ms": 9.0}
    answers = [{**answer, "node": node, "rank": rank} for node in NODES for rank in range(8)]
    each = {node: {"all_reduce_perf": said("rccl", "mi300x-one-node")} for node in NODES}
    return found | {
        "collective_performance": {"tool": "rccl-tests", "nodes": NODES, "gpus": 8, "each": each, "all": two},
        "rvs": {node: {module: said("rvs", case) for module, case in modules.items()} for node in NODES},
        "transferbench": {node: dict(bench) for node in NODES},
        "babelstream": {node: {f"GPU {gpu}": said("babelstream", "hip") for gpu in range(8)} for node in NODES},
        "rocblas": {node: dict(gemm) for node in NODES},
        "gemm": {node: {"node": node, "gpus": [dict(gpu) for _ in range(8)], "error": ""} for node in NODES},
        "soak": {
            "minutes": 10, "nodes": NODES, "ranks": 8, "gpus": True, "kernels": {node: [] for node in NODES},
            "steps": [{"seconds": 600, "code": 0, "answers": answers, "said": ""}],
        },
    }  # fmt: skip


def bench() -> Evidence:
    """Two virtual nodes, on which our own benchmark was run."""
    rows = [
        {"bytes": size, "side": side, "busbw_gb_s": busbw, "error": error, "ms": 1.0}
        for size, busbw in ((4096, 0.0006), (16777216, 0.4545))
        for side, error in (("dist.all_reduce", 0.0), ("ring", 5.4e-8))
    ]
    found = {"tool": "bench", "nodes": NODES, "ranks": 4, "gpus": False, "code": 0, "said": ""}
    return good() | {"collective_performance": found | {"out": f"a library's word\n{json.dumps({'rows': rows})}"}}


def judged(evidence: Evidence) -> dict[str, CheckResult]:
    return {name: each for name, each in replay(json.loads(json.dumps(evidence))).items() if name in MINE}


def whys(result: CheckResult) -> str:
    return "\n".join(f"{measure.node}: {measure.why}" for measure in result.measures if measure.state == "failed")


def test_good_hardware_passes_all() -> None:
    results = judged(real())
    assert {name: each.state for name, each in results.items()} == dict.fromkeys(MINE, "passed")
    curves = results["collective-performance"].drawings["curves"]
    assert [len(each["points"]) for each in curves["series"]] == [4, 4, 2, 1]
    assert [each["threshold"]["value"] for each in curves["series"]] == [304, 304, 304, 45], "each has its own"
    assert curves["series"][2]["points"][-1] == [8589934592, 331.02, 178.51], "bytes, busbw, algbw"
    summed = results["collective-performance"].measures
    assert [measure.value for measure in summed] == [312.39, 312.39, 331.02, 47.17]
    assert "between nodes via NET/IB" in summed[2].evidence
    assert all(measure.wanted and measure.source for measure in results["babelstream"].measures)


def test_virtual_nodes_skip_what_needs_gpus_and_only_measure_between_cpus() -> None:
    results = judged(bench())
    assert results["collective-performance"].state == "measured"
    assert results["collective-performance"].measures[0].virtual
    assert "gloo, CPU" in results["collective-performance"].measures[0].evidence
    (series,) = results["collective-performance"].drawings["curves"]["series"]
    assert series["threshold"] is None
    (small, _, _), (_, busbw, algbw) = series["points"]
    assert (small, busbw) == (4096, 0.4545)
    assert algbw == pytest.approx(busbw * 4 / (2 * 3)), "of 4 ranks; rccl-tests, PERFORMANCE.md"
    assert {results[name].state for name in MINE - {"collective-performance", "soak"}} == {"skipped"}
    assert "virtual node" in results["rvs"].why


def changed(evidence: Evidence, fault: dict[str, Any]) -> Evidence:
    """With one fault of data/verify/performance.yml."""
    found: Evidence = json.loads(json.dumps(evidence))
    value: Any = found
    *before, last = fault["at"]
    for name in before:
        value = value[name]
    if "sample" in fault:
        value[last] = said(*fault["sample"].split("/"), fault.get("code", 0))
    elif "replace" in fault:
        old, new = fault["replace"]
        assert old in value[last]
        value[last] = value[last].replace(old, new)
    elif "value" in fault:
        value[last] = fault["value"]
    else:
        del value[last]
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_turns_its_check_red_and_no_other(name: str) -> None:
    fault = FAULTS[name]
    results = judged(changed(real(), fault))
    assert red(results) == {fault["check"]}
    assert fault["says"] in whys(results[fault["check"]])


@pytest.mark.parametrize("line", ["[ 9.1] traceroute: crash dump of eth0", "[ 9.1] mmcblk0: erase group"])
def test_a_word_with_ras_in_it_is_no_ras(line: str) -> None:
    evidence = real()
    evidence["soak"]["kernels"]["n2"] = [line]
    assert replay(json.loads(json.dumps(evidence)), "soak")["soak"].state == "passed"


@pytest.mark.parametrize(("busbw", "state"), [(310.0, "passed"), (20.0, "failed")])
def test_without_rccl_tests_our_own_sum_of_8_gib_is_judged(busbw: float, state: str) -> None:
    evidence = real()
    rows = [
        {"bytes": size, "side": "dist.all_reduce", "busbw_gb_s": value, "error": 0.0}
        for size, value in ((4096, 0.01), (1 << 30, busbw * 0.9), (8 << 30, busbw))
    ]
    first, last = ({"code": 0, "said": "", "out": json.dumps({"rows": part})} for part in (rows[:2], rows[2:]))
    of_run = {"tool": "bench", "nodes": NODES, "ranks": 16, "gpus": True, "big": last}
    evidence["collective_performance"] = of_run | first
    for ranks, judged, least in ((16, state, 304), (14, "measured", None)):  # 14: of 7 of the 8 GPUs
        evidence["collective_performance"]["ranks"] = ranks
        found = replay(json.loads(json.dumps(evidence)), "collective-perf*")["collective-performance"]
        assert found.state == judged
        (series,) = found.drawings["curves"]["series"]
        assert (series["threshold"] or {}).get("value") == least


def test_every_check_has_a_fault() -> None:
    assert {fault["check"] for fault in FAULTS.values()} == MINE


def test_sums_that_differ_and_bandwidth_that_does_not_grow_fail_also_on_cpus() -> None:
    for old, new, why in (
        ("5.4e-08", "0.003", "sums up something else"),
        ("5.4e-08", "NaN", "sums up something else"),
        ("0.4545", "0.0007", "go no faster"),
        ('{"rows"', '{"row', "the benchmark ended with 0"),
    ):
        evidence = bench()
        evidence["collective_performance"]["out"] = evidence["collective_performance"]["out"].replace(old, new)
        results = judged(evidence)
        assert red(results) == {"collective-performance"}
        assert why in whys(results["collective-performance"])


def test_a_pytorch_without_rocm_is_skipped() -> None:
    evidence = real()
    evidence["gemm"]["n1"] |= {"gpus": [], "error": "PyTorch 2.6.0 in the image is built without ROCm"}
    measures = judged(evidence)["gemm"].measures
    assert {measure.state for measure in measures if measure.node == "n1"} == {"skipped"}


def test_a_node_that_slurm_gave_to_others_is_skipped() -> None:
    evidence = real()
    mine = ("rvs", "transferbench", "babelstream", "rocblas", "gemm")
    for name in mine:
        evidence[name]["n2"] = None
    results = judged(evidence)
    assert not red(results)
    for name in ("gemm-rocblas" if name == "rocblas" else name for name in mine):
        why = {measure.why for measure in results[name].measures if measure.node == "n2"}
        assert why == {"Slurm gave the node to other jobs"}, name


def test_a_node_that_gave_no_answer_in_a_job_leaves_the_others_judged() -> None:
    evidence = real()
    del evidence["in_jobs"]["n2"]
    results = judged(evidence)
    assert not red(results)
    assert {measure.node: measure.state for measure in results["rvs"].measures} == {"n1": "passed", "n2": "skipped"}
    assert "fabric-env" in red(replay(json.loads(json.dumps(evidence)), "fabric-env"))


def test_a_rank_that_ends_takes_no_blame_to_other_nodes() -> None:
    """They say that one is gone, which is what it did to them."""
    evidence = real()
    step = evidence["soak"]["steps"][0]
    for answer in step["answers"]:
        answer["error"] = "another rank ended or can't be reached"
    step["code"] = 134
    del step["answers"][12]
    result = judged(evidence)["soak"]
    assert whys(result) == "n2: step 1 of 10 minutes ended with 134"
    assert {measure.state for measure in result.measures if measure.node == "n1"} == {"passed"}
