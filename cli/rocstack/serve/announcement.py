"""A gateway that chooses its own port, key and token, and says in a file how it is reached: whoever can read the file
may ask it, and knows its certificate. A service on another node reads it; no secret is handed to a job."""

import hmac
import json
import os
import re
import secrets
import ssl
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocstack.base.errors import CheckFailed

MOST = 16 << 10  # bytes of an announcement
_TOKEN = re.compile(r"[A-Za-z0-9_-]{20,200}")


@dataclass(frozen=True)
class Announcement:
    """`certificate` is the server's own, in PEM, and the only one to trust."""

    port: int
    token: str
    certificate: str

    def trust(self) -> ssl.SSLContext:
        """Of a client that takes this certificate alone, whatever the node is called.

        Raises:
            ValueError: it is none.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        try:
            context.load_verify_locations(cadata=self.certificate)
        except (ssl.SSLError, TypeError) as error:  # TypeError: it isn't ASCII
            raise ValueError(str(error)) from None
        return context

    def write(self, path: Path) -> None:
        """
        Raises:
            CheckFailed: others could read it, or it can't be written.
        """
        check(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            partial.unlink(missing_ok=True)
            # The group's bit is the mask of ACLs: those that the folder gives by default may read it.
            mode = 0o640 if _gives_acl(path.parent) else 0o600
            file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(file, "w", encoding="utf-8") as out:
                json.dump(asdict(self), out)
            partial.replace(path)
        except OSError as error:
            raise CheckFailed.of("not-announced", file=path, why=error.strerror) from None


def check(path: Path) -> None:
    """
    Raises:
        CheckFailed: nothing secret can be written there.
    """
    try:
        if path.parent.stat().st_mode & 0o007:
            raise CheckFailed.of("not-announced", file=path, why="everybody can enter its folder")
    except OSError as error:
        raise CheckFailed.of("not-announced", file=path, why=error.strerror) from None


def _gives_acl(folder: Path) -> bool:
    try:
        return "system.posix_acl_default" in os.listxattr(folder)
    except OSError:  # its file system has none
        return False


def parse(raw: bytes) -> Announcement:
    """What a job wrote: data.

    Raises:
        ValueError: it is no announcement.
    """
    try:
        found: Any = json.loads(raw[:MOST])
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("it is no mapping")
    port, token, certificate = (found.get(name) for name in ("port", "token", "certificate"))
    if isinstance(port, bool) or not isinstance(port, int) or not 1024 <= port <= 65535:
        raise ValueError("it names no port")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token) or not isinstance(certificate, str):
        raise ValueError("it has no token or no certificate")
    return Announcement(port, token, certificate)


class Holder:
    """Whoever has the announced token: one user."""

    def __init__(self, token: str, name: str = "local") -> None:
        self._token, self._name = token.encode(), name

    async def user(self, token: str | None) -> str | None:
        return self._name if hmac.compare_digest((token or "").encode(), self._token) else None


def new_token() -> str:
    return secrets.token_urlsafe(32)
