"""GPUs that are divided: the driver has each part as a GPU, of the same card."""

from __future__ import annotations

import json
from typing import Any

import pytest
from evidence_replay import red, replay
from test_node_checks import real, recorded


def divided(parts: int, cards: int = 8, mode: str | None = "CPX") -> dict[str, Any]:
    """Two real nodes whose GPUs are each of so many parts; `mode`: what the driver calls that, where it tells."""
    evidence = real(recorded())
    number = parts * cards
    for node in evidence["cluster"]["nodes"]:
        name, profile = node["name"], node["profile"]
        whole = profile["gpus"][:cards]
        links = [{"to": index, "kind": "xgmi", "weight": 15} for index in range(number)]
        profile["gpus"] = [
            whole[index // parts]
            | {"index": index, "render_minor": 128 + index, "kfd_node": 2 + index}
            | {"links": [link for link in links if link["to"] != index]}
            for index in range(number)
        ]
        profile["affinity"] = [{"gpu": i, "nic": f"bnxt_re{i // parts}", "via": "switch"} for i in range(number)]
        evidence["on_hosts"][name]["partitions"] = {gpu["pci"]: mode for gpu in whole}
        row = next(row for row in evidence["controller"]["nodes"] if row["name"] == name)
        row["gres"] = f"gpu:mi300x:{number}"
        jobs = evidence["gpu_jobs"][name]
        jobs["detected"] = jobs["detected"].replace("Count=8", f"Count={number}")
        files = [f"/dev/dri/renderD{128 + index}" for index in range(number)]
        jobs["all"] |= {"agents": number, "devices": dict.fromkeys(["/dev/kfd", *files], "")}
        jobs["all"]["hip"] = "\n".join(f"GPU {index}: the kernel's result is right" for index in range(number))
        pairs = [f"{a}-{b}" for a in range(number) for b in range(a + 1, number)]
        cards_said = {f"card{index}": "0x74a1" for index in range(number)}
        jobs["all"]["smi"] |= {"cards": cards_said, "links": dict.fromkeys(pairs, "XGMI")}
        only = [{path: "" if path == own else "EPERM" for path in files} for own in files]
        jobs["one"]["devices"] = only[0]
        jobs["each"] = [{"node": name, "env": {"ROCR_VISIBLE_DEVICES": "0"}, "devices": each} for each in only]
        jobs["tasks"] = number
    return evidence


@pytest.mark.parametrize(("parts", "mode"), [(8, "CPX"), (2, "DPX"), (2, None)])
def test_sound_nodes_pass(parts: int, mode: str | None) -> None:
    results = replay(divided(parts, mode=mode))
    assert red(results) == set()
    assert {m.wanted for m in results["gpu-tools"].measures} == {f"8 GPUs in {8 * parts} parts"}


def test_a_tool_that_misses_some_parts_is_named() -> None:
    evidence = divided(8)
    evidence["gpu_jobs"]["n2"]["all"]["agents"] = 56
    results = replay(evidence, only="gpu-tools")
    assert results["gpu-tools"].why == "rocminfo sees 56 of 64"


def test_a_card_that_all_nodes_lost_is_missed() -> None:
    results = replay(divided(8, cards=7), only="gpu-count")
    assert results["gpu-count"].why == "56 of 64 GPUs: 56 on the PCI bus, 56 with a driver"


def test_a_gpu_whose_name_cannot_be_read_is_known_by_its_pci_id() -> None:
    """Its firmware is compared with the others', and Slurm may call it by its model."""
    evidence = real(recorded())
    for node in evidence["cluster"]["nodes"]:
        rows = [{"gpu": gpu, "fw_list": [{"fw_id": "RLC", "fw_version": "33"}]} for gpu in range(8)]
        evidence["gpu_jobs"][node["name"]]["all"]["amd_smi"] = {"firmware": json.dumps(rows)}
    for gpu in evidence["cluster"]["nodes"][1]["profile"]["gpus"]:
        gpu["name"] = None
    results = replay(evidence)
    assert red(results) == set()
    assert {m.state for m in results["gpu-firmware"].measures} == {"passed"}
    for gpu in (gpu for node in evidence["cluster"]["nodes"] for gpu in node["profile"]["gpus"]):
        gpu["name"], gpu["device"] = None, "1002:74b5"
    assert red(replay(evidence, only="g*")) == set(), "a virtual function, which has no name"
