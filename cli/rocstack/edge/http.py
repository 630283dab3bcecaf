"""HTTP to addresses that others choose."""

from __future__ import annotations

import http.client
import io
import time
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

from rocstack.base.pace import Pace

_RECORD = 16 << 10  # bytes that are sent at once, as TLS does
_LINES = 8 << 20  # bytes of an answer besides its body


class PacedAdapter(HTTPAdapter):
    """Ends a connection over which less than that moves; as a timeout, which `requests` raises as one of its own."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager


class HttpSession(requests.Session):
    """Sends no login of ~/.netrc: a server could have it sent to whatever it names, also by a redirect."""

    def __init__(self) -> None:
        super().__init__()
        self.auth = lambda request: request
        for scheme in ("https://", "http://"):
            self.mount(scheme, PacedAdapter())

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        if self.should_strip_auth(str(response.request.url), str(prepared_request.url)):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)


class _Reader(io.RawIOBase):
    """Of one answer. Before its first byte a server may work as long as it may be silent."""

    def __init__(self, raw: Any) -> None:
        self._raw, self._pace, self._first = raw, Pace(), True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        began = time.monotonic()
        moved: int = self._raw.readinto(buffer)
        self._pace.count(moved, time.monotonic() if self._first else began)
        self._first = False
        return moved

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Lines(io.BufferedReader):
    """What is read by lines is no part of a body, and no limit of one ends it: "100 Continue" and trailers may go on
    for ever, at any pace."""

    _left = _LINES

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        self._left -= len(line)
        if self._left < 0:
            raise http.client.HTTPException(f"its answer has more than {_LINES >> 20} MB besides its body")
        return line


class _Socket:
    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def makefile(self, mode: str, *args: Any) -> io.BufferedReader:
        return _Lines(_Reader(self._sock.makefile(mode, 0)))

    def sendall(self, data: Any) -> None:
        pace = Pace()
        with memoryview(data) as view, view.cast("B") as octets:
            for at in range(0, len(octets), _RECORD):
                began = time.monotonic()
                self._sock.sendall(octets[at : at + _RECORD])
                pace.count(len(octets[at : at + _RECORD]), began)


class _Http(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        self.sock = _Socket(self.sock)


class _Https(HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        self.sock = _Socket(self.sock)


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _Https


_POOLS = {"http": _HttpPool, "https": _HttpsPool}
