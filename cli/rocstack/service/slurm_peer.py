"""Whose process answers at slurmrestd's port on this machine. While slurmrestd is away, as during a rotation of keys, a
job on the control node could listen there: it would get the tokens of all who ask, and say yes to any."""

import ipaddress
import os
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx

SLURMREST_UID = 65534  # in the control image; jobs' users have others
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")  # of this network: proc_pid_net(5)
TAKEN_S, PAUSE_S = 3.0, 0.01  # until a connection is taken; between two looks
Address = tuple[str, int]


async def look(event: str, about: dict[str, Any]) -> None:
    """httpcore's `trace`: between a connection and what is sent by it.

    Raises:
        httpx.ConnectError: on this machine, and another user's program has it.
    """
    if event != "connection.connect_tcp.complete":
        return
    stream = about["return_value"]
    near, far = (stream.get_extra_info(name)[:2] for name in ("client_addr", "server_addr"))
    if ipaddress.ip_address(far[0]).is_loopback and not await anyio.to_thread.run_sync(_known, near, far):
        await stream.aclose()
        raise httpx.ConnectError("another program has slurmrestd's port")


def _known(near: Address, far: Address) -> bool:
    until = time.monotonic() + TAKEN_S
    while (owner := _owner(near, far, _lines())) is None and time.monotonic() < until:
        time.sleep(PAUSE_S)
    return owner in (SLURMREST_UID, os.getuid(), 0)


def _owner(near: Address, far: Address, lines: Iterable[str]) -> int | None:
    """The uid of who has taken the connection from `near` at `far`; None where nobody has yet: then it has no inode."""
    wanted = set(zip(_shown(far), _shown(near), strict=True))
    for line in lines:
        words = line.split()
        if len(words) > 9 and (words[1], words[2]) in wanted and words[9] != "0":
            return int(words[7])
    return None


def _lines() -> Iterable[str]:
    for table in TABLES:
        with suppress(OSError):  # of a machine without IPv6
            yield from Path(table).read_text(encoding="ascii").splitlines()[1:]


def _shown(address: Address) -> tuple[str, ...]:
    """As the tables have it: words of the machine. Of IPv4 there are two forms, by what kind of socket listens."""
    host, port = ipaddress.ip_address(address[0]), address[1]
    forms = [host.packed] if host.version == 6 else [host.packed, bytes(10) + b"\xff\xff" + host.packed]
    return tuple(
        "".join(f"{word:08X}" for word in struct.unpack(f"={len(form) // 4}I", form)) + f":{port:04X}" for form in forms
    )
