"""What of a kernel's log tells of a fault: AMD's acceptance guide, ROCm/cvs and ROCm/node-scraper have such lists; the
texts are the kernel's own. Not what every start says, nor errors that were corrected, nor a job that reached its limit
of memory; the doctor's table has more."""

from __future__ import annotations

import re
from collections.abc import Iterable

import states

FAULT = re.compile(
    "|".join(
        (
            r"amdgpu.*\b(error|fail(ed|ure)?)\b|GPU (reset|hang)|ring \S+ timeout|\bpage fault\b|queues? preemption",
            r"poison (is )?consum|(?<!\b0 )(?<!\b0 new )uncorrect(ed|able)\b",  # of GPUs; AER and EDAC say it, too
            r"event severity: (fatal|recoverable)|System Fatal error|Machine Check: \d|EDAC .*\b[1-9]\d* UE\b",
            r"Call Trace:|(?<!cgroup )out of memory|\bCQE? error|error CQE\b",
        )
    ),
    re.IGNORECASE,
)
LINK = re.compile(r"(?P<port>[^\s:]+)(?:: (?:NIC )?| NIC )link (?:is )?(?P<state>up|down)\b", re.IGNORECASE)
# What programs/host.py is to keep of a log: so much of each.
TEXTS = (text for entry in states.known().values() if entry.level == "error" for text in entry.text)
KEPT = (FAULT.pattern, LINK.pattern, "|".join(map(re.escape, TEXTS)))


def bad(line: str) -> bool:
    link = LINK.search(line)
    return bool(FAULT.search(line) or (link and link["state"].lower() == "down"))


def before_up(lines: Iterable[str]) -> list[str]:
    """Of those about links that are down: what comes before they are up for the first time, as on every start."""
    early: list[str] = []
    waiting: dict[str, list[str]] = {}
    seen: set[str] = set()  # up
    for line in lines:
        link = LINK.search(line)
        if link and link["state"].lower() == "up":
            seen.add(link["port"])
            early += waiting.pop(link["port"], [])
        elif link and link["port"] not in seen:
            waiting.setdefault(link["port"], []).append(line)
    return early
