"""Which ports nic-speed compares with which."""

from __future__ import annotations

import copy
from typing import Any

from evidence_replay import replay
from test_node_checks import real, recorded


def found(evidence: dict[str, Any]) -> dict[str, tuple[str, Any, str]]:
    return {m.node: (m.state, m.value, m.why) for m in replay(evidence, only="nic-speed")["nic-speed"].measures}


def slower(profile: dict[str, Any], names: list[str], rate: int) -> None:
    for netdev in profile["netdevs"]:
        netdev["speed"] = rate if netdev["name"] in names else netdev["speed"]
    for device in profile["verbs"]:
        device["ports"][0]["rate"] = rate if device["netdevs"][0] in names else device["ports"][0]["rate"]


def test_a_slow_port_is_no_card_for_management_where_no_switch_tells_which_those_are() -> None:
    """As in guests, and where NICs are at root ports: others carry data by the port of this name."""
    evidence = real(recorded())
    for node in evidence["cluster"]["nodes"]:
        for link in node["profile"]["affinity"]:
            link["via"] = "root"
    assert {state for state, *_ in found(evidence).values()} == {"passed"}
    slower(evidence["cluster"]["nodes"][1]["profile"], ["rdma3"], 100000)
    states = found(evidence)
    assert states["n1"][0] == "passed"
    assert states["n2"][:2] == ("failed", 100)
    assert "bnxt_re3" in states["n2"][2]


def test_a_card_for_storage_of_another_model_makes_no_data_network_slow() -> None:
    """Eight cards for 200 Gb/s beside the GPUs, and one for 400 Gb/s that is not."""
    evidence = real(recorded())
    for node in evidence["cluster"]["nodes"]:
        profile = node["profile"]
        nic, device, netdev = (copy.deepcopy(profile[part][0]) for part in ("nics", "verbs", "netdevs"))
        for each in profile["nics"]:
            each |= {"device": "15b3:101b", "nic": "mellanox"}
        slower(profile, [f"rdma{number}" for number in range(8)], 200000)
        device["ports"][0]["rate"] = 400000
        profile["nics"].append(nic | {"pci": "0000:f5:00.0", "netdevs": ["store0"], "verbs": "bnxt_re9"})
        profile["verbs"].append(device | {"name": "bnxt_re9", "pci": "0000:f5:00.0", "netdevs": ["store0"]})
        profile["netdevs"].append(netdev | {"name": "store0", "speed": 400000, "pci": "0000:f5:00.0"})
    assert {each[:2] for each in found(evidence).values()} == {("passed", 200)}
    slower(evidence["cluster"]["nodes"][1]["profile"], ["rdma3"], 100000)
    assert found(evidence)["n2"][2] == "slower than others: bnxt_re3"
