"""The gate on every pair of data/gate/matrix.yml: verdict, sentence and place."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import gate_cases
import pytest
from provider_loading import provider_loads

from rocstack.node import gate, image_facts
from rocstack.node.profile import SCHEMA, NodeProfile


@pytest.mark.parametrize("row", gate_cases.rows(), ids=lambda row: f"{row[0]}-{row[1]}")
def test_verdict(row: gate_cases.Row) -> None:
    name, node, *expected = row
    verdict = gate.judge(image_facts.from_labels(name, gate_cases.labels(name)), gate_cases.node(node))
    assert [verdict.result, verdict.sentence, verdict.place] == expected
    assert (verdict.node, verdict.image, verdict.virtual) == ("n1", name, gate_cases.node(node).virtual)


def test_the_matrix() -> None:
    """Large enough, no pair twice, no case unused; and whatever it calls fitting, rdma-core would list."""
    pairs = Counter(row[:2] for row in gate_cases.rows())
    assert len(pairs) >= 200
    assert pairs.most_common(1)[0][1] == 1
    assert {name for name, _ in pairs} == set(gate_cases.images())
    assert {node for _, node in pairs} == set(gate_cases.nodes())
    assert {row[2] for row in gate_cases.rows()} == {gate.FITS, gate.UNFIT, gate.UNKNOWN}
    false = [
        row
        for row in gate_cases.rows()
        if row[2] == gate.FITS and not provider_loads(gate_cases.labels(row[0]), gate_cases.plain(row[1]), row[4])
    ]
    assert false == []


@pytest.mark.parametrize("name", gate_cases.images())
def test_no_pair_of_them_all_is_accepted_wrongly(name: str) -> None:
    labels = gate_cases.labels(name)
    judged = image_facts.from_labels(name, labels)
    for node in gate_cases.nodes():
        verdict = gate.judge(judged, gate_cases.node(node))
        assert verdict.result != gate.FITS or provider_loads(labels, gate_cases.plain(node), verdict.place), node
        assert verdict.sentence.startswith("n1: " if verdict.virtual is None else f"n1 (virtual {verdict.virtual}): ")
        assert verdict.sentence.isprintable()


def test_a_verdict_names_every_reason_of_its_result_and_no_other() -> None:
    node = gate_cases.plain("two abis and one unread")
    node["verbs"][1]["device_node"] = False
    verdict = gate.judge(image_facts.from_labels("i", gate_cases.labels("broadcom 232")), gate_cases.profile(node))
    assert verdict.result == gate.UNFIT
    assert [finding.result for finding in verdict.findings] == [gate.UNFIT, gate.UNKNOWN, gate.UNFIT]
    assert verdict.sentence == (
        "n1: no /dev/infiniband node for uverbs1; `modprobe ib_uverbs` on the host; "
        "its devices speak several kernel ABIs (1, 6); one driver for all cards"
    )


def test_a_node_of_which_nothing_is_known() -> None:
    node = NodeProfile(SCHEMA, "n1")
    for name in gate_cases.images():
        verdict = gate.judge(image_facts.from_labels(name, gate_cases.labels(name)), node)
        assert (verdict.result == gate.FITS) == (name == "tcp")


def test_the_order_of_devices_cards_and_libraries_does_not_matter() -> None:
    for name, node, result, *_ in gate_cases.rows():
        profile = gate_cases.node(node)
        turned = replace(profile, verbs=profile.verbs[::-1], nics=profile.nics[::-1], libraries=profile.libraries[::-1])
        labels = gate_cases.labels(name)
        verdict = gate.judge(image_facts.from_labels(name, labels), turned)
        assert verdict.result == result
        assert verdict.place == gate.judge(image_facts.from_labels(name, labels), profile).place


def manifest(labels: dict[str, str]) -> dict[str, Any]:
    own: dict[str, Any] = {
        key.removeprefix(image_facts.LABEL_PREFIX): text
        for key, text in labels.items()
        if key.startswith(image_facts.LABEL_PREFIX)
    }
    beside = {key: own.pop(key) for key in ("nic", "role") if key in own}
    return {**beside, "facts": own, "versions": {"rdma": "56.1-1"}}


@pytest.mark.parametrize("name", gate_cases.images())
def test_labels_and_manifest_say_the_same(name: str) -> None:
    labels = gate_cases.labels(name)
    assert image_facts.from_manifest("i", manifest(labels)) == image_facts.from_labels("i", labels)
