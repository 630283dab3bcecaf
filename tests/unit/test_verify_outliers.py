"""The slow node among its like."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import simulated_run
from test_verify_verdict import pairs, result, run

from rocstack.verify import outliers
from rocstack.verify.result import Measure

UNITS = ("GB/s", "us")
NOISE = st.floats(0.95, 1.05)


def values(numbers: list[float], unit: str) -> dict[str, float]:
    return {f"n{i}": number for i, number in enumerate(numbers)}


@given(st.floats(1, 1e6), st.integers(2, 40), st.sampled_from([*UNITS, "s", "°C", ""]))
def test_equal_values_are_never_flagged(value: float, nodes: int, unit: str) -> None:
    assert not list(outliers.compare(values([value] * nodes, unit), unit))


@given(st.floats(10, 1e6), st.lists(NOISE, min_size=2, max_size=40), st.sampled_from(UNITS))
def test_noise_is_never_flagged(value: float, noise: list[float], unit: str) -> None:
    assert not list(outliers.compare(values([value * each for each in noise], unit), unit))


@settings(max_examples=300)
@given(st.floats(10, 1e6), st.lists(NOISE, min_size=4, max_size=40), st.data(), st.sampled_from(UNITS))
def test_a_node_at_half_speed_is_always_found(value: float, noise: list[float], data: st.DataObject, unit: str) -> None:
    numbers = [value * each for each in noise]
    slow = data.draw(st.integers(0, len(numbers) - 1))
    numbers[slow] *= 0.5 if unit == "GB/s" else 2
    assert [node for node, *_ in outliers.compare(values(numbers, unit), unit)] == [f"n{slow}"]


@pytest.mark.parametrize(("unit", "number"), [("GB/s", 200.0), ("s", 50.0), ("us", 50.0), ("W", 50.0), ("W", 200.0)])
def test_a_node_that_is_better_or_only_different_is_not_flagged(unit: str, number: float) -> None:
    assert not list(outliers.compare(values([100, 101, 99, 100, number], unit), unit))


def test_a_difference_below_the_clock_is_none() -> None:
    assert not list(outliers.compare(values([0.001, 0.001, 0.002, 0.001, 0.009], "s"), "s"))


@pytest.mark.parametrize("nodes", [2, 3])
def test_of_few_nodes_it_cannot_be_told(nodes: int) -> None:
    measures = [Measure(state="passed", node=f"n{i}", value=100.0 if i else 40.0, unit="GB/s") for i in range(nodes)]
    (found,) = outliers.find(run(result(*measures)))
    assert (found.node, found.sure) == ("n0", False)
    assert found.text == (
        f"n0: 60 % below the best of {nodes} nodes (40 GB/s, not 100); "
        "of fewer than 4 nodes it can't be told which is unusual"
    )


def test_it_is_said_in_words() -> None:
    measures = [Measure(state="passed", node=f"n{i}", value=100 if i else 69, unit="GB/s") for i in range(16)]
    (found,) = outliers.find(run(result(*measures)))
    assert found.text == "n0: 31 % below the median of 16 nodes (69 GB/s, not 100)"


def test_a_slow_nodes_peers_are_not_slow() -> None:
    """Each of eight nodes is in two pairs of a ring, so a neighbour's plain median would be dragged down."""
    ring = [
        Measure(
            state="passed", node=f"n{i}", peer=f"n{(i + 1) % 8}", value=50.0 if 3 in (i, i + 1) else 100.0, unit="GB/s"
        )
        for i in range(8)
    ]
    assert [each.node for each in outliers.find(run(result(*ring)))] == ["n3"]


def test_what_is_no_number_is_left_out() -> None:
    odd = [Measure(state="passed", node=f"n{i}", value=value, unit="s") for i, value in enumerate((True, "x", None, 9))]
    assert outliers.values(result(*odd)) == {"s": {"n3": 9.0}}
    assert not outliers.find(run(pairs(["n1", "n2", "n3"], {"n1"}), nodes=3))


@pytest.mark.parametrize("nodes", [4, 16, 1000])
def test_the_slow_node_of_a_simulated_cluster(nodes: int) -> None:
    found = outliers.find(simulated_run(nodes, bad=(), slow=("n4",)))
    assert {each.node for each in found} == {"n4"}
    assert {each.check for each in found} == {"mpi-pairs", "hbm"}
