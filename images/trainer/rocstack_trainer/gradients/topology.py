"""Which way gradients take: the algorithm and the codec that suit the links between the nodes."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from rocstack_trainer.config import Parallel
from rocstack_trainer.gradients import team
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks.peers import Peers

BYTES = {"none": 4.0, "int8": 1.004, "int8+zstd": 0.8}  # per value; zstd as measured on gradients
SIZES = tuple(4**i << 16 for i in range(5))  # bytes of a message: 64 KiB to 16 MiB
PROBES = 5  # of each size, of which the median counts
ENOUGH_S = 0.025  # a message that took so long tells enough


@dataclass(frozen=True)
class Row:
    """A codec for links of at least `gbps`, and why: docs/bench.md has the measurements."""

    gbps: float
    codec: str
    link: str
    why: str


TABLE = (
    Row(math.inf, "none", "inside one node", "nothing leaves the node, and sums are exact"),
    Row(2, "none", "2 Gb/s and more", "sums are exact; a codec takes longer than it saves"),
    Row(0.5, "int8", "0.5 Gb/s and more", "a quarter of the bytes, with error feedback; zstd would take longer"),
    Row(0, "int8+zstd", "slower", "a fifth of the bytes, with error feedback: only they count here"),
)


@dataclass(frozen=True)
class Links:
    """The slowest of the links around a ring of the nodes: 10**9 bits per second, and what 4 bytes take."""

    gbps: float
    latency_us: float


@dataclass(frozen=True)
class Plan:
    """What all ranks agreed on. `nodes` are the ranks of each; speeds are 0 where nothing was measured.
    `dataclasses.asdict` of it goes into JSON."""

    algorithm: str
    codec: str
    nodes: list[list[int]]
    why: str
    why_codec: str
    gbps: float = 0.0
    latency_us: float = 0.0
    grad_bytes: int = 0

    def table(self) -> str:
        """For a person: what was measured, the table of codecs with the chosen row marked, and why."""
        lines = [
            f"nodes: {len(self.nodes)} of {'/'.join(map(str, sorted({len(node) for node in self.nodes})))} rank(s)"
        ]
        if self.gbps:
            lines[0] += f"; between them {self.gbps:.3g} Gb/s and {self.latency_us:.0f} us (slowest link of a ring)"
        chosen = row(self.gbps if len(self.nodes) > 1 else math.inf) if self.gbps or len(self.nodes) == 1 else None
        share = 2 * (1 - 1 / len(self.nodes)) * self.grad_bytes / 4  # values that a node sends
        for each in TABLE:
            took = ""
            if self.gbps and math.isfinite(each.gbps):
                took = f" ({share * BYTES[each.codec] * 8e-6 / self.gbps:.0f} ms to send)"
            lines.append(f"{'*' if each is chosen else ' '} {each.link:<17} {each.codec:<10} {each.why}{took}")
        lines.append(f"gradients: {self.algorithm}: {self.why}; {self.codec}: {self.why_codec}")
        if chosen is TABLE[-1]:
            lines.append("hint: over such a link DiLoCo sends a thousandth of the bytes: --diloco.groups=N")
        return "\n".join(lines)


def plan(config: Parallel, rank: Rank, grad_bytes: int, before: dict[str, Any] | None = None) -> Plan:
    """All ranks call it and get rank 0's plan. A restart on the same nodes gets the one it gives as `before`: what
    is measured differs from time to time, and the sums would."""
    peers = Peers(rank)
    nodes = find_nodes(peers)
    if agreed := peers.first(lambda: (again := _again(config, nodes, before)) and asdict(again)):
        return Plan(**agreed)
    links = measure(nodes, rank.device) if len(nodes) > 1 and config.compress == "auto" else None
    return Plan(**peers.first(lambda: asdict(choose(config, nodes, links, grad_bytes))))


def choose(config: Parallel, nodes: list[list[int]], links: Links | None, grad_bytes: int) -> Plan:
    """The plan for these nodes and links; None if they weren't measured."""
    why = why_codec = "as the settings say"
    algorithm, codec = config.algorithm, config.compress
    if codec == "auto":
        best = row(links.gbps if links else math.inf)
        codec, why_codec = best.codec, best.why
    if algorithm == "auto":
        algorithm, why = "flat", "the backend's own all-reduce"
        if codec not in ("none", "bf16"):
            why = "one node" if len(nodes) == 1 else "one rank per node"
            if len(nodes) > 1 and max(map(len, nodes)) > 1:
                even = len({len(node) for node in nodes}) == 1
                who = (
                    "each rank sends its share" if even else "one rank of each sends, since they have different numbers"
                )
                algorithm, why = "hierarchical", f"exact inside a node; between nodes {who}"
    measured = (links.gbps, links.latency_us) if links else (0.0, 0.0)
    return Plan(algorithm, codec, nodes, why, why_codec, *measured, grad_bytes)


def measure(nodes: Sequence[Sequence[int]], device: str) -> Links:
    """One rank per node speaks for it: each sends to the next and receives from the one before, all at once, as a ring
    of the backend's does. So it takes as long with a thousand nodes as with three. All ranks call this."""
    everybody, leaders = team.everybody(), [node[0] for node in nodes]
    here = leaders.index(everybody.place) if everybody.place in leaders else None
    out = torch.zeros(SIZES[-1], dtype=torch.uint8, device=device)
    into = torch.empty_like(out)

    def seconds(size: int) -> float:
        times = [0.0]
        if here is not None:
            left, right = leaders[here - 1], leaders[(here + 1) % len(leaders)]
            times = []
            for _ in range(PROBES):
                began = time.perf_counter()
                for work in everybody.pass_on(out[:size], right, into[:size], left):
                    work.wait()
                into[0].item()  # a GPU's receive is over only now
                times.append(time.perf_counter() - began)
        slowest = torch.tensor([median(times)], device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return float(slowest.item())

    seconds(4)  # makes the connections
    latency = seconds(4)
    for size in SIZES:
        took = seconds(size)
        if took > ENOUGH_S + 3 * latency:  # TCP needs some round trips to get up to speed
            break
    return Links(8e-9 * size / max(took - latency, took / 2), latency * 1e6)


def row(gbps: float) -> Row:
    """The first of the table that such a link is fast enough for."""
    return next(row for row in TABLE if gbps >= row.gbps)


def _again(config: Parallel, nodes: list[list[int]], before: dict[str, Any] | None) -> Plan | None:
    """The plan before, if it is one for these settings and nodes."""
    try:
        plan = Plan(**before) if before else None
    except TypeError:  # of another version
        return None
    if not plan or plan.nodes != nodes:
        return None
    wanted = ((config.algorithm, plan.algorithm), (config.compress, plan.codec))
    fits = all(setting in ("auto", chosen) for setting, chosen in wanted)
    return replace(plan, why=f"{plan.why.removesuffix(' (as before)')} (as before)") if fits else None


def find_nodes(peers: Peers) -> list[list[int]]:
    """The ranks of each node, by host name; a host with more ranks than the launcher put on a node is several."""
    nodes: dict[tuple[str, int], list[int]] = {}
    seen: dict[str, int] = {}
    for number, (host, local_world) in enumerate(peers.agree(lambda: (socket.gethostname(), peers.rank.local_world))):
        nodes.setdefault((host, seen.get(host, 0) // local_world), []).append(number)
        seen[host] = seen.get(host, 0) + 1
    return list(nodes.values())
