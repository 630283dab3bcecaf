"""The site's issuer: where it signs people in, its keys, and whose a token of it is (OpenID Connect Core 1.0, 3.1.3.7;
RFC 8725). Its keys are fetched once an hour, and never more often than once a minute whatever tokens say."""

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from rocstack.base.errors import BadInput
from rocstack.base.server_address import LOOPBACK
from rocstack.base.text import from_json, visible
from rocstack.cluster.oidc import Issuer
from rocstack.service.failures import Away, NotSignedIn
from rocstack.service.identity import ISSUERS_LONGEST

# Of public keys alone: with HS256 the issuer's public key would do as a secret, and `none` needs no key.
ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA", "Ed25519"),
}
KEYS_S, AGAIN_S, AWAY_S = 3600.0, 60.0, 5.0  # that keys hold; between two fetches; after one that failed
LEEWAY_S = 30  # between the clocks
MOST, MOST_KEYS = 1 << 20, 100  # bytes of an answer, keys in it
TIMEOUT_S = 5.0
WELL_KNOWN = "/.well-known/openid-configuration"


@dataclass(frozen=True)
class SignedIn:
    """What a token of the issuer says: who, and until when."""

    name: str
    ends: float


@dataclass(frozen=True)
class Addresses:
    authorize: str
    token: str
    keys: str


class IssuerClient:
    """Asks it, and remembers what it said."""

    def __init__(
        self, about: Issuer, ca: str | None = None, transport: httpx.AsyncBaseTransport | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """
        Raises:
            BadInput: the CA can't be read.
        """
        try:
            trust = ssl.create_default_context(cafile=ca)
        except (OSError, ssl.SSLError) as error:
            raise BadInput.of("issuer-ca", Path(ca or ""), why=error.strerror or error) from None
        # As httpx has them.
        self.reach = {"verify": trust, "transport": transport, "timeout": TIMEOUT_S, "trust_env": False}
        self.about, self._now = about, now
        self._http = httpx.AsyncClient(**self.reach)  # type: ignore[arg-type]
        self._addresses: Addresses | None = None
        self._keys: dict[str, Any] = {}  # by kid
        self._fetched = self._failed = float("-inf")
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        await self._http.aclose()

    async def addresses(self) -> Addresses:
        """As its own document says; it may name other hosts, but none without TLS.

        Raises:
            Away: it doesn't answer, or says what can't be used.
        """
        if self._addresses is None:
            said = await self._ask(self.about.issuer.rstrip("/") + WELL_KNOWN)
            if said.get("issuer") != self.about.issuer:
                raise self._away(f"it calls itself {visible(str(said.get('issuer')))[:200]}")
            names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
            self._addresses = Addresses(*(self._address(name, said.get(name)) for name in names))
        return self._addresses

    async def whose(self, token: str, nonce: str | None = None) -> SignedIn:
        """Whose token it is. With `nonce` it must be the answer to that request.

        Raises:
            NotSignedIn: it isn't a good token of this issuer for this client.
            Away: it needs a key that the issuer doesn't tell at the moment.
        """
        from joserfc import jws  # with cryptography, which takes a while: for who has an issuer alone
        from joserfc.errors import JoseError

        header, claims = parts(token)
        key = await self._key(header)
        try:
            jws.deserialize_compact(token, key, algorithms=list(ALGORITHMS[key.key_type]))
        except (JoseError, ValueError, TypeError):  # TypeError: a header of another form than it expects
            raise NotSignedIn.of("oidc-refused", why="the issuer didn't sign it") from None
        return self._judged(claims, nonce)

    def _judged(self, claims: dict[str, Any], nonce: str | None) -> SignedIn:
        now = time.time()
        audience = claims.get("aud")
        meant = audience if isinstance(audience, list) else [audience]
        ends, begins, made = (claims.get(name) for name in ("exp", "nbf", "iat"))
        name = claims.get(self.about.user_claim)
        if claims.get("iss") != self.about.issuer:
            why = "another issuer made it"
        elif self.about.client_id not in meant:
            why = "it is for another client"
        elif len(meant) > 1 and claims.get("azp") != self.about.client_id:
            why = "it was given to another client"
        elif ends is None or not all(each is None or _is_time(each) for each in (ends, begins, made)):
            why = "it doesn't say when it ends"
        elif ends <= now - LEEWAY_S:
            why = "it is over"
        elif max(begins or 0, made or 0) > now + LEEWAY_S:
            why = "it is not valid yet"
        elif nonce is not None and claims.get("nonce") != nonce:
            why = "it answers another request"
        elif not isinstance(name, str) or not name:
            why = f"it has no claim {self.about.user_claim}"
        else:
            return SignedIn(name, float(ends))
        raise NotSignedIn.of("oidc-refused", why=why)

    async def _key(self, header: dict[str, Any]) -> Any:
        kid, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(algorithm, str) or not any(algorithm in known for known in ALGORITHMS.values()):
            raise NotSignedIn.of("oidc-refused", why="it is signed in a way that isn't taken")
        if kid is not None and (not isinstance(kid, str) or len(kid) > 255):
            raise NotSignedIn.of("oidc-refused", why="the issuer didn't sign it")
        async with self._lock:  # who comes meanwhile waits for the same answer
            age = self._now() - self._fetched
            if age > KEYS_S or (not self._find(kid, algorithm) and age > AGAIN_S):
                await self._fetch()
        if (found := self._find(kid, algorithm)) is None:
            raise NotSignedIn.of("oidc-refused", why="it is signed with a key that the issuer doesn't name")
        return found

    def _find(self, kid: str | None, algorithm: str) -> Any:
        fits = [key for key in self._keys.values() if algorithm in ALGORITHMS[key.key_type]]
        if kid is None:  # allowed where there is no choice
            return fits[0] if len(fits) == 1 else None
        key = self._keys.get(kid)
        return key if key in fits else None

    async def _fetch(self) -> None:
        """
        Raises:
            Away: it doesn't answer. It isn't asked again for some seconds.
        """
        from joserfc.errors import JoseError
        from joserfc.jwk import import_key

        if self._now() - self._failed < AWAY_S:
            raise self._away("it didn't answer just now")
        try:
            said = await self._ask((await self.addresses()).keys)
            rows = said.get("keys")
            if not isinstance(rows, list):
                raise self._away("it names no keys")
        except Away:
            self._failed = self._now()
            raise
        found: dict[str, Any] = {}
        for row in rows[:MOST_KEYS]:
            public = isinstance(row, dict) and row.get("use") in (None, "sig")
            if public and isinstance(kind := row.get("kty"), str) and kind in ALGORITHMS:
                try:
                    found[str(row.get("kid") or f"#{len(found)}")] = import_key(row)
                except (JoseError, ValueError, TypeError, KeyError):
                    continue  # one of a kind that isn't known here
        self._keys, self._fetched = found, self._now()

    async def _ask(self, url: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(2 * TIMEOUT_S), self._http.stream("GET", url) as answer:
                text = b""
                async for piece in answer.aiter_bytes():
                    if len(text := text + piece) > MOST:
                        raise self._away("its answer is too long")
            said = from_json(text) if answer.status_code == 200 else None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise self._away(type(error).__name__) from None
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise self._away(f"it answers {answer.status_code}, and nothing that can be read")
        return said

    def _address(self, name: str, url: object) -> str:
        if isinstance(url, str) and len(url) < 2000 and url.isascii():
            with suppress(ValueError, httpx.InvalidURL):
                parts, _ = urlsplit(url), httpx.URL(url)  # as authlib and httpx will read it
                trusted = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
                if trusted and parts.port != 0:
                    return url
        raise self._away(f"its {name} is no https address")

    def _away(self, why: str) -> Away:
        return Away.of("issuer-away", issuer=self.about.issuer, why=why)


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims of a token, unproved.

    Raises:
        NotSignedIn: it has no such form.
    """
    from joserfc.util import urlsafe_b64decode

    pieces = token.split(".") if len(token) <= ISSUERS_LONGEST and token.isascii() else []
    try:
        found = [from_json(urlsafe_b64decode(piece.encode())) for piece in pieces[:2]]
    except ValueError:
        found = []
    if len(pieces) != 3 or len(found) != 2 or not all(isinstance(each, dict) for each in found):
        raise NotSignedIn.of("bad-token")
    return found[0], found[1]


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 40
