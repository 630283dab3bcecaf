"""What is made of Slurm's answers; a case is a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocstack.edge import ssh
from rocstack.node import slurm_control, slurm_state

CASES = {
    path.stem: yaml.safe_load(path.read_text()) for path in (Path(__file__).parents[1] / "data/slurm").glob("*.yml")
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    case: dict[str, Any] = CASES[name]
    table = slurm_state.slurm_nodes({"nodes": case["nodes"]}, case["jobs"])
    assert {node: table[node] for node in case["table"]} == case["table"]
    assert {node: slurm_state.not_empty(row) for node, row in table.items()} == case["not_empty"]
    assert {node: slurm_state.not_ready(row) for node, row in table.items()} == case["not_ready"]


def test_a_slurmd_that_has_not_started_anew() -> None:
    row = CASES["running-and-drained"]["table"]["n1"]
    assert slurm_state.not_ready(row, since=row["started"]) == ""
    assert slurm_state.not_ready(row, since=row["started"] + 1) == "its slurmd has not started anew"
    assert slurm_state.not_ready(None) == "Slurm doesn't know it"
    assert slurm_state.not_empty(None) == ""


def test_users_write_nothing_into_the_answer() -> None:
    """Paths and names of some thousands of jobs would be more than the answer of a node may hold."""
    asked = [each for each in slurm_control.STATE.split("&&") if "node" not in each and "echo" not in each]
    assert [each.split()[0] for each in asked] == ["squeue"]
    assert "--json" not in asked[0]
    assert set(re.findall("%.", asked[0])) == {"%A", "%T", "%N"}, "number, state, nodes"
    waiting = "".join(f"{number}|PENDING|\n" for number in range(100_000))
    assert len(waiting) < ssh.LONGEST / 30
    table = slurm_state.slurm_nodes({"nodes": [{"name": "n1", "state": ["MIXED"]}]}, f"{waiting}7|RUNNING|n1\n")
    assert table["n1"]["jobs"] == [7]


@pytest.mark.parametrize(
    "queue", ["7", "7|RUNNING", "x|RUNNING|n1", "7|RUNNING|n[1", "7|RUNNING|n1|n2", "slurm_load: x"]
)
def test_a_queue_that_is_none(queue: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|int|hostlist"):
        slurm_state.slurm_nodes({"nodes": []}, queue)
