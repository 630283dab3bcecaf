"""The cost model against what was measured, what is chosen by it, and the waves in which mirrors are filled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rocstack.registry import cost, warm
from rocstack.registry.cost import Job, Options, choose

WORKER = Job(nodes=4, compressed=355e6, uncompressed=1223e6, link=25)
LARGE = Job(nodes=64, compressed=30e9, uncompressed=60e9, link=25)


def test_registry_as_measured() -> None:
    """160 MB that don't compress to 4 nodes at 100 Mbit/s: 54.4 s and 644 MB were measured."""
    time = cost.registry(Job(nodes=4, compressed=160e6, uncompressed=160e6, link=0.1))
    assert time.total == pytest.approx(54.4, rel=0.1)
    assert time.egress == pytest.approx(644e6, rel=0.1)


@pytest.mark.parametrize(("nodes", "seconds"), [(2, 19.2), (8, 76.8), (64, 614.4), (1000, 9600)])
def test_network_of_thirty_gigabytes(nodes: int, seconds: float) -> None:
    assert cost.registry(Job(nodes, 30e9, 60e9, 25)).network == pytest.approx(seconds)


@pytest.mark.parametrize(("mirrors", "waves"), [(1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (32, 6)])
def test_waves_double(mirrors: int, waves: int) -> None:
    plan = warm.plan(["head:5000"], [f"m{n}:5000" for n in range(mirrors)])
    assert len(plan) == waves == cost.waves(mirrors)


@given(some.integers(1, 200))
def test_every_mirror_is_filled_once_from_one_that_has_it(mirrors: int) -> None:
    names = [f"m{n}:5000" for n in range(mirrors)]
    have = {"head:5000"}
    for wave in warm.plan(["head:5000"], names):
        sources = [copy.source for copy in wave]
        assert len(set(sources)) == len(sources)
        assert set(sources) <= have
        have |= {copy.target for copy in wave}
    assert have == {"head:5000", *names}


def test_head_serves_a_copy_a_wave() -> None:
    plan = warm.plan(["head:5000"], [f"m{n}:5000" for n in range(8)])
    assert sum(copy.source == "head:5000" for wave in plan for copy in wave) == 4
    assert cost.rack(LARGE, 8).egress == 4 * LARGE.compressed


@pytest.mark.parametrize(
    ("job", "options", "method"),
    [
        (WORKER, Options(), "registry"),
        (WORKER, Options(mirrors=2, p2p=True), "registry"),  # unpacking takes longer than the network anyway
        (LARGE, Options(), "registry"),
        (Job(1000, 30e9, 60e9, 25), Options(mirrors=32), "rack"),
        (Job(1000, 30e9, 60e9, 25), Options(mirrors=32, p2p=True), "rack"),  # a sixth is not worth more parts
        (Job(1000, 30e9, 60e9, 10), Options(mirrors=32, p2p=True), "p2p"),
        (WORKER, Options(registry=False, mirrors=2, p2p=True), "archive"),
    ],
)
def test_choice(job: Job, options: Options, method: str) -> None:
    choice = choose(job, options)
    assert choice.method == method
    assert choice.method in choice.times
    assert f"{job.nodes} nodes" in choice.why


def test_the_choice_says_what_would_help() -> None:
    assert "32 registries in the racks would make it" in choose(Job(1000, 30e9, 60e9, 25), Options()).why
    assert (
        "from the control node alone it would take 2.7 h" in choose(Job(1000, 30e9, 60e9, 25), Options(mirrors=32)).why
    )


@given(some.integers(1, 1000), some.floats(0.1, 400), some.floats(1e6, 1e11))
def test_times_hold_together(nodes: int, link: float, size: float) -> None:
    job = Job(nodes, size, 2 * size, link)
    more = Job(nodes + 1, size, 2 * size, link)
    for way in (cost.registry, cost.p2p, cost.archive, cost.save_load, cost.serial_pull):
        assert max(way(job).unpack, way(job).network) <= way(job).total * 1.0001
        assert way(job).total <= way(more).total
        assert way(job).egress <= way(more).egress
    assert cost.registry(job).total <= cost.save_load(job).total
    assert cost.registry(job).total <= cost.serial_pull(job).total
