"""How fast gradients are summed: all-reduce by size, on each node and on all together."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from experiments import performance

from rocstack.base.errors import CheckFailed
from rocstack.verify.evidence import CheckSkipped, ClusterEvidence
from rocstack.verify.parsers import rccl
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder, without
from rocstack.verify.result import NO_FLOOR, Skip

QUANTITY = "all-reduce-busbw"
BIG = performance.BIG
OUT_OF_PLACE = ("alltoall_perf",)  # which alone ROCm/cvs judges so; AMD's acceptance means in-place bus bandwidth
BACKEND = "dist.all_reduce"  # of our benchmark: what PyTorch itself does
ALONE = "its one GPU has no other to sum with"
TOLERANCE = 1e-5  # relative: two ways of summing fp32
GROWTH = 2.0  # that the largest size must be faster than the smallest


@pytest.fixture(scope="session")
def summed(
    evidence: Any, cluster: Any, cluster_evidence: ClusterEvidence, tools: Mapping[str, list[str]]
) -> dict[str, Any]:
    def fetch() -> dict[str, Any]:
        nodes = cluster.allocated()
        measured = cluster.slurm.gpus and all(performance.RCCL in tools.get(node, ()) for node in nodes)
        if not measured and "part:trainer" in without(cluster_evidence.labels):
            why = (
                "no trainer in the image"
                if cluster.slurm.gpus == 0
                else "neither rccl-tests nor the trainer in the image"
            )
            raise CheckSkipped(why, Skip(kind="no-tool", nodes=tuple(nodes)))
        return performance.collectives(cluster, tools)

    results: dict[str, Any] = evidence.take("collective_performance", fetch)
    return results


@check(
    name="collective-performance",
    title="Collectives reach the hardware's bandwidth at 8 GiB, with right sums (without rccl-tests: all-reduce alone)",
    cannot=(
        "hardware, or a number of nodes, that no source has a number of: then it is measured; below 8 GiB "
        "nothing is judged but the sums"
    ),
    level=3,
    core=True,
    item=10,
    needs=("jobs",),
    scope="cluster",
    cause=(
        "RCCL fell back to sockets (NCCL_DEBUG=INFO shows via NET/Socket), GPUs reach their NICs through another "
        "socket or through ACS, a link is slow, or other jobs use the fabric"
    ),
    next_step=(
        "check `transport`, `rdma-write-bandwidth` and the PCIe checks first; then run `NCCL_DEBUG=INFO "
        "all_reduce_perf -b 8 -e 8G -f 2 -g 8` on the slowest node"
    ),
    source="AMD system acceptance, RCCL; rccl-tests, doc/PERFORMANCE.md",
)
def test_collective_performance(record: Recorder, summed: dict[str, Any]) -> None:
    if summed["tool"] == "rccl-tests":
        by_rccl_tests(record, summed)
    else:
        by_our_benchmark(record, summed)


def by_rccl_tests(record: Recorder, summed: Mapping[str, Any]) -> None:
    gpus, nodes = summed["gpus"], summed["nodes"]
    series, judged = [], entire(record, nodes, gpus)
    for node in nodes:
        run = summed["each"].get(node, {}).get(performance.RCCL)
        points = one(record, node, run, gpus, judged, [node])
        wanted = line(record, QUANTITY, [node]) if judged else None
        series.append({"name": f"all_reduce, {gpus} GPUs of {node}", "points": points, "threshold": wanted})
    for tool, run in summed["all"].items():
        points = one(record, "", run, gpus * len(nodes), judged, nodes, tool)
        name = f"{tool.removesuffix('_perf')}, {gpus * len(nodes)} GPUs on {len(nodes)} nodes"
        wanted = line(record, performance.OTHERS.get(tool, QUANTITY), nodes) if judged else None
        series.append({"name": name, "points": points, "threshold": wanted})
    draw(record, series)


def one(
    record: Recorder,
    node: str,
    run: Mapping[str, Any] | None,
    ranks: int,
    judged: bool,
    nodes: Collection[str],
    tool: str = performance.RCCL,
) -> list[list[float]]:
    """Judges one run of rccl-tests; its points."""
    if run is None:
        record.failed(node, f"{tool} gave no answer")
        return []
    try:
        output = rccl.parse(run["out"], tool)
    except CheckFailed as error:
        record.unread(node, error, run["out"])
        return []
    last = output.rows[-1]
    evidence = f"{tool} {output.tests}, RCCL {output.library}: {last.size} bytes in {last.out_of_place.us:g} us"
    if ways := ways_of(run["out"]):
        evidence += f"\nbetween nodes via {ways}"
    if run["code"]:
        record.failed(node, f"{tool} ended with {run['code']}", evidence=run["out"])
    if output.wrong:
        record.failed(
            node, f"{output.wrong} elements are wrong", output.wrong, "elements", wanted="0", evidence=evidence
        )
    if output.ranks and output.ranks != ranks:
        record.failed(
            node, f"{output.ranks} ranks took part, not {ranks}: is it built with MPI?", output.ranks, "ranks"
        )
    in_place = tool not in OUT_OF_PLACE
    quantity, busbw = performance.OTHERS.get(tool, QUANTITY), output.busbw(BIG, in_place)
    if ranks == 1:
        record.skipped(node, ALONE, evidence=evidence)  # busbw is 0 then
    elif judged or busbw is None:
        record.judge(node, busbw, quantity, evidence=evidence, nodes=nodes)
    else:
        record.measured(node, busbw, "GB/s", wanted=NO_FLOOR, evidence=evidence)
    return output.points(in_place)


def entire(record: Recorder, names: Collection[str], gpus: int) -> bool:
    """Whether so many GPUs are all of each node: thresholds are about whole nodes."""
    return {len(node.profile.gpus) for node in record.nodes if node.profile and node.name in names} == {gpus}


def ways_of(text: str) -> str:
    try:
        return ", ".join(rccl.parse_transport(text).net)
    except CheckFailed:
        return ""


def by_our_benchmark(record: Recorder, summed: Mapping[str, Any]) -> None:
    """Between CPUs nothing is known to judge the bandwidth by, and between GPUs only that of the largest sums; but sums
    must be right, and large ones go faster."""
    rows = []
    for run in (summed, *([summed["big"]] if "big" in summed else [])):
        start = run["out"].find('{"rows"')  # libraries may write before and behind it
        try:
            rows += json.JSONDecoder().raw_decode(run["out"][max(start, 0) :])[0]["rows"]
        except (ValueError, KeyError):
            why = f"the benchmark ended with {run['code']}: {run['said'] or 'it printed nothing'}"
            record.failed("", why, evidence=run["out"])
            return
        if run["code"]:
            record.failed("", f"the benchmark ended with {run['code']}: {run['said']}", evidence=run["out"])
    nodes = summed["nodes"]
    by = "RCCL, GPUs" if summed["gpus"] else "gloo, CPU"
    where = f"{summed['ranks']} ranks on {len(nodes)} nodes"
    wrong = next((row for row in rows if not row["error"] <= TOLERANCE), None)  # also where it is no number
    if wrong:
        why = f"{wrong['side']} of {wrong['bytes']} bytes sums up something else than {BACKEND}"
        record.failed("", f"{why}: relative error {wrong['error']:g}", wanted=f"at most {TOLERANCE:g}")
    carried = 2 * (summed["ranks"] - 1) / summed["ranks"]  # busbw by algbw, of an all-reduce
    speeds = [(row["bytes"], row["busbw_gb_s"]) for row in rows if row["side"] == BACKEND]
    points = [[size, busbw, *([busbw / carried] if carried else [])] for size, busbw in speeds]
    (small, slow), (large, fast) = speeds[0], speeds[-1]
    judged = bool(summed["gpus"]) and large >= BIG and entire(record, nodes, summed["ranks"] // len(nodes))
    if summed["ranks"] == 1:
        record.skipped("", ALONE)
    elif fast < slow * GROWTH:
        why = f"{large} bytes go no faster than {small}: {fast:.3g} and {slow:.3g} GB/s"
        record.failed("", why, fast, "GB/s", wanted=f"at least {GROWTH:g} times that of {small} bytes")
    else:
        evidence = f"busbw of {large} bytes; {where}, {by}, by programs/all_reduce.py"
        if judged:
            record.judge("", fast, QUANTITY, evidence=evidence, nodes=nodes)
        else:
            record.measured("", fast, "GB/s", wanted=NO_FLOOR, evidence=evidence)
    wanted = line(record, QUANTITY, nodes) if judged else None
    draw(record, [{"name": f"all_reduce, {where} ({by})", "points": points, "threshold": wanted}])


def line(record: Recorder, quantity: str, names: Collection[str]) -> dict[str, Any] | None:
    """The threshold of these nodes together, to be drawn."""
    known = record.quantities[quantity]
    bound = None if any(node.virtual for node in record.nodes if node.name in names) else record.bound(quantity, names)
    return (
        {"value": bound.least, "text": f"{bound.text(known.unit)}: {bound.source}"} if bound and bound.least else None
    )


def draw(record: Recorder, series: list[dict[str, Any]]) -> None:
    unit = record.quantities[QUANTITY].unit
    record.draw("curves", {"unit": unit, "series": [each for each in series if each["points"]]})
