"""What the nodes need of a NIC's provider: kernel ABI and release of the driver."""

from __future__ import annotations

from typing import Any

import gate_cases
import pytest

from rocstack.nic.ways import Need, is_worker, needs
from rocstack.node.profile import NodeProfile
from rocstack.stack import component
from rocstack.stack.component import NicProfile

V232, V235 = "232.0.164.5", "235.2.86.0"


def nic(name: str) -> NicProfile:
    return component.validate_head(component.library("nic").get(name), NicProfile)


def node(name: str, case: str, module: str | None = None, **changes: Any) -> NodeProfile:
    modules = {} if module is None else {"bnxt_re": module}
    return gate_cases.profile({**gate_cases.plain(case), "name": name, "modules": modules, **changes})


def test_needs() -> None:
    nodes = [
        node("n1", "thor2 abi 6", V232),
        node("n2", "thor2 abi 1", "in-tree"),
        node("n3", "thor2 abi 6", V232),
        node("n4", "thor2 abi 6", V235),
        node("n5", "cx7", V232),
        node("n6", "no nic"),
        node("n7", "two abis", V232),
        node("n8", "all abis unread", V232),
    ]
    assert needs(nic("broadcom"), nodes) == (
        Need(6, V232, ("n1", "n3", "n7")),
        Need(1, None, ("n2",)),
        Need(1, V232, ("n7",)),
        Need(6, V235, ("n4",)),
    )
    assert needs(nic("mellanox"), nodes) == (Need(1, None, ("n5",)),)
    assert needs(nic("tcp"), nodes) == needs(nic("slingshot"), nodes) == ()


@pytest.mark.parametrize("module", [None, "", "in-tree", "v1", "1.0 beta", "1;reboot", "1\n", "٣", "1" * 65])
def test_a_version_that_is_none(module: str | None) -> None:
    assert needs(nic("broadcom"), [node("n1", "thor2 abi 6", module)]) == (Need(6, None, ("n1",)),)


def test_the_devices_of_a_nic_and_the_nodes_that_count() -> None:
    mixed = node("n1", "thor2 and cx7")
    assert needs(nic("mellanox"), [mixed]) == (Need(1, None, ("n1",)),)
    gpu = node("n2", "no nic", gpus=[{"index": 0, "pci": "0000:01:00.0", "device": "1002:74a1"}])
    asked = {
        "broadcom": {"thor2": True, "cx7": False, "nothing": False, "gpu": True},
        "mellanox": {"thor2": False, "cx7": True, "nothing": False, "gpu": True},
    }
    found = {"thor2": node("a", "thor2 abi 6"), "cx7": node("b", "cx7"), "nothing": node("c", "no nic"), "gpu": gpu}
    for name, wanted in asked.items():
        head = nic(name)
        assert {kind: is_worker(each, head.modules, head.pci) for kind, each in found.items()} == wanted


def test_a_node_whose_drivers_are_not_loaded_counts() -> None:
    """Only the bus speaks of it: the gate must see it, and say what is missing."""
    dead = node("n1", "no nic", nics=[{"pci": "0000:01:00.0", "device": "14e4:1760"}])
    assert is_worker(dead, nic("broadcom").modules, nic("broadcom").pci)
    assert not is_worker(dead, nic("mellanox").modules, nic("mellanox").pci)
