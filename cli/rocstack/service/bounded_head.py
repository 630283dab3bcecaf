"""The way to a server that a job runs: its user may have put any program in its place. The head of an answer ends,
however often "100 Continue" comes before it, and what is read of it at once takes no time from others."""

import ssl
from typing import Any

import httpcore
import httpx

HEAD = 128 << 10  # bytes up to the end of the head, with what came of the body by then
PIECE = 4 << 10  # bytes of it at once: taken apart, they may be hundreds of heads


class BoundedHead(httpx.AsyncHTTPTransport):
    """For one request at a time."""

    def __init__(self, trust: ssl.SSLContext) -> None:
        super().__init__(verify=trust, trust_env=False)
        self.left: int | None = None  # None: no head is waited for
        self._pool = httpcore.AsyncConnectionPool(ssl_context=trust, network_backend=_Network(self))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.left = HEAD
        try:
            return await super().handle_async_request(request)
        finally:
            self.left = None


class _Network(httpcore.AnyIOBackend):
    def __init__(self, way: BoundedHead) -> None:
        self._way = way

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _Stream(await super().connect_tcp(*args, **options), self._way)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream, way: BoundedHead) -> None:
        self._inner, self._way = inner, way

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left = self._way.left
        if left is None:
            return await self._inner.read(max_bytes, timeout)
        if left <= 0:
            raise httpcore.ReadError(f"the head of an answer has more than {HEAD >> 10} kB")
        data = await self._inner.read(min(max_bytes, PIECE), timeout)
        self._way.left = left - len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(*args, **options), self._way)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
