"""What the report draws: all pairs, curves, topology; and what it says of measured values."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from made_runs import on, result, run

from rocstack.verify.report import charts, drawings, matrix, page, topology
from rocstack.verify.result import Measure


def quantity(values: list[list[float | None]], better: Any = "low") -> drawings.MatrixQuantity:
    nodes = tuple(f"n{i}" for i in range(len(values)))
    return drawings.MatrixQuantity(name="q", unit="us", better=better, nodes=nodes, values=tuple(map(tuple, values)))


def test_the_worst_pair_has_the_strongest_colour() -> None:
    found = charts.heatmap(quantity([[None, 1.0, 1.0], [1.02, None, 9.0], [1.0, 1.0, None]]))
    assert found is not None
    assert [tile.step for tile in found.tiles] == [0, 0, 0, 8, 0, 0]
    assert found.pairs[0] == ("n1", "n2", "9.00 us")
    assert (found.best, found.worst, found.missing) == ("1.00", "9.00", 0)


def test_noise_does_not_look_like_a_fault() -> None:
    found = charts.heatmap(quantity([[None, 100.0], [103.0, None]], "high"))
    assert found is not None
    assert {tile.step for tile in found.tiles} == {0}


def test_a_pair_that_was_not_measured_is_marked_and_the_diagonal_is_not() -> None:
    found = charts.heatmap(quantity([[7.0, None], [1.0, None]]))
    assert found is not None
    assert [(tile.step, tile.text) for tile in found.tiles] == [(None, "×"), (0, "1.00")]
    assert found.missing == 1
    assert charts.heatmap(quantity([[None, None], [None, None]])) is None


def test_many_nodes_are_tiles_of_the_worst() -> None:
    values: list[list[float | None]] = [[None if i == j else 1.0 for j in range(100)] for i in range(100)]
    values[70][99] = 2.0
    found = charts.heatmap(quantity(values))
    assert found is not None
    assert (found.tiled, len(found.tiles)) == (3, 34 * 34 - 1)  # the last tile on the diagonal is one node with itself
    (bad,) = [tile for tile in found.tiles if tile.step]
    assert (round(bad.x / found.side), round(bad.y / found.side)) == (33, 23)


def test_curves_stand_below_or_above_the_threshold_of_an_older_report() -> None:
    given = drawings.Curves(
        unit="GB/s",
        series=(
            drawings.Series(name="a", points=((1024, 1.0), (2**33, 350.0))),
            drawings.Series(name="b", points=((1024, 1.0), (2**33, 349.0))),
        ),
        threshold=drawings.ThresholdLine(value=304, text="at least 304"),
    )
    found = charts.chart(given)
    assert found is not None
    assert found.tables[0].rows[1] == ("8 GiB", "", "350")
    assert found.threshold is not None
    assert all(curve.end[1] < found.threshold.at for curve in found.curves)
    assert abs(found.curves[0].label - found.curves[1].label) >= charts.APART
    assert [tick.text for tick in found.xs][:2] == ["1 KiB", "8 KiB"]
    assert charts.chart(drawings.Curves(unit="x", series=())) is None


def test_each_curve_has_its_own_threshold_and_a_table_of_both_bandwidths() -> None:
    known = {"all_reduce": (331.0, 176.5, 304), "alltoall": (47.0, 50.1, 45), "mine": (0.5, 0.3, None)}
    given = {
        "unit": "GB/s",
        "series": [
            {
                "name": name,
                "points": [[1024, 0.5, 0.25], [2**33, busbw, algbw]],
                "threshold": {"value": least, "text": f"at least {least}: s"} if least else None,
            }
            for name, (busbw, algbw, least) in known.items()
        ],
    }
    found = charts.chart(drawings.Curves.model_validate_json(json.dumps(given)))
    assert found is not None
    lines = {curve.name: curve for curve in found.curves}
    assert {curve.text for curve in found.curves} == {
        "all_reduce 331 (expected 304)", "alltoall 47 (expected 45)", "mine 0.5",
    }  # fmt: skip
    for name in ("all_reduce", "alltoall"):
        assert lines[name].end[1] < (lines[name].bound or 0) < lines[name].end[1] + 40
    assert (lines["mine"].bound, found.threshold) == (None, None)
    assert found.tables[1] == charts.SizeTable(
        "alltoall", "at least 45: s", (("1 KiB", "0.25", "0.5"), ("8 GiB", "50.1", "47"))
    )
    assert not found.long
    many = {**given, "series": [{"name": "a", "points": [[size, 1, 1] for size in range(1, 14)]}] * 30}
    long = charts.chart(drawings.Curves.model_validate_json(json.dumps(many)))
    assert long is not None
    assert (long.long, len(long.tables), long.unsaid) == (True, charts.TABLES, 30 - charts.TABLES)


@pytest.mark.parametrize("points", [((8.0, 0.0),), ((8.0, 5.0),), ((1.0, 1e-9), (3.0, 2e-9))])
def test_curves_of_few_and_small_values(points: Any) -> None:
    assert charts.chart(drawings.Curves(unit="x", series=(drawings.Series(name="a", points=points),)))


def devices(**about: Any) -> dict[str, Any]:
    gpus = [{"index": i, "numa": i // 2} for i in range(4)]
    return {"gpus": gpus, "nics": [{"name": "mlx5_0", "numa": 0, "state": "ACTIVE"}], **about}


def pictured(**nodes: dict[str, Any]) -> tuple[topology.Picture, ...]:
    return topology.pictures(drawings.Topology.model_validate_json(json.dumps({"nodes": nodes})))


def test_nodes_that_are_alike_are_drawn_once() -> None:
    down = devices(nics=[{"name": "mlx5_0", "numa": 0, "state": "DOWN"}])
    first, second = pictured(n1=devices(), n2=devices(), n3=down, n4=devices(), n5={})
    assert first.nodes == "3 nodes alike: n[1-2,4]"
    assert [box.bad for box in second.boxes if box.title == "mlx5_0"] == [True]
    assert [zone.text for zone in first.zones] == ["NUMA node 0", "NUMA node 1"]


def test_links_are_drawn_where_words_do_not_say_it_all() -> None:
    near = [
        {"gpu": 0, "nic": "mlx5_0", "via": "switch"},
        {"gpu": 3, "nic": "mlx5_0", "via": "system"},
        {"gpu": 9, "nic": None},
    ]
    every = [{"a": i, "b": j, "kind": "xgmi"} for i in range(4) for j in range(i)]
    (full,) = pictured(n1=devices(links=every, affinity=near))
    assert full.bus is not None
    assert [wire.kind for wire in full.wires] == ["switch", "system"]
    assert full.near == (("switch", "same switch"), ("system", "across NUMA nodes"))
    (some,) = pictured(n1=devices(links=every[:2]))
    assert (some.bus, some.links) == (None, "XGMI: 2 pairs of GPUs linked")
    assert [wire.kind for wire in some.wires] == ["link", "link"]


def test_what_was_measured_in_few_words() -> None:
    def said(*values: Any, unit: str = "") -> str:
        measures = [Measure(state="passed", node=f"n{i}", value=v, unit=unit, wanted="w") for i, v in enumerate(values)]
        ((value, wanted),) = matrix.lines(measures)
        assert wanted == "w"
        return value

    assert said(8, 8, unit="GPUs") == "8 GPUs"
    assert said(3.0, 1.0, 2.5, unit="us") == "2.5 us (1 to 3)"
    assert said(7, 8, 8, 7, unit="GPUs") == "7 GPUs (7 to 8)"
    assert said("6.8.0", "6.8.0") == "6.8.0"
    assert said("6.8.0", "6.9.0") == "6.8.0, 6.9.0"
    assert said("a", "b", "c") == "3 different values"
    assert said(True) == "yes"
    assert said(None) == ""
    assert len(said("x" * 100)) == matrix.LONGEST


def test_each_thing_that_a_check_measures_has_its_line() -> None:
    one = [on("n1", value=3.14, unit="nats", wanted="as before"), on("n1", value=9000.0, unit="tokens/s")]
    two = [on("n2", value=3.14, unit="nats", wanted="as before"), on("n2", value=7000.0, unit="tokens/s")]
    assert matrix.lines([*one, *two]) == (("3.14 nats", "as before"), ("8000 tokens/s (7000 to 9000)", ""))
    many = [on("n1", value=i, unit=str(i)) for i in range(9)]
    assert [line for line, _ in matrix.lines(many)] == ["0 0", "1 1", "2 2", "and 6 more"]
    assert matrix.lines([on("n1", value=True, wanted="True")]) == (("yes", "yes"),)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.79e308])
def test_a_number_that_no_scale_has_is_said_instead_of_drawn(value: float) -> None:
    """A worker's tool may print it; without its drawing the report is still there."""
    curves = {"unit": "GB/s", "series": [{"name": "a", "points": [[8.0, value], [16.0, 1.0]]}]}
    one = {"name": "x", "unit": "us", "better": "low", "nodes": ["n1", "n2"], "values": [[None, value], [1.0, None]]}
    made = run(result(on("n1"), drawings={"curves": curves, "matrix": {"quantities": [one]}}))
    assert len(drawings.read(made).unreadable) == 2
    assert "drawn" in page.html(made)


@pytest.mark.parametrize("digits", [19, 30, 900])
def test_a_number_that_no_float_holds_ends_no_report(digits: int) -> None:
    """A worker's tool may say so many wrong elements beside its bandwidth, which is a fraction."""
    endless = int("9" * digits)
    for value, kept in ((endless, 2**63 - 1), (-endless, 1 - 2**63)):
        odd = on("n1", value=value, unit="elements")
        assert odd.value == kept
        assert page.html(run(result(odd, on("n1", value=1.5, unit="elements"))))
    assert on("n1", value=True).value is True
