"""Who asks. A gateway takes any `Identity`; a file of tokens is the one that needs nothing else."""

import hashlib
import os
import stat
from pathlib import Path
from typing import Protocol

from rocstack.base.document import read_text
from rocstack.base.errors import BadInput, Where
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


def _is_digest(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")
