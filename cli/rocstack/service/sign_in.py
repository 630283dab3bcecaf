"""Signing in at the site's issuer. On the page: the authorization code flow with PKCE, a state and a nonce, which wait
in a cookie of the browser that began. For the interface: the issuer's own tokens. Either way the maker of tokens
(tokens.py) checks what the issuer said, and gives a Slurm token of that person; after that all is as with her own."""

import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import httpx

from rocstack.base.text import from_json, visible
from rocstack.service.failures import Away, NotAllowed, NotSignedIn, ServiceError
from rocstack.service.issuer import IssuerClient

WAIT_S = 600  # that a person takes at the issuer
MOST = 10_000  # tokens that are remembered, and used states
_STATE = re.compile(r"[A-Za-z0-9_-]{43}")  # as `begin` makes it
KINDS: Mapping[int, type[ServiceError]] = {each.status: each for each in (NotSignedIn, NotAllowed, Away)}
COOKIE, PATH = "rocstack_sign_in", "/login"  # of its pages


class SignIn:
    """`tokens` reaches the maker."""

    def __init__(self, issuer: IssuerClient, tokens: httpx.AsyncClient, secret: str | None = None) -> None:
        self._issuer, self._tokens, self._secret = issuer, tokens, secret
        self._known: dict[str, tuple[str, float]] = {}  # sha256 of the issuer's token: Slurm's, and when it ends
        self._used: OrderedDict[str, float] = OrderedDict()  # states, and until when one might come again; oldest first

    async def close(self) -> None:
        await self._issuer.close()
        await self._tokens.aclose()

    # on the page
    async def begin(self, back: str) -> tuple[str, str]:
        """Where the browser goes, and what it keeps until it is at `back`.

        Raises:
            Away: the issuer doesn't answer.
        """
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        addresses = await self._issuer.addresses()
        async with self._client(back) as client:
            url, _ = client.create_authorization_url(
                addresses.authorize, state=state, nonce=nonce, code_verifier=verifier
            )
        return str(url), f"{state}.{nonce}.{verifier}"

    async def end(self, back: str, kept: str, said: Mapping[str, str]) -> tuple[str, int]:
        """Slurm's token, and for how long it is good, in seconds.

        Args:
            back: the address that `begin` had.
            kept: what the browser kept.
            said: the query that the issuer sent it back with.

        Raises:
            NotSignedIn: it isn't the browser that began, or the issuer says no.
            NotAllowed: the person is none of the cluster's.
            Away: issuer or maker doesn't answer.
        """
        state, nonce, verifier = kept.split(".") if kept.count(".") == 2 else ("", "", "")
        now = time.time()
        same = hmac.compare_digest(state.encode(), said.get("state", "").encode())
        if not same or not _STATE.fullmatch(state) or self._used.get(state, 0) > now:
            raise NotSignedIn.of("sign-in-lost")
        while len(self._used) >= MOST:  # whoever makes up both can only push out: the issuer takes a code once anyway
            self._used.popitem(last=False)
        self._used[state] = now + WAIT_S
        if error := said.get("error"):
            why = visible(f"{error}: {said.get('error_description', '')}".rstrip(": "))[:200]
            raise NotSignedIn.of("issuer-refuses", why=why)
        token = await self._redeem(back, said.get("code", ""), verifier)
        made, ends = await self._make(token, nonce)
        return made, max(int(ends - now), 0)

    async def _redeem(self, back: str, code: str, verifier: str) -> str:
        from authlib.integrations.base_client import OAuthError

        address = (await self._issuer.addresses()).token
        try:
            async with self._client(back) as client:
                said = await client.fetch_token(address, code=code, code_verifier=verifier)
        except OAuthError as error:
            raise NotSignedIn.of("issuer-refuses", why=visible(str(error))[:200]) from None
        except (httpx.HTTPError, ValueError) as error:
            raise Away.of("issuer-away", issuer=self._issuer.about.issuer, why=type(error).__name__) from None
        token = said.get("id_token")
        if not isinstance(token, str):
            raise NotSignedIn.of("issuer-refuses", why="it gives no id_token")
        return token

    def _client(self, back: str) -> Any:
        from authlib.integrations.httpx_client import (
            AsyncOAuth2Client,  # where there is an issuer alone: it takes a while
        )

        return AsyncOAuth2Client(
            self._issuer.about.client_id,
            self._secret,
            scope="openid profile email",
            redirect_uri=back,
            code_challenge_method="S256",
            token_endpoint_auth_method="client_secret_basic" if self._secret else "none",
            **self._issuer.reach,
        )

    # of the interface
    async def slurm_token(self, token: str, *, anew: bool = False) -> str:
        """Of the person whose token of the issuer it is; the same as before while it lasts.

        Raises:
            NotSignedIn, NotAllowed, Away: as `TokenMaker.make`.
        """
        key, now = hashlib.sha256(token.encode()).hexdigest(), time.time()
        made, ends = self._known.get(key, ("", 0.0))
        if anew or ends <= now:
            made, ends = await self._make(token, None)
            if len(self._known) >= MOST:
                self._known = {each: row for each, row in self._known.items() if row[1] > now}
            if len(self._known) < MOST:
                self._known[key] = made, ends
        return made

    async def _make(self, token: str, nonce: str | None) -> tuple[str, float]:
        try:
            answer = await self._tokens.post("/token", json={"token": token, "nonce": nonce})
            said = from_json(answer.content)
            if answer.status_code == 200:
                return str(said["token"]), float(said["ends"])
            kind, what, code = KINDS[answer.status_code], said["what"], said["code"]
            cause, step = said["cause"] or None, said["next"] or None
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise Away.of("tokens-away", why=type(error).__name__) from None
        raise kind(what, code=code, cause=cause, next_step=step)
