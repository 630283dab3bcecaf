"""What the gate reads from labels and manifests, where somebody damaged them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import gate_cases
import pytest
from resolved_stack import join

from rocstack.node.image_facts import MANIFEST, ImageFacts, ImageProvider, from_labels, from_manifest

ROW = {"place": "source", "way": "source", "driver": "bnxt_re", "private_abi": 34, "kernel_abi": [6, 8]}


def read(**row: Any) -> ImageProvider:
    (found,) = from_labels("i", {"io.rocstack.nic.providers": json.dumps([{**ROW, **row}])}).providers
    return found


def test_in_full() -> None:
    found = from_labels("rocstack/worker:x", gate_cases.labels("broadcom 232"))
    path = "/opt/rocstack/nic/source/libbnxt_re-rdmav34.so"
    provider = ImageProvider("source", "source", "bnxt_re", path, "232.0.164.5", 34, (6, 6), "bb")
    cards = ("14e4:1750", "14e4:1760")
    name, modules, needs = "rocstack/worker:x", ("bnxt_en", "bnxt_re"), (("14e4:1760", "50"),)
    assert found == ImageFacts(name, "broadcom", "worker", modules, cards, 34, None, "2.41", needs, (provider,))


def test_labels_of_others_say_nothing() -> None:
    others = {
        key.replace("io.rocstack.", "org.example."): text for key, text in gate_cases.labels("broadcom 232").items()
    }
    assert from_labels("i", others) == ImageFacts("i")


@pytest.mark.parametrize("value", [6, 6.0, "6", "6-8", True, None, [], [6], [6, 7, 8], [8, 6], [6, None], [None, 6],
                                   [6, "8"], [6.0, 8.0], [False, True], [-6, 8], {"low": 6}, [[6], [8]]])  # fmt: skip
def test_no_range(value: object) -> None:
    assert read(kernel_abi=value).kernel_abi is None


@pytest.mark.parametrize("value", [[0, 0], [6, 6], [6, 8], [0, 2147483647]])
def test_range(value: list[int]) -> None:
    assert read(kernel_abi=value).kernel_abi == tuple(value)


@pytest.mark.parametrize("value", ["34", 34.0, 34.5, True, None, -34, [34], {"private": 34}])
def test_no_private_abi_of_a_provider(value: object) -> None:
    assert read(private_abi=value).private_abi is None


@pytest.mark.parametrize("text", ["", " 34", "34\n", "+34", "-34", "0x22", "3_4", "34.0", "٣٤", "³⁴", "1" * 10, "x"])
def test_no_private_abi_of_libibverbs(text: str) -> None:
    assert from_labels("i", {"io.rocstack.verbs.private-abi": text}).private_abi is None


@pytest.mark.parametrize(
    "value", ["", 6, None, True, ["bnxt_re"], "bnxt\n_re", "\x1b[31mbnxt_re", "bnxt_rè", "x" * 5000]
)
def test_text_that_nobody_can_be_shown(value: object) -> None:
    keys = ("place", "way", "driver", "path", "version", "sha256")
    found = read(**dict.fromkeys(keys, value))
    assert [getattr(found, key) for key in keys] == ["", "", "", None, None, None]


@pytest.mark.parametrize(
    "text", ["", "{}", "6", "null", "[[]]", '["a"]', '[{"driver": "bnxt_re"}, null]', "[{", "[" * 100_000]
)
def test_providers_are_all_read_or_none(text: str) -> None:
    assert from_labels("i", {"io.rocstack.nic.providers": text}).providers == ()


@pytest.mark.parametrize("card", ["", "14e4", "14E4:1760", "14e4:1760\n", "\x1b[31m", "14e4:1760 and more"])
def test_cards_are_all_read_or_none(card: str) -> None:
    for cards in ({card: "50"}, {"14e4:1760": "50", card: "50"}):
        assert from_labels("i", {"io.rocstack.nic.cards": json.dumps(cards)}).card_needs is None


def test_lists() -> None:
    own = {"io.rocstack.nic.modules": ",bnxt_en,,bnxt_re,", "io.rocstack.nic.pci": "14e4:1760\n"}
    found = from_labels("i", own)
    assert (found.modules, found.pci) == (("bnxt_en", "bnxt_re"), ())


@pytest.mark.parametrize("facts", [None, 6, "x", [], [["glibc", "2.41"]]])
def test_a_manifest_without_facts(facts: object) -> None:
    assert from_manifest("i", {"nic": "broadcom", "facts": facts}) == ImageFacts("i", nic="broadcom")
    assert from_manifest("i", {}) == ImageFacts("i")


def test_a_manifest_whose_facts_are_no_texts() -> None:
    facts = {"nic.modules": ["bnxt_re"], "nic.pci": 6, "glibc": 2.41, "verbs.private-abi": 34, "nic.providers": [ROW]}
    assert from_manifest("i", {"nic": None, "role": 1, "facts": facts}) == ImageFacts("i")


def test_the_manifests_own_nic_and_role_win() -> None:
    found = from_manifest("i", {"nic": "tcp", "role": "worker", "facts": {"nic": "broadcom", "role": "control"}})
    assert (found.nic, found.role) == ("tcp", "worker")


@cache
def dockerfile() -> str:
    return join().dockerfile()


def test_the_manifest_is_where_the_entrypoint_looks() -> None:
    assert f"--out /out{MANIFEST}\n" in dockerfile()
