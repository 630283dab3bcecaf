"""Servers that drip: an answer, its head, or what they take. Each of them once kept a request alive for ever."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import requests

from rocstack.base import pace
from rocstack.base.errors import Missing
from rocstack.edge import http
from rocstack.edge.http import HttpSession
from rocstack.registry import registry_http
from rocstack.registry.registry_http import RegistryHttp
from rocstack.registry.repository import Repository

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n"
DROPS = 400  # four seconds: who waits for the end gets the whole answer, and the test fails
Serve = Callable[[socket.socket], None]


def drip(to: socket.socket, data: bytes) -> None:
    for octet in data:
        to.sendall(bytes([octet]))
        time.sleep(0.01)


def body(peer: socket.socket) -> None:
    peer.recv(65536)
    peer.sendall(HEAD + b"\r\n")
    drip(peer, b"x" * DROPS)


def head(peer: socket.socket) -> None:
    peer.recv(65536)
    peer.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    drip(peer, b"x" * DROPS)
    peer.sendall(b"\r\nContent-Length: 0\r\n\r\n")


def reader(peer: socket.socket) -> None:
    """Takes 512 bytes at a time, and in the end all."""
    for _ in range(DROPS):
        peer.recv(512)
        time.sleep(0.01)
    while peer.recv(65536).find(b"END") < 0:
        pass
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n" * 50_000


def heads(peer: socket.socket) -> None:
    peer.recv(65536)
    for _ in range(10):
        peer.sendall(GO_ON)
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def trailers(peer: socket.socket) -> None:
    peer.recv(65536)
    peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
    for _ in range(10):
        peer.sendall(GO_ON.replace(b"\r\n\r\n", b"\r\n"))
    peer.sendall(b"\r\n")


@contextmanager
def server(serve: Serve) -> Iterator[str]:
    """HOST:PORT; each connection is served by `serve`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peers: list[socket.socket] = []

        def one(peer: socket.socket) -> None:
            with suppress(OSError):
                serve(peer)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    peers.append(listening.accept()[0])
                    threading.Thread(target=one, args=(peers[-1],), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for peer in peers:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PACE_S", 0.3)


@pytest.mark.parametrize("serve", [body, head])
def test_an_answer_that_drips_is_ended(hasty: None, serve: Serve) -> None:
    with server(serve) as host, HttpSession() as session, pytest.raises(requests.exceptions.RequestException):
        session.get(f"http://{host}/", timeout=5)


@pytest.mark.parametrize("serve", [heads, trailers])
def test_what_is_no_body_ends_too(serve: Serve) -> None:
    with server(serve) as host, HttpSession() as session, pytest.raises(requests.exceptions.RequestException) as raised:
        session.get(f"http://{host}/", timeout=5)
    assert "besides its body" in str(raised.value)


def test_a_server_that_takes_drop_by_drop_is_left(hasty: None) -> None:
    large = bytes(8 << 20) + b"END"
    with server(reader) as host, HttpSession() as session, pytest.raises(requests.exceptions.RequestException):
        session.put(f"http://{host}/", data=large, timeout=5)


@pytest.mark.parametrize("serve", [body, head])
def test_a_registry_that_drips_is_tried_again_and_left(hasty: None, serve: Serve) -> None:
    """It counts as one that can't be reached, each time."""
    asked: list[int] = []

    def counted(peer: socket.socket) -> None:
        asked.append(1)
        serve(peer)

    with server(counted) as host:
        at = Repository(RegistryHttp(host, plain=True), "a", attempts=3, sleep=lambda seconds: None)
        with pytest.raises(Missing) as raised:
            at.manifest("latest")
    assert raised.value.code == "registry-unreachable"
    assert len(asked) == 3


def test_a_server_that_works_before_it_speaks_is_waited_for(hasty: None) -> None:
    """A registry is silent while it stores a large layer."""

    def late(peer: socket.socket) -> None:
        peer.recv(65536)
        time.sleep(0.6)
        peer.sendall(HEAD + b"\r\n" + b"x" * 400)

    with server(late) as host, HttpSession() as session:
        assert session.get(f"http://{host}/", timeout=5).content == b"x" * 400


def test_slow_but_steady_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PACE", 40)
    monkeypatch.setattr(pace, "PACE_S", 4)
    with server(body) as host, HttpSession() as session:
        assert session.get(f"http://{host}/", timeout=5).content == b"x" * 400


def test_every_way_to_a_registry_has_the_limit() -> None:
    for asked in (RegistryHttp("r.example"), RegistryHttp("r.example", insecure=True)):
        for address in ("https://r.example/", "https://elsewhere.example/"):
            assert isinstance(asked._session.get_adapter(address), http.PacedAdapter)
    assert issubclass(registry_http._Adapter, http.PacedAdapter)
