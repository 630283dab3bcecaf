"""Who asks: the person whose own Slurm token comes with the request. The token's signature is Slurm's business: the
service has no key, and asks slurmrestd, which slurmctld answers only to a token that it signed."""

import base64
import binascii
import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rocstack.base.text import from_json, visible
from rocstack.service.config import ServicePerson
from rocstack.service.failures import NotAllowed, NotSignedIn

REMEMBERED_S = 60.0  # that a verdict holds
REFUSED_S = 10.0
LONGEST = 4096  # characters of a token
MOST = 10_000  # verdicts
COOKIE = "rocstack_token"
_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class Judge(Protocol):
    async def valid(self, token: str) -> bool:
        """Whether Slurm takes it. Raises Away."""


@dataclass(frozen=True)
class Caller:
    """A person of the cluster, with the token that she sent."""

    name: str
    uid: int
    gid: int
    token: str = field(repr=False)


def token_of(authorization: str | None, cookies: Mapping[str, str], *, same_site: bool) -> str:
    """From `Authorization: Bearer`, else from the page's cookie, which counts only for requests of our own pages.

    Raises:
        NotSignedIn: there is none.
    """
    scheme, _, token = (authorization or "").strip().partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    if not authorization and same_site and (token := cookies.get(COOKIE, "")):
        return token
    raise NotSignedIn.of("no-slurm-token")


def claims(token: str) -> tuple[str, float]:
    """The name in a token and the time at which it ends, unproved.

    Raises:
        NotSignedIn: it has no such form, or is over.
    """
    if len(token) > LONGEST or not _FORM.fullmatch(token):
        raise NotSignedIn.of("bad-token")
    part = token.split(".")[1]
    try:
        found: Any = from_json(base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        raise NotSignedIn.of("bad-token") from None
    name, ends = (found.get("sun"), found.get("exp")) if isinstance(found, dict) else (None, None)
    if not isinstance(name, str) or isinstance(ends, bool) or not isinstance(ends, int | float):
        raise NotSignedIn.of("bad-token")
    if ends <= time.time():
        raise NotSignedIn.of("token-expired", user=visible(name[:32]))
    return name, float(ends)


class Doorkeeper:
    """Knows for a minute what Slurm said of a token."""

    def __init__(self, judge: Judge, users: Mapping[str, ServicePerson]) -> None:
        self._judge, self._users = judge, users
        self._until: dict[str, float] = {}  # by sha256 of the token: the time up to which it is good
        self._refused: dict[str, float] = {}  # and up to which nobody is asked again

    async def caller(self, token: str) -> Caller:
        """
        Raises:
            NotSignedIn: Slurm doesn't take the token.
            NotAllowed: the name in it is none of the cluster's people.
            Away: Slurm doesn't answer.
        """
        name, ends = claims(token)
        key, now = hashlib.sha256(token.encode()).hexdigest(), time.time()
        if self._refused.get(key, 0) > now:
            raise NotSignedIn.of("token-refused")
        if self._until.get(key, 0) <= now:
            good = await self._judge.valid(token)
            self._until, self._refused = _without_old(self._until, now), _without_old(self._refused, now)
            if not good:
                self._refused[key] = now + REFUSED_S
                raise NotSignedIn.of("token-refused")
            self._until[key] = min(now + REMEMBERED_S, ends)
        if (person := self._users.get(name)) is None:
            raise NotAllowed.of("no-such-person", user=visible(name[:32]))
        return Caller(name, person.uid, person.gid, token)


def _without_old(known: dict[str, float], now: float) -> dict[str, float]:
    """Where there are too many, those that still count; of these the newest."""
    if len(known) < MOST:
        return known
    return dict([(key, until) for key, until in known.items() if until > now][-MOST // 2 :])
