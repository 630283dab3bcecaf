"""Cables as planned: what nodes say of the switches and subnets that their NICs are on, and what is made of it."""

from __future__ import annotations

from typing import Any

import pytest
from evidence_replay import good, replay

from rocstack.verify import rails

LLDP = """lldp.{netdev}.via=LLDP
lldp.{netdev}.rid=1
lldp.{netdev}.age=3 days, 04:05:06
lldp.{netdev}.chassis.mac=0c:42:a1:00:00:{leaf:02x}
lldp.{netdev}.chassis.name=leaf-{leaf}
lldp.{netdev}.chassis.descr=a switch = of some kind
lldp.{netdev}.chassis.mgmt-ip=10.213.0.{leaf}
lldp.{netdev}.chassis.Bridge.enabled=on
lldp.{netdev}.port.ifname=Ethernet1/{port}
lldp.{netdev}.port.descr=to a node
lldp.{netdev}.port.ttl=120
"""


def heard(leaves: list[int], node: int) -> dict[str, list[list[str]]]:
    return {
        f"rdma{number}": [[f"0c:42:a1:00:00:{leaf:02x}", f"leaf-{leaf}", f"Ethernet1/{node}"]]
        for number, leaf in enumerate(leaves)
    }


def judged(*cabled: list[int], subnets: bool = False) -> Any:
    """The recorded node again and again, its NICs on these switches; in one subnet unless they have their own."""
    evidence = {key: value for key, value in good().items() if key in ("cluster", "on_hosts")}
    one = evidence["cluster"]["nodes"][0]
    evidence["cluster"]["nodes"] = nodes = []
    for number, leaves in enumerate(cabled, 1):
        addresses = [
            {**each, "address": f"10.100.{each['netdev'][4:] if subnets else 0}.{number}/24"}
            for each in one["profile"]["addresses"]
            if each["netdev"].startswith("rdma")
        ]
        nodes.append({**one, "name": f"n{number}", "profile": {**one["profile"], "addresses": addresses}})
        own = {"neighbours": heard(leaves, number) if leaves else None}
        evidence["on_hosts"][f"n{number}"] = {**evidence["on_hosts"]["n1"], **own}
    return replay(evidence, only="rails")["rails"]


def states(result: Any) -> dict[str, str]:
    return {measure.node: measure.state for measure in result.measures}


PLANNED = [0, 1, 2, 3, 4, 5, 6, 7]
SWAPPED = [0, 1, 3, 2, 4, 5, 6, 7]


def test_what_lldpd_says_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from test_programs import host

    text = LLDP.format(netdev="rdma0", leaf=1, port=7) + LLDP.format(netdev="eth1.100", leaf=2, port=8)
    twice = LLDP.format(netdev="rdma0", leaf=3, port=9)
    found = host({"lldpctl -f keyvalue": text + twice + "noise\n"}, monkeypatch)["neighbours"]()
    assert found == {
        "rdma0": [["0c:42:a1:00:00:01", "leaf-1", "Ethernet1/7"], ["0c:42:a1:00:00:03", "leaf-3", "Ethernet1/9"]],
        "eth1.100": [["0c:42:a1:00:00:02", "leaf-2", "Ethernet1/8"]],
    }
    assert host({}, monkeypatch)["neighbours"]() is None
    assert host({"lldpctl -f keyvalue": ""}, monkeypatch)["neighbours"]() == {}


def test_two_swapped_cables_are_found_and_named() -> None:
    found = judged(PLANNED, PLANNED, SWAPPED, PLANNED)
    assert states(found) == {"n1": "passed", "n2": "passed", "n3": "failed", "n4": "passed"}
    (bad,) = (measure for measure in found.measures if measure.state == "failed")
    slots = ("port 1 of NIC 0000:4e:00.0", "port 1 of NIC 0000:66:00.0")
    assert f"{slots[0]} is on switch leaf-3 (0c:42:a1:00:00:03), where most nodes have {slots[1]}" in bad.why
    assert f"{slots[1]} is on switch leaf-2 (0c:42:a1:00:00:02), where most nodes have {slots[0]}" in bad.why
    assert states(judged(PLANNED, PLANNED, SWAPPED, PLANNED, subnets=True))["n3"] == "failed"


def test_of_two_nodes_none_is_blamed_alone() -> None:
    assert states(judged(PLANNED, SWAPPED)) == {"n1": "failed", "n2": "failed"}


@pytest.mark.parametrize(
    "cabled",
    [
        [PLANNED] * 4,
        [[0, 0, 0, 0, 1, 1, 1, 1]] * 3,  # two switches, four rails each
        [PLANNED, PLANNED, [each + 8 for each in PLANNED], [each + 8 for each in PLANNED]],  # two scalable units
    ],
)
def test_healthy_forms_of_rails_pass(cabled: list[list[int]]) -> None:
    found = judged(*cabled)
    assert set(states(found).values()) == {"passed"}
    assert "cables" not in found.measures[0].evidence


@pytest.mark.parametrize(
    "cabled",
    [
        [[0] * 8, [0] * 8],  # a switch on top of the rack
        [[0] * 8, [1] * 8],
        [PLANNED, [each + 8 for each in PLANNED]],  # no switch in common
        [PLANNED, SWAPPED, [7, 6, 5, 4, 3, 2, 1, 0], [3, 0, 1, 2, 7, 4, 5, 6]],  # as they came
    ],
)
def test_without_rails_nothing_is_judged(cabled: list[list[int]]) -> None:
    assert set(states(judged(*cabled)).values()) == {"skipped"}


def test_subnets_alone_show_no_cables() -> None:
    found = judged([], [], subnets=True)
    assert set(states(found).values()) == {"passed"}
    assert "nothing was heard of switches" in found.measures[0].evidence
    assert set(states(judged([], [])).values()) == {"skipped"}


def test_one_card_that_is_not_heard_leaves_the_others_judged() -> None:
    ends = {"a": {"0": "x", "1": "y"}, "b": {"0": "x", "1": "y"}, "c": {"0": "y"}, "d": {"0": "x", "1": "y", "2": "z"}}
    assert rails.compare(ends, "switch") == rails.Rails({}, {"a": 2, "b": 2, "d": 2})
