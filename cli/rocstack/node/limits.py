"""Resource limits of a process by docker's names: what a container can get, and what an engine refused to set."""

from __future__ import annotations

import re
from collections.abc import Iterable

UNLIMITED = -1
CAP_SYS_RESOURCE = 24  # raises a hard limit (capabilities(7))
# By docker's name: the RLIMIT_* number of Linux, which is how runc names a limit that it could not set, and the
# title of its row in /proc/PID/limits.
LIMITS = {
    "cpu": (0, "Max cpu time"), "fsize": (1, "Max file size"), "data": (2, "Max data size"),
    "stack": (3, "Max stack size"), "core": (4, "Max core file size"), "rss": (5, "Max resident set"),
    "nproc": (6, "Max processes"), "nofile": (7, "Max open files"), "memlock": (8, "Max locked memory"),
    "locks": (10, "Max file locks"), "sigpending": (11, "Max pending signals"), "msgqueue": (12, "Max msgqueue size"),
    "nice": (13, "Max nice priority"), "rtprio": (14, "Max realtime priority"), "rttime": (15, "Max realtime timeout"),
}  # fmt: skip


def hard_limits(table: str) -> dict[str, int]:
    """From /proc/PID/limits: columns limit (26 wide), soft, hard, unit. What is no number is left out."""
    names = {title: name for name, (_, title) in LIMITS.items()}
    limits = {}
    for line in table.splitlines():
        name, values = names.get(line[:26].strip()), line[26:].split()
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
        return next((name for name, (known, _) in LIMITS.items() if known == int(number[1])), None)
    if word := re.search(r"setrlimit `?RLIMIT_([A-Z]+)`?", stderr):
        return word[1].lower() if word[1].lower() in LIMITS else None
    return None
