import itertools
import json
import math
import time
from dataclasses import asdict, replace
from typing import Any

import pytest
from conftest import grouped, ranks

from rocstack_trainer.config import Parallel
from rocstack_trainer.gradients import topology
from rocstack_trainer.gradients.team import Team
from rocstack_trainer.gradients.topology import Links
from rocstack_trainer.rank import Rank

NODES = [[0, 1], [2, 3]]

# Measuring


def measured(rank: Rank, nodes: list[list[int]]) -> Links:
    return topology.measure(nodes, rank.device)


@pytest.mark.parametrize(("world", "nodes"), [(2, [[0], [1]]), (3, [[0], [1], [2]]), (4, NODES), (3, [[0, 1], [2]])])
def test_the_slowest_link_is_measured_and_all_ranks_know(world: int, nodes: list[list[int]]) -> None:
    found = ranks(world, grouped, measured, nodes)
    for known in found:
        assert known == found[0]
        assert 0 < known.gbps < 2000
        assert 1 < known.latency_us < 1e6


def slowed(rank: Rank, late: list[float]) -> Links:
    """Rank 1's messages take `late` seconds more, in turns."""
    waits, wait = itertools.cycle(late), Team.pass_on

    def slow(self: Team, **ends: Any) -> Any:
        if rank.rank == 1:
            time.sleep(next(waits))
        return wait(self, **ends)

    Team.pass_on = lambda self, out, right, into, left: slow(self, out=out, right=right, into=into, left=left)
    return topology.measure([[0], [1], [2]], rank.device)


def test_a_slow_link_counts_and_a_late_message_does_not() -> None:
    """Two of five are late by 0.2 s: the median doesn't see it. All are: it does."""
    (once, *_), (always, *_) = (ranks(3, grouped, slowed, late) for late in ([0.2, 0, 0, 0.2, 0], [0.05]))
    assert once.latency_us < 50_000
    assert always.latency_us > 50_000


# The plan


def linked(gbps: float) -> Links:
    return Links(gbps, 100.0)


@pytest.mark.parametrize(
    ("gbps", "algorithm", "codec"),
    [
        (400, "flat", "none"),
        (2, "flat", "none"),
        (1.9, "hierarchical", "int8"),
        (0.94, "hierarchical", "int8"),
        (0.2, "hierarchical", "int8+zstd"),
        (0.09, "hierarchical", "int8+zstd"),
    ],
)
def test_the_slowest_link_chooses(gbps: float, algorithm: str, codec: str) -> None:
    plan = topology.choose(Parallel(), NODES, linked(gbps), 21_000_000)
    assert (plan.algorithm, plan.codec) == (algorithm, codec)
    (marked,) = [line for line in plan.table().splitlines() if line.startswith("*")]
    assert codec in marked
    assert topology.row(gbps).why in marked
    assert f"{gbps:.3g} Gb/s" in plan.table()
    assert ("DiLoCo" in plan.table()) == (gbps < 0.5)


def test_auto_says_what_it_loses() -> None:
    """Whatever `auto` takes is exact, or has error feedback and says so."""
    for row in topology.TABLE:
        assert row.codec == "none" or "error feedback" in row.why


def test_inside_one_node_nothing_is_compressed() -> None:
    plan = topology.choose(Parallel(), [[0, 1, 2]], None, 1)
    assert (plan.algorithm, plan.codec) == ("flat", "none")
    assert "* inside one node" in plan.table()


def test_the_settings_have_the_last_word() -> None:
    plan = topology.choose(Parallel(algorithm="flat", compress="int8"), NODES, None, 1)
    assert (plan.algorithm, plan.codec) == ("flat", "int8")
    assert "*" not in plan.table()


@pytest.mark.parametrize(
    ("nodes", "algorithm"), [([[0], [1]], "flat"), ([[0, 1], [2]], "hierarchical"), (NODES, "hierarchical")]
)
def test_over_a_slow_link_uneven_nodes_never_exchange_all_with_all(nodes: list[list[int]], algorithm: str) -> None:
    assert topology.choose(Parallel(), nodes, linked(0.1), 1).algorithm == algorithm


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


def test_one_node_starts_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "measure", None)
    for plan in ranks(2, grouped, planned, Parallel(), 2, None):
        assert (plan.codec, plan.gbps) == ("none", 0.0)
    assert math.isinf(topology.TABLE[0].gbps)
