"""Whether a container is healthy, asked now: an engine itself looks every half minute only. Standard library only."""

from __future__ import annotations

import json
import time

from .engine import Failed, Row, docker, there

PAUSE = 0.3  # seconds between two looks
PROOF = 1.5  # seconds that it must run: one that ends again and again passes many a check for a moment
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
    start, since = "", began
    while True:
        row = next(iter(json.loads(there("container", name))), None)
        now = time.monotonic()
        if row is None:
            return "is gone"
        if row["State"]["StartedAt"] != start:  # it ended and was started again
            start, since = row["State"]["StartedAt"], now
        why = _why(row)
        if why is None and now - since >= PROOF:
            return ""
        if why and _hopeless(row):
            return why
        if now - began >= within:
            return f"isn't healthy after {within:g} s ({why or 'it has just started'})"
        time.sleep(PAUSE)


def _why(row: Row) -> str | None:
    state = row["State"]
    if state["Status"] != "running":
        again = f" {row['RestartCount'] + 1} times" if row.get("RestartCount") else ""
        error = f": {state['Error']}" if state.get("Error") else ""
        return f"ended{again} with exit code {state.get('ExitCode')}{error}"
    check = _check(row["Config"])
    if not check:
        return None
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
    status, again = row["State"]["Status"], int(row.get("RestartCount") or 0)
    return status in ("exited", "dead") or (status == "restarting" and again >= RESTARTS)
