"""Resource limits of a process by docker's names: what a container can get, and what an engine refused to set."""

from __future__ import annotations

import re
from collections.abc import Iterable

UNLIMITED = -1
CAP_SYS_RESOURCE = 24  # raises a hard limit (capabilities(7))
LIMITS = {
    "Max cpu time": "cpu",
    "Max file size": "fsize",
    "Max data size": "data",
    "Max stack size": "stack",
    "Max core file size": "core",
    "Max resident set": "rss",
    "Max processes": "nproc",
    "Max open files": "nofile",
    "Max locked memory": "memlock",
    "Max file locks": "locks",
    "Max pending signals": "sigpending",
    "Max msgqueue size": "msgqueue",
    "Max nice priority": "nice",
    "Max realtime priority": "rtprio",
    "Max realtime timeout": "rttime",
}


def hard_limits(table: str) -> dict[str, int]:
    """From /proc/PID/limits: columns limit (26 wide), soft, hard, unit. What is no number is left out."""
    limits = {}
    for line in table.splitlines():
        name, values = LIMITS.get(line[:26].strip()), line[26:].split()
        if name and len(values) > 1 and (values[1] == "unlimited" or (values[1].isdecimal() and len(values[1]) < 21)):
            limits[name] = UNLIMITED if values[1] == "unlimited" else int(values[1])
    return limits


def raises_limits(status: str, uid_map: str) -> bool:
    """Whether a process may go beyond its hard limits, from its /proc/PID/status and uid_map: not without
    CAP_SYS_RESOURCE, nor from a user namespace (rootless). Unknown counts as yes: the engine says no by itself, and
    that is handled when it starts the container."""
    capabilities = pairs(status.splitlines())
    usable = int(capabilities.get("CapEff", "f" * 16), 16) & int(capabilities.get("CapBnd", "f" * 16), 16)
    mapped = uid_map.split()
    whole = not mapped or mapped[:3] == ["0", "0", str(2**32 - 1)]
    return whole and bool(usable >> CAP_SYS_RESOURCE & 1)


def pairs(lines: Iterable[str]) -> dict[str, str]:
    """`key value` lines, as KFD's properties and /proc/PID/status have them."""
    rows = (line.split(None, 1) for line in lines)
    return {words[0].rstrip(":"): words[1] for words in rows if len(words) == 2}


# RLIMIT_* numbers of Linux, which is how runc names a limit that it could not set.
RLIMIT_NUMBERS = {
    "cpu": 0, "fsize": 1, "data": 2, "stack": 3, "core": 4, "rss": 5, "nproc": 6, "nofile": 7, "memlock": 8,
    "locks": 10, "sigpending": 11, "msgqueue": 12, "nice": 13, "rtprio": 14, "rttime": 15,
}  # fmt: skip
_NEEDS = {
    "memlock": "RoCE and InfiniBand pin memory and need it unlimited (IPC_LOCK exempts only root in the"
    " container): start the engine with LimitMEMLOCK=infinity",
}


def limit_note(name: str, has: int | None) -> str:
    """Says that a limit stays as the host has it, and who minds."""
    stays = "" if has is None else f" and stays at {has}"
    text = f"ulimit {name} can't be raised on this host{stays}"
    return f"{text}; {_NEEDS[name]}" if name in _NEEDS else text


def refused_ulimit(stderr: str) -> str | None:
    """The limit over which the engine refused to start a container, from what `docker run` said.

    runc: `error setting rlimit type 8: operation not permitted`; crun: ``setrlimit `RLIMIT_MEMLOCK` ``.
    """
    if number := re.search(r"setting rlimit type (\d+)", stderr):
        return next((name for name, known in RLIMIT_NUMBERS.items() if known == int(number[1])), None)
    if word := re.search(r"setrlimit `?RLIMIT_([A-Z]+)`?", stderr):
        return word[1].lower() if word[1].lower() in RLIMIT_NUMBERS else None
    return None
