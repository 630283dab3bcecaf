"""A limit that an engine refused to set for a container: which, and who minds. Standard library only."""

from __future__ import annotations

import re

# RLIMIT_* numbers of Linux, which is how runc names a limit that it could not set.
NUMBERS = {
    "cpu": 0, "fsize": 1, "data": 2, "stack": 3, "core": 4, "rss": 5, "nproc": 6, "nofile": 7, "memlock": 8,
    "locks": 10, "sigpending": 11, "msgqueue": 12, "nice": 13, "rtprio": 14, "rttime": 15,
}  # fmt: skip
_NEEDS = {
    "memlock": "RoCE and InfiniBand pin memory and need it unlimited (IPC_LOCK exempts only root in the"
    " container): start the engine with LimitMEMLOCK=infinity",
}


def left_out(name: str, has: int | None) -> str:
    """Says that a limit stays as the host has it, and who minds."""
    stays = "" if has is None else f" and stays at {has}"
    text = f"ulimit {name} can't be raised on this host{stays}"
    return f"{text}; {_NEEDS[name]}" if name in _NEEDS else text


def refused_ulimit(stderr: str) -> str | None:
    """The limit over which the engine refused to start a container, from what `docker run` said.

    runc: `error setting rlimit type 8: operation not permitted`; crun: ``setrlimit `RLIMIT_MEMLOCK` ``.
    """
    if number := re.search(r"setting rlimit type (\d+)", stderr):
        return next((name for name, known in NUMBERS.items() if known == int(number[1])), None)
    if word := re.search(r"setrlimit `?RLIMIT_([A-Z]+)`?", stderr):
        return word[1].lower() if word[1].lower() in NUMBERS else None
    return None
