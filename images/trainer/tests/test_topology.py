import itertools
import json
import math
import random
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch.distributed as dist
from conftest import grouped, ranks
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstack_trainer.config import Parallel
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.gradients import links, ring_order, topology
from rocstack_trainer.gradients.links import Links
from rocstack_trainer.rank import Rank

NODES = [[0, 1], [2, 3]]

# The order of the ring


@st.composite
def speeds(draw: Any, least: int, most: int) -> list[list[float]]:
    """Asymmetric: each direction has its own speed."""
    n = draw(st.integers(least, most))
    return [[draw(st.sampled_from([0.1, 0.5, 1.0, 7.0, 10.0])) for _ in range(n)] for _ in range(n)]


def brute_force(speeds: list[list[float]]) -> float:
    """The best slowest link of any ring."""
    rings = itertools.permutations(range(len(speeds)))
    return max(min(speeds[ring[i - 1]][ring[i]] for i in range(len(ring))) for ring in rings)


@settings(max_examples=60, deadline=None)
@given(speeds(1, 6))
def test_the_ring_is_the_one_that_brute_force_finds(speeds: list[list[float]]) -> None:
    order = ring_order.best(speeds)
    assert sorted(order) == list(range(len(speeds)))
    assert ring_order.slowest(speeds, order) == brute_force(speeds)


@pytest.mark.parametrize("n", [7, 8])
@pytest.mark.parametrize("seed", range(3))
def test_the_heuristic_for_many_nodes_finds_it_as_well(n: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    links = [[draw.choice([0.1, 1, 10]) for _ in range(n)] for _ in range(n)]
    exact = ring_order.best(links)
    monkeypatch.setattr(ring_order, "EXACT_NODES", 0)
    order = ring_order.best(links)
    assert sorted(order) == list(range(n))
    assert ring_order.slowest(links, order) == ring_order.slowest(links, exact) == brute_force(links)


@pytest.mark.parametrize("n", [10, 33, 64])
def test_a_large_ring_avoids_the_slow_links(n: int) -> None:
    """A scrambled ring of fast links among slow ones, fast in one direction only."""
    hidden = random.Random(n).sample(range(n), n)
    links = [[1.0] * n for _ in range(n)]
    for i in range(n):
        links[hidden[i - 1]][hidden[i]] = 10.0
    order = ring_order.best(links)
    assert sorted(order) == list(range(n))
    assert ring_order.slowest(links, order) == 10.0


# Measuring


@pytest.mark.parametrize("n", range(1, 12))
def test_rounds_have_each_pair_once_and_nobody_twice(n: int) -> None:
    rounds = links.rounds(n)
    pairs = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]
    assert sorted(pairs) == list(itertools.combinations(range(n), 2))
    assert len(rounds) <= n
    assert all(len({node for pair in pairs for node in pair}) == 2 * len(pairs) for pairs in rounds)


def measured(rank: Rank, nodes: list[list[int]]) -> Links:
    return links.measure(nodes, rank.device)


@pytest.mark.parametrize(("world", "nodes"), [(2, [[0], [1]]), (3, [[0], [1], [2]]), (4, NODES), (3, [[0, 1], [2]])])
def test_every_link_is_measured_and_all_ranks_know(world: int, nodes: list[list[int]]) -> None:
    found = ranks(world, grouped, measured, nodes)
    for known in found:
        assert known == found[0]
        n = len(nodes)
        assert all(0 < known.gbps[a][b] < 2000 for a in range(n) for b in range(n) if a != b)
        assert 1 < known.latency_us < 1e6
        assert (known.inside_gbps > 0) == all(len(node) > 1 for node in nodes)


# The plan


def linked(gbps: float, n: int = 2, inside: float = 400.0) -> Links:
    return Links([[gbps] * n for _ in range(n)], 100.0, inside)


@pytest.mark.parametrize(
    ("gbps", "codec"), [(400, "bf16"), (10, "bf16"), (0.94, "int8"), (0.2, "int8+zstd"), (0.09, "int8+zstd")]
)
def test_the_slowest_link_chooses_the_codec(gbps: float, codec: str) -> None:
    plan = topology.choose(Parallel(), NODES, linked(gbps), 21_000_000)
    assert (plan.algorithm, plan.codec) == ("hierarchical", codec)
    (marked,) = [line for line in plan.table().splitlines() if line.startswith("*")]
    assert codec in marked
    assert topology.row(gbps).why in marked
    assert f"{gbps:.3g} Gb/s" in plan.table()
    assert ("DiLoCo" in plan.table()) == (gbps < 0.5)


def test_inside_one_node_nothing_is_compressed() -> None:
    plan = topology.choose(Parallel(), [[0, 1, 2]], None, 1)
    assert (plan.algorithm, plan.codec, plan.order) == ("flat", "none", [])
    assert "* inside one node" in plan.table()


def test_the_settings_have_the_last_word() -> None:
    plan = topology.choose(Parallel(algorithm="flat", compress="int8"), NODES, None, 1)
    assert (plan.algorithm, plan.codec) == ("flat", "int8")
    assert "*" not in plan.table()
    assert topology.choose(Parallel(algorithm="ring"), NODES, linked(0.1), 1).codec == "none"


@pytest.mark.parametrize(
    ("nodes", "inside", "algorithm"),
    [([[0], [1]], 0.0, "flat"), ([[0, 1], [2]], 0.0, "flat"), (NODES, 5.0, "flat"), (NODES, 50.0, "hierarchical")],
)
def test_the_algorithm_follows_the_nodes(nodes: list[list[int]], inside: float, algorithm: str) -> None:
    assert topology.choose(Parallel(), nodes, linked(10, inside=inside), 1).algorithm == algorithm


def test_our_ring_is_taken_where_the_links_are_very_different() -> None:
    """Two sites: 0, 2, 4 and 1, 3, 5. In rank order each step crosses the slow line."""
    n, far, near = 6, 10.0, 500.0
    gbps = [[near if (a - b) % 2 == 0 else far for b in range(n)] for a in range(n)]
    gbps[4][1] = gbps[5][0] = gbps[1][4] = gbps[0][5] = 50.0
    plan = topology.choose(Parallel(), [[r] for r in range(n)], Links(gbps, 1.0, 0.0), 1)
    assert plan.algorithm == "ring"
    assert ring_order.slowest(gbps, plan.order) == 50.0
    assert "5.0 times" in plan.why
    even = topology.choose(Parallel(), [[r] for r in range(n)], linked(10.0, n), 1)
    assert (even.algorithm, even.order) == ("flat", [])


def planned(rank: Rank, config: Parallel, local_world: int, before: dict[str, Any] | None) -> topology.Plan:
    # Only rank 0's `before` may count.
    return topology.plan(config, replace(rank, local_world=local_world), 1000, before if rank.rank == 0 else None)


def test_all_ranks_have_one_plan_and_a_restart_has_it_again() -> None:
    found = ranks(4, grouped, planned, Parallel(), 2, None)
    assert all(plan == found[0] for plan in found)
    assert found[0].nodes == NODES
    assert found[0].gbps > 0
    kept = json.loads(json.dumps(asdict(found[0]))) | {"codec": "int8+zstd", "gbps": 1e-6}
    for again in ranks(4, grouped, planned, Parallel(), 2, kept):
        assert (again.codec, again.gbps, again.algorithm) == ("int8+zstd", 1e-6, found[0].algorithm)
    for other in ranks(4, grouped, planned, Parallel(), 1, kept):  # other nodes
        assert other.gbps > 1e-6
    for other in ranks(4, grouped, planned, Parallel(compress="bf16", algorithm="flat"), 2, kept):
        assert (other.codec, other.algorithm) == ("bf16", "flat")
    for other in ranks(4, grouped, planned, Parallel(), 2, {"algorithm": "of another version"}):
        assert other.gbps > 1e-6


def refused(rank: Rank, config: Parallel, local_world: int) -> str:
    try:
        planned(rank, config, local_world, None)
    except ConfigError as error:
        dist.barrier()  # or the first to end would take the words out of the others' mouths
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Parallel(algorithm="hierarchical"), "as many ranks on each node"),
    ],
)
def test_what_does_not_go_together_is_refused(config: Parallel, message: str) -> None:
    assert all(message in said for said in ranks(3, grouped, refused, config, 2))


def test_one_node_starts_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "measure", None)
    for plan in ranks(2, grouped, planned, Parallel(), 2, None):
        assert (plan.codec, plan.gbps) == ("none", 0.0)
    assert math.isinf(topology.TABLE[0].gbps)
