"""topology.conf from `cluster.topology`. That Slurm places jobs by it is seen in tests/integration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from rocstack.base.errors import BadInput
from rocstack.cluster import checks, slurm_syntax
from rocstack.cluster.settings import ClusterSettings
from rocstack.cluster.slurm_files import Control, files
from rocstack.cluster.slurm_node import slurm_node
from rocstack.node.profile import NodeProfile, System

GROUPS = {"rack1": ("n1", "n2"), "rack2": ("n3", "n4"), "rack3": ("n5",)}


def settings(switches: Mapping[str, Any], kind: str = "tree") -> ClusterSettings:
    return ClusterSettings.model_validate({"topology": {"kind": kind, "switches": switches}})


def made(
    switches: Mapping[str, Any], kind: str = "tree", count: int = 5, absent: tuple[str, ...] = ()
) -> Mapping[str, str]:
    profile = NodeProfile(1, "x", system=System(cpus=4, memory=8 << 30))
    machines = [
        slurm_node(profile, name=f"n{last}", address=f"10.0.0.{last}", cgroup=1, cgroup_writable=True)
        for last in range(1, count + 1)
        if f"n{last}" not in absent
    ]
    found = files(
        settings(switches, kind), Control("c", "10.0.0.99"), machines, absent=absent, groups=GROUPS, password="p" * 8
    ).texts
    assert not list(slurm_syntax.problems("topology.conf", found["topology.conf"]))
    return found


def rows(texts: Mapping[str, str]) -> list[str]:
    return texts["topology.conf"].splitlines()[1:]


def test_switches_that_nothing_joins_get_one_above_them() -> None:
    texts = made({"rack1": "rack1", "rack2": "rack2", "rack3": "n5"})
    assert rows(texts) == [
        "SwitchName=rack1 Nodes=n[1-2]",
        "SwitchName=rack2 Nodes=n[3-4]",
        "SwitchName=rack3 Nodes=n5",
        "SwitchName=top Switches=rack1,rack2,rack3",
    ]
    assert "TopologyPlugin=topology/tree\n" in texts["slurm.conf"]
    assert "TopologyParam" not in texts["slurm.conf"]


def test_the_one_above_has_no_name_of_theirs() -> None:
    switches = {"top": "rack1", "top-of-all": "rack2", "rack3": "n5"}
    assert rows(made(switches))[-1] == "SwitchName=top-of-all-of-all Switches=top,top-of-all,rack3"


def test_switches_above_switches() -> None:
    texts = made({"core": ["spine[1-2]"], "spine1": ["a", "b"], "spine2": "c", "a": "n[1-2]", "b": "n3", "c": "n[4-5]"})
    assert rows(texts)[3:] == [
        "SwitchName=spine1 Switches=a,b",
        "SwitchName=spine2 Switches=c",
        "SwitchName=core Switches=spine1,spine2",
    ]


def test_a_dragonfly_and_blocks() -> None:
    texts = made({"g1": "rack1", "g2": "n[3-5]"}, "dragonfly")
    assert "TopologyPlugin=topology/tree\nTopologyParam=Dragonfly\n" in texts["slurm.conf"]
    texts = made({"b1": "rack1", "b2": "n[3-5]"}, "block")
    assert "TopologyPlugin=topology/block\n" in texts["slurm.conf"]
    assert rows(texts) == ["BlockName=b1 Nodes=n[1-2]", "BlockName=b2 Nodes=n[3-5]", "BlockSizes=2"]


def test_nodes_that_slurm_does_not_know_yet_are_left_out_with_their_switch() -> None:
    texts = made({"a": "n[1-2]", "b": "n[3-4]", "c": "n5", "up": ["b", "c"]}, absent=("n2", "n3", "n4"))
    assert rows(texts) == [
        *("SwitchName=a Nodes=n1", "SwitchName=c Nodes=n5", "SwitchName=up Switches=c", "SwitchName=top Switches=a,up"),
    ]


def test_one_switch_needs_none_above() -> None:
    assert rows(made({"a": "all"})) == ["SwitchName=a Nodes=n[1-5]"]


@pytest.mark.parametrize(
    ("switches", "kind", "says"),
    [
        ({}, "tree", "at least 1"),
        ({"a": "n1", "b": []}, "tree", "names no node and no switch"),
        ({"a": "n1", "b": ["a", "n2"]}, "tree", "either"),
        ({"a": "n1", "b": "a"}, "block", "beside each other"),
        ({"a": "n1", "b": "a", "c": "a"}, "tree", "below 'b' already"),
        ({"a": "b", "b": "a"}, "tree", "below itself"),
        ({"a": "n[1-"}, "tree", "n\\[1-"),
        ({"A": "n1"}, "tree", "small letters"),
    ],
)
def test_what_is_no_topology(switches: Mapping[str, Any], kind: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        settings(switches, kind)


@pytest.mark.parametrize(
    ("switches", "code", "says"),
    [
        ({"a": "n[1-4]"}, "no-switch", "no switch of cluster.topology has n5"),
        ({"a": "n[1-4]", "b": "n[4-5]"}, "two-switches", "n4 has two switches, a and b"),
        ({"a": "n[1-5]", "b": "n6"}, "unknown-node", "'n6'"),
    ],
)
def test_what_does_not_fit_the_nodes(switches: Mapping[str, Any], code: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        made(switches)
    assert caught.value.code == code
    workers = [f"n{last}" for last in range(1, 6)]
    with pytest.raises(BadInput, match=says):
        checks.check(settings(switches), workers=workers, groups=GROUPS)
    checks.check(settings(switches))  # nobody knows the nodes


def test_the_plugin_is_no_line_of_ones_own() -> None:
    with pytest.raises(BadInput, match="TopologyPlugin") as caught:
        checks.check(ClusterSettings.model_validate({"slurm": {"TopologyPlugin": "topology/tree"}}))
    assert "`topology` below `cluster:`" in caught.value.next_step
