"""The controller's address, from what slurmd is told: `ctl`, `ctl:6817`, `10.0.0.1`, `[fd00::1]:6817`, `ctl1,ctl2`."""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Sequence

LIMIT = 2.0  # seconds for all names together: a dead DNS server costs 10 to 20
_NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,252})(?::[0-9]{1,5})?")
_BRACKETS = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?")


def hosts(text: str) -> list[str]:
    """Names and IP addresses, without ports.

    Raises:
        ValueError: a part that is neither.
    """
    return [_host(part.strip()) for part in text.split(",")] if text else []


def _host(part: str) -> str:
    found = _BRACKETS.fullmatch(part)
    bare = found[1] if found else part
    if _literal(bare):
        return bare
    named = None if found else _NAME.fullmatch(part)
    if not named:
        raise ValueError(f"'{part}' is no HOST[:PORT]")
    return named[1]


def address(names: Sequence[str]) -> str | None:
    """The address of the first that has one; each is asked for once, all at the same time."""
    found: dict[str, str] = {name: name for name in names if _literal(name)}
    asked = [threading.Thread(target=_ask, args=(name, found), daemon=True) for name in names if name not in found]
    for thread in asked:
        thread.start()
    end = time.monotonic() + LIMIT
    for thread in asked:
        thread.join(max(0.0, end - time.monotonic()))
    return next((found[name] for name in names if name in found), None)


def _ask(name: str, found: dict[str, str]) -> None:
    """IPv4 first, as Slurm has it."""
    try:
        rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    best = min(rows, key=lambda row: row[0] != socket.AF_INET, default=None)
    if best:
        found[name] = str(best[4][0]).partition("%")[0]


def _literal(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
