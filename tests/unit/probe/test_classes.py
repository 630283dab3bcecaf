"""Nodes that are alike, and the outlier named first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import recorded_nodes

from rocstack.node.parse import parse
from rocstack.node.profile import Address, NodeProfile, System, Unread
from rocstack.probe.classes import classes, differences, traits

ONE = parse(recorded_nodes.recording("mi300x-thor2"), recorded_nodes.KINDS)


def named(name: str, **changes: Any) -> NodeProfile:
    return replace(ONE, name=name, **changes)


def with_abi(name: str, abi: int | None) -> NodeProfile:
    return named(name, verbs=tuple(replace(device, kernel_abi=abi) for device in ONE.verbs))


def test_alike_is_one_class_by_natural_order() -> None:
    (group,) = classes([named(f"n{number}") for number in (10, 2, 1)])
    assert group.nodes == ("n1", "n2", "n10")
    assert differences([group]) == ()


def test_the_largest_class_first_and_the_outlier_first() -> None:
    slow = tuple(replace(netdev, mtu=1500) for netdev in ONE.netdevs)
    fleet = [with_abi("n3", 6), named("n1"), named("n2"), named("n4", netdevs=slow), named("n5", netdevs=slow)]
    groups = classes(fleet)
    assert [group.nodes for group in groups] == [("n1", "n2"), ("n4", "n5"), ("n3",)]
    assert [difference.sentence for difference in differences(groups)] == [
        "kernel ABI differs: 6 on n3; 8 on n1, n2, n4, n5",
        "NIC MTU differs: 2 x 1500 on n4, n5; 2 x 9000 on n1, n2, n3",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"addresses": (Address("eno1", "10.9.9.9/16"),)},
        {"system": replace(ONE.system, clock=1.0)},
        {
            "system": replace(
                ONE.system, cmdline="BOOT_IMAGE=/vmlinuz root=UUID=ab iommu=pt hostname=n7 pci=realloc=off ro"
            )
        },
        {"system": replace(ONE.system, memory=(ONE.system.memory or 0) - 4096)},
        {"routes": ()},
        {"unread": (Unread("/proc/cmdline", "permission denied"),)},
        {"sysctl": {**ONE.sysctl, "net.ipv4.conf.eno1.arp_ignore": "0"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_nodes_own_affairs_make_no_difference(change: dict[str, Any]) -> None:
    assert len(classes([ONE, named("n2", **change)])) == 1


def of_gpu(**change: Any) -> dict[str, Any]:
    return {"gpus": (replace(ONE.gpus[0], **change), *ONE.gpus[1:])}


def of_nic(**change: Any) -> dict[str, Any]:
    return {"nics": (replace(ONE.nics[0], **change), *ONE.nics[1:])}


@pytest.mark.parametrize(
    ("change", "trait"),
    [
        ({"virtual": "mi300x-thor2"}, "hardware"),
        ({"system": System()}, "OS"),
        ({"system": replace(ONE.system, kernel="6.9.0")}, "kernel"),
        ({"system": replace(ONE.system, cmdline="iommu=soft")}, "kernel command line"),
        ({"system": replace(ONE.system, numa_balancing=1)}, "NUMA balancing"),
        ({"amdgpu": "in-tree"}, "amdgpu"),
        ({"gpus": ONE.gpus[1:]}, "GPUs"),
        (of_gpu(firmware="113-OLD"), "GPU firmware"),
        (of_gpu(pcie=replace(ONE.gpus[0].pcie, width=8)), "GPU PCIe"),
        (of_gpu(links=()), "GPU links"),
        (of_nic(firmware="1.0"), "NIC firmware"),
        (of_nic(driver_version="in-tree"), "NIC driver"),
        ({"nics": ONE.nics[:1]}, "NICs"),
        ({"verbs": ONE.verbs[:1]}, "RDMA devices"),
        ({"libraries": ()}, "library /usr/local/lib/x86_64-linux-gnu/libbnxt_re-rdmav34.so"),
        ({"modules": {**ONE.modules, "bnxt_re": "232.0.164.5"}}, "module bnxt_re"),
        ({"groups": {**ONE.groups, "render": 110}}, "group render"),
        ({"limits": {**ONE.limits, "memlock": 65536}}, "limit memlock"),
        ({"sysctl": {**ONE.sysctl, "net.ipv4.conf.all.arp_ignore": "0"}}, "net.ipv4.conf.all.arp_ignore"),
        ({"tools": {**ONE.tools, "slurm": "23.11.4"}}, "tool slurm"),
        ({"cxi": ("/dev/cxi0",)}, "Slingshot devices"),
    ],
    ids=str,
)
def test_what_matters_makes_a_difference(change: dict[str, Any], trait: str) -> None:
    groups = classes([ONE, named("n0", **change)])
    assert trait in {difference.what for difference in differences(groups)}


def test_unread_is_not_the_same_as_none() -> None:
    (difference,) = differences(classes([with_abi("n1", 8), with_abi("n2", None)]))
    assert difference.values == (("8", ("n1",)), ("not read", ("n2",)))
    assert traits(NodeProfile(1, "bare"))["kernel ABI"] == "none"


def test_every_case_can_be_told() -> None:
    profiles = [
        replace(parse(recorded_nodes.recording(name), recorded_nodes.KINDS), name=name)
        for name in recorded_nodes.names()
    ]
    groups = classes(profiles)
    assert sorted(name for group in groups for name in group.nodes) == recorded_nodes.names()
    for difference in differences(groups):
        assert sorted(name for _, names in difference.values for name in names) == recorded_nodes.names()
