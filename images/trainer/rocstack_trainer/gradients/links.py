"""How fast the nodes reach each other, measured over the backend that the gradients will take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rocstack_trainer.gradients import team
from rocstack_trainer.gradients.team import Team

SIZES = tuple(4**i << 16 for i in range(5))  # bytes: 64 KiB to 16 MiB
ENOUGH_S = 0.025  # a message that took so long tells enough
ALTOGETHER_S = 5.0  # pairs that aren't measured by then count as the slowest


@dataclass(frozen=True)
class Links:
    """`gbps[a][b]`: 10**9 bits per second from node a to node b. `latency_us`: there and back, of the slowest pair.
    `inside_gbps`: between two ranks of one node, of the slowest node; 0 where a node has only one."""

    gbps: list[list[float]]
    latency_us: float
    inside_gbps: float


def measure(nodes: Sequence[Sequence[int]], device: str) -> Links:
    """One rank per node speaks for it; all ranks call this. The pairs of a round are measured side by side."""
    began, everybody = time.monotonic(), team.everybody()
    inside = torch.tensor([_link(everybody, *node[:2], device) if len(node) > 1 else (0, 0) for node in nodes])
    between = torch.zeros(len(nodes), len(nodes), 2)
    for pairs in rounds(len(nodes)):
        for a, b in (*pairs, *(pair[::-1] for pair in pairs)):
            between[a, b] = torch.tensor(_link(everybody, nodes[a][0], nodes[b][0], device))
        late = torch.tensor([int(time.monotonic() - began > ALTOGETHER_S)], device=device)
        dist.broadcast(late, src=0)
        if late.item():
            break
    found = torch.cat([inside[None], between]).to(device)
    dist.all_reduce(found)  # each pair was timed by one rank, and is zero on the others
    gbps, latency = found.cpu().unbind(-1)
    between = gbps[1:]
    between = between.where(between > 0, between[between > 0].min())
    return Links(between.tolist(), latency[1:].max().item(), gbps[0].min().item())


def rounds(n: int) -> list[list[tuple[int, int]]]:
    """Every pair of range(n) once, in rounds in which nobody meets two others: a tournament by the circle method."""
    seats = [*range(n), *([-1] * (n % 2))]  # who meets -1 rests
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(a, b) for a, b in pairs if -1 not in (a, b)])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def _link(everybody: Team, source: int, target: int, device: str) -> tuple[float, float]:
    """(Gb/s, round trip in us) as the source sees it; zeros on the other ranks. Only these two ranks do anything."""
    if everybody.place not in (source, target):
        return 0.0, 0.0
    word, data = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros(SIZES[-1] // 4, device=device)

    def move(tensor: torch.Tensor, to_target: bool) -> None:
        peer, none = (target if everybody.place == source else source), tensor[:0]
        sends = to_target == (everybody.place == source)
        for work in everybody.pass_on(tensor if sends else none, peer, none if sends else tensor, peer):
            work.wait()

    def there_and_back(size: int) -> float:
        """Seconds; the source announces the size, and 0 ends it."""
        start = time.perf_counter()
        move(data[: size // 4], True)
        move(word, False)
        word.item()  # a GPU's receive is over only now
        return time.perf_counter() - start

    if everybody.place == target:
        while True:
            move(word, True)
            if not word.item():
                return 0.0, 0.0
            there_and_back(int(word.item()))

    def timed(size: int) -> float:
        move(word.fill_(size), True)
        return there_and_back(size)

    latency = min(timed(4) for _ in range(3))
    for size in SIZES:
        took = timed(size)
        if took > ENOUGH_S + 3 * latency:  # TCP needs some round trips to get up to speed
            break
    move(word.zero_(), True)
    return 8e-9 * size / max(took - latency, took / 2), latency * 1e6
