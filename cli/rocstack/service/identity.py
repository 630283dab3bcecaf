"""Who asks: the person whose own Slurm token comes with the request. The token's signature is Slurm's business: the
service has no key, and asks slurmrestd, which slurmctld answers only to a token that it signed. A token of the site's
issuer is exchanged for one of Slurm first."""

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
LONGEST, ISSUERS_LONGEST = 4096, 16_384  # characters of a token: Slurm's, the site's issuer's
MOST = 10_000  # verdicts
COOKIE = "rocstack_token"
_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class Exchange(Protocol):
    async def slurm_token(self, token: str, *, anew: bool = False) -> str:
        """Slurm's of the person whose token of the issuer it is. Raises NotSignedIn, NotAllowed, Away."""


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


def cookie_name(name: str, *, tls: bool) -> str:
    """By TLS one that browsers take from this host alone: a page of a job on another node, or somebody on the network,
    could sign people in as somebody else, who then gets what they upload (RFC 6265bis, 4.1.3)."""
    return f"__Host-{name}" if tls else name


def token_of(authorization: str | None, cookies: Mapping[str, str], *, same_site: bool, tls: bool) -> str:
    """From `Authorization: Bearer`, else from the page's cookie, which counts only for requests of our own pages.

    Raises:
        NotSignedIn: there is none.
    """
    scheme, _, token = (authorization or "").strip().partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    if not authorization and same_site and (token := cookies.get(cookie_name(COOKIE, tls=tls), "")):
        return token
    raise NotSignedIn.of("no-slurm-token")


def claims(token: str) -> tuple[str, float]:
    """The name in a token and the time at which it ends, unproved.

    Raises:
        NotSignedIn: it has no such form, or is over.
    """
    found = _body(token, LONGEST)
    name, ends = found.get("sun"), found.get("exp")
    if not isinstance(name, str) or isinstance(ends, bool) or not isinstance(ends, int | float):
        raise NotSignedIn.of("bad-token")
    if ends <= time.time():
        raise NotSignedIn.of("token-expired", user=visible(name[:32]))
    return name, float(ends)


def has_issuer(token: str) -> bool:
    """Whether it is another issuer's than Slurm, whose tokens name none. Unproved: it chooses who is to prove it."""
    try:
        return "iss" in _body(token, ISSUERS_LONGEST)
    except NotSignedIn:
        return False


def _body(token: str, longest: int) -> dict[str, Any]:
    """
    Raises:
        NotSignedIn: it has no such form.
    """
    if len(token) > longest or not _FORM.fullmatch(token):
        raise NotSignedIn.of("bad-token")
    part = token.split(".")[1]
    try:
        found: Any = from_json(base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        found = None
    if not isinstance(found, dict):
        raise NotSignedIn.of("bad-token")
    return found


class Doorkeeper:
    """Knows for a minute what Slurm said of a token."""

    def __init__(self, judge: Judge, users: Mapping[str, ServicePerson], issuer: Exchange | None = None) -> None:
        self._judge, self._users, self._issuer = judge, users, issuer
        self._until: dict[str, float] = {}  # by sha256 of the token: the time up to which it is good
        self._refused: dict[str, float] = {}  # and up to which nobody is asked again

    async def caller(self, token: str) -> Caller:
        """
        Raises:
            NotSignedIn: neither Slurm nor the site's issuer knows the token.
            NotAllowed: the name in it is none of the cluster's people.
            Away: Slurm doesn't answer, or the issuer.
        """
        if self._issuer is None or not has_issuer(token):
            return await self._of_slurm(token)
        try:
            return await self._of_slurm(await self._issuer.slurm_token(token))
        except NotSignedIn as refused:
            if refused.code != "token-refused":
                raise
        return await self._of_slurm(await self._issuer.slurm_token(token, anew=True))  # Slurm's key was rotated

    async def _of_slurm(self, token: str) -> Caller:
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
