"""slurmrestd, as one person after the other. A 200 with `errors` is an error; what is away is tried again for a while,
and then nobody asks for some seconds; a submission whose answer got lost is never sent again before somebody has
looked."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import anyio.to_thread
import httpx

from rocstack.base.text import from_json, visible
from rocstack.service import loopback_peer
from rocstack.service.circuit import SOON_S, Circuit
from rocstack.service.failures import Away, NotSignedIn, NotThere, ServiceError, SlurmRefused
from rocstack.service.slurm_answers import (
    ClusterNode,
    SlurmJob,
    SlurmQos,
    SlurmReservation,
    map_of,
    rows_of,
    text,
    whole,
)
from rocstack.service.tracing import Tracing, place

VERSIONS = ("v0.0.42", "v0.0.43", "v0.0.41", "v0.0.40")  # data parsers: Slurm 24.11's, then its neighbours'
PATIENCE_S = 8.0  # that something away is waited for
PAUSES = (0.1, 0.3, 0.7, 1.5)
CONNECT_S, READ_S = 3.0, 60.0  # a list of ten thousand jobs takes half a minute
LATE_S = 5.0  # after which something small is asked, to see whether anything is answered
SMALL = {"slurm": "reservations/", "slurmdb": "qos/"}
LARGE = 1 << 18  # bytes that are read in a thread
MOST = 1 << 29  # bytes of an answer
# Slurm's own numbers (slurm_errno.h)
NO_TOKEN = {1007, 6000}  # protocol authentication; credential
UNREACHED = {1001, 1002, 1003, 1004, 1800, 1801, 1802, 1803, 5004, 7000, 7001}  # slurmctld or slurmdbd away
NO_JOB = {2017, 2021}  # invalid job id; already finished
NO_CHANGE = {1900}


class AnswerLost(Exception):
    """It was sent, and no answer came: it may have been done."""


class SlurmRest:
    def __init__(
        self, url: str, transport: httpx.AsyncBaseTransport | None = None, traces: Tracing | None = None
    ) -> None:
        self._traces = traces or Tracing()
        timeout = httpx.Timeout(READ_S, connect=CONNECT_S)
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=16)
        self._http = httpx.AsyncClient(
            base_url=url, transport=transport, timeout=timeout, limits=limits, trust_env=False
        )
        # A way of its own: where all others are in use, slurmrestd answers still.
        self._small = httpx.AsyncClient(base_url=url, transport=transport, timeout=timeout, trust_env=False)
        self._version = ""
        self.patience = PATIENCE_S
        self._circuits = {plugin: Circuit() for plugin in SMALL}  # slurmctld's, slurmdbd's

    @property
    def silent(self) -> bool:
        """Whether it didn't answer when it was last asked of jobs and nodes."""
        return self._circuits["slurm"].silent

    async def close(self) -> None:
        await self._http.aclose()
        await self._small.aclose()

    async def version(self, token: str) -> str:
        """The newest data parser that both know."""
        if not self._version:
            for version in VERSIONS:
                # Not `ping`: with a wrong token slurmrestd takes ten seconds for that.
                answer = await self._send("GET", f"/slurm/{version}/reservations/", token, None)
                if answer.status_code != 404:
                    self._version = version
                    break
            else:
                raise Away.of("slurm-other-version", known=", ".join(VERSIONS))
        return self._version

    async def valid(self, token: str) -> bool:
        """Whether slurmctld takes the token. A small list that only those it knows are given is asked for."""
        try:
            await self.get(token, "slurm", "reservations/")
        except NotSignedIn:
            return False
        return True

    # what a person can do
    async def submit(self, token: str, script: str, job: Mapping[str, Any]) -> int:
        """The job's number.

        Raises:
            SlurmRefused: Slurm doesn't take it.
            AnswerLost: it may have been taken.
            Away: it was not sent.
        """
        said = await self.change(token, "POST", "slurm", "job/submit", {"script": script, "job": dict(job)})
        number = said.get("job_id") or map_of(said.get("result")).get("job_id")
        if isinstance(number, bool) or not isinstance(number, int) or number <= 0:
            raise AnswerLost("no job_id")
        return number

    async def cancel(self, token: str, number: int, signal: str | None = None) -> None:
        """Ends it, or sends its steps a signal. One that is over stays as it is."""
        # Without the flag the batch script gets the signal, too, and Slurm takes the job for cancelled.
        path = f"job/{number}" + (f"?signal={quote(signal)}&flags=FULL_STEPS_ONLY" if signal else "")
        try:
            await self.change(token, "DELETE", "slurm", path, None)
        except SlurmRefused as refused:
            if not NO_JOB & set(refused.numbers):
                raise

    async def job(self, token: str, number: int) -> SlurmJob | None:
        """As slurmctld has it; once that has forgotten it, as accounting has. None: nobody knows it."""
        for plugin in ("slurm", "slurmdb"):
            try:
                said = await self.get(token, plugin, f"job/{number}")
            except (SlurmRefused, NotThere) as refused:
                if isinstance(refused, SlurmRefused) and not NO_JOB & set(refused.numbers):
                    raise
                continue
            read = SlurmJob.of if plugin == "slurm" else SlurmJob.of_accounting
            found = [job for row in rows_of(said, "jobs") if (job := read(row)).id == number]
            if found:
                return found[-1]
        return None

    async def jobs(self, token: str, user: str) -> list[SlurmJob]:
        """Those of a person that slurmctld knows."""
        said = await self.get(token, "slurm", "jobs/")
        return [SlurmJob.of(row) for row in rows_of(said, "jobs") if row.get("user_name") == user]

    async def find(self, token: str, user: str, comment: str, folder: str, since: int) -> SlurmJob | None:
        """The job with this comment, which is ours alone. Accounting may keep no comments;
        there it is the one that was submitted since then to run in this folder."""
        known = await self.jobs(token, user)
        for job in known:
            if job.comment == comment:
                return job
        others = {job.id for job in known}
        said = await self.get(token, "slurmdb", f"jobs/?users={quote(user)}&start_time={since}")
        found = [
            job
            for row in rows_of(said, "jobs")
            if (job := SlurmJob.of_accounting(row)).id not in others
            and (job.comment or comment) == comment
            and row.get("working_directory") == folder
            and job.submitted >= since
        ]
        return found[-1] if found else None

    async def nodes(self, token: str) -> list[ClusterNode]:
        return [ClusterNode.of(row) for row in rows_of(await self.get(token, "slurm", "nodes/"), "nodes")]

    async def reservations(self, token: str) -> list[SlurmReservation]:
        said = await self.get(token, "slurm", "reservations/")
        return [SlurmReservation.of(row) for row in rows_of(said, "reservations")]

    async def qos(self, token: str) -> list[SlurmQos]:
        return [SlurmQos.of(row) for row in rows_of(await self.get(token, "slurmdb", "qos/"), "qos")]

    async def partitions(self, token: str) -> list[dict[str, Any]]:
        return rows_of(await self.get(token, "slurm", "partitions/"), "partitions")

    # the way there
    async def get(self, token: str, plugin: str, path: str) -> dict[str, Any]:
        """It changes nothing, so it is asked again while nobody answers.

        Raises:
            Away, NotSignedIn, NotThere, SlurmRefused
        """
        await self._passes(token, plugin)
        until, pauses = time.monotonic() + self.patience, iter(PAUSES)
        while True:
            try:
                return await self._watched(token, "GET", plugin, path, None)
            except (Away, AnswerLost) as error:
                pause = next(pauses, PAUSES[-1])
                if time.monotonic() + pause > until:
                    await self._judge(token, plugin)
                    raise error if isinstance(error, Away) else Away.of("slurm-away") from None
                await asyncio.sleep(pause)

    async def change(
        self, token: str, method: str, plugin: str, path: str, body: dict[str, Any] | None
    ) -> dict[str, Any]:
        """It is sent again only where it can't have arrived.

        Raises:
            AnswerLost, Away, NotSignedIn, NotThere, SlurmRefused
        """
        await self._passes(token, plugin)
        until, pauses = time.monotonic() + self.patience, iter(PAUSES)
        while True:
            try:
                return await self._watched(token, method, plugin, path, body)
            except Away:
                pause = next(pauses, PAUSES[-1])
                if time.monotonic() + pause > until:
                    await self._judge(token, plugin)
                    raise
                await asyncio.sleep(pause)

    async def _passes(self, token: str, plugin: str) -> None:
        """
        Raises:
            Away: it didn't answer some seconds ago, or still doesn't.
        """
        if not await self._circuits[plugin].passes(lambda: self._answers(token, plugin)):
            raise Away.of("slurm-away")

    async def _judge(self, token: str, plugin: str) -> None:
        """What one person asked for may be too much, and the others' be answered."""
        if not await self._answers(token, plugin):
            self._circuits[plugin].failed()

    async def _answers(self, token: str, plugin: str) -> bool:
        with suppress(Away, AnswerLost, TimeoutError):
            async with asyncio.timeout(SOON_S):
                with suppress(NotSignedIn, NotThere, SlurmRefused):  # it answers
                    await self._once(token, "GET", plugin, SMALL[plugin], None, self._small)
                return True
        return False

    async def _watched(
        self, token: str, method: str, plugin: str, path: str, body: dict[str, Any] | None
    ) -> dict[str, Any]:
        """What takes long is waited for as long as something small is answered meanwhile."""
        asking = asyncio.ensure_future(self._once(token, method, plugin, path, body))
        try:
            await asyncio.wait({asking}, timeout=LATE_S)
            if not asking.done() and not await self._answers(token, plugin) and not asking.done():
                self._circuits[plugin].failed()
                raise Away.of("slurm-away") if method == "GET" else AnswerLost("nothing is answered")
            return await asking
        finally:
            asking.cancel()

    async def _once(
        self, token: str, method: str, plugin: str, path: str, body: dict[str, Any] | None,
        http: httpx.AsyncClient | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        version = await self.version(token)
        answer = await self._send(method, f"/{plugin}/{version}/{path}", token, body, http)
        return await _read(answer, method)

    async def _send(
        self, method: str, path: str, token: str, body: dict[str, Any] | None, http: httpx.AsyncClient | None = None
    ) -> httpx.Response:
        try:
            with self._traces.span(f"slurmrestd {method} {place(path)}", "CLIENT") as span:
                headers, trace = {"X-SLURM-USER-TOKEN": token}, {"trace": loopback_peer.look}
                answer = await (http or self._http).request(method, path, json=body, headers=headers, extensions=trace)
                span.tell({"http.request.method": method, "http.response.status_code": answer.status_code})
                return answer
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            raise Away.of("slurm-away") from None
        except httpx.TransportError as error:
            if method == "GET":
                raise Away.of("slurm-away") from None
            raise AnswerLost(type(error).__name__) from None


async def _read(answer: httpx.Response, method: str) -> dict[str, Any]:
    if len(answer.content) > MOST:
        raise Away.of("slurm-away")
    try:
        large = len(answer.content) > LARGE
        said = await anyio.to_thread.run_sync(_said, answer.content) if large else _said(answer.content)
    except ValueError:
        said = None
    if answer.status_code == 401:
        raise NotSignedIn.of("token-refused")
    if not isinstance(said, dict):  # slurmrestd's own errors, and those of a proxy, are no JSON
        if answer.status_code == 404:
            raise NotThere.of("slurm-knows-no", why="no such page")
        if answer.status_code >= 500 or answer.status_code < 400:
            raise AnswerLost("no JSON") if method != "GET" else Away.of("slurm-away")
        raise _refused([f"HTTP {answer.status_code}"], ())
    errors = [each for each in said.get("errors") or () if isinstance(each, dict)]
    numbers = tuple(each["error_number"] for each in errors if isinstance(each.get("error_number"), int))
    if errors and not set(numbers) <= NO_CHANGE:
        raise _error(errors, numbers, method)
    if answer.status_code >= 400:
        raise _refused([f"HTTP {answer.status_code}"], ())
    # A job that can't be cancelled is no error of the whole answer.
    single = [map_of(each.get("error")) for each in rows_of(said, "status")]
    if failed := [each for each in single if whole(each.get("code"))]:
        raise _refused(
            [text(each.get("message")) for each in failed], tuple(whole(each.get("code")) for each in failed)
        )
    return said


def _said(data: bytes) -> Any:
    """Names that people gave their jobs stand in it as they are, and some are no UTF-8."""
    return from_json(data.decode(errors="replace"))


def _error(errors: list[dict[str, Any]], numbers: tuple[int, ...], method: str) -> ServiceError | AnswerLost:
    texts = [str(each.get("error") or each.get("description") or "") for each in errors]
    if NO_TOKEN & set(numbers):
        return NotSignedIn.of("token-refused")
    if UNREACHED & set(numbers):
        # A connection that was refused carried nothing; another one may have carried the request.
        sent = method != "GET" and not {1001, 1800} & set(numbers)
        return AnswerLost(texts[0]) if sent else Away.of("slurm-away")
    return _refused([text for text in texts if text], numbers)


def _refused(texts: list[str], numbers: tuple[int, ...]) -> SlurmRefused:
    refused = SlurmRefused.of("slurm-refuses", why=visible("; ".join(dict.fromkeys(texts)) or "no reason given")[:500])
    refused.numbers = numbers
    return refused
