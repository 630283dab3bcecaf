"""What accounting has of jobs that have ended."""

from __future__ import annotations

import time
from typing import Any

from rocstack.verify.slurm_session import SlurmSession

TIMEOUT_S = 10.0  # seconds: slurmctld tells slurmdbd in bundles
OPEN = frozenset({"", "PENDING", "RUNNING", "REQUEUED", "SUSPENDED"})


def run(slurm: SlurmSession, jobs: dict[str, str]) -> dict[str, Any]:
    """Name -> {"job": its number, "state": how it ended, empty where that isn't recorded}."""
    deadline = time.monotonic() + TIMEOUT_S
    while jobs:
        words = ["-nPX", f"--jobs={','.join(jobs.values())}", "--format=JobID,State"]
        rows_text = slurm.run("sacct", *words).stdout
        rows = dict(line.split("|") for line in rows_text.splitlines() if "|" in line)
        states = {name: rows.get(number, "").partition(" ")[0] for name, number in jobs.items()}
        if not OPEN & set(states.values()) or time.monotonic() > deadline:
            return {
                name: {"job": jobs[name], "state": "" if state in OPEN else state} for name, state in states.items()
            }
        time.sleep(0.5)
    return {}
