"""What nodes answered to the acceptance suite: one that answers nonsense spoils nobody else's answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hostile
import pytest

from rocstack.base.errors import CheckFailed
from rocstack.verify import evidence
from rocstack.verify.evidence import NoAnswer

DATA = json.loads((Path(__file__).parents[1] / "data/verify/evidence.json").read_text())
SHAPES = {
    "on_hosts": evidence.ON_HOSTS,
    "in_jobs": evidence.IN_JOBS,
    "in_containers": evidence.IN_CONTAINERS,
    "credentials": evidence.CREDENTIALS,
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_misshapen_answer_is_that_nodes_alone(name: str) -> None:
    shape: Any = SHAPES[name]
    whole = evidence.parse(name, shape, DATA[name])
    first, *others = DATA[name]
    refused = 0
    for value in (*hostile.values(), 5, "x"):
        for loc in [(), *((key,) for key in DATA[name][first])]:
            rows = {**DATA[name], first: hostile.changed(DATA[name][first], loc, value)}
            found = evidence.parse(name, shape, rows)
            assert {node: found[node] for node in others} == {node: whole[node] for node in others}
            if first not in found:
                refused += 1
            elif isinstance(found[first], NoAnswer):
                refused += 1
                assert found[first].error.startswith("its answer can't be read: ")
    assert refused


def test_evidence_that_is_no_table_of_nodes_is_refused() -> None:
    with pytest.raises(CheckFailed, match="on_hosts"):
        evidence.parse("on_hosts", evidence.ON_HOSTS, [1])
