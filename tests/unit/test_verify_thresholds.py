"""What a value must reach, by the models of GPU and NIC; a site's own go first; each is used, and each has a source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from replay import good

from rocstack.errors import BadInput
from rocstack.verify import cluster, suite, thresholds
from rocstack.verify.parsers import babelstream
from rocstack.verify.record import Recorder
from rocstack.verify.thresholds import Quantity, Threshold

X, OTHER = ("8 × AMD Instinct MI300X OAM gfx942",), ("4 × AMD Instinct MI250X gfx90a",)
FAST, SLOW, PLAIN = ("broadcom 400G",), ("mellanox 200G",), ("tcp",)


@pytest.mark.parametrize(
    ("name", "gpus", "nics", "bound"),
    [
        ("all-reduce-busbw", X, FAST, 304),
        ("all-reduce-busbw", ("8 × AMD Instinct MI355X gfx950",), FAST, 350),
        ("all-reduce-busbw", ("4 × AMD Instinct MI300X OAM gfx942",), FAST, None),
        ("all-gather-busbw", X, FAST, 330),
        ("all-gather-busbw", X, SLOW, None),
        ("memory", X, FAST, 1.5),
        ("memory", ("4 × AMD Instinct MI300A gfx942",), FAST, None),
        ("gemm-bf16", ("8 × AMD Instinct MI325X gfx942",), FAST, 600),
        ("gemm-bf16", ("8 × AMD Instinct MI308X gfx942",), FAST, None),
        ("all-reduce-busbw", OTHER, FAST, None),
        ("rdma-write-bandwidth", X, FAST, 385),
        ("rdma-write-bandwidth", (), SLOW, 192.5),
        ("rdma-write-bandwidth", X, PLAIN, None),
        ("mtu", X, FAST, 9000),
        ("mtu", X, PLAIN, None),
        ("munge-seconds", (), (), 300),
    ],
)
def test_the_first_that_fits_the_hardware_holds(
    name: str, gpus: tuple[str, ...], nics: tuple[str, ...], bound: float | None
) -> None:
    found = thresholds.load()[name].of(gpus, nics)
    assert (found and (found.least if found.least is not None else found.most)) == bound


def test_least_and_most() -> None:
    least, most = Threshold(least=2, source="x"), Threshold(most=2, source="x")
    assert [least.holds(value) for value in (1.9, 2, 2.1)] == [False, True, True]
    assert [most.holds(value) for value in (1.9, 2, 2.1)] == [True, True, False]
    assert (least.text("GB/s"), most.text("")) == ("at least 2 GB/s", "at most 2")


@pytest.mark.parametrize("wrong", [{"least": 1, "most": 2}, {}, {"least": 1, "gpu": "("}, {"least": 1, "model": "x"}])
def test_a_threshold_that_says_two_things_or_none_is_refused(wrong: dict[str, float | str]) -> None:
    with pytest.raises(ValueError, match=r"threshold|no regular expression|Extra"):
        Threshold.model_validate({"source": "x", **wrong})


def test_every_quantity_is_measured_by_a_check() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in suite.checks().rglob("*.py"))
    named = {*re.findall(r'"([a-z0-9-]+)"', text), *(f"stream-{each.lower()}" for each in babelstream.FUNCTIONS)}
    assert not thresholds.load().keys() - named


def test_every_threshold_fits_hardware_that_can_be() -> None:
    """None stands behind one that holds for all that it holds for."""
    for name, quantity in thresholds.load().items():
        seen: set[tuple[str, str]] = set()
        for each in quantity.thresholds:
            assert ("", "") not in seen, name
            assert (each.gpu, each.nic) not in seen, name
            seen.add((each.gpu, each.nic))


def site(folder: Path, text: str) -> dict[str, Quantity]:
    (folder / thresholds.FILE).write_text(text, encoding="utf-8")
    return thresholds.load(folder)


def test_a_sites_own_go_first(tmp_path: Path) -> None:
    text = 'all-reduce-busbw: {unit: GB/s, thresholds: [{least: 320, nic: "400G", source: our acceptance}]}'
    quantity = site(tmp_path, text)["all-reduce-busbw"]
    assert [quantity.of(X, nics) and quantity.of(X, nics).least for nics in (FAST, SLOW)] == [320, 304]  # type: ignore[union-attr]
    assert thresholds.load()["all-reduce-busbw"].of(X, FAST).least == 304  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("mtu:\n  unit: bytes\n  thresholds:\n    - {least: 9000}\n", None, 4),
        ("# ours\nmtuu: {unit: bytes, thresholds: [{least: 9000, source: x}]}\n", "bad-threshold", 2),
        ("mtu: {unit: kB, thresholds: [{least: 9, source: x}]}\n", "bad-threshold", 1),
    ],
)
def test_a_sites_file_that_is_wrong_is_refused_with_its_line(
    tmp_path: Path, text: str, code: str | None, line: int
) -> None:
    with pytest.raises(BadInput) as raised:
        site(tmp_path, text)
    assert raised.value.where
    assert raised.value.where.line == line
    assert code is None or raised.value.code == code


def test_infiniband_without_ipoib_has_the_speed_of_its_ports() -> None:
    described = good()["cluster"]
    for node in described["nodes"]:
        for nic in node["profile"]["nics"]:
            nic["netdevs"] = []
    (profile, *_) = [node.profile for node in cluster.nodes(described) if node.works and node.profile]
    assert thresholds.hardware(profile) == (("8 × AMD Instinct MI300X OAM gfx942",), ("broadcom 400G",))


def test_recorded_nodes_are_judged_by_their_models() -> None:
    nodes = cluster.nodes(good()["cluster"])
    record = Recorder(nodes, nodes)
    record.judge("n1", 310.0, "all-reduce-busbw")
    record.judge("n1", 300.0, "all-reduce-busbw")
    record.judge("", None, "all-reduce-busbw")
    record.judge("n2", 7.0, "mpi-bandwidth")
    assert [measure.state for measure in record.measures[:3]] == ["passed", "failed", "failed"]
    assert record.measures[1].why == "300 GB/s, at least 304 GB/s wanted"
    assert record.measures[2].why == "could not be measured"
    assert record.measures[1].source.startswith("system acceptance")
