"""Runs the ranks of two nodes as tests/cluster/programs/training.py does with JAX, on the processors of this machine:

JAX_PYTHON -m venv ...; pip install jax==0.9.1 jaxlib==0.9.1
python tests/support/jax_training.py JAX/bin/python >tests/unit/data/verify/training-jax.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/cluster/programs"
NODES, RANKS = ("n1", "n2"), 2


def trained(python: str, steps: int = 12) -> dict[str, Any]:
    """What experiments/training.py makes of the answers. What a node does by itself, one does after the other: both
    would take the same port of this machine."""
    of_run = {"seconds": 120, "steps": steps, "platform": "cpu", "batch": 8}
    alone, node, together = (of_run | {"name": name, "over": name} for name in ("alone", "node", "all"))
    together["ids"] = True
    lines = [line for number in range(len(NODES)) for line in _step(python, [alone, node], [number])]
    lines += _step(python, [together], range(len(NODES)))
    answers = [json.loads(line.removeprefix("@rocstack ")) for line in lines if line.startswith("@rocstack ")]
    return {"asked": list(NODES), "nodes": list(NODES), "ranks": RANKS, "answers": answers, "said": ""}


def _step(python: str, runs: list[dict[str, Any]], numbers: Iterable[int]) -> list[str]:
    plan = json.dumps({"ranks": RANKS, "runs": runs, "jax": (PROGRAMS / "jax_check.py").read_text()})
    line = [python, "-c", (PROGRAMS / "training.py").read_text(), plan]
    env = {**os.environ, "SLURM_STEP_NUM_NODES": str(len(NODES)), "MASTER_ADDR": "localhost"}
    env |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "1", "PYTHONPATH": str(ROOT / "images/trainer")}
    own = [env | {"SLURMD_NODENAME": NODES[number], "SLURM_NODEID": str(number)} for number in numbers]
    tasks = [subprocess.Popen(line, env=each, stdout=subprocess.PIPE, text=True) for each in own]
    return [line for task in tasks for line in task.communicate(timeout=400)[0].splitlines()]


if __name__ == "__main__":
    print(json.dumps(trained(sys.argv[1]), indent=None, separators=(",", ":")))
