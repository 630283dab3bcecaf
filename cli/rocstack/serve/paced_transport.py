"""httpx's way to addresses that others choose: who drips is left, from the head of an answer to its end."""

import ssl
import threading
import time
from typing import Any

import httpcore
import httpx

from rocstack.base import pace
from rocstack.base.pace import Pace


class PacedTransport(httpx.HTTPTransport):
    def __init__(self, trust: ssl.SSLContext, *, https_alone: bool) -> None:
        super().__init__(verify=trust, trust_env=False)
        self._pool = httpcore.ConnectionPool(ssl_context=trust, network_backend=_Network())
        self._https_alone = https_alone

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """
        Raises:
            httpx.UnsupportedProtocol: it leads to http, by which a server could have requests sent to whatever listens
                on this machine and believes who reaches it.
        """
        if self._https_alone and request.url.scheme != "https":
            raise httpx.UnsupportedProtocol("it leads to an address that is not https")
        _head.until = time.monotonic() + pace.PACE_S  # "100 Continue" may come for ever, at any pace
        try:
            return super().handle_request(request)
        finally:
            del _head.until


_head = threading.local()  # of the answer that this thread waits for


class _Network(httpcore.SyncBackend):
    def connect_tcp(self, *args: Any, **options: Any) -> httpcore.NetworkStream:
        return _Stream(super().connect_tcp(*args, **options))


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner, self._pace = inner, Pace()

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        began = time.monotonic()
        if began > getattr(_head, "until", began):
            raise httpcore.ReadTimeout(f"the head of an answer took more than {pace.PACE_S:g} s")
        data = self._inner.read(max_bytes, timeout)
        try:
            self._pace.count(len(data), began)
        except TimeoutError as error:
            raise httpcore.ReadTimeout(str(error)) from None
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._pace = Pace()  # each answer has its own
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def start_tls(self, *args: Any, **options: Any) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(*args, **options))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
