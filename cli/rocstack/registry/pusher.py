"""One image's way from the engine to a registry: look up, send, fetch, with retries while a failure may pass.

The engine logs in by itself (with what `docker login` wrote under DOCKER_CONFIG) and tries each layer several
times before it gives up. Its client should wait minutes: a registry is silent while it stores a large layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from docker import DockerClient
from docker.errors import APIError, DockerException
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from rocstack.base.errors import BadInput, CheckFailed, Missing
from rocstack.registry.failures import TRANSIENT, classify, registry_error, without_query

LONGEST_WAIT = 30.0  # seconds between two attempts
Result = TypeVar("Result")


@dataclass(frozen=True)
class Event:
    """Something to show: a sentence, or the state of one layer (bytes, uncompressed)."""

    kind: Literal["push", "layer", "retry", "kept", "moved", "done"]
    tag: str
    text: str
    layer: str = ""
    current: int = 0
    total: int = 0


class _Refused(Exception):
    """The engine's or registry's message, not yet judged."""


def wait_before(attempt: int) -> float:
    """Seconds before attempt 2, 3, ...: 2, 4, 8, ... up to LONGEST_WAIT."""
    return min(2.0 ** (attempt - 1), LONGEST_WAIT)


@dataclass
class Pusher:
    client: DockerClient
    repository: str
    attempts: int
    sleep: Callable[[float], None]
    on_event: Callable[[Event], None]
    sent: list[str] = field(default_factory=list)
    bytes_sent: int = 0

    def check_local(self, image: str) -> None:
        try:
            with _engine():
                self.client.images.get(image)
        except _Refused as refused:
            raise BadInput(
                f"there is no image '{image}' on this machine",
                code="no-image",
                cause=str(refused),
                next_step="build it first",
            ) from None

    def digest(self, tag: str, *, denied_is_absent: bool = False) -> str | None:
        """The digest that the registry holds under `tag`; None if it has no such tag. Some registries deny
        reading what does not exist yet; if it is a real denial, the push will say so."""

        def look() -> str | None:
            try:
                with _engine():
                    return str(self.client.images.get_registry_data(f"{self.repository}:{tag}").id)
            except _Refused as refused:
                kind = classify(str(refused))
                if kind == "absent" or (kind == "denied" and denied_is_absent):
                    return None
                raise

        return self._retry(look, tag)

    def send(self, image: str, tag: str, *, expected: str | None = None) -> str:
        """Pushes `image` as `tag` and returns its digest, as the registry gives it back."""
        reference = f"{self.repository}:{tag}"

        def once() -> str:
            with _engine():
                self.client.images.get(image).tag(self.repository, tag=tag)
                said = self._follow(tag, self.client.images.push(self.repository, tag=tag, stream=True, decode=True))
            if said is None:
                raise _Refused("the engine stopped talking before the end: unexpected EOF")
            return said

        self.on_event(Event("push", tag, f"pushing {reference}"))
        said = self._retry(once, tag)
        found = self.digest(tag)
        if said != found or said != (expected or said):
            raise CheckFailed(
                f"{reference} holds {found or 'nothing'} after {said} was pushed"
                + (f" for {expected}" if expected else ""),
                code="digest-differs",
                cause="somebody else pushed this tag at the same time, or something between changes images",
                next_step="make sure that one pipeline at a time pushes here, then run again",
            )
        self.sent.append(tag)
        self.on_event(Event("done", tag, f"{reference} is {said}"))
        return said

    def local(self, image: str, digest: str) -> str:
        """A local image that pushes as `digest`: this one, or the registry's if it was built elsewhere."""
        pinned = f"{self.repository}@{digest}"

        def once() -> str:
            with _engine():
                if pinned in (self.client.images.get(image).attrs.get("RepoDigests") or ()):
                    return image
                self.on_event(Event("push", digest, f"fetching {pinned}: the same content, built before"))
                self._follow(digest, self.client.api.pull(self.repository, digest, stream=True, decode=True))
            return pinned

        return self._retry(once, digest)

    def _follow(self, tag: str, stream: Iterable[dict[str, Any]]) -> str | None:
        """Reads the engine's progress to its end; errors come in it, and so does the digest."""
        digest, sizes = None, dict[str, int]()
        for line in stream:
            if "error" in line:
                raise _Refused(str(line["error"]))
            status, layer = str(line.get("status", "")), str(line.get("id", ""))
            progress = line.get("progressDetail") or {}
            if found := re.search(r"digest: (sha256:[0-9a-f]{64})", status):
                digest = found[1]
            if status == "Pushing":
                sizes[layer] = int(progress.get("current") or 0)
            elif status == "Pushed":
                self.bytes_sent += sizes.pop(layer, 0)
            if layer:
                counts = (int(progress.get("current") or 0), int(progress.get("total") or 0))
                self.on_event(Event("layer", tag, status, layer, *counts))
        return digest

    def _retry(self, action: Callable[[], Result], tag: str) -> Result:
        attempt = 1
        while True:
            try:
                return action()
            except _Refused as refused:
                message = str(refused)
            if classify(message) not in TRANSIENT or attempt >= self.attempts:
                raise registry_error(
                    message,
                    host=self.repository.partition("/")[0],
                    reference=f"{self.repository}:{tag}",
                    attempts=attempt,
                )
            attempt += 1
            wait = wait_before(attempt)
            again = f"attempt {attempt} of {self.attempts} in {wait:.0f} s"
            self.on_event(Event("retry", tag, f"{without_query(message)}; {again}"))
            self.sleep(wait)


@contextmanager
def _engine() -> Iterator[None]:
    """Sorts what the SDK raises: words to be judged, or an engine that is gone."""
    try:
        yield
    except APIError as error:
        raise _Refused(str(error.explanation or error)) from None
    except (RequestException, HTTPError) as error:
        if "timed out" in str(error).lower():
            raise _Refused(f"the engine was silent for too long: {error}") from None
        raise Missing(
            "the engine stopped answering",
            code="no-engine",
            cause=str(error),
            next_step="`docker version` must show a server; then run again",
        ) from None
    except DockerException as error:
        raise Missing(
            "the login for the registry can't be read",
            code="no-credentials",
            cause=str(error),
            next_step="see credHelpers and credsStore in docker's config.json, and run `docker login` again",
        ) from None
