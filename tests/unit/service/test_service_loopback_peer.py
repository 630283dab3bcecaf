"""While slurmrestd is away, whoever listens at its port on the control node gets no token, and nobody's word counts."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest
from conftest import PEOPLE
from fake_slurmrestd import token

from rocstack.service import loopback_peer
from rocstack.service.failures import Away
from rocstack.service.identity import Doorkeeper
from rocstack.service.serving import ModelServer
from rocstack.service.slurmrest import SlurmRest

pytestmark = pytest.mark.anyio
YES = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + json.dumps({"reservations": []}).encode()
OTHERS = """
import socket, os, sys
os.setgroups([]); os.setgid(2001); os.setuid(2001)
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    client, _ = server.accept()
    sys.stderr.write(client.recv(65536).decode())
    sys.stderr.flush()
"""


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A program that says yes to everything, and what it heard."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            heard.append(data)
            writer.write(YES)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard


async def asked(url: str) -> str:
    rest = SlurmRest(url)
    rest.patience = 0.0
    try:
        return (await Doorkeeper(rest, PEOPLE).caller(token("alice"))).name
    finally:
        await rest.close()


async def test_slurmrestd_itself_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as (url, heard):
        assert await asked(url) == "alice", "of the service's own user, as in tests"
        monkeypatch.setattr(loopback_peer, "SLURMREST_UID", os.getuid())
        monkeypatch.setattr(os, "getuid", lambda: 64033)
        assert await asked(url) == "alice"
    assert heard


async def test_another_users_program_hears_nothing_and_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_peer, "_owner", lambda *_: 2001)
    async with listening() as (url, heard):
        with pytest.raises(Away):
            await asked(url)
    assert not heard


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")
async def test_a_jobs_program_at_its_port_hears_nothing() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", OTHERS], stdout=pipe, stderr=pipe, text=True) as program:
        assert program.stdout
        port = program.stdout.readline().strip()
        with pytest.raises(Away):
            await asked(f"http://127.0.0.1:{port}")
        program.kill()
        assert program.stderr
        assert program.stderr.read() == ""


async def test_who_takes_no_connection_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_peer, "TAKEN_S", 0.05)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        with pytest.raises(Away):
            await asked(f"http://127.0.0.1:{server.getsockname()[1]}")
        client, _ = server.accept()
        with client:
            assert client.recv(65536) == b""


async def test_the_owner_of_a_connection() -> None:
    near, far = ("127.0.0.1", 48214), ("127.0.0.1", 6820)
    end = "00000000:00000000 00:00000000 00000000"
    listens = f"0: 0100007F:1AA4 00000000:0000 0A {end} 65534 0 100 1 0000000000000000 100 0 0 10 0"
    ours = f"1: 0100007F:BC56 0100007F:1AA4 01 {end} 64033 0 101 2 0000000000000000 20 0 0 10 -1"
    waits = f"2: 0100007F:1AA4 0100007F:BC56 01 {end} 0 0 0 1 0000000000000000 20 0 0 10 -1"
    taken = f"3: 0100007F:1AA4 0100007F:BC56 01 {end} 2001 0 102 1 0000000000000000 20 0 0 10 -1"
    mapped = (
        f"4: 0000000000000000FFFF00000100007F:1AA4 0000000000000000FFFF00000100007F:BC56 01 {end} 2002 0 103 1 0 20"
    )
    assert loopback_peer._owner(near, far, [listens, ours]) is None
    assert loopback_peer._owner(near, far, [listens, ours, waits, "5: cut"]) is None
    assert loopback_peer._owner(near, far, [listens, ours, waits, taken]) == 2001
    assert loopback_peer._owner(near, far, [listens, ours, mapped]) == 2002


def test_a_gateway_without_tls_is_asked_without_reading_the_machines_cas(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes longer than a small model's answer, and others wait meanwhile."""
    server = ModelServer("key", "http://127.0.0.1:9", ssl.create_default_context(), "token")
    monkeypatch.delattr(ssl, "create_default_context")
    server.client()
