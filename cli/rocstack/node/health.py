"""Whether a container is healthy, asked now: an engine itself looks every half minute only. Standard library only."""

from __future__ import annotations

import json
import time
from typing import Any

from .engine import Failed, Row, docker, there

PAUSE = 0.3  # seconds between two looks
PROOF = 2.0  # seconds that a container without a check must run
ONE_CHECK = 30.0  # seconds
RESTARTS = 5  # after that many it won't come up


def health(row: Row) -> str:
    """healthy, unhealthy or starting as the engine saw it last; "" for a container without a check. One that
    ends again and again is unhealthy."""
    if row["State"]["Status"] == "restarting":
        return "unhealthy"
    found = str((row["State"].get("Health") or {}).get("Status") or "")
    return "" if found == "none" else found


def until_healthy(name: str, within: float) -> str:
    """Waits; why it isn't healthy after `within` seconds, or never will be."""
    began = time.monotonic()
    while True:
        row = json.loads(there("container", name))
        why = _why(row[0], time.monotonic() - began) if row else "is gone"
        over = time.monotonic() - began >= within
        if why is None:
            return ""
        if row and _hopeless(row[0]):
            return why
        if over:
            return f"isn't healthy after {within:g} s ({why})"
        time.sleep(PAUSE)


def _why(row: Row, waited: float) -> str | None:
    state = row["State"]
    if state["Status"] != "running":
        again = f" {row['RestartCount'] + 1} times" if row.get("RestartCount") else ""
        return f"ended{again} with exit code {state.get('ExitCode')}{_said(state.get('Error'))}"
    check = _check(row["Config"])
    if not check:
        return None if waited >= PROOF else "runs"
    try:
        said = docker("exec", row["Id"], *check, check=False, seconds=ONE_CHECK)
    except Failed as failed:
        return failed.what
    return said.why if said.code else None


def _check(config: Row) -> list[str]:
    test = (config.get("Healthcheck") or {}).get("Test") or ["NONE"]
    if test[0] == "CMD-SHELL":
        return [*(config.get("Shell") or ["/bin/sh", "-c"]), *test[1:]]
    return list(test[1:]) if test[0] == "CMD" else []


def _hopeless(row: Row) -> bool:
    ended = row["State"]["Status"] in ("exited", "dead")
    return ended or int(row.get("RestartCount") or 0) >= RESTARTS


def _said(error: Any) -> str:
    return f": {error}" if error else ""
