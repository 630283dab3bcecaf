"""Runs of the suite on clusters of any size that nobody has: for the report's size, its time to open, and its looks.

python tests/support/simulated_run.py 16 FOLDER
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rocstack.verify.result import Check, CheckResult, Measure, NodeSeen, Run, State, skips_in, state_of

MODEL = "8 × MI300X, 8 × broadcom 400G"
IMAGE, DIGEST = "sha256:" + "bb0a1b73" * 8, "sha256:" + "f57a8125" * 8
PLAIN = (
    ("image-equal", "The same image runs on every node", 0, "bb0a1b73", ""),
    ("kernel-equal", "The same kernel runs on every node", 1, "6.8.0-45-generic", ""),
    ("rocm-equal", "Driver and ROCm are the same on every node", 1, "7.0.2", ""),
    ("numa-balancing", "NUMA balancing is off", 1, 0, ""),
    ("memlock", "Jobs may lock all memory", 1, "unlimited", ""),
    ("munge", "A credential made on the node is accepted there", 1, 0, ""),
    ("clock", "The clock is that of the control node", 1, 0.0021, "s"),
    ("mpi-launch", "A simple MPI job starts on every node", 1, 2, "ranks"),
    ("gpu-count", "Every GPU of the node is there", 2, 8, "GPUs"),
    ("gres", "Slurm offers every GPU", 2, 8, "GPUs"),
    ("pcie", "Every GPU's PCIe link runs at full speed", 2, "32 GT/s x16", ""),
    ("nic-speed", "Every NIC's link runs at full speed", 2, 400, "Gb/s"),
    ("train-one", "A model trains on one GPU", 2, 0.41, "s"),
)


def simulated_run(
    nodes: int = 1000,
    *,
    bad: Iterable[str] = ("n7",),
    slow: Iterable[str] = ("n5",),
    absent: Iterable[str] = (),
    virtual: bool = False,
    seed: int = 7,
    **about: Any,
) -> Run:
    """`bad` nodes lack a GPU and lose what they send; `slow` ones carry half of what the others do."""
    dice = random.Random(seed)
    names = [f"n{number}" for number in range(1, nodes + 1)]
    there = [name for name in names if name not in set(absent)]
    made = _Made(dice, there, set(bad), set(slow), virtual)
    results = [made.plain(*each) for each in PLAIN]
    results += [made.pairs(), made.cluster(), made.curves(), made.topology(), made.hbm(), made.skipped(), made.broken()]
    given: dict[str, Any] = {
        "rocstack": "0.1.0",
        "id": "20261120-233100",
        "cluster": "simulated",
        "control": "n1",
        "who": "ada",
        "when": "2026-11-20T23:31:00Z",
        "seconds": 84.2,
        "level": 3,
        "nodes": tuple(_seen(name, name not in there, virtual) for name in names),
        "image": IMAGE,
        "digest": DIGEST,
        "labels": {"io.rocstack.stack": "debian-13", "io.rocstack.nic": "broadcom", "io.rocstack.gfx": "gfx942"},
        "versions": {"rocm": "7.0.2", "rccl": "2.26.6", "openmpi": "5.0.8", "ucx": "1.19.0", "slurm": "24.11.5"},
        "fabric": {name: {"NCCL_IB_HCA": "bnxt_re", "NCCL_IB_GID_INDEX": "3", "UCX_TLS": "rc,sm"} for name in there},
        "results": tuple(results),
    }
    return Run(**{**given, **about})


def _seen(name: str, absent: bool, virtual: bool) -> NodeSeen:
    return NodeSeen(
        name=name,
        roles=("control", "worker") if name == "n1" else ("worker",),
        virtual="mi300x-thor2" if virtual else None,
        absent="ssh: connection timed out" if absent else "",
        image=IMAGE,
        model="" if absent else MODEL,
    )


class _Made:
    """The checks of one simulated run."""

    def __init__(self, dice: random.Random, names: list[str], bad: set[str], slow: set[str], virtual: bool) -> None:
        self.dice, self.names, self.bad, self.slow, self.virtual = dice, names, bad, slow, virtual

    def plain(self, name: str, title: str, level: int, value: Any, unit: str) -> CheckResult:
        measures = []
        for node in self.names:
            lacks = name in ("gpu-count", "gres") and node in self.bad
            measures.append(
                Measure(
                    state="failed" if lacks else "passed",
                    node=node,
                    value=7 if lacks else value,
                    unit=unit,
                    wanted=f"{value} {unit}".strip(),
                    why=f"7 {unit}, not 8 {unit}" if lacks else "",
                    evidence="/sys/class/kfd/kfd/topology/nodes: 2 CPUs, 7 GPUs\nno 0000:c6:00.0" if lacks else "",
                    virtual=self.virtual and level >= 2,
                )
            )
        return _result(name, title, level, measures)

    def pairs(self) -> CheckResult:
        """All pairs; of many nodes only a ring is measured one by one, and all are drawn."""
        count = len(self.names)
        latency: list[list[float | None]] = [[None] * count for _ in self.names]
        width: list[list[float | None]] = [[None] * count for _ in self.names]
        for i, one in enumerate(self.names):
            for j, two in enumerate(self.names[:i]):
                drag = 2.0 if {one, two} & self.slow else 1.0
                latency[i][j] = latency[j][i] = round(self.dice.gauss(3.1, 0.05) * drag, 2)
                width[i][j] = width[j][i] = round(self.dice.gauss(47.6, 0.4) / drag, 1)
        near = range(1, 4) if count > 40 else range(1, count)
        measures = [
            self._pair(one, self.names[(i + step) % count], width[i][(i + step) % count])
            for i, one in enumerate(self.names)
            for step in near
            if (i + step) % count != i
        ]
        names = list(self.names)
        quantities = [
            {"name": "latency", "unit": "us", "better": "low", "nodes": names, "values": latency},
            {"name": "bandwidth", "unit": "GB/s", "better": "high", "nodes": names, "values": width},
        ]
        title = "Every pair of nodes exchanges messages"
        return _result("mpi-pairs", title, 3, measures, item=8, drawings={"matrix": {"quantities": quantities}})

    def _pair(self, one: str, two: str, value: float | None) -> Measure:
        lost = bool({one, two} & self.bad)
        return Measure(
            state="failed" if lost else "passed",
            node=one,
            peer=two,
            value=None if lost else value,
            unit="GB/s",
            wanted="at least 20 GB/s",
            source="docs of the NIC's vendor, tuning guide",
            why="no message arrived within 30 s" if lost else "",
            evidence=f"[{one}] UCX ERROR ibv_create_qp() failed: No such device" if lost else "",
            virtual=self.virtual,
        )

    def cluster(self) -> CheckResult:
        return _result("qos", "A job beyond its QoS waits", 1, [Measure(state="passed", value="QOSMaxGRESPerUser")], 12)

    def curves(self) -> CheckResult:
        sizes = [2**power for power in range(10, 34)]
        kinds = {"all_reduce": (338.0, 1.94, 304), "all_gather": (337.0, 0.97, 330), "alltoall": (46.0, 0.97, 45)}
        series = [
            {
                "name": name,
                "points": [[size, busbw, round(busbw / carried, 2)] for size, busbw in _rising(sizes, peak)],
                "threshold": {"value": least, "text": f"at least {least} GB/s: AMD's acceptance guide"},
            }
            for name, (peak, carried, least) in kinds.items()
        ]
        measure = Measure(
            state="passed", value=338.0, unit="GB/s", wanted="at least 304 GB/s", source="AMD's acceptance guide"
        )
        drawn = {"curves": {"unit": "GB/s", "series": series}}
        title = "Collectives reach the bandwidth of their fabric"
        return _result("collective-performance", title, 3, [measure], item=10, drawings=drawn)

    def topology(self) -> CheckResult:
        nodes = {name: _devices(7 if name in self.bad else 8) for name in self.names}
        measures = [Measure(state="passed", node=name, value=8, unit="pairs") for name in self.names]
        title = "Every GPU has a NIC behind its own PCIe switch"
        return _result("topology", title, 2, measures, item=5, drawings={"topology": {"nodes": nodes}})

    def hbm(self) -> CheckResult:
        measures = [
            Measure(
                state="passed",
                node=name,
                value=round(self.dice.gauss(4100, 20) / (2 if name in self.slow else 1), 1),
                unit="GB/s",
                wanted="at least 2000 GB/s",
            )
            for name in self.names
        ]
        return _result("hbm", "GPU memory is as fast as it should be", 3, measures)

    def skipped(self) -> CheckResult:
        why = "no rvs in the image"
        return CheckResult(check=_check("rvs", "RVS finds no fault", 2), state="skipped", why=why, skips=skips_in(why))

    def broken(self) -> CheckResult:
        measures = [Measure(state="skipped", node=name, why=f"no TransferBench on node {name}") for name in self.names]
        return _result("transferbench", "GPUs copy to each other", 3, measures)


def _rising(sizes: list[int], peak: float) -> list[tuple[int, float]]:
    return [(size, round(peak * size / (size + 2**23), 2)) for size in sizes]


def _devices(gpus: int) -> dict[str, Any]:
    return {
        "gpus": [
            {"index": i, "pci": f"0000:{16 * i + 5:02x}:00.0", "numa": i // 4, "name": "MI300X"} for i in range(gpus)
        ],
        "nics": [
            {
                "name": f"bnxt_re{i}",
                "pci": f"0000:{16 * i + 9:02x}:00.0",
                "numa": i // 4,
                "speed": "400 Gb/s",
                "state": "ACTIVE",
            }
            for i in range(8)
        ],
        "affinity": [{"gpu": i, "nic": f"bnxt_re{i}", "via": "switch"} for i in range(gpus)],
        "links": [{"a": i, "b": j, "kind": "xgmi"} for i in range(gpus) for j in range(i)],
    }


def _check(name: str, title: str, level: int, item: int | None = None) -> Check:
    return Check(
        name=name,
        title=title,
        level=level,
        item=item,
        cause=f"what {name} looks at is not as it should be: a device fell off the bus, or its driver didn't start",
        next_step="`rocstack doctor` on the node says which device is missing; then reset or replace it",
        source="AMD's acceptance guide",
    )


def _result(
    name: str,
    title: str,
    level: int,
    measures: list[Measure],
    item: int | None = None,
    drawings: dict[str, Any] | None = None,
) -> CheckResult:
    state: State = state_of(tuple(measures))
    whys = {measure.why for measure in measures if measure.state == state and measure.why}
    return CheckResult(
        check=_check(name, title, level, item),
        state=state,
        seconds=1.5,
        measures=tuple(measures),
        why="; ".join(sorted(whys)[:3]),
        drawings=drawings or {},
    )


if __name__ == "__main__":
    from rocstack.verify import artifacts

    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    now = simulated_run(int(sys.argv[1]), absent=("n3",) if int(sys.argv[1]) > 3 else ())
    then = simulated_run(int(sys.argv[1]), bad=(), slow=(), id="20261119-231500", when="2026-11-19T23:15:00Z")
    artifacts.write(now, folder, then)
