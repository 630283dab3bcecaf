"""Resource limits of a container: what a profile asks for, and what this host's engine can give."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

if TYPE_CHECKING:
    from rocstack.host import Host

UNLIMITED = -1
# RLIMIT_* numbers of Linux, which is how runc names a limit that it could not set.
NUMBERS = {
    "cpu": 0, "fsize": 1, "data": 2, "stack": 3, "core": 4, "rss": 5, "nproc": 6, "nofile": 7, "memlock": 8,
    "locks": 10, "sigpending": 11, "msgqueue": 12, "nice": 13, "rtprio": 14, "rttime": 15,
}  # fmt: skip


# RDMA pins memory; a rank opens a socket and files per peer; 64 MiB of stack for OpenMP and Fortran.
AUTO = {"memlock": "-1:-1", "nofile": "1048576:1048576", "stack": "67108864:67108864"}


def parse_limit(value: Any) -> str:
    """`SOFT[:HARD]` (or one number for both, -1 for none) as "soft:hard"; "auto" stays."""
    if value == "auto":
        return "auto"
    found = re.fullmatch(r"(-1|\d{1,18})(?::(-1|\d{1,18}))?", str(value))
    if not found or isinstance(value, bool | float):
        raise ValueError(f"{value!r} is not a limit (a number or SOFT:HARD; -1 is unlimited)")
    soft, hard = found[1], found[2] or found[1]
    if int(hard) != UNLIMITED and (int(soft) == UNLIMITED or int(soft) > int(hard)):
        raise ValueError(f"{value!r}: the soft limit is above the hard one")
    return f"{soft}:{hard}"


def _known(name: Any) -> Any:
    if name not in NUMBERS:
        raise ValueError(f"no limit {name!r}; known: {', '.join(sorted(NUMBERS))}")
    return name


def _auto_is_known(limits: dict[str, str]) -> dict[str, str]:
    for name, limit in limits.items():
        if limit == "auto" and name not in AUTO:
            raise ValueError(f"{name}: only {', '.join(AUTO)} can be auto")
    return limits


UlimitName = Annotated[str, BeforeValidator(_known)]
Limit = Annotated[str, BeforeValidator(parse_limit)]
Ulimits = Annotated[dict[UlimitName, Limit], AfterValidator(_auto_is_known)] | Literal["auto"]

_NEEDS = {
    "memlock": "RoCE and InfiniBand pin memory and need it unlimited (IPC_LOCK exempts only root in the"
    " container): start the engine with LimitMEMLOCK=infinity",
}


def choose(host: Host, wanted: Ulimits) -> tuple[dict[str, str], tuple[str, ...]]:
    """The limits to ask the engine for, and notes on those left out.

    What the user wrote is asked for as it stands; an "auto" that this host is known to refuse is left out.
    """
    asked = dict.fromkeys(AUTO, "auto") if wanted == "auto" else wanted
    known = {name: AUTO[name] if limit == "auto" else limit for name, limit in asked.items()}
    out = [name for name, limit in asked.items() if limit == "auto" and not _allowed(host, name, known[name])]
    given = {name: limit for name, limit in known.items() if name not in out}
    return given, tuple(left_out(name, host.limits.get(name)) for name in out)


def _allowed(host: Host, name: str, limit: str) -> bool:
    has = host.limits.get(name, UNLIMITED)
    wants = int(limit.split(":")[1])
    return host.raises_limits or has == UNLIMITED or (wants != UNLIMITED and wants <= has)


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
