"""The cases of data/gate: labels of images, profiles of nodes, and the verdict on each pair."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from rocstack.node.image_facts import LABEL_PREFIX
from rocstack.node.profile import NodeProfile

DATA = Path(__file__).parents[1] / "data/gate"
PROFILE = TypeAdapter(NodeProfile)
CARDS = {  # kernel module -> card, NIC profile, name of its devices
    "bnxt_re": ("14e4:1760", "broadcom", "bnxt_re"),
    "mlx5_ib": ("15b3:1021", "mellanox", "mlx5_"),
    "ionic_rdma": ("1dd8:1002", "ainic", "ionic_"),
    "cxi_ss1": ("17db:0501", "slingshot", ""),
    "igb": ("8086:1533", None, ""),
}
DAMAGED = {"deep": "[" * 100_000, "huge": f'[{{"driver": "bnxt_re", "kernel_abi": [1, {"9" * 5000}]}}]'}
Row = tuple[str, str, str, str, str | None]


@cache
def _read(name: str) -> Any:
    return yaml.safe_load((DATA / f"{name}.yml").read_text())


def images() -> list[str]:
    return list(_read("images"))


def nodes() -> list[str]:
    return list(_read("nodes"))


def rows() -> list[Row]:
    """Image, node, result, sentence, place."""
    return [(*row, None)[:5] for row in _read("matrix")]


@cache
def _facts(image: str) -> dict[str, Any]:
    own = dict(_read("images")[image])
    base = _facts(own.pop("like")) if "like" in own else {}
    return {key: value for key, value in {**base, **own}.items() if value is not None}


@cache
def labels(image: str) -> dict[str, str]:
    """As the engine has them."""
    facts = dict(_facts(image))
    providers = facts.pop("providers", None)
    if providers is not None:
        text = providers if isinstance(providers, str) else json.dumps(providers)
        facts["nic.providers"] = DAMAGED.get(text, text)
    return {"org.opencontainers.image.title": image, **{LABEL_PREFIX + key: value for key, value in facts.items()}}


@cache
def _plain(node: str) -> dict[str, Any]:
    case = _read("nodes")[node]
    profile: dict[str, Any] = {"schema": 1, "name": "n1", "virtual": case.get("virtual"), "nics": [], "verbs": []}
    for row in case.get("rdma", []):
        count, module, abi = row.split()
        for index in range(int(count)):
            _add(profile, module, index, int(abi))
    for row in case.get("cards", []):
        count, module = row.split()
        for index in range(int(count)):
            _add(profile, module, index, None)
    profile["cxi"] = [f"/dev/cxi{index}" for index in range(case.get("cxi", 0))]
    keys = ("path", "private_abi", "kernel_abi", "glibc", "fabric", "version")
    found = case.get("libraries", {}).items()
    profile["libraries"] = [
        {"driver": driver.strip() or None, **dict(zip(keys, facts, strict=False))} for driver, facts in found
    ]
    profile["unread"] = [{"what": what, "why": why} for what, why in case.get("unread", {}).items()]
    for path, value in case.get("edit", {}).items():
        *way, last = path.split(".")
        at: Any = profile
        for step in way:
            at = at[int(step) if step.isdigit() else step]
        assert last in at, path
        at[last] = value
    return profile


def _add(profile: dict[str, Any], module: str, index: int, abi: int | None) -> None:
    device, nic, named = CARDS.get(module, (None, None, "rxe"))
    total, uverbs = len(profile["nics"]), len(profile["verbs"])
    name = None if abi is None else f"{named}{uverbs}"
    if device:
        address = f"0000:{total + 1:02x}:00.0"
        profile["nics"].append({"pci": address, "device": device, "nic": nic, "driver": module, "verbs": name})
    if name:
        row = {"name": name, "uverbs": f"uverbs{uverbs}", "device_node": True, "kernel_abi": abi, "driver": module}
        profile["verbs"].append(row)


def plain(node: str) -> dict[str, Any]:
    """A profile as its file has it; a copy."""
    return copy.deepcopy(_plain(node))


def profile(data: dict[str, Any]) -> NodeProfile:
    return PROFILE.validate_json(json.dumps(data))


@cache
def node(name: str) -> NodeProfile:
    return profile(_plain(name))
