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
TOOLS = ["alltoall_perf", "gather_perf", "all_reduce_perf", "rvs", "TransferBench", "hip-stream", "rocblas-bench"]
MINE = {"congestion", "collective-performance", "rvs", "transferbench", "babelstream", "gemm-rocblas", "gemm", "soak"}
EXAMPLE = {1: (47.3,), 2: (48.6,), 3: (32.1, 39.2), 4: (1280.0,), 5: (40.0,), 6: (48.9,)}  # GB/s
COUNTED = {"rx_pfc_ena_frames_pri3": 0, "np_cnp_sent": 3, "oos_drop_count": 5, "max_retry_exceeded": 0}
CARDS = [f"bnxt_re{number}" for number in range(8)]
Evidence = dict[str, Any]


def said(tool: str, case: str, code: int = 0) -> dict[str, Any]:
    return {"code": code, "out": (DATA / "parsers" / tool / f"{case}.txt").read_text(encoding="utf-8")}


def example(tests: dict[int, tuple[float, ...]]) -> str:
    lines = []
    for test, speeds in tests.items():
        lines += [
            f"Test {test}:",
            *(f" Transfer 0{i} | {gb:.3f} GB/s | 1 ms | 9 bytes | X" for i, gb in enumerate(speeds)),
            f" Aggregate (CPU) | {sum(speeds):.3f} GB/s | 1 ms | 9 bytes | Overhead: 0.1 ms",
        ]
    return "\n".join(lines)


def pairs(average: str, other: str, cpus: int = 0) -> str:
    """A preset's table of eight GPUs that reach each other at 48 GB/s, with what a recorded output has after its own.
    With `cpus`, as p2p draws it."""
    arrow, more = (" -> ", "") if cpus else (" ", " 336.0 335.0")
    return "\n".join([average, *rows(arrow, "55.30 " * cpus, "48.000", more, itself=bool(cpus)), other])


def rows(arrow: str, first: str, speed: str, more: str = "", *, itself: bool = False) -> list[str]:
    cells = [" ".join("N/A" if a == b and not itself else speed for b in range(8)) for a in range(8)]
    return [f"GPU {a:02}{arrow}{first}{row}{more}" for a, row in enumerate(cells)]


def real() -> Evidence:
    """As the two recorded nodes would answer if they were no virtual ones."""
    found = good()
    for node in found["cluster"]["nodes"]:
        node["virtual"] = node["profile"]["virtual"] = None
        found["in_jobs"][node["name"]]["tools"] += TOOLS
    two = {"all_reduce_perf": said("rccl", "mi300x-two-nodes"), "alltoall_perf": said("rccl", "alltoall-two-nodes")}
    modules = {name: f"node-{name.partition('_')[0]}" for name in ("gst_single", "iet_single", "mem")}
    modules |= {"pebb_single": "node-pebb", "pbqt_single": "node-pbqt"}
    bench = {name: said("transferbench", name) for name in ("a2a", "p2p")}
    head, _, tail = bench["a2a"]["out"].partition("\n\nRTotal")
    bench["a2a"]["out"] = pairs(head.partition("\nGPU 00")[0], f"\nRTotal{tail}")
    one, _, both = bench["p2p"]["out"].partition("\n\nBidirectional")
    head, _, tail = one.partition("\n  CPU 00")
    table = pairs(head, f"CPU->CPU{tail.partition('CPU->CPU')[2]}", cpus=1)
    ways = [*rows(" -> ", "54.1 ", "46.100"), *rows(" <- ", "33.9 ", "46.300"), *rows(" <-> ", "88.0 ", "92.400")]
    bench["p2p"]["out"] = "\n".join([table, "Bidirectional", *ways, f"CPU->CPU{both.partition('CPU->CPU')[2]}"])
    bench |= {"example": {"code": 0, "out": example(EXAMPLE)}}
    gemm = {f"rocblas-fp32 GPU {gpu}": said("rocblas", "gemm-fp32") for gpu in range(8)}
    gemm |= {f"rocblas-fp16 GPU {gpu}": said("rocblas", "gemm-batched") for gpu in range(8)}
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
        "congestion": {
            "nodes": NODES, "ranks": 16,
            "loads": {tool: said("rccl", "alltoall-two-nodes") for tool in ("alltoall_perf", "gather_perf")},
            "before": {node: {card: dict(COUNTED) for card in CARDS} for node in NODES},
            "after": {node: {card: COUNTED | {"rx_pfc_ena_frames_pri3": 90} for card in CARDS} for node in NODES},
        },
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
    return good() | {
        "collective_performance": found | {"out": f"a {{library}}'s word\n{json.dumps({'rows': rows})}\nanother"}
    }


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
    assert curves["series"][2]["points"][-1] == [8589934592, 311.29, 177.88], "bytes, busbw and algbw in place"
    summed = results["collective-performance"].measures
    assert [measure.value for measure in summed] == [311.29, 311.29, 311.29, 47.17], "of alltoall out of place"
    assert "between nodes via NET/IB" in summed[2].evidence
    assert all(measure.wanted and measure.source for measure in results["babelstream"].measures)


def test_a_benchmark_whose_ranks_fail_behind_its_sums_fails() -> None:
    evidence = bench()
    evidence["collective_performance"] |= {"code": 139, "said": "srun: error: n2: task 3: Segmentation fault"}
    result = judged(evidence)["collective-performance"]
    assert result.state == "failed"
    assert "ended with 139: srun: error: n2: task 3" in whys(result)


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


def test_collectives_are_judged_in_place_as_amd_does() -> None:
    slow_out_of_place = real()
    slow_out_of_place["collective_performance"]["each"]["n2"]["all_reduce_perf"] = said("rccl", "below-threshold")
    assert judged(slow_out_of_place)["collective-performance"].state == "passed"


def slower_nics(evidence: Evidence, **device: Any) -> Evidence:
    for node in evidence["cluster"]["nodes"]:
        for nic in node["profile"]["nics"]:
            nic |= device
        for netdev in node["profile"]["netdevs"]:
            netdev["speed"] = min(netdev["speed"] or 0, 200000)
        for verbs in node["profile"]["verbs"]:
            verbs["ports"][0]["rate"] = 200000
    return evidence


def test_between_nodes_it_is_the_nics_that_say_what_can_be_reached() -> None:
    """8 × 200G carry 200 GB/s; of other collectives over them nobody has a number."""
    evidence = slower_nics(real(), device="15b3:1021")
    every = evidence["collective_performance"]["all"]
    every["all_reduce_perf"]["out"] = every["all_reduce_perf"]["out"].replace("311.29", "171.00")
    found = judged(evidence)["collective-performance"].measures
    assert [(each.state, each.wanted) for each in found[2:]] == [
        ("passed", "at least 152 GB/s"),
        ("measured", "no floor known"),
    ]


def with_gpus(count: int, device: str = "") -> Evidence:
    evidence = real()
    for node in evidence["cluster"]["nodes"]:
        node["profile"]["gpus"] = [
            gpu | ({"device": device, "name": ""} if device else {}) for gpu in node["profile"]["gpus"][:count]
        ]
    return evidence


def test_a_node_with_one_gpu_has_none_to_copy_to() -> None:
    """A guest may have one. TransferBench then copies nothing, and RVS finds no peers."""
    evidence = with_gpus(1)
    for node in NODES:
        evidence["transferbench"][node] |= {"a2a": said("transferbench", "a2a-no-direct-link")}
        evidence["transferbench"][node] |= {"example": {"code": 1, "out": "[ERROR] GPU index must be between 0 and 0"}}
        error = "[ERROR ] [ 1.2] [p2p-unidir] p2p-bandwidth No peers found"
        evidence["rvs"][node]["pbqt_single"] = {"code": 0, "out": f"# rocstack: action p2p-unidir\n{error}"}
    found = judged(evidence)
    assert whys(found["transferbench"]) == ""
    assert found["transferbench"].state == "skipped"
    assert "pbqt" not in whys(found["rvs"])


def test_a_node_with_one_gpu_has_none_to_sum_with() -> None:
    """The bus bandwidth of one rank is 0 by its definition; that of all nodes' GPUs together is not."""
    evidence = with_gpus(1)
    evidence["collective_performance"]["gpus"] = 1
    for node in NODES:
        evidence["collective_performance"]["each"][node]["all_reduce_perf"] = said("rccl", "one-gpu")
    evidence["collective_performance"]["all"] = {"all_reduce_perf": said("rccl", "two-gpus")}
    measures = judged(evidence)["collective-performance"].measures
    assert [(each.node, each.state) for each in measures] == [("n1", "skipped"), ("n2", "skipped"), ("", "measured")]
    wrong = evidence["collective_performance"]["each"]["n2"]["all_reduce_perf"]
    wrong["out"] = wrong["out"].replace("1867.30    0.00      0", "1867.30    0.00      7")
    assert whys(judged(evidence)["collective-performance"]) == "n2: 7 elements are wrong"


def test_gpus_without_direct_links_are_no_fault_of_models_that_have_none() -> None:
    for device, wanted in (("1002:740f", ""), ("", "could not be measured")):  # MI210; MI300X
        evidence = with_gpus(8, device)
        for node in NODES:
            evidence["transferbench"][node]["a2a"] = said("transferbench", "a2a-no-direct-link")
        measures = [each for each in judged(evidence)["transferbench"].measures if each.why == "could not be measured"]
        assert {each.why for each in measures} == ({wanted} if wanted else set()), device


@pytest.mark.parametrize("case", ["iet-no-power-in-a-guest", "iet-power-not-known"])
def test_power_that_rvs_reads_nowhere_is_not_judged(case: str) -> None:
    """RVS calls it too little, or, where AMD SMI says its largest number, enough."""
    evidence = real()
    evidence["rvs"]["n1"]["iet_single"] = said("rvs", case)
    found = judged(evidence)["rvs"]
    (measure,) = [each for each in found.measures if "iet_single" in f"{each.why}{each.evidence}" and each.node == "n1"]
    assert measure.state == "skipped"
    assert "no power could be read" in measure.why


def test_speeds_of_rvs_configurations_for_all_models_are_no_links_own() -> None:
    """They copy to and fro, and in blocks of some KB."""
    evidence = real()
    run = evidence["rvs"]["n1"]["pebb_single"]
    run["out"] = run["out"].replace("MI300X/pebb_single.conf", "pebb_single.conf").replace("55.300 GBps", "6.700 GBps")
    found = judged(evidence)["rvs"]
    assert whys(found) == ""
    assert [(m.node, m.value, m.wanted) for m in found.measures if m.state == "measured"] == [
        ("n1", 6.7, "no floor known")
    ]


def test_a_gpu_without_a_name_is_judged_by_its_id() -> None:
    """A virtual function, such as Azure's, has no product name."""
    evidence = changed(real(), FAULTS["slow GEMM"])
    for node in evidence["cluster"]["nodes"]:
        for gpu in node["profile"]["gpus"]:
            gpu |= {"device": "1002:74b5", "name": None}
    results = judged(evidence)
    assert red(results) == {"gemm"}
    assert "420 TFLOPS, expected at least 552" in whys(results["gemm"])


def test_packets_lost_where_pfc_acted_are_told_and_not_judged() -> None:
    evidence = real()
    evidence["congestion"]["after"]["n2"]["bnxt_re0"]["oos_drop_count"] = 25
    found = {m.node: (m.state, m.value) for m in judged(evidence)["congestion"].measures}
    assert found == {"n1": ("passed", 0), "n2": ("measured", 20)}


@pytest.mark.parametrize(
    ("out", "why"),
    [("each-rank-alone", "1 ranks took part, not 16"), ("cut-off", "it ended after"), ("empty", "gather_perf")],
)
def test_a_load_that_was_none_proves_nothing(out: str, why: str) -> None:
    """Nothing is lost where ranks of a tool without MPI each send to themselves."""
    evidence = real()
    evidence["congestion"]["loads"]["gather_perf"] = said("rccl", out)
    found = judged(evidence)["congestion"]
    assert {measure.state for measure in found.measures} == {"failed"}
    assert why in whys(found)


@pytest.mark.parametrize(
    ("cards", "before", "after", "state", "why"),
    [
        # without ethtool nobody counts pauses, and those that were may explain the losses
        (CARDS, {"oos_drop_count": 5, "np_cnp_sent": 0}, {"oos_drop_count": 25, "np_cnp_sent": 0}, "measured", ""),
        # as bnxt_re calls it since August 2025
        (CARDS, {"rx_pfc_ena_frames_pri3": 0, "out_of_sequence": 5, "np_cnp_pkts": 1},
         {"rx_pfc_ena_frames_pri3": 0, "out_of_sequence": 25, "np_cnp_pkts": 9}, "measured", ""),
        # of ionic's port: multicast that nobody takes
        (CARDS, {"frames_rx_pripause_3": 0, "req_rx_pkt_seq_err": 0, "hw_rx_dropped": 5},
         {"frames_rx_pripause_3": 0, "req_rx_pkt_seq_err": 0, "hw_rx_dropped": 9}, "passed", ""),
        # a card that no job's data take
        (["bnxt_re8"], {}, COUNTED | {"oos_drop_count": 25}, "passed", ""),
        (["bnxt_re3"], COUNTED, {}, "failed", "counters of bnxt_re3 could not be read"),
        (["bnxt_re3"], COUNTED, None, "failed", "counters of bnxt_re3 could not be read"),
        # since the node's start
        (CARDS, {"rx_pfc_ena_frames_pri3": 0}, {"rx_pfc_ena_frames_pri3": 0, "oos_drop_count": 88123}, "measured", ""),
    ],
)  # fmt: skip
def test_only_what_the_cards_of_jobs_count_is_judged(
    cards: list[str], before: dict[str, int], after: dict[str, int] | None, state: str, why: str
) -> None:
    evidence = real()
    for when, numbers in (("before", before), ("after", after)):
        evidence["congestion"][when]["n2"] |= dict.fromkeys(cards, numbers)
        if numbers is None:
            del evidence["congestion"][when]["n2"][cards[0]]
    found = judged(evidence)["congestion"]
    assert {m.node: m.state for m in found.measures} == {"n1": "passed", "n2": state}
    assert why in whys(found)


@pytest.mark.parametrize("answer", [None, "many", 10**400, {"rx": {}}, [1]])
def test_a_node_that_answers_nonsense_fails_alone(answer: object) -> None:
    evidence = real()
    evidence["congestion"]["after"]["n2"]["bnxt_re0"] = answer
    evidence["gemm"]["n2"]["gpus"] = answer
    results = judged(evidence)
    for check in ("congestion", "gemm"):
        states = {m.node: m.state for m in results[check].measures}
        assert states == {"n1": "passed", "n2": "failed"}, check


def test_of_several_runs_the_fastest_counts() -> None:
    evidence = real()
    slow, fast = (said("rocblas", "gemm-fp32")["out"].replace("97921.4", speed) for speed in ("71000.0", "97921.4"))
    for runs, state in ((slow + fast + slow, "passed"), (slow + slow, "failed")):
        evidence["rocblas"]["n2"]["rocblas-fp32 GPU 0"]["out"] = runs
        assert judged(evidence)["gemm-rocblas"].state == state


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
