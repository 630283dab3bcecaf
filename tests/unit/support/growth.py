"""How the work of a search grows with a line that a hostile node sends."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMES = 16


def growth(search: Callable[[str], object], part: str, size: int = 1000) -> float:
    """How many times longer a line takes that is TIMES longer: about TIMES where each character is looked at a few
    times, TIMES squared where each is a beginning that is read to the end. The quickest of several tries, in this
    process' own time, so that what else runs here doesn't count."""

    def quickest(length: int) -> float:
        text, took = (part * (length // len(part) + 1))[:length], []
        for _ in range(5):
            began = time.process_time()
            search(text)
            took.append(time.process_time() - began)
        return min(took)

    search(part)
    return quickest(size * TIMES) / max(quickest(size), 20e-6)


LINEAR = TIMES * 4  # at most, with room for what else a process does
