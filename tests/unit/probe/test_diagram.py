"""Drawings of a node: two golden ones (data/drawings), and what holds for every node model."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from rocstack.node.profile import Affinity, Gpu, GpuLink, Netdev, Nic, NodeProfile, Pcie, Port, Verbs
from rocstack.probe import recordings
from rocstack.probe.diagram import clean, draw, generation, nic_name
from rocstack.virtual import machine, model, tree

DATA = Path(__file__).parents[1] / "data" / "drawings"
MODELS = model.names()


@cache
def virtual(name: str) -> NodeProfile:
    return recordings.profiles([tree.record(machine.expand(model.load(name)))])[0]


def small() -> NodeProfile:
    """Two GPUs: one behind a switch with its card, one on a root port of its own; a card of two ports; a slow link."""
    fast, narrow = Pcie(32.0, 16, 32.0, 16), Pcie(16.0, 8, 32.0, 16)
    return NodeProfile(
        schema=1,
        name="n\x1b[31m1",
        gpus=(
            Gpu(0, "0000:05:00.0", "1002:74a1", "gfx942", numa=0, pcie=fast, links=(GpuLink(1, "xgmi", 15),),
                path=("0000:00:01.1", "0000:01:00.0", "0000:02:00.0", "0000:05:00.0")),
            Gpu(1, "0000:45:00.0", "1002:74a1", "gfx942", numa=1, pcie=narrow, links=(GpuLink(0, "xgmi", 15),),
                path=("0000:40:01.1", "0000:41:00.0", "0000:42:00.0", "0000:45:00.0")),
        ),
        nics=(
            Nic("0000:06:00.0", "14e4:1760", "broadcom", numa=0, pcie=fast, netdevs=("rdma0",), verbs="bnxt_re0",
                path=("0000:00:01.1", "0000:01:00.0", "0000:02:01.0", "0000:06:00.0")),
            Nic("0000:c1:00.0", "15b3:101d", netdevs=("eno1",), path=("0000:c0:01.1", "0000:c1:00.0")),
            Nic("0000:c1:00.1", "15b3:101d", netdevs=("eno2",), path=("0000:c0:01.1", "0000:c1:00.1")),
            *(Nic(f"0000:d1:00.{n}", "8086:1889", path=("0000:d0:01.1", f"0000:d1:00.{n}")) for n in range(6)),
        ),
        netdevs=(Netdev("rdma0", "up", 400_000), Netdev("eno1", "up", 25_000), Netdev("eno2", "down")),
        verbs=(Verbs("bnxt_re0", "uverbs0", ports=(Port(1, "DOWN", rate=400_000),)),),
        affinity=(Affinity(0, "bnxt_re0", "switch"), Affinity(1, "bnxt_re0", "system")),
    )  # fmt: skip


@pytest.mark.parametrize(("name", "width", "unicode"), [("wide.txt", 80, True), ("narrow-ascii.txt", 60, False)])
def test_golden(name: str, width: int, unicode: bool) -> None:
    assert draw(small(), width, unicode) == (DATA / name).read_text()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("width", "unicode"), [(80, True), (60, False), (40, True), (1, False)])
def test_every_model_fits(name: str, width: int, unicode: bool) -> None:
    text = draw(virtual(name), width, unicode)
    assert max(map(len, text.splitlines())) <= width
    assert text.isascii() or unicode


@pytest.mark.parametrize("name", MODELS)
def test_everything_is_drawn_once_and_where_it_is(name: str) -> None:
    node = virtual(name)
    text = draw(node)
    assert f"virtual ({name})" in text.splitlines()[0]
    for gpu in node.gpus:
        assert len(re.findall(rf"─ GPU {gpu.index} ", text)) == 1
    for nic in node.nics:
        assert len(re.findall(rf"─ {re.escape(nic_name(nic))} ", text)) == 1
    # A card that is said to be behind a GPU's switch stands below the same line as the GPU.
    group: dict[str, int] = {}
    for number, line in enumerate(text.splitlines()):
        if "root complex" in line or " switch " in line.partition("→")[0]:
            start = number
        elif found := re.search(r"[├└]─ (GPU \d+|\S+) ", line):
            group[found[1]] = start
    for link in node.affinity:
        assert (group[f"GPU {link.gpu}"] == group[link.nic]) == (link.via in ("switch", "root"))


def test_xgmi_that_is_no_mesh_is_listed() -> None:
    node = small()
    third = replace(node.gpus[1], index=2, pci="0000:46:00.0", links=())
    text = draw(replace(node, gpus=(*node.gpus, third)))
    assert "XGMI:\n  GPU 0 ─ 1\n  GPU 1 ─ 0\n  GPU 2 ─ nobody\n" in text
    apart = tuple(replace(gpu, links=()) for gpu in node.gpus)
    assert "XGMI: none" in draw(replace(node, gpus=apart))
    assert "XGMI" not in draw(replace(node, gpus=apart[:1]))


def test_nothing_to_draw() -> None:
    assert draw(NodeProfile(1, "n1")) == ""


def test_what_a_node_says_does_not_steer_the_terminal() -> None:
    assert clean("a\x1b[2Jb\rc\u202ed\n", 80) == "a?[2Jb?c?d?"
    assert clean("abcdef", 4) == "abc…"
    assert clean("aé→", 80, unicode=False) == "a?>"


LINKS = {
    "gen5 x16": Pcie(32.0, 16, 32.0, 16),
    "gen4 x16 (of gen5!)": Pcie(16.0, 16, 32.0, 16),
    "gen5 x8 (of x16!)": Pcie(32.0, 8, 32.0, 16),
    "gen1 x1 (of gen4 x16!)": Pcie(2.5, 1, 16.0, 16),
    "7 GT/s x?": Pcie(7, None),
    "": Pcie(),
}


@pytest.mark.parametrize("says", LINKS)
def test_links(says: str) -> None:
    assert generation(LINKS[says]) == says
