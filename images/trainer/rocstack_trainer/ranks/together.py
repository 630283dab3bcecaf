"""What one rank can't do ends on all ranks with the same message, so nobody waits for a rank that gave up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from rocstack_trainer.errors import ConfigError
from rocstack_trainer.ranks.launch import Rank

BEAT_S = 2.0  # how often ranks hear of each other while some work and others wait


class AgreedError(ConfigError):
    """Raised on all ranks with the same words: it is enough that rank 0 says them."""

    everywhere = True


def exchange(rank: Rank, mine: Any, fault: str = "") -> list[Any]:
    """What every rank has, in the order of the ranks. Raises AgreedError on all if one has a fault: the first."""
    both = [(mine, fault)] * rank.world
    if rank.world > 1:
        dist.all_gather_object(both, (mine, fault))
    for _, said in both:
        if said:
            raise AgreedError(said)
    return [value for value, _ in both]


def everywhere(rank: Rank, function: Callable[[], Any]) -> Any:
    """What `function` returned on this rank. The ConfigError of one rank is raised on all."""
    made, fault = _attempt(function)
    exchange(rank, None, fault)
    return made


def from_rank_0(rank: Rank, function: Callable[[], Any], send: bool = True) -> Any:
    """What `function` returned on rank 0 (without `send`: None on the others). Its ConfigError is raised on all."""
    made, fault = _attempt(function) if rank.rank == 0 else (None, "")
    sent = [made if send else None, fault]
    if rank.world > 1:
        dist.broadcast_object_list(sent, src=0, device=torch.device(rank.device))
    if sent[1]:
        raise AgreedError(sent[1])
    return made if rank.rank == 0 else sent[0]


def in_step(rank: Rank, work: Iterator[tuple[int, ...]], told: Callable[[list[int]], None]) -> None:
    """Runs `work` on each rank until all are done, however long one takes: a collective never waits for more than
    one item. `told` gets the sums of all items of all ranks now and then. Raises as `exchange` does.
    """
    sums: list[int] = []
    running = anywhere = True
    while anywhere:
        fault, until = "", time.monotonic() + BEAT_S
        try:
            while running and time.monotonic() < until:
                item = next(work, None)
                running = item is not None
                sums = [a + b for a, b in zip(sums or [0] * len(item), item, strict=True)] if item else sums
        except ConfigError as error:
            fault = str(error)
        states = exchange(rank, (running, sums), fault)
        anywhere = any(going for going, _ in states)
        told([sum(column) for column in zip(*(counts for _, counts in states if counts), strict=True)])


def _attempt(function: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return function(), ""
    except ConfigError as error:
        return None, str(error)
