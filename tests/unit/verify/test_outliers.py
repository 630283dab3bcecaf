"""The slow node among its like."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import pairs, result, run
from simulated_run import simulated_run

from rocstack.cli.verify_report import show
from rocstack.verify import artifacts, outliers
from rocstack.verify.result import SCHEMA, Measure, NodeSeen, read

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
    seen = [NodeSeen(name=f"n{i}", roles=("worker",)) for i in range(nodes)]
    (found,) = outliers.find(run(result(*measures), seen=tuple(seen)))
    assert (found.node, found.sure) == ("n0", False)
    assert outliers.text(found) == (
        f"n0: 60 % below the best of {nodes} nodes (40 GB/s, not 100); "
        "of fewer than 4 nodes it can't be told which is unusual"
    )
    virtual = tuple(each.model_copy(update={"virtual": "mi300x-thor2"}) for each in seen)
    assert not outliers.find(run(result(*measures), seen=virtual)), "they share a machine"


def test_it_is_said_in_words() -> None:
    measures = [Measure(state="passed", node=f"n{i}", value=100 if i else 69, unit="GB/s") for i in range(16)]
    (found,) = outliers.find(run(result(*measures)))
    assert outliers.text(found) == "n0: 31 % below the median of 16 nodes (69 GB/s, not 100)"


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


def test_the_slow_node_is_in_every_file_and_fails_nothing(tmp_path: Path) -> None:
    artifacts.write(simulated_run(8, bad=(), slow=("n5",)), tmp_path)
    assert (tmp_path / "slow_nodes.txt").read_text() == "n5\n"
    assert (tmp_path / "failing_nodes.txt").read_text() == ""
    written = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(written, artifacts.schema())
    found = {each["check"]: each for each in written["slow_nodes"]}
    assert set(found) == {"mpi-pairs", "hbm"}
    assert (found["hbm"]["node"], found["hbm"]["unit"], found["hbm"]["sure"]) == ("n5", "GB/s", True)
    assert found["hbm"]["value"] < 0.6 * found["hbm"]["usual"]
    assert read(tmp_path).passed


def test_where_it_cannot_be_told_which_is_slow_no_script_is_told(tmp_path: Path) -> None:
    artifacts.write(simulated_run(2, bad=(), slow=("n2",)), tmp_path)
    assert [each.sure for each in read(tmp_path).slow_nodes] == [False]
    assert (tmp_path / "slow_nodes.txt").read_text() == ""


def test_the_slow_node_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifacts.write(simulated_run(8, bad=(), slow=("n5",)), tmp_path)
    found = read(tmp_path)
    show(found, tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("slow ")]
    assert sorted(line.split()[:3] for line in lines) == [["slow", "hbm:", "n5:"], ["slow", "mpi-pairs:", "n5:"]]
    assert "% below the median of 8 nodes (" in lines[0]
    show(found.model_copy(update={"slow_nodes": found.slow_nodes[:1] * 14}), tmp_path)
    assert "slow and 4 more, in report.html" in capsys.readouterr().out.splitlines()


def test_a_report_from_before_slow_nodes_is_read_and_written_anew(tmp_path: Path) -> None:
    written = json.loads(simulated_run(8).dumps())
    del written["slow_nodes"]
    (tmp_path / "report.json").write_text(json.dumps({**written, "schema": 1}))
    old = read(tmp_path)
    assert old.slow_nodes == ()
    artifacts.write(old, tmp_path)
    assert (read(tmp_path).schema_, bool(read(tmp_path).slow_nodes)) == (SCHEMA, True)
