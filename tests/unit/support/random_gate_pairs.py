"""Pairs of labels and node profiles as chance makes them: near to fitting, with something edited, missing or absurd."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import gate_cases

from rocstack.node.image_facts import LABEL_PREFIX

Pair = tuple[dict[str, str], dict[str, Any]]
Leaf = tuple[str | int, ...]
ABIS = (1, 6, 6, 6, 7, 8, None, -1, 0)
JUNK: tuple[Any, ...] = (
    None,
    "",
    "6",
    "x",
    0,
    1,
    6,
    7,
    -1,
    6.5,
    True,
    [],
    [6],
    [6, 6],
    [8, 6],
    [1, 100],
    {},
    "6-6",
    "bnxt_re",
)


def leaves(value: Any, at: Leaf = ()) -> Iterator[tuple[Leaf, Any]]:
    """Every value in a nest of dicts and lists that is none of them, with the way to it."""
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if rows is None:
        yield at, value
    else:
        for key, item in rows:
            yield from leaves(item, (*at, key))


def put(value: Any, at: Leaf, new: Any, *, gone: bool = False) -> Any:
    """A copy with another value at `at`, or without it."""
    out = copy.deepcopy(value)
    inner = out
    for step in at[:-1]:
        inner = inner[step]
    if gone:
        del inner[at[-1]]
    else:
        inner[at[-1]] = new
    return out


def opened(labels: dict[str, str]) -> dict[str, Any]:
    """Labels with their JSON read, so that what is inside can be changed; `closed` turns it back."""
    key = LABEL_PREFIX + "nic.providers"
    return {**labels, key: json.loads(labels[key])} if key in labels else dict(labels)


def closed(labels: dict[str, Any]) -> dict[str, str]:
    return {
        key: text if isinstance(text, str) else json.dumps(text) for key, text in labels.items() if text is not None
    }


def made(random: Random) -> Pair:
    """From nothing, out of few values, so that they often agree."""
    pick = random.choice
    private = _mostly(random, 34, 59, None)
    rows = [_row(random, private) for _ in range(pick((0, 1, 1, 1, 1, 2, 2, 3)))]
    labels = {
        "nic": _mostly(random, "broadcom", "tcp", "slingshot", "odd", None),
        "nic.modules": _mostly(random, "bnxt_en,bnxt_re", "bnxt_re", "mlx5_ib", "", None),
        "nic.pci": pick(("14e4:1760", "14e4:1760,14e4:1750", "", None)),
        "verbs.private-abi": _mostly(random, "34", "59", "", "x", None),
        "glibc": pick(("2.41", "2.41", "2.9", "", None)),
        "nic.cards": _mostly(random, '{"14e4:1760":"50"}', "{}", '{"14e4:1760":"57.1"}', "", None),
        "nic.providers": json.dumps(rows),
    }
    abi = pick(ABIS)
    host = [{"path": "/usr/lib/libibverbs.so.1", "driver": None, "private_abi": _mostly(random, 34, 59, None)}]
    devices = [_device(random, index, abi) for index in range(pick((1, 1, 1, 2, 3, 0)))]
    cards = [
        {"pci": f"0000:0{index}:00.0", "device": pick(("14e4:1760", "14e4:1760", "14e4:1750")), "verbs": device["name"]}
        for index, device in enumerate(devices)
    ]
    unread = _mostly(random, "/proc/cmdline", "/sys/class/infiniband", "/sys/class/infiniband_verbs/uverbs0/ibdev")
    node = {
        "schema": 1,
        "name": "n1",
        "verbs": devices,
        "nics": cards,
        "libraries": list({each["path"]: each for each in [_library(random), _library(random)]}.values()) + host,
        "cxi": pick(([], ["/dev/cxi0"])),
        "unread": [{"what": unread, "why": "permission denied"}],
    }
    return {LABEL_PREFIX + key: text for key, text in labels.items() if text is not None}, node


def _mostly(random: Random, usual: Any, *others: Any) -> Any:
    return usual if random.random() < 0.93 else random.choice(others)


def _row(random: Random, private: int | None) -> dict[str, Any]:
    pick = random.choice
    number, place = _mostly(random, private, 34), pick(("abi-1", "abi-6", "abi-7", "source", ""))
    driver = _mostly(random, "bnxt_re", "mlx5", "", None)
    file = f"lib{driver}-rdmav{_mostly(random, number, 65)}.so"
    return {
        "place": place,
        "way": pick(("source", "source", "inbox", "host", None)),
        "driver": driver,
        "path": pick((f"/opt/rocstack/nic/{place}/{file}",) * 4 + (f"/usr/lib/{file}", None)),
        "version": pick(("232.0.164.5", "56.1-1", "50.0", "49.9-1", None)),
        "private_abi": number,
        "kernel_abi": pick(([1, 1], [6, 6], [6, 6], [6, 8], [7, 8], [8, 6], [6, None], None)),
    }


def _device(random: Random, index: int, abi: int | None) -> dict[str, Any]:
    return {
        "name": f"bnxt_re{index}",
        "uverbs": _mostly(random, f"uverbs{index}", None, ""),
        "device_node": _mostly(random, True, False, None),
        "kernel_abi": _mostly(random, abi, *ABIS),
        "driver": _mostly(random, "bnxt_re", "mlx5_ib", None, ""),
    }


def _library(random: Random) -> dict[str, Any]:
    pick = random.choice
    return {
        "path": pick(("/usr/lib/libbnxt_re-rdmav34.so", "/usr/local/lib/libbnxt_re-rdmav34.so")),
        "driver": _mostly(random, "bnxt_re", "mlx5", None),
        "version": pick(("39.0-1", "56.1-1", None)),
        "private_abi": _mostly(random, 34, 59, None),
        "kernel_abi": pick(([6, 6], [6, 6], [1, 1], [-6, 6], None)),
        "glibc": _mostly(random, "2.34", "2.42", None),
    }


FITTING = [(row[0], row[1]) for row in gate_cases.rows() if row[2] == "fits" and row[0] not in ("tcp",)]


def edited(random: Random) -> Pair:
    """A fitting pair with one to three facts changed or taken away."""
    image, node = random.choice(FITTING)
    both: dict[str, Any] = {"labels": opened(gate_cases.labels(image)), "node": gate_cases.plain(node)}
    for _ in range(random.choice((1, 1, 2, 3))):
        found, side = list(leaves(both)), random.choice(("labels", "node"))
        at, old = random.choice([leaf for leaf in found if leaf[0][0] == side] or found)
        kind = random.random()
        if kind < 0.3 and len(at) > 1:
            both = put(both, at, None, gone=True)
        elif kind < 0.6 and type(old) is int:
            both = put(both, at, old + random.choice((-5, -1, 1, 2, 100)))
        elif kind < 0.8:
            both = put(both, at, random.choice(JUNK))
        else:
            both = put(both, at, random.choice(found)[1])
    return closed(both["labels"]), both["node"]
