"""Faults: each changes what a profile says, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocstack.base.errors import BadInput
from rocstack.node import parse
from rocstack.node.profile import NodeProfile, Port, Verbs
from rocstack.probe import recordings
from rocstack.virtual import faults, machine, model, tree
from rocstack.virtual.cluster_layout import ClusterRequest

KINDS = recordings.kinds()
MODEL = model.load("mi300x-thor2")


def profile(*wanted: str, node: int = 1) -> NodeProfile:
    made = faults.apply(machine.expand(MODEL, node), map(faults.parse, wanted))
    return parse.parse(tree.record(made), KINDS)


def verbs(seen: NodeProfile, name: str) -> Verbs:
    return next(each for each in seen.verbs if each.name == name)


def port(seen: NodeProfile, name: str) -> Port:
    return verbs(seen, name).ports[0]


def nic(seen: NodeProfile, name: str) -> Any:
    return next(each for each in seen.nics if each.verbs == name)


HEALTHY = profile()
# Fault -> how to read what it changes, what it is when healthy, and what it becomes.
CASES: list[tuple[str, Callable[[NodeProfile], Any], Any, Any]] = [
    ("gpu-missing=3", lambda p: [g.pci[5:7] for g in p.gpus][2:5], ["4d", "65", "85"], ["4d", "85", "9d"]),
    ("nic-missing=bnxt_re2", lambda p: len(p.verbs), 8, 7),
    ("port-down=bnxt_re2", lambda p: port(p, "bnxt_re2").state, "ACTIVE", "DOWN"),
    ("port-down=rdma2", lambda p: port(p, "bnxt_re2").physical, "LinkUp", "Disabled"),
    ("pcie=bnxt_re1:x8", lambda p: nic(p, "bnxt_re1").pcie.width, 16, 8),
    ("pcie=gpu3:x4", lambda p: p.gpus[3].pcie.width, 16, 4),
    ("abi=1", lambda p: {v.kernel_abi for v in p.verbs}, {6}, {1}),
    ("abi=1", lambda p: nic(p, "bnxt_re7").device, "14e4:1760", "14e4:1750"),
    ("abi=1", lambda p: p.modules["bnxt_re"], "232.0.164.5", "in-tree"),
    ("abi=8", lambda p: (p.modules["bnxt_re"], p.modules["bnxt_en"]), ("232.0.164.5",) * 2, ("237.1.137.0",) * 2),
    ("driver=900.0.56.1", lambda p: p.modules["bnxt_re"], "232.0.164.5", "900.0.56.1"),
    ("gpu-driver=6.8.5", lambda p: p.amdgpu, "6.12.12", "6.8.5"),
    ("firmware=bnxt_re4:214.0.1.2", lambda p: verbs(p, "bnxt_re4").firmware, "231.2.63.0", "214.0.1.2"),
    ("firmware=214.0.1.2", lambda p: {v.firmware for v in p.verbs}, {"231.2.63.0"}, {"214.0.1.2"}),
    ("mtu=1500", lambda p: {n.mtu for n in p.netdevs if n.name.startswith("rdma")}, {9000}, {1500}),
    ("gid-holes=bnxt_re3", lambda p: [g.index for g in port(p, "bnxt_re3").gids], [0, 1], [0, 2]),
    ("gids-zero=bnxt_re3", lambda p: len(port(p, "bnxt_re3").gids), 2, 0),
    ("no-device-node=bnxt_re3", lambda p: verbs(p, "bnxt_re3").device_node, True, False),
    ("kernel=5.15.0-1", lambda p: p.system.kernel, "6.8.0-79-generic", "5.15.0-1"),
    ("cmdline=quiet", lambda p: p.system.cmdline, MODEL.system.cmdline, "quiet"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "look", "before", "after"), CASES)
def test_a_fault_changes_what_it_says(fault: str, look: Callable[[NodeProfile], Any], before: Any, after: Any) -> None:
    assert look(HEALTHY) == before
    assert look(profile(fault)) == after


def test_every_kind_of_fault_has_a_case() -> None:
    assert {case[0].partition("=")[0] for case in CASES} == set(faults.KINDS)


def test_a_fault_of_one_device_leaves_the_others_alone() -> None:
    seen = profile("port-down=bnxt_re2")
    assert [each for each in seen.verbs if each.name != "bnxt_re2"] == [
        each for each in HEALTHY.verbs if each.name != "bnxt_re2"
    ]
    assert seen.gpus == HEALTHY.gpus


def test_a_fault_of_one_node_is_on_that_node_only() -> None:
    wanted = "n2:gpu-missing=0"
    assert len(profile(wanted, node=1).gpus) == 8
    assert len(profile(wanted, node=2).gpus) == 7


def test_faults_add_up_in_their_order() -> None:
    seen = profile("abi=8", "driver=900.0.56.1", "mtu=1500", "mtu=rdma1:4200")
    assert (seen.verbs[0].kernel_abi, seen.modules["bnxt_re"]) == (8, "900.0.56.1")
    assert [n.mtu for n in seen.netdevs if n.name in ("rdma0", "rdma1")] == [1500, 4200]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gup-missing=1", "no fault 'gup-missing': did you mean 'gpu-missing'"),
        ("port-down", "the form is port-down=DEVICE"),
        ("port-down=bnxt_re9", "no device 'bnxt_re9': did you mean 'bnxt_re7'"),
        ("gpu-missing=8", "no GPU 8"),
        ("gpu-missing=-1", "a GPU is a number up to 255, not '-1'"),
        ("pcie=bnxt_re1:x3", "the form is bnxt_re1:x8 or gpu3:x8"),
        ("pcie=gpu9:x8", "no GPU 9"),
        ("abi=six", "a kernel ABI is a number up to 999, not 'six'"),
        ("mtu=99999", "an MTU is a number up to 65535"),
        ("n3:gpu-missing=1", "there is no node n3: nodes are n1 to n2"),
        ("n0:gpu-missing=1", "there is no node n0"),
        ("port-down=x", "no device 'x': known: bnxt_re0, rdma0, "),
        ("mtu=0", "an MTU is 68 or more, not 0"),
        ("driver=1\n2", "a fault is one line of text"),
    ],
)
def test_a_fault_of_no_use_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput) as error:
        ClusterRequest(MODEL, 2, (faults.parse(text),)).refuse()
    assert says in str(error.value)
    assert error.value.code == "bad-fault"


@pytest.mark.parametrize("text", ["abi=1", "gids-zero", "gid-holes", "abi=hsn1:1", "no-device-node=hsn1"])
def test_what_a_machine_has_not_cannot_be_broken(text: str) -> None:
    with pytest.raises(BadInput, match="no RDMA device") as error:
        ClusterRequest(model.load("mi250x-slingshot"), 1, (faults.parse(text),)).refuse()
    assert error.value.code == "bad-fault"
