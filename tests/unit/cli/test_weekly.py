"""The weekly workflow names only what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from rocstack.base import paths
from rocstack.stack import lock, stack

ROOT = Path(__file__).parents[3]


def test_stacks_and_nics_of_the_weekly_matrix_exist() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text())
    matrix = workflow["jobs"]["publish"]["strategy"]["matrix"]
    scheduled = re.search(r"\|\| '(.*)'", matrix["stack"])
    assert scheduled
    stacks = json.loads(scheduled[1])
    by_hand = workflow[True]["workflow_dispatch"]["inputs"]["stacks"]["default"]  # YAML 1.1 reads `on` as true
    assert stacks == json.loads(by_hand), "a run by hand builds the same as the scheduled one"
    assert not set(stacks) - set(stack.names())
    for name in stacks:
        assert lock.for_stack(stack.load(name), None), "a stack without a lock can't be built unattended"
    assert not set(matrix["nic"]) - {file.stem for file in (paths.templates() / "nic").glob("*.j2")}
