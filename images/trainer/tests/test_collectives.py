"""Every collective against the same sum made on one rank, over real processes."""

import itertools
import math

import pytest
import torch
import torch.distributed as dist
from conftest import grouped, maker, ranks, relative
from oracles import Ring

from rocstack_trainer.gradients import team
from rocstack_trainer.gradients.compress import CODECS
from rocstack_trainer.rank import Rank

NODES, UNEVEN = [[0, 1], [2, 3]], [[0, 1], [2]]
LOSSY = ["bf16", "int8", "int8+zstd"]


def values(rank: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1000 * seed + rank))


# The ring


def ringed(rank: Rank, sizes: list[int], orders: list[list[int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    found = []
    for size, order in itertools.product(sizes, orders):
        wire = team.everybody()
        mine, theirs = values(rank.rank, size), values(rank.rank, size)
        Ring(wire, order)(mine)
        dist.all_reduce(theirs)
        found.append((mine, theirs))
        chunk = [len(part) for part in mine.tensor_split(rank.world)]
        assert wire.sent <= 8 * (sum(chunk) - min(chunk)), "sent more than a ring does"
        assert wire.sent >= 8 * (sum(chunk) - max(chunk))
    return found


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_ring_is_all_reduce(world: int) -> None:
    orders = [[], list(range(world))[::-1], [*range(1, world, 2), *range(0, world, 2)]]
    per_rank = ranks(world, grouped, ringed, [0, 1, world - 1, world + 1, 1000, 12345], orders)
    for same in zip(*per_rank, strict=True):
        for mine, theirs in same:
            assert torch.equal(mine, same[0][0]), "ranks differ"
            assert torch.equal(mine, theirs) if world <= 2 else torch.allclose(mine, theirs, atol=1e-5)


# Every algorithm with every codec


def summed(rank: Rank, plans: list[tuple], size: int) -> list[tuple[torch.Tensor, int]]:
    found = []
    for algorithm, name, nodes in plans:
        make = maker(rank, algorithm, name, nodes)
        flat = values(rank.rank, size)
        make(size)(flat)
        found.append((flat, make.sent))
    return found


CODED = [("flat", name, None) for name in ("none", *LOSSY)]
PLANS = {
    2: [*CODED, ("hierarchical", "none", None)],
    3: [*CODED, *(("hierarchical", name, UNEVEN) for name in ("none", *LOSSY))],
    4: [*CODED, *(("hierarchical", name, nodes) for name in ("none", *LOSSY) for nodes in (NODES, [[0, 2], [1, 3]]))],
}
TOLERANCE = {"none": 1e-6, "bf16": 0.006, "int8": 0.02, "int8+zstd": 0.02}


@pytest.mark.parametrize("size", [1, 3, 40_001])
@pytest.mark.parametrize("world", PLANS)
def test_sums_are_right_and_the_same_bits_on_all_ranks(world: int, size: int) -> None:
    right = sum(values(rank, size) for rank in range(world))
    for (_, name, _), *same in zip(PLANS[world], *ranks(world, grouped, summed, PLANS[world], size), strict=True):
        assert all(torch.equal(flat, same[0][0]) for flat, _ in same)
        assert relative(same[0][0], right) <= TOLERANCE[name]


def test_bytes_are_counted() -> None:
    """On 4 ranks, 10,000 values: whole tensors of 40,000 bytes, shares of 20,000 inside a node of two."""
    plans = [("flat", "none", None), ("flat", "int8", None), ("flat", "bf16", None)]
    plans += [("hierarchical", name, NODES) for name in ("none", "bf16", "int8")]
    int8 = CODECS["int8"].size
    inside = 2 * 20_000  # one share out, one back
    counted = [sent for _, sent in ranks(4, grouped, summed, plans, 10_000)[1]]
    assert counted == [
        60_000,
        2 * 3 * int8(2500),
        30_000,
        inside + 20_000,
        inside + 10_000,
        inside + int8(5000),
    ]


def uneven_bytes(rank: Rank) -> int:
    make, flat = maker(rank, "hierarchical", "int8", UNEVEN), values(rank.rank, 10_000)
    make(len(flat))(flat)
    return make.sent


def test_where_nodes_are_uneven_one_rank_of_each_sends() -> None:
    between = CODECS["int8"].size(10_000)  # the two leaders swap; inside, 40,000 bytes go to rank 0 and come back
    assert ranks(3, grouped, uneven_bytes) == [between + 40_000, 40_000, between]


def zstd_bytes(rank: Rank) -> tuple[int, int]:
    make, flat = maker(rank, "flat", "int8+zstd"), values(rank.rank, 100_000)
    message = len(CODECS["int8+zstd"].encode(flat))
    make(len(flat))(flat)
    return make.sent, message


def test_entropy_coded_messages_are_counted_as_long_as_they_are() -> None:
    for sent, message in ranks(2, grouped, zstd_bytes):
        assert sent == message + 8  # and its length
        assert message < 0.95 * CODECS["int8"].size(100_000)


# What must never happen


def largest(rank: Rank) -> tuple[torch.Tensor, set[torch.dtype]]:
    """The largest int8 on every rank, and the types of all tensors that were summed on the way."""
    added, original = set(), dist.all_reduce

    def seen(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
        added.add(tensor.dtype)
        return original(tensor, *args, **kwargs)

    dist.all_reduce = seen
    try:
        flat = torch.full((4096,), 127.0)
        for nodes in (None, NODES, [[0, 1, 2], [3]]):
            for name in ("none", *LOSSY):
                mine = flat.clone()
                maker(rank, "hierarchical" if nodes else "flat", name, nodes)(len(flat))(mine)
                assert mine.unique().tolist() == [508.0], (name, mine)
    finally:
        dist.all_reduce = original
    return mine, added


def test_int8_is_never_summed_on_the_wire() -> None:
    for mine, added in ranks(4, grouped, largest):
        assert torch.equal(mine, torch.full((4096,), 508.0))
        assert added == {torch.float32, torch.bfloat16}


def poisoned(rank: Rank, plans: list[tuple], size: int) -> list[tuple[float, bool]]:
    found = []
    for (algorithm, name, nodes), bad in itertools.product(plans, (math.nan, math.inf, -math.inf)):
        flat = values(rank.rank, size)
        if rank.rank == 1:
            flat[size // 2] = bad
        maker(rank, algorithm, name, nodes)(size)(flat)
        found.append((flat[size // 2].item(), bool(flat.isfinite().all())))
    return found


@pytest.mark.parametrize("world", PLANS)
def test_a_nan_or_infinity_of_one_rank_reaches_all(world: int) -> None:
    for found in ranks(world, grouped, poisoned, PLANS[world], 9000):
        assert not any(math.isfinite(value) or finite for value, finite in found)


# Error feedback


def repeated(rank: Rank, name: str, nodes: list[list[int]] | None, steps: int) -> list[float]:
    """The error of the mean over 1, and over all, of the sums of one constant gradient."""
    size = 20_001
    right = sum(values(r, size) for r in range(rank.world))
    collective = maker(rank, "hierarchical" if nodes else "flat", name, nodes)(size)
    total, errors = torch.zeros(size, dtype=torch.float64), []
    for step in range(1, steps + 1):
        flat = values(rank.rank, size)
        collective(flat)
        total += flat
        errors.append(relative(total / step, right))
    kept = collective.residuals()
    assert kept
    assert all(r.norm() < 0.1 * right.norm() for r in kept.values())
    return errors


@pytest.mark.parametrize(("world", "nodes"), [(2, None), (3, None), (4, NODES)])
def test_over_the_steps_error_feedback_loses_nothing(world: int, nodes: list[list[int]] | None) -> None:
    for errors in ranks(world, grouped, repeated, "int8+zstd", nodes, 20):
        assert errors[0] > 0.005
        assert errors[-1] < errors[0] / 10


def residual_continues(rank: Rank) -> list[bool]:
    """Two steps at once, and with a fresh collective between them that gets the first one's residuals."""
    size, make = 5000, maker(rank, "flat", "int8")
    straight, first, second = make(size), make(size), make(size)
    results = []
    for collectives in ((straight, straight), (first, second)):
        flats = [values(rank.rank, size, seed) for seed in range(2)]
        collectives[0](flats[0])
        if collectives[1] is second:
            for name, residual in second.residuals().items():
                residual.copy_(first.residuals()[name])
        collectives[1](flats[1])
        results.append(flats)
    return [torch.equal(a, b) for a, b in zip(*results, strict=True)]


@pytest.mark.parametrize("world", [2, 3])
def test_a_restart_that_keeps_the_residuals_goes_on_bitwise(world: int) -> None:
    assert ranks(world, grouped, residual_continues) == [[True, True]] * world
