"""What must not grow with the number of ranks. bench/train/ranks.py measures how the rest does."""

import socket
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import ranks, small
from torch.testing._internal.distributed.fake_pg import FakeStore

from rocstack_trainer.errors import ConfigError, few
from rocstack_trainer.gradients import topology
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks import launch
from rocstack_trainer.ranks.beat import Pulses
from rocstack_trainer.ranks.peers import Peers

MANY = 2048


def planned(rank: Rank) -> tuple[int, int]:
    """Nodes of a plan, and the bytes that rank 0 took in for it: all others say what it says."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=MANY)
    taken, gather, broadcast = [], dist.all_gather, dist.broadcast

    def counted(into: Any, *args: Any, **how: Any) -> None:
        taken.append(sum(t.nbytes for t in into) if isinstance(into, list) else into.nbytes)
        (gather if isinstance(into, list) else broadcast)(into, *args, **how)

    dist.all_gather = dist.broadcast = counted
    many = replace(rank, world=MANY, local_world=8, backend="gloo", device="cpu")
    plan = topology.plan(small("parallel.compress=none").parallel, many, 1 << 20)
    return len(plan.nodes), sum(taken)


def test_a_plan_of_many_ranks_is_told_once() -> None:
    ((nodes, taken),) = ranks(1, planned)
    assert nodes == MANY // 8
    assert taken < 100 * MANY  # with all of it from each: 24 MB


def told(rank: Rank) -> tuple[Any, ...]:
    def fails() -> None:
        if rank.rank == 1:
            raise ConfigError("no such file")

    with launch.process_group(rank, 60):
        peers, raised = Peers(rank), []
        for collective in (peers.agree, peers.each, peers.collect):
            with pytest.raises(ConfigError) as error:
                collective(fails)
            raised.append((str(error.value), error.value.everywhere))
        return (
            peers.first(lambda: (rank.rank, "é")),
            peers.each(lambda: torch.ones(rank.rank)).numel(),
            peers.collect(lambda: "x" * rank.rank),
            raised,
        )


def test_ranks_tell_rank_0_or_all_what_each_has() -> None:
    fault = [(f"rank 1 on {socket.gethostname()}: no such file", True)] * 3
    assert ranks(3, told) == [([0, "é"], n, [] if n else ["", "x", "xx"], fault) for n in range(3)]


class Asked:
    def __init__(self) -> None:
        self.store, self.requests = dist.HashStore(), 0

    def __getattr__(self, name: str) -> Any:
        self.requests += 1
        return getattr(self.store, name)


def test_a_look_at_many_ranks_is_one_request() -> None:
    store, pulses, names = Asked(), Pulses(1), [str(n) for n in range(MANY)]
    pulses.look(store, *names)
    before = store.requests
    store.store.add("beat/7", 1)
    pulses.look(store, *names)
    assert store.requests == before + 1
    assert pulses.moved == {"7"}
    pulses.look(Asked(), *names)  # a new store knows nobody
    assert pulses.silent_s("7") == 0


def test_of_many_names_few_are_said() -> None:
    assert few([3, "n1"]) == "3, n1"
    assert few(range(MANY)).endswith(", 15 and 2032 more")
