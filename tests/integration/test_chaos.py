"""A deploy disturbed where it hurts most, each fault once. `bench/chaos` does it at all steps (docs/reliability.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from workspace import REPO, Built

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# A worker is away from `drained` on, and comes back with `done`; the registry sends layers between `pending` and
# `shipped`; at `waves` only the accounts and the release's own entry are to come.
CELLS = (
    "killed:drained",
    "stopped:drained",
    "interrupted:started",
    "terminated:drained",
    "control-cut:drained",
    "worker-cut:drained",
    "worker-reboots:drained",
    "control-reboots:drained",
    "worker-full:pending",
    "control-full:drained",
    "engine-frozen:drained",
    "engine-killed:drained",
    "control-engine-killed:started",
    "registry-killed:pending",
    "race:pending",
    "slurmctld-killed:drained",
    "database-stopped:waves",
)


@pytest.fixture(scope="module")
def results(built: Built, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    file = tmp_path_factory.mktemp("chaos") / "results.jsonl"
    words = ["--prefix", built.workspace.prefix, "--results", str(file), "--cell", ",".join(CELLS)]
    environment = built.workspace.environ()
    done = subprocess.run(
        [sys.executable, str(REPO / "bench/chaos"), *words],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(done.stdout)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {f"{row['fault']}:{row['step']}": row for row in rows}


@pytest.mark.parametrize("cell", CELLS)
def test_the_next_step_brings_it_home(cell: str, results: dict[str, dict[str, Any]]) -> None:
    assert results[cell]["wrong"] == []
    assert set(results[cell]["jobs"].values()) == {"COMPLETED"}
