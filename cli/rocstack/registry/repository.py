"""One repository of a registry, by the OCI distribution protocol: what it holds, and blobs and manifests for it.

Every request is tried again while its failure may pass. A blob that breaks off goes on where the registry says that
it stopped; where the registry can't tell (docker-registry 2.8 can't), from its start.
"""

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from requests import Response

from rocstack.base.errors import CheckFailed
from rocstack.edge.retry import Retry, stoppable
from rocstack.registry.layers import UnreadableLayer, sha256
from rocstack.registry.oci import CHUNK, INDEX, MANIFEST, Blob, Packer
from rocstack.registry.registry_http import Body, PushStopped, RegistryHttp, TagList, TransientFailure

DOCKERS = "application/vnd.docker.distribution.manifest"
ACCEPT = ", ".join((MANIFEST, INDEX, f"{DOCKERS}.v2+json", f"{DOCKERS}.list.v2+json"))
FIRST_PAUSE = 2.0  # seconds; each further one is twice as long
READ = 8 << 20  # bytes of a large blob that are asked for at once
OCTETS = {"Content-Type": "application/octet-stream"}
Result = TypeVar("Result")
Count = Callable[[int], None]
Failures = type[Exception] | tuple[type[Exception], ...]


class _Lost(Exception):
    """The registry doesn't know this upload any more."""


@dataclass
class Repository:
    """`name` is the path at the registry. What may pass is tried `attempts` times; all methods raise CheckFailed or
    Missing after that."""

    http: RegistryHttp
    name: str
    attempts: int = 5
    sleep: Callable[[float], None] | None = None  # seconds; None: until `stop`
    stop: threading.Event = field(default_factory=threading.Event)
    on_retry: Callable[[str], None] = lambda text: None

    @property
    def reference(self) -> str:
        return f"{self.http.host}/{self.name}"

    def tags(self) -> list[str]:
        """All tags; none if there is no such repository yet, or this account may not list them."""
        answer = self._ask("GET", "tags/list", {200, 401, 403, 404, 405})
        return self.http.said(answer, TagList, self.name).tags or [] if answer.status_code == 200 else []

    def clock(self) -> datetime | None:
        """The registry's time; None where it doesn't say."""
        answer = self._ask("GET", "tags/list", {200, 401, 403, 404, 405})
        try:
            return parsedate_to_datetime(answer.headers.get("Date", "")).astimezone(UTC)
        except (ValueError, OverflowError):
            return None

    def manifest(self, name: str, *, denied_is_absent: bool = False) -> bytes | None:
        """The manifest of a tag or digest, its bytes; None where there is none. Some registries deny reading what
        does not exist yet: before a push this may count as absent, as the push will report a real denial.

        Raises:
            CheckFailed: bytes that are not those of the digest.
        """
        absent = {404, 401, 403} if denied_is_absent else {404}
        answer = self._ask("GET", f"manifests/{name}", {200, *absent}, headers={"Accept": ACCEPT})
        if answer.status_code in absent:
            return None
        expected = name if name.startswith("sha256:") else answer.headers.get("Docker-Content-Digest")
        self._same(expected, sha256(answer.content), f"manifest {name}")
        return bytes(answer.content)

    def put_manifest(self, name: str, data: bytes, media_type: str = MANIFEST) -> str:
        """Stores it under a tag or digest, reads it back, and returns its digest."""
        answer = self._ask("PUT", f"manifests/{name}", {201}, data=data, headers={"Content-Type": media_type})
        digest = sha256(data)
        self._same(answer.headers.get("Docker-Content-Digest"), digest, "manifest")
        back = self.manifest(name)
        self._same(sha256(back) if back else "nothing", digest, f"manifest {name}")
        return digest

    def has(self, blob: Blob) -> bool:
        """Is it there, with this size?"""
        answer = self._ask("HEAD", f"blobs/{blob.digest}", {200, 404})
        return answer.status_code == 200 and answer.headers.get("Content-Length") in (None, str(blob.size))

    def size(self, digest: str) -> int | None:
        """Bytes of a blob; -1 where the registry doesn't say, None where it has none."""
        answer = self._ask("HEAD", f"blobs/{digest}", {200, 404})
        said = answer.headers.get("Content-Length", "")
        return None if answer.status_code == 404 else int(said) if said.isdecimal() and len(said) < 20 else -1

    def pieces(self, digest: str) -> Iterator[bytes]:
        """A blob of any size, as it lies there: nothing is compared."""
        at = 0
        while True:
            span = {"Range": f"bytes={at}-{at + READ - 1}"}
            answer = self._ask("GET", f"blobs/{digest}", {200, 206, 416}, headers=span)
            if answer.status_code == 416:  # it ended with the last piece
                return
            yield answer.content
            at += len(answer.content)
            if answer.status_code == 200 or len(answer.content) < READ:
                return

    def blob(self, digest: str) -> bytes | None:
        """A small blob, whole."""
        answer = self._ask("GET", f"blobs/{digest}", {200, 404})
        if answer.status_code == 404:
            return None
        self._same(digest, sha256(answer.content), "blob")
        return bytes(answer.content)

    def mount(self, blob: Blob, origin: str) -> bool:
        """Takes over a blob of another repository of this registry, if it allows that."""
        params = {"mount": blob.digest, "from": origin}
        return self._ask("POST", "blobs/uploads/", {201, 202}, params=params).status_code == 201

    def check_access(self) -> None:
        """Begins an upload and cancels it: an account that may not push is refused before layers are read and packed.

        Raises:
            CheckFailed, Missing: it may not.
        """
        location = self._again(self._begin)
        with suppress(TransientFailure):  # it may push; the registry forgets an upload that is left alone
            self._request("DELETE", location, range(200, 600))

    def upload(self, make: Callable[[], Packer], on_bytes: Count = lambda count: None) -> Blob:
        """Sends a layer while it is compressed. `make` starts it anew where the registry lost it."""
        retry, lost = self._retry(), 0
        while True:
            packer = make()
            try:
                return self._upload(packer, retry, on_bytes)
            except (_Lost, UnreadableLayer) as error:
                lost += 1
                if lost >= self.attempts:
                    raise self.http.error(f"the upload broke off: {error}", self.name, lost) from None
                self._wait(retry, error)

    def put_blob(self, data: bytes, on_bytes: Count = lambda count: None) -> None:
        """Sends a small blob, whole."""
        self._again(
            lambda: self._commit(self._begin(), sha256(data), data, on_bytes), passing=(TransientFailure, _Lost)
        )

    def _upload(self, packer: Packer, retry: Retry, on_bytes: Count) -> Blob:
        location: str | None = None
        offset = 0
        for chunk in _ahead(iter(packer)):
            if location is None:
                location = self._again(self._begin)
                if len(chunk) < CHUNK:  # all of it
                    try:
                        self._commit(location, packer.blob.digest, chunk, on_bytes)
                    except TransientFailure as failure:
                        raise _Lost(str(failure)) from None
                    return packer.blob
            location = self._send(location, offset, chunk, retry, on_bytes)
            offset += len(chunk)
            retry.reset()
        assert location is not None
        try:
            self._commit(location, packer.blob.digest, b"", on_bytes)
        except TransientFailure as failure:
            self._wait(retry, failure)
            if not self.has(packer.blob):  # it may have been stored, and only the answer got lost
                raise _Lost(str(failure)) from None
        return packer.blob

    def _begin(self) -> str:
        return self._location(self._request("POST", f"/v2/{self.name}/blobs/uploads/", {202}))

    def _send(self, location: str, start: int, chunk: bytes, retry: Retry, on_bytes: Count) -> str:
        """One chunk, in as many attempts as it takes; returns where the next one goes."""
        at, end = start, start + len(chunk)
        while at < end:
            rest = Body(chunk[at - start :], self.stop, on_bytes)
            span = {"Content-Range": f"{at}-{end - 1}", **OCTETS}
            try:
                answer = self._request("PATCH", location, {202, 400, 404, 416}, data=rest, headers=span)
                if answer.status_code != 202:
                    raise _Lost(f"HTTP status: {answer.status_code}")
                location, at = self._location(answer), end
            except TransientFailure as failure:
                self._wait(retry, failure)
                location, at = self._where(location)
                if not start <= at <= end:
                    raise _Lost(str(failure)) from None
        return location

    def _where(self, location: str) -> tuple[str, int]:
        """Where an upload stands: its next Location, and how many bytes of it arrived."""
        answer = self._again(lambda: self._request("GET", location, {204, 400, 404, 416}))
        span = re.fullmatch(r"(?:bytes=)?0-(\d{1,18})", answer.headers.get("Range", ""))
        if answer.status_code != 204 or not span:
            raise _Lost(f"HTTP status: {answer.status_code}")
        # "0-0" says one byte, or none (github.com/opencontainers/distribution-spec, issue 578): neither is worth saving
        return self._location(answer, location), int(span[1]) + 1 if int(span[1]) else -1

    def _commit(self, location: str, digest: str, data: bytes, on_bytes: Count) -> None:
        body = Body(data, self.stop, on_bytes) if data else b""
        answer = self._request("PUT", location, {201, 404}, data=body, headers=OCTETS, params={"digest": digest})
        if answer.status_code == 404:
            raise _Lost("HTTP status: 404")
        self._same(answer.headers.get("Docker-Content-Digest"), digest, "layer")

    def _location(self, answer: Response, otherwise: str = "") -> str:
        location = answer.headers.get("Location") or otherwise
        if not location:
            raise self.http.error("the registry gives no address for the upload", self.name)
        return location

    def _same(self, actual: str | None, expected: str, what: str) -> None:
        if actual not in (None, expected):
            reference = self.reference
            raise CheckFailed.of("digest-differs", reference=reference, what=what, actual=actual, expected=expected)

    def _request(self, method: str, address: str, good: Collection[int], **options: Any) -> Response:
        return self.http.request(method, address, good=good, repository=self.name, **options)

    def _ask(self, method: str, path: str, good: Collection[int], **options: Any) -> Response:
        """A request that may be made again as it is; `path` is below the repository's."""
        return self._again(lambda: self._request(method, f"/v2/{self.name}/{path}", good, **options))

    def _retry(self) -> Retry:
        return Retry(self.attempts, FIRST_PAUSE, sleep=self.sleep or stoppable(self.stop, PushStopped))

    def _wait(self, retry: Retry, failure: Exception) -> None:
        """Pauses before the next attempt.

        Raises:
            CheckFailed, Missing: that was the last attempt.
            PushStopped: something else failed meanwhile.
        """
        if retry.last:
            raise self.http.error(str(failure), self.name, retry.attempt) from None
        self.on_retry(f"{failure}; attempt {retry.attempt + 1} of {self.attempts} in {retry.pause_s:.0f} s")
        retry.wait()

    def _again(self, action: Callable[[], Result], *, passing: Failures = TransientFailure) -> Result:
        retry = self._retry()
        while True:
            try:
                return action()
            except passing as failure:
                self._wait(retry, failure)


def _ahead(chunks: Iterator[bytes]) -> Iterable[bytes]:
    """The chunks; the next is made while one is sent."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, chunks, b"")
        while True:
            chunk = coming.result()
            if not chunk:
                return
            coming = pool.submit(next, chunks, b"")
            yield chunk
