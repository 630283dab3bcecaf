"""The table in docs/reliability.md is of the faults and steps that bench/chaos has, and those are the journal's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from rocstack.deploy.read.journal import Step

ROOT = Path(__file__).parents[3]
SAID = """
import json, sys
sys.path.insert(0, sys.argv[1])
from cell import STEPS
from faults import FAULTS
print(json.dumps([STEPS, [each.title for each in FAULTS.values()]]))
"""


def test_the_table_has_every_fault_at_every_step() -> None:
    command = [sys.executable, "-c", SAID, str(ROOT / "bench/chaos")]
    steps, faults = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert set(steps) - {"waves"} == set(get_args(Step)) - {"failed"}, (
        "waves are all done; failed is no step on the way"
    )
    text = (ROOT / "docs/reliability.md").read_text()
    table = text[text.index("| fault |") :].split("\n\n")[0].splitlines()
    assert re.findall(r"`([a-z]+)`", table[0]) == steps
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table[2:]]
    assert [row[0] for row in rows] == faults
    assert len(faults) >= 12
    for row in rows:
        assert len(row) == 1 + len(steps)
        assert all(re.fullmatch(r"(none|resume|deploy)( \+ (resume|scontrol))?", cell) for cell in row[1:]), row
    assert f"All {len(faults) * len(steps)} cells" in text
