"""Resource limits of a container: what a profile asks for, and what this host's engine can give."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from rocstack.base.errors import hinted
from rocstack.node.limits import LIMITS, UNLIMITED, limit_note

if TYPE_CHECKING:
    from rocstack.container.host import Host

# RDMA pins memory; a rank opens a socket and files per peer; 64 MiB of stack for OpenMP and Fortran.
AUTO = {"memlock": "-1:-1", "nofile": "1048576:1048576", "stack": "67108864:67108864"}


def parse_limit(value: Any) -> str:
    """`SOFT[:HARD]` (or one number for both, -1 for none) as "soft:hard"; "auto" stays."""
    if value == "auto":
        return "auto"
    match = re.fullmatch(r"(-1|\d{1,18})(?::(-1|\d{1,18}))?", str(value))
    if not match or isinstance(value, bool | float):
        raise ValueError(f"{value!r} is not a limit (a number or SOFT:HARD; -1 is unlimited)")
    soft, hard = match[1], match[2] or match[1]
    if int(hard) != UNLIMITED and (int(soft) == UNLIMITED or int(soft) > int(hard)):
        raise ValueError(f"{value!r}: the soft limit is above the hard one")
    return f"{soft}:{hard}"


def _known(name: Any) -> Any:
    if name not in LIMITS:
        raise ValueError(f"there is no limit '{name}'{hinted(str(name), LIMITS)}")
    return name


def _auto_is_known(limits: dict[str, str]) -> dict[str, str]:
    for name, limit in limits.items():
        if limit == "auto" and name not in AUTO:
            raise ValueError(f"{name}: only {', '.join(AUTO)} can be auto")
    return limits


UlimitName = Annotated[str, BeforeValidator(_known)]
Limit = Annotated[str, BeforeValidator(parse_limit)]
Ulimits = Annotated[dict[UlimitName, Limit], AfterValidator(_auto_is_known)] | Literal["auto"]


def choose(host: Host, profile: Ulimits) -> tuple[dict[str, str], tuple[str, ...]]:
    """The limits to ask the engine for, and notes on those left out.

    What the user wrote is asked for as it stands; an "auto" that this host is known to refuse is left out.
    """
    asked = dict.fromkeys(AUTO, "auto") if profile == "auto" else profile
    known = {name: AUTO[name] if limit == "auto" else limit for name, limit in asked.items()}
    out = [name for name, limit in asked.items() if limit == "auto" and not _allowed(host, name, known[name])]
    given = {name: limit for name, limit in known.items() if name not in out}
    return given, tuple(limit_note(name, host.limits.get(name)) for name in out)


def _allowed(host: Host, name: str, limit: str) -> bool:
    has = host.limits.get(name, UNLIMITED)
    wants = int(limit.split(":")[1])
    return host.raises_limits or has == UNLIMITED or (wants != UNLIMITED and wants <= has)
