"""Resource limits of a process, by docker's names: what a container can get is decided by who starts it."""

from __future__ import annotations

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
    found = {}
    for line in table.splitlines():
        name, values = LIMITS.get(line[:26].strip()), line[26:].split()
        if name and len(values) > 1 and (values[1] == "unlimited" or (values[1].isdecimal() and len(values[1]) < 21)):
            found[name] = UNLIMITED if values[1] == "unlimited" else int(values[1])
    return found


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
    found = (line.split(None, 1) for line in lines)
    return {words[0].rstrip(":"): words[1] for words in found if len(words) == 2}
