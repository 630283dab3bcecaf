"""AMD's own tools on each node with GPUs: what they measure, against the thresholds of its model."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

from experiments import performance
from states import MESHED

from rocstack.base.errors import CheckFailed
from rocstack.base.text import count
from rocstack.stack.gpus import model_of, target_of
from rocstack.verify.evidence import NodeEvidence
from rocstack.verify.parsers import gpu_tools, rvs
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder
from rocstack.verify.result import NO_FLOOR

T = TypeVar("T")
NEEDS = ("jobs", "gpu", "real")
# Of a node's median: healthy pairs of AMD's samples are within 5 % of it, a link of half its width has 50 %.
SLOW = 0.65
# Of RVS, and the most seconds that each may take: gst_single for MI355X asks for 15 actions of 22 s on each GPU. Other
# modules need root or judge nothing.
MODULES = {"gst_single": 6000, "iet_single": 1500, "mem": 3600, "pebb_single": 1200, "pbqt_single": 2400}
RVS = (performance.PROGRAMS / "rvs.py").read_text(encoding="utf-8")
PEERS = "pbqt_single"  # the module between GPUs
ALONE = "its one GPU has no other to copy to"
WAYS = {"pcie": "rvs-pcie", "p2p": "rvs-p2p"}  # -> quantity
# The six tests of TransferBench's example.cfg: a copy by 4 CUs, one by a DMA engine, two against each other, writing
# only, reading by CPUs, a broadcast. Test -> the quantities of its transfers.
TESTS = (
    "1 4 (G0->G0->G1)", "1 1 (G0->D0->G1)", "-2 (G0->G0->G1 4 1M) (G1->G1->G0 8 2M)", "1 32 (N0->G0->G0)",
    "1 4 (C0->C0->N0)", "1 16 (G0->G0->G0G1)",
)  # fmt: skip
QUANTITIES = {
    1: ("transferbench-copy",),
    2: ("transferbench-dma",),
    3: ("transferbench-forth", "transferbench-back"),
    4: ("transferbench-write",),
    6: ("transferbench-broadcast",),
}
RUNS = 3  # of rocblas-bench
BATCHED = "--transposeA N --transposeB T -m 1024 -n 2048 -k 512 --lda 1024 --stride_a 4096 --ldb 2048 --stride_b 4096 "
BATCHED += "--ldc 1024 --stride_c 2097152 --ldd 1024 --stride_d 2097152 --alpha 1.1 --beta 1 --batch_count 5"
PRECISIONS = {
    "rocblas-fp32": "-f gemm -r s -m 4000 -n 4000 -k 4000 --lda 4000 --ldb 4000 --ldc 4000 --transposeA N "
    "--transposeB T",
    "rocblas-fp16": f"-f gemm_strided_batched_ex {BATCHED} --a_type h --b_type h --c_type s --d_type s "
    "--compute_type s",
    "rocblas-bf16": f"-f gemm_strided_batched_ex {BATCHED} --a_type bf16_r --b_type bf16_r --c_type s --d_type s "
    "--compute_type s",
    "rocblas-int8": f"-f gemm_strided_batched_ex {BATCHED} --a_type i8_r --b_type i8_r --c_type i32_r --d_type i32_r "
    "--compute_type i32_r",
}


def names(record: Recorder) -> list[str]:
    return [node.name for node in record.nodes]


def got(record: Recorder, ran: Mapping[str, Any]) -> list[str]:
    """The nodes; of those that were not got it is written down."""
    lost = [node for node in names(record) if node in ran and ran[node] is None]
    for node in lost:
        record.skipped(node, "Slurm gave the node to other jobs")
    return [node for node in names(record) if node not in lost]


def model(node: NodeEvidence) -> str:
    """ "MI300X" of "AMD Instinct MI300X OAM"."""
    named = (model_of(gpu.device, gpu.name) for gpu in (node.profile.gpus if node.profile else ()))
    return next(filter(None, named), "")


def read(
    record: Recorder, node: str, run: Mapping[str, Any] | None, parse: Callable[[str, str], T], tool: str
) -> T | None:
    """What the tool measured; None, written down as failed, where it didn't come to an end."""
    if run is None:
        record.failed(node, f"{tool} gave no answer")
        return None
    try:
        value = parse(run["out"], tool)
    except CheckFailed as error:
        record.unread(node, error, run["out"])
        return None
    if run["code"]:
        record.failed(node, f"{tool} ended with {run['code']}", run["code"], evidence=run["out"])
        return None
    return value


@check(
    name="rvs",
    title="ROCm Validation Suite finds no fault: compute, power, memory, PCIe and links",
    cannot=(
        "compute and power of models for which RVS has no targets; memory tests that never began on any GPU, "
        "since RVS says nothing of them"
    ),
    level=3,
    needs=(*NEEDS, "tool:rvs"),
    cause=(
        "a GPU, its memory, cooling or link is defective or throttled, or the image's ROCm doesn't match the driver"
    ),
    next_step="run the module as root: `rvs -c CONF -d 3`; replace a GPU that fails again",
    source="AMD system acceptance, RVS",
)
def test_rvs(record: Recorder, evidence: Any, cluster: Any) -> None:
    def fetch() -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        for kind in sorted({model(node) for node in record.nodes}):
            chosen = [node.name for node in record.nodes if model(node) == kind]
            for module, seconds in MODULES.items():
                words = ["python3", "-c", RVS, kind, module, str(performance.gpus(record.nodes)), str(seconds)]
                ran = performance.tools(cluster, chosen, [{module: words}], seconds=seconds + 60, minutes=30)
                for node, said in ran.items():
                    before = outputs.get(node, {})
                    outputs[node] = None if said is None or before is None else before | said
        return outputs

    ran = evidence.take("rvs", fetch)
    has = {node.name: len(node.profile.gpus) for node in record.nodes if node.profile}
    for node in got(record, ran):
        for module in MODULES:
            if module == PEERS and has.get(node) == 1:
                record.skipped(node, f"{module}: {ALONE}")
                continue
            judge_rvs(record, node, module, ran.get(node, {}).get(module), has.get(node, 0))


def judge_rvs(record: Recorder, node: str, module: str, run: Mapping[str, Any] | None, gpus: int) -> None:
    report = read(record, node, run and run | {"code": 0}, rvs.parse, f"rvs, {module}")
    if report is None or run is None:
        return
    if report.none:
        record.skipped(node, f"{module}: RVS has no targets for {report.none}, so it isn't judged")
        return
    unread = f"no power could be read in {', '.join(report.without_power)}" if report.without_power else ""
    if unread and not (report.results or report.bad or run["code"]):
        record.skipped(node, f"{module}: {unread}, so it isn't judged")
        return
    if report.bad or run["code"]:
        why = report.bad[0] if report.bad else f"rvs ended with {run['code']}"
        record.failed(node, f"{module}: {why}", len(report.bad), "results", evidence="\n".join(report.bad))
    elif report.over_pcie and meshed(record, node):
        why = f"{module}: GPUs that have links to each other take PCIe: {report.over_pcie[0]}"
        record.failed(node, why, len(report.over_pcie), "ways", wanted="0", evidence="\n".join(report.over_pcie))
    elif report.gpus < gpus:
        record.failed(node, f"{module}: {report.gpus} of {gpus} GPUs have results", report.gpus, "GPUs")
    else:
        without = f"; not judged, without a target: {', '.join(report.without_target)}" if report.without_target else ""
        without += f"; of some GPUs {unread}" if unread else ""
        record.passed(node, report.results, "results", wanted="all as they should be", evidence=module + without)
    for way, (speed, line) in report.slowest.items():
        about = f"{module}, the slowest: {line}"
        if report.own:
            record.judge(node, speed, WAYS[way], evidence=about)
        else:
            record.measured(
                node, speed, "GB/s", wanted=NO_FLOOR, evidence=f"{about}\nby RVS' configuration for all models"
            )


@check(
    name="transferbench",
    title="GPUs copy to each other and to host memory at their links' speed",
    cannot=(
        "a pair, or a GPU's way to host memory, that has more than 65 % of its node's median, where the average "
        "passes; all ways to host memory slow alike, and copies from there: `rvs` measures them"
    ),
    level=3,
    needs=(*NEEDS, "tool:TransferBench"),
    cause="an xGMI or PCIe link is down or slow, the IOMMU isn't in pass-through mode, or NUMA balancing is on",
    next_step="run `TransferBench a2a` on that node to find the slow pair, and `amd-smi topology` for its link",
    source="AMD system acceptance, TransferBench",
)
def test_transferbench(record: Recorder, evidence: Any, cluster: Any) -> None:
    example = f"TransferBench <(printf '%s\\n' {' '.join(repr(line) for line in TESTS)})"
    batches: list[performance.Batch] = [
        {"a2a": ["TransferBench", "a2a"]},
        {"p2p": ["TransferBench", "p2p"]},
        {"example": ["bash", "-c", example]},
    ]
    ran = evidence.take(
        "transferbench", lambda: performance.tools(cluster, names(record), batches, seconds=600, minutes=60)
    )
    has = {node.name: len(node.profile.gpus) for node in record.nodes if node.profile}
    for node in got(record, ran):
        if has.get(node) == 1:
            record.skipped(node, ALONE)
            continue
        runs = ran.get(node, {})
        every = read(record, node, runs.get("a2a"), gpu_tools.all_to_all, "TransferBench a2a")
        if every and every[0] is None and not record.bound("transferbench-a2a", [node]):
            record.skipped(node, "a2a: no two of its GPUs are linked directly")
        elif every:
            average, pairs = every
            slowest = min(pairs, key=lambda pair: pairs[pair], default=None)
            evidence_ = f"slowest: GPU {slowest[0]} to {slowest[1]}, {pairs[slowest]} GB/s" if slowest else ""
            record.judge(node, average, "transferbench-a2a", evidence=evidence_)
            judge_pairs(record, node, "a2a", pairs)
        peers = read(record, node, runs.get("p2p"), gpu_tools.peer_to_peer, "TransferBench p2p")
        if peers:
            record.judge(node, peers["Uni"].get("GPU->GPU"), "transferbench-p2p")
            record.judge(node, peers["Bi"].get("GPU->GPU"), "transferbench-p2p-bidirectional")
            ways = gpu_tools.peer_pairs(runs["p2p"]["out"])
            judge_pairs(record, node, "p2p", between_gpus(ways["Uni"]))
            judge_pairs(record, node, "p2p, both ways at once", between_gpus(ways["Bi"]))
            judge_host(record, node, ways["Uni"])
        tests = read(record, node, runs.get("example"), gpu_tools.configured, "TransferBench example.cfg")
        if tests:
            judge_tests(record, node, tests)


def meshed(record: Recorder, node: str) -> int:
    """How many GPUs each have a link to each other, by their models; 0 where not all of the node's have."""
    profile = next(each.profile for each in record.nodes if each.name == node)
    gpus = profile.gpus if profile else ()
    return len(gpus) if all((gpu.gfx or target_of(gpu.device)) in MESHED for gpu in gpus) else 0


def judge_pairs(record: Recorder, node: str, preset: str, pairs: Mapping[tuple[int, int], float]) -> None:
    """Where every GPU has a link to every other: each pair was measured, and none is much slower than most."""
    everyone = range(meshed(record, node))
    if not everyone:
        return
    if missing := [(a, b) for a in everyone for b in everyone if a != b and (a, b) not in pairs]:
        shown = f"GPU {missing[0][0]} to {missing[0][1]}"
        why = f"{preset}: {count(len(missing), 'pair')} of GPUs not measured, such as {shown}"
        record.failed(node, why, len(missing), "pairs not measured", wanted="0")
        return
    judge_slowest(record, node, preset, {f"GPU {a} to {b}": speed for (a, b), speed in pairs.items()}, "other pair")


def judge_slowest(record: Recorder, node: str, preset: str, ways: Mapping[str, float], others: str) -> None:
    """`others`: what one of the ways is called."""
    usual = median(ways.values())
    slow = {way: speed for way, speed in ways.items() if speed < SLOW * usual}
    if slow:
        way, speed = min(slow.items(), key=lambda item: item[1])
        more = f" and {count(len(slow) - 1, others)}" if len(slow) > 1 else ""
        why = f"{preset}: {way}{more}: {speed:g} GB/s, where most have {usual:g}"
        record.failed(node, why, speed, "GB/s", wanted=f"at least {SLOW * usual:.4g} GB/s, {SLOW:.0%} of the median")


def between_gpus(ways: Mapping[tuple[str, str], float]) -> dict[tuple[int, int], float]:
    """(from, to) -> GB/s."""
    gpus = {pair: speed for pair, speed in ways.items() if all(end.startswith("GPU") for end in pair)}
    return {(int(a.removeprefix("GPU ")), int(b.removeprefix("GPU "))): speed for (a, b), speed in gpus.items()}


def judge_host(record: Recorder, node: str, ways: Mapping[tuple[str, str], float]) -> None:
    """Each GPU of a board has its own way to host memory, the best of which is that to its nearest processor."""
    best: dict[str, float] = {}
    for (source, target), speed in ways.items():
        if source.startswith("GPU") and target.startswith("CPU"):
            best[source] = max(speed, best.get(source, 0.0))
    if best and meshed(record, node):
        named = {f"{gpu} to host memory": speed for gpu, speed in best.items()}
        judge_slowest(record, node, "p2p", named, "other GPU")


def judge_tests(record: Recorder, node: str, tests: Mapping[int, Sequence[float]]) -> None:
    for test, quantities in QUANTITIES.items():
        speeds = [*tests.get(test, ()), *[None] * len(quantities)]
        for quantity, speed in zip(quantities, speeds, strict=False):
            record.judge(node, speed, quantity, evidence=f"test {test}: {TESTS[test - 1]}")


def judge_number(record: Recorder, node: str, tool: str, runs: Collection[str], has: Mapping[str, int]) -> None:
    """That each GPU had its run, of those that had some; `runs` end with "GPU 0"."""
    number = len({name.rpartition(" ")[2] for name in runs})
    if 0 < number < has.get(node, 0):
        why = f"{tool} ran on {number} of {has[node]} GPUs"
        record.failed(node, why, number, "GPUs", wanted=f"{has[node]} GPUs")


@check(
    name="babelstream",
    title="GPU memory is as fast as the model's should be",
    cannot="single wrong bits; all GPUs together at their power limit",
    level=3,
    needs=(*NEEDS, "tool:hip-stream"),
    cause="a GPU is throttled or its memory is defective",
    next_step=(
        "run `hip-stream --device N -n 50 -s 268435456` on that GPU; `amd-smi metric` shows clocks and temperatures"
    ),
    source="AMD system acceptance, BabelStream",
)
def test_babelstream(record: Recorder, evidence: Any, cluster: Any) -> None:
    def fetch() -> dict[str, Any]:
        words = ["hip-stream", "-n", "50", "-s", "268435456", "--device"]
        at_once = {f"GPU {index}": [*words, str(index)] for index in range(performance.gpus(record.nodes))}
        return performance.tools(cluster, names(record), [at_once], seconds=300, minutes=60)

    ran = evidence.take("babelstream", fetch)
    has = {node.name: len(node.profile.gpus) for node in record.nodes if node.profile}
    for node in got(record, ran):
        judge_number(record, node, "hip-stream", ran.get(node, {}), has)
        for name, run in sorted(ran.get(node, {"GPU 0": None}).items()):
            speeds = read(record, node, run, gpu_tools.parse_babelstream, f"hip-stream, {name}")
            for function, speed in (speeds or {}).items():
                record.judge(node, speed, f"stream-{function.lower()}", evidence=f"{name}, {function}")


@check(
    name="gemm-rocblas",
    title="GPUs multiply matrices as fast as their model should, with rocBLAS",
    cannot=(
        "power and heat with all GPUs busy, since one GPU runs after the other and the best of three runs "
        "counts: `rvs` and `soak` do that"
    ),
    level=3,
    needs=(*NEEDS, "tool:rocblas-bench"),
    cause="heat or a power cap throttles a GPU, or rocBLAS has no kernels for it",
    next_step="run `rocblas-bench` and watch clocks, power and temperature with `amd-smi metric`",
    source="AMD system acceptance, rocBLAS",
)
def test_gemm_rocblas(record: Recorder, evidence: Any, cluster: Any) -> None:
    """One GPU after the other, each the best of some runs, as AMD's guide takes it."""

    def fetch() -> dict[str, Any]:
        again = f'for _ in {" ".join(map(str, range(RUNS)))}; do "$@" || exit; done'
        batches: list[performance.Batch] = [
            {
                f"{quantity} GPU {index}": [
                    *("sh", "-c", again, "sh", "rocblas-bench"),
                    *(*line.split(), "-i", "50", "--device", str(index)),
                ]
            }
            for quantity, line in PRECISIONS.items()
            for index in range(performance.gpus(record.nodes))
        ]
        return performance.tools(cluster, names(record), batches, seconds=90, minutes=60)

    ran = evidence.take("rocblas", fetch)
    has = {node.name: len(node.profile.gpus) for node in record.nodes if node.profile}
    for node in got(record, ran):
        judge_number(record, node, "rocblas-bench", ran.get(node, {}), has)
        for name, run in sorted(ran.get(node, {"rocblas-fp32 GPU 0": None}).items()):
            quantity, _, gpu = name.partition(" ")
            tflops = read(record, node, run, best_of, f"rocblas-bench, {gpu}")
            if tflops is not None:
                record.judge(node, tflops, quantity, evidence=gpu)


def best_of(text: str, tool: str) -> float:
    """Of several runs, the fastest; a last one without a result tells why."""
    runs = [part for part in re.split(r"^(?=transA,)", text, flags=re.MULTILINE) if part.startswith("transA,")]
    return max(gpu_tools.parse_rocblas(part, tool) for part in runs or [text])


@check(
    name="gemm",
    title="GPUs multiply matrices and copy memory as healthy ones do, with PyTorch or JAX",
    cannot=(
        "power and heat with all GPUs busy, since one GPU runs after the other and the best of three runs "
        "counts: `rvs` and `soak` do that"
    ),
    level=3,
    core=True,
    needs=NEEDS,
    cause="heat or a power cap throttles a GPU, it computes wrong results, or the framework has no kernels for it",
    next_step=(
        "watch clocks, power and temperature with `amd-smi metric` during the check; compare with the node's other GPUs"
    ),
    source="Primus, node_smoke",
)
def test_gemm(record: Recorder, evidence: Any, cluster: Any) -> None:
    ran = evidence.take("gemm", lambda: performance.gemm(cluster, names(record)))
    has = {node.name: len(node.profile.gpus) for node in record.nodes if node.profile}
    for node in got(record, ran):
        answer = ran.get(node) or {"gpus": [], "error": "it gave no answer"}
        if "without ROCm" in answer["error"]:
            record.skipped(node, answer["error"], "no-tool")
        elif answer["error"] or not answer["gpus"]:
            record.failed(node, answer["error"] or "the framework sees no GPU", evidence=answer["error"])
        elif len(answer["gpus"]) < has.get(node, 0):
            why = f"the framework sees {len(answer['gpus'])} of {has[node]} GPUs"
            record.failed(node, why, len(answer["gpus"]), "GPUs", wanted=f"{has[node]} GPUs")
        for index, gpu in enumerate(answer["gpus"]):
            about = f"GPU {index}, {gpu['name']}"
            if not gpu["error"] <= 0.01:  # bf16 has 8 bits; also where it is no number
                why = f"GPU {index} multiplies wrongly: relative error {gpu['error']:g}"
                record.failed(node, why, wanted="at most 0.01")
            record.judge(node, gpu["tflops"], "gemm-bf16", evidence=about)
            record.judge(node, gpu["gb"], "hbm-bandwidth", evidence=about)
