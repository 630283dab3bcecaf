"""A small issuer of OpenID Connect: discovery, keys, the authorization code flow with PKCE, tokens. It signs in whom it
is told to. `python3 oidc_provider.py PORT` serves it on loopback; it needs what the service's image has."""

from __future__ import annotations

import base64
import hashlib
import secrets
import sys
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

CLIENT, SECRET = "rocstack-page", "the-client-secret"


@dataclass
class OidcProvider:
    """`user` is who is signed in at the issuer. `asked` counts the requests for its keys."""

    issuer: str
    user: str = "alice"
    lifespan: int = 300
    asked: int = 0
    key: Any = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"}))
    other: Any = field(
        default_factory=lambda: ECKey.generate_key("P-256", {"kid": "two", "use": "sig", "alg": "ES256"})
    )
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def token(self, header: dict[str, Any] | None = None, key: Any = None, /, **claims: Any) -> str:
        """A token of this issuer, with other claims where they are given; None leaves one out."""
        now = int(time.time())
        body = {
            "iss": self.issuer, "aud": CLIENT, "sub": "4711", "iat": now, "nbf": now, "exp": now + self.lifespan,
            "preferred_username": self.user,
        } | claims  # fmt: skip
        body = {name: value for name, value in body.items() if value is not None}
        head = {"alg": "RS256", "kid": "one"} | (header or {})
        return jwt.encode(head, body, key or self.key, algorithms=[head["alg"]])

    def application(self) -> FastAPI:
        app = FastAPI()

        @app.get("/.well-known/openid-configuration")
        def document() -> dict[str, Any]:
            places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            return {"issuer": self.issuer, **{name: f"{self.issuer}/{path}" for name, path in places.items()}}

        @app.get("/keys")
        def keys() -> dict[str, Any]:
            self.asked += 1
            return {"keys": [each.as_dict(private=False) for each in (self.key, self.other)]}

        @app.get("/authorize")
        def authorize(request: Request) -> RedirectResponse:
            asked = dict(request.query_params)
            assert asked["response_type"] == "code"
            assert asked["code_challenge_method"] == "S256"
            if not self.user:
                said = {"error": "access_denied", "error_description": "<b>no</b>", "state": asked["state"]}
            else:
                code = secrets.token_urlsafe(16)
                self.codes[code] = asked
                said = {"code": code, "state": asked["state"]}
            return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(said)}", 303)

        @app.post("/token")
        async def redeem(request: Request) -> JSONResponse:
            given = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
            expected = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
            asked = self.codes.pop(given.get("code", ""), None)
            challenge = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
            good = (
                asked is not None
                and request.headers.get("authorization") == f"Basic {expected}"
                and asked["code_challenge"] == base64.urlsafe_b64encode(challenge).decode().rstrip("=")
                and asked["redirect_uri"] == given.get("redirect_uri")
            )
            if not good or asked is None:
                return JSONResponse({"error": "invalid_grant"}, 400)
            token = self.token(nonce=asked["nonce"])
            return JSONResponse({"access_token": "opaque", "token_type": "Bearer", "id_token": token})

        @app.get("/issue")
        def issue() -> dict[str, str]:
            return {"token": self.token()}

        return app


if __name__ == "__main__":
    import uvicorn

    port = int(sys.argv[1])
    provider = OidcProvider(f"http://127.0.0.1:{port}")
    uvicorn.run(provider.application(), host="127.0.0.1", port=port, log_level="warning")
