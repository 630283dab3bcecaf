"""Who asks. A gateway takes any `Identity`; a file of tokens is the one that needs nothing else."""

import asyncio
import hashlib
import os
import ssl
import stat
import time
from pathlib import Path
from typing import Protocol

import httpx

from rocstack.base.document import read_text
from rocstack.base.errors import BadInput, CheckFailed, Where
from rocstack.serve.registry import NAME


class Identity(Protocol):
    async def user(self, token: str | None) -> str | None:
        """The user whose token it is; None: nobody's."""


class Anyone:
    """Without tokens, on loopback alone: there is one user, who has a name of her own."""

    def __init__(self, name: str = "local") -> None:
        self._name = name

    async def user(self, token: str | None) -> str | None:
        return self._name


class TokenFile:
    """Lines `USER SHA256` of users and the sha256 of their tokens; a user may have several. Read again when it changes,
    so a token ends with its line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._users: dict[str, str] = {}
        self._read()

    async def user(self, token: str | None) -> str | None:
        if not token or len(token) > 16_384:
            return None
        self._read()
        digest = hashlib.sha256(token.encode()).hexdigest()
        return self._users.get(digest)

    def _read(self) -> None:
        """
        Raises:
            BadInput: others can read or write it, or a line is wrong.
        """
        try:
            state = os.stat(self._path)
        except OSError as error:
            raise BadInput.of("token-file", self._path, why=error.strerror) from None
        now = state.st_ino, state.st_size, state.st_mtime_ns
        if now == self._stamp:
            return
        if state.st_mode & (stat.S_IWGRP | stat.S_IRWXO):
            raise BadInput.of("token-file", self._path, why="others may read it, or its group may write it")
        users: dict[str, str] = {}
        for number, line in enumerate(read_text(self._path, code="token-file").splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2 or not NAME.fullmatch(words[0]) or not _is_digest(words[1]):
                raise BadInput.of("token-line", Where(str(self._path), number))
            users[words[1]] = words[0]
        self._users, self._stamp = users, now


class ServicePeople:
    """A person's own Slurm token, of which rocstack's service says whose it is. What it said holds for a minute."""

    REMEMBERED_S, REFUSED_S, MOST = 60.0, 10.0, 10_000

    def __init__(self, url: str, ca: Path | None = None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """
        Raises:
            BadInput: the CA can't be read.
        """
        try:
            trust = ssl.create_default_context(cafile=str(ca) if ca else None)
        except (OSError, ssl.SSLError) as error:
            raise BadInput.of("people-ca", ca, why=error.strerror or error) from None
        self._client = httpx.AsyncClient(
            base_url=url, verify=trust, timeout=10, transport=transport, trust_env=False
        )  # fmt: skip
        self._known: dict[str, tuple[float, str | None]] = {}  # by sha256 of the token: until when, and whose
        # One for each token: nobody waits for others.
        self._asking: dict[str, asyncio.Task[tuple[float, str | None]]] = {}

    async def user(self, token: str | None) -> str | None:
        """
        Raises:
            CheckFailed: the service doesn't answer.
        """
        if not token or len(token) > 16_384 or not token.isascii():
            return None
        digest = hashlib.sha256(token.encode()).hexdigest()
        if (found := self._remembered(digest)) is None:
            if (asking := self._asking.get(digest)) is None:
                asking = self._asking[digest] = asyncio.create_task(self._ask(digest, token))
                asking.add_done_callback(lambda done: self._end(digest, done))
            found = await asyncio.shield(asking)  # who goes away ends it for nobody else
        return found[1]

    def _end(self, digest: str, done: asyncio.Task[tuple[float, str | None]]) -> None:
        del self._asking[digest]
        if not done.cancelled():
            done.exception()  # those who wait are told

    def _remembered(self, digest: str) -> tuple[float, str | None] | None:
        found = self._known.get(digest)
        return found if found and found[0] > time.monotonic() else None

    async def _ask(self, digest: str, token: str) -> tuple[float, str | None]:
        try:
            answer = await self._client.get("/v1/me", headers={"Authorization": f"Bearer {token}"})
            name = answer.json()["id"] if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise CheckFailed.of("people-away", why=type(error).__name__) from None
        if answer.status_code not in (200, 401, 403) or (name is not None and not _is_name(name)):
            raise CheckFailed.of("people-away", why=f"status {answer.status_code}")
        if len(self._known) >= self.MOST:
            self._known.clear()
        held = self.REMEMBERED_S if name else self.REFUSED_S
        self._known[digest] = found = time.monotonic() + held, name
        return found


def _is_name(name: object) -> bool:
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def _is_digest(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")
