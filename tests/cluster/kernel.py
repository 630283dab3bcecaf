"""What of a kernel's log tells of a fault: lines that the doctor knows (images/findings, entries with `kernel`), and
links that are down. Not what every start says, nor errors that were corrected, nor what any user's program can make the
kernel say: a page fault, memory that ran out, a buffer or a queue that the driver refuses."""

from __future__ import annotations

import re
from collections.abc import Iterable

import states

from rocstack.doctor.logrules import LINK

ENTRIES = {code: entry for code, entry in states.known().items() if entry.kernel in ("fault", "lasting")}
OLD = 7 * 86400  # seconds, ours: a fault that was before that has been seen to, or comes again
# What programs/host.py is to keep of a log: so much of each.
KEPT = tuple("|".join(map(re.escape, entry.text)) for entry in states.known().values() if entry.kernel)
KEPT = (*KEPT, LINK.pattern)


def bad(line: str) -> bool:
    link = LINK.search(line)
    return _is(line, "fault", "lasting") or bool(link and link["state"].lower() == "down")


def contained(line: str) -> bool:
    """Of memory that failed where nothing used it: the driver takes the page away, and says that nobody need do
    anything. That often is a bad stack of memory, and "Saved bad pages" says when it is."""
    return _is(line, "contained") and not bad(line)


def lasting(line: str) -> bool:
    return _is(line, "lasting")


def _is(line: str, *kinds: str) -> bool:
    return any(
        entry.kernel in kinds and any(text in line for text in entry.text) and entry.read(line) is not None
        for entry in states.known().values()
    )


def before_up(lines: Iterable[str]) -> list[str]:
    """Of those about links that are down: what comes before they are up for the first time, as on every start."""
    early: list[str] = []
    waiting: dict[str, list[str]] = {}
    seen: set[str] = set()  # up
    for line in lines:
        link = LINK.search(line)
        if link and link["state"].lower() == "up":
            seen.add(link["device"])
            early += waiting.pop(link["device"], [])
        elif link and link["device"] not in seen:
            waiting.setdefault(link["device"], []).append(line)
    return early
