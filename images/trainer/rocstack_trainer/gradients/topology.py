"""Which way gradients take: the algorithm, the codec and the ring that suit the links between the nodes."""

from __future__ import annotations

import math
import socket
from dataclasses import asdict, dataclass, replace
from typing import Any

from rocstack_trainer.config import EXACT, Parallel
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.gradients import ring_order
from rocstack_trainer.gradients.links import Links, measure
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks.peers import Peers

RING_GAIN = 1.5  # a ring of our own must be so much faster than the backend's to be worth it
BYTES = {"none": 4.0, "bf16": 2.0, "int8": 1.004, "int8+zstd": 0.8}  # per value; zstd as measured on gradients


@dataclass(frozen=True)
class Row:
    """A codec for links of at least `gbps`, and why: docs/bench.md has the measurements."""

    gbps: float
    codec: str
    link: str
    why: str


TABLE = (
    Row(math.inf, "none", "inside one node", "nothing leaves the node, and sums are exact"),
    Row(2, "bf16", "2 Gb/s and more", "half the bytes; int8 takes longer to make than it saves"),
    Row(0.5, "int8", "0.5 Gb/s and more", "a quarter of the bytes; zstd takes longer to make than it saves"),
    Row(0, "int8+zstd", "slower", "a fifth of the bytes: only they count here"),
)


@dataclass(frozen=True)
class Plan:
    """What all ranks agreed on. `nodes` are the ranks of each; `order` are the nodes around our own ring, empty where
    the backend sums. Speeds in Gb/s are the slowest, 0 where nothing was measured; `latency_us` is there and back.
    `dataclasses.asdict` of it goes into JSON."""

    algorithm: str
    codec: str
    nodes: list[list[int]]
    order: list[int]
    why: str
    why_codec: str
    gbps: float = 0.0
    latency_us: float = 0.0
    inside_gbps: float = 0.0
    grad_bytes: int = 0

    def table(self) -> str:
        """For a person: what was measured, the table of codecs with the chosen row marked, and why."""
        lines = [
            f"nodes: {len(self.nodes)} of {'/'.join(map(str, sorted({len(node) for node in self.nodes})))} rank(s)"
        ]
        if self.gbps:
            lines[0] += (
                f"; between them {self.gbps:.3g} Gb/s and {self.latency_us:.0f} us there and back (slowest pair)"
            )
        if self.inside_gbps:
            lines[0] += f"; inside {self.inside_gbps:.3g} Gb/s"
        chosen = row(self.gbps if len(self.nodes) > 1 else math.inf) if self.gbps or len(self.nodes) == 1 else None
        share = 2 * (1 - 1 / len(self.nodes)) * self.grad_bytes / 4  # values that a node sends
        for each in TABLE:
            took = ""
            if self.gbps and math.isfinite(each.gbps):
                took = f" ({share * BYTES[each.codec] * 8e-6 / self.gbps:.0f} ms to send)"
            lines.append(f"{'*' if each is chosen else ' '} {each.link:<17} {each.codec:<10} {each.why}{took}")
        lines.append(f"gradients: {self.algorithm}: {self.why}; {self.codec}: {self.why_codec}")
        if self.order:
            lines.append(f"ring of nodes: {' '.join(map(str, self.order))}")
        if chosen is TABLE[-1]:
            lines.append("hint: over such a link DiLoCo sends a thousandth of the bytes: --diloco.groups=N")
        return "\n".join(lines)


def plan(config: Parallel, rank: Rank, grad_bytes: int, before: dict[str, Any] | None = None) -> Plan:
    """All ranks call it and get rank 0's plan. A restart on the same nodes gets the one it gives as `before`: what
    is measured differs from time to time, and the sums would.

    Raises:
        ConfigError: parallel.algorithm doesn't go with these nodes.
    """
    peers = Peers(rank)
    nodes = find_nodes(peers)
    if agreed := peers.first(lambda: (again := _again(config, nodes, before)) and asdict(again)):
        return Plan(**agreed)
    asked = config.algorithm == "ring" or "auto" in (config.algorithm, config.compress)
    matters = len(nodes) > 1 and config.algorithm not in ("naive", "mpi4py")
    links = measure(nodes, rank.device) if asked and matters else None
    return Plan(**peers.first(lambda: asdict(choose(config, nodes, links, grad_bytes))))


def choose(config: Parallel, nodes: list[list[int]], links: Links | None, grad_bytes: int) -> Plan:
    """The plan for these nodes and links; None if they weren't measured."""
    why = why_codec = "as the settings say"
    algorithm, codec, order = config.algorithm, config.compress, []
    slowest = min((g for a, row in enumerate(links.gbps) for b, g in enumerate(row) if a != b)) if links else 0.0
    if codec == "auto" and algorithm in EXACT:
        codec, why_codec = "none", "this algorithm is exact"
    elif codec == "auto":
        best = row(slowest if links else math.inf)
        codec, why_codec = best.codec, best.why
    if algorithm == "auto":
        algorithm, why = "flat", "one rank per node"
        if len(nodes) == 1:
            why = "one node"
        elif len({len(node) for node in nodes}) > 1:
            why = "not every node has as many ranks"
        elif len(nodes[0]) > 1 and links and links.inside_gbps >= slowest:
            algorithm, why = "hierarchical", "links inside a node are faster: each rank sends its share between nodes"
        elif len(nodes[0]) > 1:
            why = "links inside a node are no faster than between nodes"
    best_order = ring_order.best(links.gbps) if links else [*range(len(nodes))]
    if algorithm == "ring":
        order = best_order
    elif links and codec in ("none", "bf16") and config.algorithm in ("auto", "hierarchical"):
        gain = ring_order.slowest(links.gbps, best_order) / ring_order.slowest(links.gbps, range(len(nodes)))
        if gain >= RING_GAIN:
            algorithm, order = algorithm.replace("flat", "ring"), best_order
            why += f"; our ring avoids slow links and is {gain:.1f} times as fast as one in rank order"
    measured = (slowest, links.latency_us, links.inside_gbps) if links else (0.0, 0.0, 0.0)
    return Plan(algorithm, codec, nodes, order, why, why_codec, *measured, grad_bytes)


def row(gbps: float) -> Row:
    """The first of the table that such a link is fast enough for."""
    return next(row for row in TABLE if gbps >= row.gbps)


def _again(config: Parallel, nodes: list[list[int]], before: dict[str, Any] | None) -> Plan | None:
    """The plan before, if it is one for these settings and nodes. Raises ConfigError if none can be."""
    if config.algorithm == "hierarchical" and len({len(node) for node in nodes}) > 1:
        raise ConfigError(f"parallel.algorithm=hierarchical needs as many ranks on each node, not {nodes}")
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
