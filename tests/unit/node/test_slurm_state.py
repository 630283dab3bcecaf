"""What is made of Slurm's answers; a case is a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rocstack.node import slurm_state

CASES = {
    path.stem: yaml.safe_load(path.read_text()) for path in (Path(__file__).parents[1] / "data/slurm").glob("*.yml")
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    case: dict[str, Any] = CASES[name]
    table = slurm_state.slurm_nodes({"nodes": case["nodes"]}, {"jobs": case["jobs"]})
    assert {node: table[node] for node in case["table"]} == case["table"]
    assert {node: slurm_state.not_empty(row) for node, row in table.items()} == case["not_empty"]
    assert {node: slurm_state.not_ready(row) for node, row in table.items()} == case["not_ready"]


def test_a_slurmd_that_has_not_started_anew() -> None:
    row = CASES["running-and-drained"]["table"]["n1"]
    assert slurm_state.not_ready(row, since=row["started"]) == ""
    assert slurm_state.not_ready(row, since=row["started"] + 1) == "its slurmd has not started anew"
    assert slurm_state.not_ready(None) == "Slurm doesn't know it"
    assert slurm_state.not_empty(None) == ""
