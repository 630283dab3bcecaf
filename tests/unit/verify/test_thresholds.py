"""What a value must reach, by the models of GPU and NIC; a site's own go first; each is used, and each has a source."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence_replay import good

from rocstack.base.errors import BadInput
from rocstack.doctor.rdma_states import active, data_ports, slingshot
from rocstack.node import parse
from rocstack.node.profile import Gpu, NodeProfile, Pcie
from rocstack.probe import recordings
from rocstack.verify import suite, thresholds
from rocstack.verify.evidence import CLUSTER
from rocstack.verify.evidence import parse as parse_evidence
from rocstack.verify.parsers import gpu_tools
from rocstack.verify.recorder import Recorder
from rocstack.verify.thresholds import Quantity, Threshold
from rocstack.virtual import machine, model, tree

X, OTHER = ("8 × AMD Instinct MI300X OAM gfx942",), ("8 × AMD Instinct MI250X gfx90a",)
E = ("8 × AMD Instinct MI355X gfx950",)
FAST, SLOW, PLAIN, FEW = ("8 × broadcom 400G",), ("8 × mellanox 200G",), ("1 × tcp",), ("2 × broadcom 400G",)


@pytest.mark.parametrize(
    ("name", "gpus", "nics", "nodes", "bound"),
    [
        ("all-reduce-busbw", X, FAST, 1, 304),
        ("all-reduce-busbw", X, SLOW, 1, 304),
        ("all-reduce-busbw", ("8 × AMD Instinct MI325X gfx942",), FAST, 1, 304),
        ("all-reduce-busbw", E, FAST, 1, 350),
        ("all-reduce-busbw", ("4 × AMD Instinct MI300X OAM gfx942",), FAST, 1, None),
        ("all-reduce-busbw", ("4 × AMD Instinct MI300A gfx942",), FAST, 1, 230),
        ("all-reduce-busbw", OTHER, FAST, 1, 125),
        ("all-reduce-busbw", OTHER, FAST, 2, None),
        ("all-reduce-busbw", X, FAST, 2, 304),
        ("all-reduce-busbw", E, FAST, 16, 350),
        ("all-reduce-busbw", X, SLOW, 2, 152),  # 8 × 200G carry 200 GB/s at most
        ("all-reduce-busbw", X, FEW, 2, None),
        ("all-reduce-busbw", X, FAST, 17, None),
        ("all-gather-busbw", X, FAST, 2, 330),
        ("all-gather-busbw", X, SLOW, 2, None),
        ("alltoall-busbw", X, FAST, 2, 45),
        ("alltoall-busbw", X, FAST, 3, None),  # the source's numbers are of two nodes, where NICs carry 94 GB/s of it
        ("memory", X, FAST, 1, 1.5),
        ("memory", ("4 × AMD Instinct MI300A gfx942",), FAST, 1, 0.512),
        ("memory", ("8 × AMD Instinct MI308X gfx942",), FAST, 1, 2.0),
        ("memory", ("8 × AMD Instinct MI325X gfx942",), FAST, 1, 2.5),
        ("memory", E, FAST, 1, 3.0),
        ("memory", ("1 × AMD Instinct MI300X VF gfx942",), (), 1, None),  # a guest with one GPU has its share
        ("gemm-bf16", X, FAST, 1, 552),
        ("gemm-bf16", ("8 × AMD Instinct MI325X gfx942",), FAST, 1, 554),
        ("gemm-bf16", E, FAST, 1, 956),
        ("gemm-bf16", ("8 × AMD Instinct MI308X gfx942",), FAST, 1, 172),
        ("gemm-bf16", OTHER, FAST, 1, None),
        ("hbm-bandwidth", E, FAST, 1, 4668),
        ("hbm-bandwidth", OTHER, FAST, 1, 1050),
        ("stream-triad", OTHER, FAST, 1, 1100),
        ("stream-triad", ("8 × AMD Instinct MI325X gfx942",), FAST, 1, 3885.301),
        ("transferbench-a2a", ("8 × AMD Instinct MI325X gfx942",), FAST, 1, 32.9),
        ("rocblas-fp32", OTHER, FAST, 1, 30),
        ("rocblas-bf16", X, FAST, 1, None),
        ("rdma-write-bandwidth", X, FAST, 1, 280),
        ("rdma-write-bandwidth", (), SLOW, 1, 140),
        ("rdma-write-bandwidth", X, PLAIN, 1, None),
        ("mtu", X, FAST, 1, 9000),
        ("mtu", X, PLAIN, 1, None),
        ("munge-seconds", (), (), 1, 300),
    ],
)
def test_the_first_that_fits_the_hardware_holds(
    name: str, gpus: tuple[str, ...], nics: tuple[str, ...], nodes: int, bound: float | None
) -> None:
    found = thresholds.load()[name].of(gpus, nics, nodes)
    assert (found and (found.least if found.least is not None else found.most)) == bound


@pytest.mark.parametrize(
    ("device", "name", "text"),
    [
        ("1002:74b5", None, "AMD Instinct MI300X gfx942"),  # a virtual function has no product name
        ("1002:74b5", "AMD Instinct MI300X VF", "AMD Instinct MI300X VF gfx942"),
        ("1002:74a5", "AMD Instinct MI300X OAM", "AMD Instinct MI325X gfx942"),
        ("1002:75b3", "", "AMD Instinct MI355X gfx950"),
        ("1002:740c", "AMD Instinct MI250", "AMD Instinct MI250 gfx90a"),  # its id is the MI250X's, too
        ("1002:ffff", "AMD Instinct MI300X OAM", "AMD Instinct MI300X OAM gfx942"),
    ],
)
def test_a_gpu_is_known_by_its_pci_id_and_then_by_its_name(device: str, name: str | None, text: str) -> None:
    gpu = Gpu(0, "0000:05:00.0", device, text.rpartition(" ")[2], name)
    assert thresholds.hardware(NodeProfile(1, "n1", gpus=(gpu,)))[0] == (f"1 × {text}",)


def test_a_value_within_the_tolerance_holds() -> None:
    """AMD's guide accepts a sample of its own that has 48.349 GB/s, where it asks for 48.4."""
    bound = thresholds.load()["transferbench-dma"].of(X, FAST)
    assert bound
    assert [bound.holds(value) for value in (48.349, 48.0)] == [True, False]
    assert bound.text("GB/s") == "at least 48.4 GB/s less 0.5 %"


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
    named = {*re.findall(r'"([a-z0-9-]+)"', text), *(f"stream-{each.lower()}" for each in gpu_tools.FUNCTIONS)}
    assert not thresholds.load().keys() - named


def test_every_threshold_fits_hardware_that_can_be() -> None:
    """None stands behind one that holds for all that it holds for."""
    for name, quantity in thresholds.load().items():
        seen: set[tuple[Any, ...]] = set()
        for each in quantity.thresholds:
            assert ("", "", None) not in seen, name
            assert (each.gpu, each.nic, each.nodes) not in seen, name
            seen.add((each.gpu, each.nic, each.nodes))


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
        ("mtu: {unit: bytes, thresholds: [{least: .nan, source: x}]}\n", None, 1),
        ("mtu:\n  unit: bytes\n  thresholds:\n    - {most: -5, source: x}\n", None, 4),
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
    recorded = good()["cluster"]
    for node in recorded["nodes"]:
        for nic in node["profile"]["nics"]:
            nic["netdevs"] = []
    (profile, *_) = [
        node.profile for node in parse_evidence("cluster", CLUSTER, recorded).reached if node.is_worker and node.profile
    ]
    assert thresholds.hardware(profile) == (("8 × AMD Instinct MI300X OAM gfx942",), ("8 × broadcom 400G",))


def node(kind: str, rate: int = 0, **card: Any) -> NodeProfile:
    """A virtual node of this model, whose data network runs at `rate` Mb/s; `card` changes its cards."""
    profile = parse.parse(tree.record(machine.expand(model.load(kind), 1)), recordings.kinds())
    data = {name for device, _ in data_ports(profile) for name in device.netdevs} | {n.name for n in slingshot(profile)}
    return replace(
        profile,
        nics=tuple(replace(nic, **card) if data & {*nic.netdevs} else nic for nic in profile.nics),
        netdevs=tuple(replace(n, speed=rate) if rate and n.name in data else n for n in profile.netdevs),
        verbs=tuple(
            replace(v, ports=tuple(replace(p, rate=rate) for p in v.ports)) if rate and data & {*v.netdevs} else v
            for v in profile.verbs
        ),
    )


@pytest.mark.parametrize(
    ("kind", "rate", "card", "found"),
    [
        ("mi300x-thor2", 200000, {"device": "14e4:1760"}, ("8 × broadcom 400G",)),
        ("mi300x-thor2", 200000, {"device": "14e4:9999"}, ("8 × broadcom 200G",)),
        ("mi355x-pollara", 200000, {}, ("8 × ainic 400G",)),
        ("mi355x-pollara", 100000, {"pcie": Pcie(16.0, 16, 16.0, 16)}, ("8 × ainic 100G",)),
        ("mi355x-pollara", 200000, {"pcie": Pcie()}, ("8 × ainic 200G",)),
        ("mi250x-slingshot", 100000, {}, ("4 × slingshot 200G",)),
        ("mi300x-cx7", 200000, {}, ("8 × mellanox 200G", "1 × mellanox 100G")),
        ("mi300x-thor2", 800000, {"device": "14e4:1760"}, ("8 × broadcom 800G",)),
    ],
)
def test_a_card_is_known_by_what_it_can_do(kind: str, rate: int, card: dict[str, Any], found: tuple[str, ...]) -> None:
    """Not by how it came up; where its id says nothing of it, by how it did."""
    assert thresholds.hardware(node(kind, rate, **card))[1] == found


@pytest.mark.parametrize("kind", model.names())
def test_the_ports_of_a_healthy_node_are_fast_enough(kind: str) -> None:
    profile = node(kind)
    bounds = thresholds.load()["nic-speed"]
    nics = {nic.verbs: nic for nic in profile.nics}
    for device, port in active(profile):
        rate = port.rate or 0
        bound = bounds.of((), (thresholds.card(profile, nics[device.name], rate),))
        assert bound is None or bound.holds(rate / 1000), device.name


def test_the_ports_of_a_card_share_its_speed() -> None:
    profile = node("mi300x-thor2", 200000, device="14e4:1760")
    second = [replace(nic, pci=nic.pci[:-1] + "1") for nic in profile.nics]
    assert thresholds.hardware(replace(profile, nics=(*profile.nics, *second)))[1] == ("16 × broadcom 200G",)


def test_a_card_that_carries_no_data_raises_no_threshold() -> None:
    profile = node("mi300x-cx7", 200000)
    spare = replace(profile.nics[0], pci="0000:f8:00.0", device="14e4:1760", nic="broadcom", netdevs=(), verbs=None)
    assert thresholds.hardware(replace(profile, nics=(*profile.nics, spare)))[1][-1] == "1 × mellanox 100G"
    assert "1 × broadcom" in thresholds.hardware(replace(profile, nics=(*profile.nics, spare)))[1]


@pytest.mark.parametrize(
    ("rate", "more", "texts", "least"),
    [
        (
            400000,
            {},
            ("8 × mellanox 400G", "2 × mellanox 400G"),
            {"all-reduce-busbw": 304, "rdma-write-bandwidth": 280},
        ),
        (
            200000,
            {"device": "14e4:1760", "nic": "broadcom"},
            ("8 × mellanox 200G", "2 × broadcom 400G"),
            {"all-reduce-busbw": 152, "rdma-write-bandwidth": 140},
        ),
    ],
)
def test_cards_for_storage_are_none_of_those_beside_the_gpus(
    rate: int, more: dict[str, Any], texts: tuple[str, ...], least: dict[str, float]
) -> None:
    """Though they are as fast, or faster, and up."""
    profile = node("mi300x-cx7", rate)
    nic, device, netdev = profile.nics[0], profile.verbs[0], profile.netdevs[1]
    for number in (8, 9):  # beside that for management
        port = replace(device.ports[0], rate=400000)
        own = {"netdevs": (f"store{number}",), "pci": f"0000:f{number}:00.0"}
        profile = replace(
            profile,
            nics=(*profile.nics, replace(nic, **more, **own, verbs=f"mlx5_1{number}")),
            verbs=(*profile.verbs, replace(device, **own, name=f"mlx5_1{number}", ports=(port,))),
            netdevs=(*profile.netdevs, replace(netdev, name=f"store{number}", speed=400000)),
        )
    gpus, nics = thresholds.hardware(profile)
    assert nics[0] == texts[0]
    assert {*texts} <= {*nics}
    bounds = {name: thresholds.load()[name].of(gpus, nics, 2) for name in least}
    assert {name: bound and bound.least for name, bound in bounds.items()} == least


def test_a_site_says_how_fast_its_ports_are_meant_to_be(tmp_path: Path) -> None:
    text = 'nic-speed: {unit: Gb/s, thresholds: [{least: 200, nic: "broadcom 400G", source: our switches}]}'
    profile = node("mi300x-thor2", 200000, device="14e4:1760")
    card = thresholds.card(profile, profile.nics[0], 200000)
    bounds = [known["nic-speed"].of((), (card,)) for known in (thresholds.load(), site(tmp_path, text))]
    assert [bound and bound.least for bound in bounds] == [400, 200]


def test_recorded_nodes_are_judged_by_their_models() -> None:
    nodes = parse_evidence("cluster", CLUSTER, good()["cluster"]).reached
    record = Recorder(nodes, nodes)
    record.judge("n1", 310.0, "all-reduce-busbw")
    record.judge("n1", 300.0, "all-reduce-busbw")
    record.judge("", None, "all-reduce-busbw")
    record.judge("n2", 7.0, "mpi-bandwidth")
    assert [measure.state for measure in record.measures[:3]] == ["passed", "failed", "failed"]
    assert record.measures[1].why == "300 GB/s, expected at least 304 GB/s"
    assert record.measures[2].why == "could not be measured"
    assert record.measures[1].source.startswith("system acceptance")
