"""The gate never says `fits` where rdma-core would refuse, drop or mistake a device: loader.py is rdma-core's part."""

from __future__ import annotations

import re
from dataclasses import asdict
from random import Random
from typing import Any

import gate_cases
import pytest
import random_gate_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from provider_loading import provider_loads
from pydantic import ValidationError

from rocstack.node.gate import FITS, GateVerdict, judge
from rocstack.node.image_facts import LABEL_PREFIX, from_labels
from rocstack.node.profile import NodeProfile

CHANCE = st.randoms(use_true_random=False)


def profile(node: dict[str, Any]) -> NodeProfile | None:
    """None: such a profile is refused before the gate sees it."""
    try:
        return gate_cases.profile(node)
    except ValidationError:
        return None


def verdict(labels: dict[str, str], node: dict[str, Any]) -> GateVerdict | None:
    read = profile(node)
    return read and judge(from_labels("i", labels), read)


def is_false(labels: dict[str, str], node: dict[str, Any]) -> bool:
    read = profile(node)
    said = read and judge(from_labels("i", labels), read)
    return bool(said and read and said.result == FITS and not provider_loads(labels, asdict(read), said.place))


@given(CHANCE)
@settings(max_examples=400, deadline=None)
def test_no_false_accept_among_made_pairs(random: Random) -> None:
    labels, node = random_gate_pairs.made(random)
    assert not is_false(labels, node)


@given(CHANCE)
@settings(max_examples=400, deadline=None)
def test_no_false_accept_among_edited_pairs(random: Random) -> None:
    labels, node = random_gate_pairs.edited(random)
    assert not is_false(labels, node)


KEYS = ("nic", "role", "nic.modules", "nic.pci", "verbs.private-abi", "glibc", "nic.providers")


@given(st.dictionaries(st.sampled_from([LABEL_PREFIX + key for key in KEYS]), st.text(max_size=60)))
@settings(max_examples=200, deadline=None)
def test_any_label_is_judged(labels: dict[str, str]) -> None:
    for name in ("thor2 abi 6", "cassini and cx7", "host 6"):
        assert not is_false(labels, gate_cases.plain(name))


def test_chance_makes_pairs_of_every_kind() -> None:
    """What is never accepted would prove nothing."""
    random = Random(1)
    for make in (random_gate_pairs.made, random_gate_pairs.edited):
        pairs = [make(random) for _ in range(1500)]
        said = [found for found in (verdict(*pair) for pair in pairs) if found]
        real = [labels.get(LABEL_PREFIX + "nic") == "broadcom" for labels, _ in pairs]
        fits = sum(v.result == FITS and "supports" in v.sentence for v in said)
        assert fits > 50, (make.__name__, fits)
        assert sum(real) > 300
        assert sum(v.result != FITS for v in said) > 300


# What each fact is worth, on pairs that fit. Whatever is listed must not be missing; whatever is not, does no harm.

ALWAYS = [
    "labels.nic", "labels.nic.modules", "labels.verbs.private-abi", "labels.nic.providers", "labels.*.driver",
    "node.verbs.*.uverbs", "node.verbs.*.device_node", "node.verbs.*.kernel_abi",
]  # fmt: skip
IN_IMAGE = ["labels.this.private_abi", "labels.this.kernel_abi", "labels.this.kernel_abi.*"]
UPSTREAM = [*IN_IMAGE, "labels.nic.cards"]  # a provider of rdma-core
THOR2 = [*UPSTREAM, "labels.this.version"]
SEVERAL = ["labels.this.place", "labels.this.path"]
OF_HOST = ["labels.glibc", "labels.this.way", "node.mounted.driver", "node.mounted.private_abi", "node.mounted.glibc",
           "node.mounted.kernel_abi", "node.mounted.kernel_abi.*", "node.libibverbs.private_abi"]  # fmt: skip
# Without these there is no such part of a profile at all.
REQUIRED = r"node\.(schema|name|nics\.\d+\.(pci|device)|verbs\.\d+\.name|libraries\.\d+\.path|unread.*)"

PAIRS = [
    ("broadcom inbox", "thor2 abi 1", THOR2),
    ("broadcom 232", "thor2 abi 6", IN_IMAGE),
    ("broadcom 235", "thor2 abi 8", IN_IMAGE),
    ("broadcom 6 to 8", "thor2 abi 7", IN_IMAGE),
    ("broadcom newer", "thor2 abi 1", THOR2),
    ("mellanox", "cx7", UPSTREAM),
    ("ainic", "pollara", IN_IMAGE),
    ("broadcom variants", "thor2 abi 1", THOR2 + SEVERAL),
    ("broadcom variants", "thor2 abi 6", IN_IMAGE + SEVERAL),
    ("broadcom host", "host vendor and inbox", OF_HOST),
    ("mellanox host", "host cx7", [*OF_HOST, "labels.nic.cards"]),
]


def named(at: random_gate_pairs.Leaf, image: str, node: str) -> str:
    """A leaf's name in the lists above: the chosen provider is `this`, the library that is mounted `mounted`."""
    path = ".".join(map(str, at)).replace(LABEL_PREFIX, "")
    if found := re.fullmatch(r"labels\.nic\.providers\.(\d+)\.(.*)", path):
        said = judge(from_labels("i", gate_cases.labels(image)), gate_cases.node(node))
        rows = random_gate_pairs.opened(gate_cases.labels(image))[LABEL_PREFIX + "nic.providers"]
        return f"labels.{'this' if rows[int(found[1])]['place'] == said.place else 'another'}.{found[2]}"
    if found := re.fullmatch(r"node\.libraries\.(\d+)\.(.*)", path):
        libraries = gate_cases.plain(node)["libraries"]
        own = libraries[int(found[1])]
        mounted = own["path"] == max(row["path"] for row in libraries if row["driver"])
        return f"node.{'libibverbs' if not own['driver'] else 'mounted' if mounted else 'another'}.{found[2]}"
    return path


def matters(name: str, listed: list[str]) -> bool:
    return any(re.fullmatch(pattern.replace(".", r"\.").replace("*", "[^.]+"), name) for pattern in listed)


def facts(image: str, node: str) -> dict[random_gate_pairs.Leaf, Any]:
    """Every fact of a pair, and the lists that hold some."""
    both = {"labels": random_gate_pairs.opened(gate_cases.labels(image)), "node": gate_cases.plain(node)}
    found = dict(random_gate_pairs.leaves(both))
    found[("labels", LABEL_PREFIX + "nic.providers")] = ""
    for at in list(found):
        if at[-2:-1] == ("kernel_abi",):
            found[at[:-1]] = None
    return {at: value for at, value in found.items() if not re.fullmatch(REQUIRED, named(at, image, node))}


@pytest.mark.parametrize(("image", "node", "listed"), PAIRS)
def test_what_each_fact_is_worth(image: str, node: str, listed: list[str]) -> None:
    both = {"labels": random_gate_pairs.opened(gate_cases.labels(image)), "node": gate_cases.plain(node)}
    said = verdict(gate_cases.labels(image), gate_cases.plain(node))
    assert said is not None
    assert said.result == FITS
    wrong, seen = [], set()
    for at, value in facts(image, node).items():
        name = named(at, image, node)
        needed = matters(name, [*ALWAYS, *listed])
        seen.add(name)
        for gone in (True, False):
            if gone and isinstance(at[-1], int):
                continue
            changed = random_gate_pairs.put(both, at, None, gone=gone)
            result = verdict(random_gate_pairs.closed(changed["labels"]), changed["node"])
            if result is not None and (result.result == FITS) == needed and value is not None:
                wrong.append(f"{name}{' gone' if gone else ''}: {result.sentence}")
    assert wrong == []
    unused = [pattern for pattern in [*ALWAYS, *listed] if not any(matters(name, [pattern]) for name in seen)]
    assert unused == []


@pytest.mark.parametrize(("image", "node"), random_gate_pairs.FITTING)
def test_one_number_changed(image: str, node: str) -> None:
    both = {"labels": random_gate_pairs.opened(gate_cases.labels(image)), "node": gate_cases.plain(node)}
    own = LABEL_PREFIX + "verbs.private-abi"
    for at, value in random_gate_pairs.leaves(both):
        private = at == ("labels", own)
        if type(value) is not int and not private:
            continue
        number = int(value)
        for new in (number - 1, number + 1, -number, number * 10, number + 0.5, number + 2**31, 0):
            changed = random_gate_pairs.put(both, at, str(new) if private else new)
            assert not is_false(random_gate_pairs.closed(changed["labels"]), changed["node"]), (at, new)
