"""Whose process answers at a port of this machine: slurmrestd's, or a gateway's of the site. While it is away, as
slurmrestd during a rotation of keys, a job on the control node could listen there: it would get the tokens of all who
ask, and say yes to any."""

import ipaddress
import os
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx

from rocstack.service.bounded_head import BoundedHead

SLURMREST_UID = 65534  # in the control image; jobs' users have others
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")  # of this network: proc_pid_net(5)
TAKEN_S, PAUSE_S = 3.0, 0.02  # until a connection is taken; between two looks
Address = tuple[str, int]
Trace = Callable[[str, dict[str, Any]], Awaitable[None]]


def trace(known: Callable[[int], bool]) -> Trace:
    """httpcore's `trace`: between a connection and what is sent by it. `known` says of a uid whether it may hear it. It
    raises httpx.ConnectError where another user's program on this machine has the port."""

    async def look(event: str, about: dict[str, Any]) -> None:
        if event != "connection.connect_tcp.complete":
            return
        stream = about["return_value"]
        near, far = (stream.get_extra_info(name)[:2] for name in ("client_addr", "server_addr"))
        if not ipaddress.ip_address(far[0]).is_loopback:
            return
        owner = await _taken_by(near, far)
        if owner is None or not (owner in (0, os.getuid()) or known(owner)):
            await stream.aclose()
            raise httpx.ConnectError("another program has that port")

    return look


look = trace(lambda uid: uid == SLURMREST_UID)


class TracedTransport(BoundedHead):
    """A client's way on which each connection is looked at. `trust` is given, too: it would read the machine's CAs."""

    def __init__(self, known: Callable[[int], bool], trust: ssl.SSLContext) -> None:
        super().__init__(trust)
        self._trace = trace(known)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions = {**request.extensions, "trace": self._trace}
        return await super().handle_async_request(request)


async def _taken_by(near: Address, far: Address) -> int | None:
    """Who takes no connection holds no thread meanwhile."""
    until = time.monotonic() + TAKEN_S
    while (owner := await anyio.to_thread.run_sync(_now, near, far)) is None and time.monotonic() < until:
        await anyio.sleep(PAUSE_S)
    return owner


def _now(near: Address, far: Address) -> int | None:
    return _owner(near, far, _lines())


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
