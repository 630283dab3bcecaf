"""The cases of data/nodes: recordings, and the profiles that must come out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from rocstack.node.nic_settings import NicSettings
from rocstack.node.profile import NodeProfile
from rocstack.node.recording import DeviceNode, RecordedAnswer, Recording

CASES = Path(__file__).parents[1] / "data/nodes"
PROFILE = TypeAdapter(NodeProfile)
KINDS = (
    NicSettings("broadcom", ("bnxt_en", "bnxt_re"), ("14e4:1750", "14e4:1760"), "bnxt_re"),
    NicSettings("mellanox", ("mlx5_core", "mlx5_ib"), ("15b3:1021",), "mlx5"),
    NicSettings("slingshot", ("cxi_core", "cxi_ss1"), ("17db:0501",)),
)


class _Loader(yaml.SafeLoader):
    """Everything is a text but null: YAML takes a PCI address for a number to the base of 60."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if tag.endswith((":null", ":merge"))]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def names() -> list[str]:
    return sorted(path.parent.name for path in CASES.glob("*/recording.yml"))


@cache
def case(name: str) -> dict[str, Any]:
    """A case with what it takes from the one that it is like."""
    data = yaml.load((CASES / name / "recording.yml").read_text(), _Loader)
    data["files"] = dict(_flat("", data.get("files", {})))
    base = case(data["like"]) if "like" in data else {}
    for table in ("files", "links", "devices", "commands", "unread"):
        data[table] = {**base.get(table, {}), **data.get(table, {})}
        data[table] = {key: value for key, value in data[table].items() if value is not None}
    return {**base, **data}


def recording(name: str) -> Recording:
    data = case(name)
    return Recording(
        host=data.get("host", ""),
        files={path: text for path, text in data["files"].items() if not path.endswith("/blob")},
        blobs={path[:-5]: text.encode() for path, text in data["files"].items() if path.endswith("/blob")},
        links=data["links"],
        folders=tuple(data.get("folders", ())),
        devices={path: _node(text) for path, text in data["devices"].items()},
        commands={line: RecordedAnswer(0, text) for line, text in data["commands"].items()},
        unread=data["unread"],
    )


def expected(name: str) -> dict[str, Any]:
    like = case(name).get("like")
    own = json.loads((CASES / name / "profile.json").read_text())
    whole = {**(expected(like) if like else {}), **own}
    return {field: value for field, value in whole.items() if value is not None}


def plain(profile: NodeProfile) -> dict[str, Any]:
    """A profile as JSON has it, without empty fields."""
    found: dict[str, Any] = PROFILE.dump_python(profile, mode="json", exclude_defaults=True)
    return found


def _flat(folder: str, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, item in tree.items():
        path = f"{folder}/{name}".replace("//", "/")
        if isinstance(item, Mapping):
            yield from _flat(path, item)
        else:
            yield path, item


def _node(text: str) -> DeviceNode:
    kind, major, minor, gid, mode = text.split()
    return DeviceNode(kind, int(major), int(minor), int(gid), int(mode, 8))
