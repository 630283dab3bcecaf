"""Node models: what is wrong in a file is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocstack.base import document
from rocstack.base.errors import BadInput
from rocstack.virtual import gpu_files, machine, model
from rocstack.virtual.tree_builder import pci_config

GOOD = (model.folder() / "mi300x-thor2.yml").read_text()


def parse(text: str) -> model.NodeModel:
    return document.parse(text, "m.yml").validate(model.NodeModel, extra={"name": "m"})


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def test_the_models_that_are_promised_are_there() -> None:
    assert set(model.names()) >= {
        "mi250x-slingshot", "mi300x-thor2", "mi300x-cx7", "mi325x-thor2", "mi300x-pollara", "mi355x-pollara",
        "mixed-broken", "epyc-thor2",
    }  # fmt: skip


@pytest.mark.parametrize("name", model.names())
def test_every_model_says_that_it_is_made_from_documentation(name: str) -> None:
    text = (model.folder() / f"{name}.yml").read_text()
    assert text.startswith("# Made from documentation, not recorded from a machine;")
    assert model.load(name).sources


# What is changed in a good file, what is said, and the line that is named (by what stands in it).
CASES = [
    ("gfx: gfx942", "gfx: mi300", "gpus.gfx: 'mi300' is not a gfx target such as gfx942", "gfx: mi300"),
    ('"1002:74a1"', "74a1", "gpus.pci: '74a1' is not vendor:device, such as 14e4:1760", "pci: 74a1"),
    ("memory_gib: 192", "memory_gb: 192", "unknown key 'memory_gb': did you mean 'memory_gib'?", "memory_gb"),
    ("verbs_module: bnxt_re", "", "a verbs device and its kernel module (verbs_module) go together", "verbs: bnxt_re0"),
    ('bus: "18"', 'bus: "00"', "bus '00' is there twice", "nics:"),
    ("gpus: [7]", "gpus: [6]", "must hold each GPU from 0 to 7 once, not [0, 1, 2, 3, 4, 5, 6, 6]", "switches:"),
    ("nics: [rdma7]", "nics: [rmda7]", "no network device 'rmda7' here: did you mean 'rdma7'", "switches:"),
    ("nics: [rdma7]", "nics: [rdma6]", "'rdma6' is on two switches", "switches:"),
    ("numa: 1, gpus: [4]", "numa: 2, gpus: [4]", "something on NUMA node 2, and the machine has 2", "switches:"),
    ("management: true, ", "", "exactly one kind of card is the management network", "nics:"),
    ("netdev: eno1", "netdev: rdma3", "network device 'rdma3' is there twice", "nics:"),
    ("10.100.0.0/16", "10.100.0.0/24", "10.100.0.0/24 holds too few /24 networks", "network:"),
    ("10.100.0.0/16", "ten", "nics.0.network: Expected 4 octets in 'ten'", "network: ten"),
    ("xgmi: all", "xgmi: [[0, 8]]", "xgmi link [0, 8] is between no two GPUs", "gpus:"),
    ("memlock: -1", "memlok: -1", "memlok", "limits:"),
]


def test_gpus_on_switches_need_gpus() -> None:
    text = (model.folder() / "epyc-thor2.yml").read_text().replace("numa: 1, nics", "numa: 1, gpus: [0], nics")
    with pytest.raises(BadInput, match=r"hold GPUs \[0\], and the model has no `gpus`"):
        parse(text)


@pytest.mark.parametrize(("old", "new", "says", "at"), CASES)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, says: str, at: str) -> None:
    text = GOOD.replace(old, new)
    assert text != GOOD
    with pytest.raises(BadInput) as error:
        parse(text)
    assert says in error.value.what
    assert str(error.value.where) == f"m.yml:{line_of(text, at)}"


def test_an_unknown_model_gets_the_nearest_names() -> None:
    with pytest.raises(BadInput) as error:
        model.load("mi300-thor2")
    assert "did you mean 'mi300x-thor2'" in error.value.what
    assert error.value.code == "unknown-model"


def test_a_file_of_ones_own_is_a_model(tmp_path: Path) -> None:
    file = tmp_path / "ours.yml"
    file.write_text(GOOD)
    assert model.load(str(file)).name == "ours"


def test_names_count_on_from_the_first() -> None:
    assert model.counted("eno9", 3) == ["eno9", "eno10", "eno11"]


@pytest.mark.parametrize(
    ("gfx", "number"), [("gfx90a", 90010), ("gfx942", 90402), ("gfx950", 90500), ("gfx1100", 110000)]
)
def test_gfx_as_kfd_writes_it(gfx: str, number: int) -> None:
    assert gpu_files.target_version(gfx) == number


def test_hops_are_the_fewest_links() -> None:
    gpus = model.load("mi250x-slingshot").gpus
    assert gpus
    hops = machine.hops(gpus)
    assert (hops[0, 1], hops[0, 6], hops[0, 3], hops[5, 6]) == (1, 1, 2, 2)
    assert len(hops) == 56


def test_configuration_space_of_a_bridge_says_its_buses() -> None:
    space = pci_config("1000:c030", 0x060400, (1, 2, 6))
    assert (len(space), space[:4], space[9:12]) == (256, b"\x00\x10\x30\xc0", b"\x00\x04\x06")
    assert (space[0x0E], space[0x18:0x1B]) == (1, b"\x01\x02\x06")
