"""The two clients: the same calls, sent by httpx. Reads are tried again while the service or Slurm is away."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from rocstack.client import requests
from rocstack.client.answers import (
    JobEventAnswer,
    ListOf,
    LogAnswer,
    NodeAnswer,
    PersonAnswer,
    QosAnswer,
    RecipeAnswer,
    ReservationAnswer,
    ServerAnswer,
    ServiceJob,
    StepsAnswer,
    VerifyReportAnswer,
)
from rocstack.client.requests import RequestFailed, ServiceCall

Answer = TypeVar("Answer")
LIVE = ("sending", "queued", "running", "paused")
TIMEOUT_S, LOOK_S = 60.0, 2.0
TRIES, PAUSE_S = 3, 1.0
Parameters = Mapping[str, str | int | float | bool]


def _trust(ca: str | Path | None) -> ssl.SSLContext | bool:
    return ssl.create_default_context(cafile=str(ca)) if ca else True


def _options(url: str, token: str, ca: str | Path | None) -> dict[str, Any]:
    head = {"Authorization": f"Bearer {token}"}
    return {
        "base_url": url.rstrip("/").removesuffix("/v1"),
        "headers": head,
        "verify": _trust(ca),
        "timeout": TIMEOUT_S,
    }


def _parsed(call: ServiceCall[Answer], answer: httpx.Response) -> Answer:
    try:
        found = answer.json()
    except ValueError:
        found = None
    return call.answer(answer.status_code, found)


def _again(call: ServiceCall[Any], answer: httpx.Response | None, number: int) -> bool:
    """Whether it is sent once more: a read whose answer was lost, or 503."""
    return call.method == "GET" and number < TRIES and (answer is None or answer.status_code == 503)


def _lost(error: httpx.TransportError) -> RequestFailed:
    return RequestFailed(0, "no-answer", f"the service doesn't answer: {error}")


class ServiceClient:
    """Raises RequestFailed where the answer is no."""

    def __init__(
        self, url: str, token: str, *, ca: str | Path | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        """`ca`: file with the cluster's CA (PEM)."""
        self._http = httpx.Client(**_options(url, token, ca), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _send(self, call: ServiceCall[Answer]) -> Answer:
        number = 0
        while True:
            number += 1
            try:
                answer = self._http.request(call.method, call.path, params=call.query, json=call.body)
            except httpx.TransportError as error:
                if not _again(call, None, number):
                    raise _lost(error) from None
            else:
                if not _again(call, answer, number):
                    return _parsed(call, answer)
            time.sleep(PAUSE_S * number)

    def me(self) -> PersonAnswer:
        return self._send(requests.me())

    def recipes(self) -> list[RecipeAnswer]:
        return self._send(requests.recipes())["data"]

    def recipe(self, name: str) -> RecipeAnswer:
        return self._send(requests.recipe(name))

    def submit(
        self, recipe: str, parameters: Parameters | None = None, arguments: Sequence[str] = (), **options: Any
    ) -> ServiceJob:
        """`options` are those of `POST /v1/jobs`: nodes, time, partition, name, ..."""
        return self._send(requests.submit(recipe, parameters or {}, arguments, options))

    def jobs(self, *, status: Sequence[str] = (), kind: str | None = None, limit: int = 100) -> Iterator[ServiceJob]:
        """All of them, the newest first, asked for in pages of `limit`."""
        after = None
        while True:
            found: ListOf[ServiceJob] = self._send(requests.jobs(after, limit, status, kind))
            yield from found["data"]
            if not found["has_more"]:
                return
            after = found["last_id"]

    def job(self, key: str) -> ServiceJob:
        return self._send(requests.job(key))

    def cancel(self, key: str) -> ServiceJob:
        return self._send(requests.change(key, "cancel"))

    def requeue(self, key: str) -> ServiceJob:
        return self._send(requests.change(key, "requeue"))

    def wait(self, key: str, every: float = LOOK_S) -> ServiceJob:
        """Until it is over."""
        while (found := self.job(key))["status"] in LIVE:
            time.sleep(every)
        return found

    def events(self, key: str) -> list[JobEventAnswer]:
        return self._send(requests.events(key))["data"]

    def log(self, key: str, offset: int = 0) -> LogAnswer:
        """A piece of it from a byte on; below 0: from the end."""
        return self._send(requests.log(key, offset))

    def follow(self, key: str, offset: int = 0, every: float = LOOK_S) -> Iterator[str]:
        """The log as it comes, until the job is over."""
        while True:
            live = self.job(key)["status"] in LIVE
            while (piece := self.log(key, offset))["text"]:
                offset = piece["offset"]
                yield piece["text"]
            if not live:
                return
            time.sleep(every)

    def metrics(self, key: str, after: int = 0) -> StepsAnswer:
        """Numbers of the steps after that one."""
        return self._send(requests.metrics(key, after))

    def size(self, model: str, **options: Any) -> dict[str, Any]:
        """What a model needs; `options` are those of `POST /v1/size`."""
        return self._send(requests.size(model, options))

    def nodes(self) -> list[NodeAnswer]:
        return self._send(requests.nodes())["data"]

    def qos(self) -> list[QosAnswer]:
        return self._send(requests.qos())["data"]

    def reservations(self) -> list[ReservationAnswer]:
        return self._send(requests.reservations())["data"]

    def verify_reports(self) -> list[VerifyReportAnswer]:
        """The last one of each level, the newest first."""
        return self._send(requests.verify_reports())["data"]

    def verify_report(self, key: str) -> dict[str, Any]:
        """The whole of it, as report.json."""
        return self._send(requests.verify_report(key))

    def servers(self) -> list[ServerAnswer]:
        return self._send(requests.servers())["data"]

    def serve(self, model: str, replicas: int = 1, **options: Any) -> list[ServerAnswer]:
        """Starts servers of a base model; `options` are those of `POST /v1/servers`."""
        return self._send(requests.serve(model, replicas, options))["data"]


class AsyncServiceClient:
    """As ServiceClient, to be awaited."""

    def __init__(
        self, url: str, token: str, *, ca: str | Path | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._http = httpx.AsyncClient(**_options(url, token, ca), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def _send(self, call: ServiceCall[Answer]) -> Answer:
        number = 0
        while True:
            number += 1
            try:
                answer = await self._http.request(call.method, call.path, params=call.query, json=call.body)
            except httpx.TransportError as error:
                if not _again(call, None, number):
                    raise _lost(error) from None
            else:
                if not _again(call, answer, number):
                    return _parsed(call, answer)
            await asyncio.sleep(PAUSE_S * number)

    async def me(self) -> PersonAnswer:
        return await self._send(requests.me())

    async def recipes(self) -> list[RecipeAnswer]:
        return (await self._send(requests.recipes()))["data"]

    async def recipe(self, name: str) -> RecipeAnswer:
        return await self._send(requests.recipe(name))

    async def submit(
        self, recipe: str, parameters: Parameters | None = None, arguments: Sequence[str] = (), **options: Any
    ) -> ServiceJob:
        return await self._send(requests.submit(recipe, parameters or {}, arguments, options))

    async def jobs(
        self, *, status: Sequence[str] = (), kind: str | None = None, limit: int = 100
    ) -> AsyncIterator[ServiceJob]:
        after = None
        while True:
            found: ListOf[ServiceJob] = await self._send(requests.jobs(after, limit, status, kind))
            for each in found["data"]:
                yield each
            if not found["has_more"]:
                return
            after = found["last_id"]

    async def job(self, key: str) -> ServiceJob:
        return await self._send(requests.job(key))

    async def cancel(self, key: str) -> ServiceJob:
        return await self._send(requests.change(key, "cancel"))

    async def requeue(self, key: str) -> ServiceJob:
        return await self._send(requests.change(key, "requeue"))

    async def wait(self, key: str, every: float = LOOK_S) -> ServiceJob:
        while (found := await self.job(key))["status"] in LIVE:
            await asyncio.sleep(every)
        return found

    async def events(self, key: str) -> list[JobEventAnswer]:
        return (await self._send(requests.events(key)))["data"]

    async def log(self, key: str, offset: int = 0) -> LogAnswer:
        return await self._send(requests.log(key, offset))

    async def follow(self, key: str, offset: int = 0, every: float = LOOK_S) -> AsyncIterator[str]:
        while True:
            live = (await self.job(key))["status"] in LIVE
            while (piece := await self.log(key, offset))["text"]:
                offset = piece["offset"]
                yield piece["text"]
            if not live:
                return
            await asyncio.sleep(every)

    async def metrics(self, key: str, after: int = 0) -> StepsAnswer:
        return await self._send(requests.metrics(key, after))

    async def size(self, model: str, **options: Any) -> dict[str, Any]:
        return await self._send(requests.size(model, options))

    async def nodes(self) -> list[NodeAnswer]:
        return (await self._send(requests.nodes()))["data"]

    async def qos(self) -> list[QosAnswer]:
        return (await self._send(requests.qos()))["data"]

    async def reservations(self) -> list[ReservationAnswer]:
        return (await self._send(requests.reservations()))["data"]

    async def verify_reports(self) -> list[VerifyReportAnswer]:
        """The last one of each level, the newest first."""
        return (await self._send(requests.verify_reports()))["data"]

    async def verify_report(self, key: str) -> dict[str, Any]:
        """The whole of it, as report.json."""
        return await self._send(requests.verify_report(key))

    async def servers(self) -> list[ServerAnswer]:
        return (await self._send(requests.servers()))["data"]

    async def serve(self, model: str, replicas: int = 1, **options: Any) -> list[ServerAnswer]:
        return (await self._send(requests.serve(model, replicas, options)))["data"]
