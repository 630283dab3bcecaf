"""People sign in at the site's issuer: a real one on loopback, the maker of Slurm tokens at its socket, and everything
that somebody could show them in place of a good token."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import socket
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import uvicorn
from conftest import PEOPLE, serve, settings
from fake_slurmrestd import FakeSlurmrestd, token
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from oidc_provider import CLIENT, SECRET, OidcProvider

from rocstack.cluster.oidc import Issuer
from rocstack.service import app, issuer, sign_in, tokens
from rocstack.service.identity import COOKIE
from rocstack.service.issuer import IssuerClient
from rocstack.service.tokens import TokenMaker

pytestmark = pytest.mark.anyio
KEY = bytes(range(64))  # Slurm's


@asynccontextmanager
async def running(application: Any, **where: Any) -> AsyncIterator[uvicorn.Server]:
    server = uvicorn.Server(uvicorn.Config(application, log_config=None, lifespan="off", **where))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server
    finally:
        server.should_exit = True
        await task


@dataclass
class SignInSite:
    provider: OidcProvider
    client: httpx.AsyncClient  # a browser, or a program without a token
    maker: TokenMaker
    slurm: FakeSlurmrestd
    stop: list[uvicorn.Server]  # the issuer

    async def ask(self, shown: str, path: str = "/v1/me") -> httpx.Response:
        return await self.client.get(path, headers={"Authorization": f"Bearer {shown}"})

    async def refused(self, shown: str) -> str:
        answer = await self.ask(shown)
        assert answer.status_code == 401, answer.text
        return str(answer.json()["error"]["message"])


@pytest.fixture(scope="module")
def keys() -> OidcProvider:
    return OidcProvider("")


@pytest.fixture
async def site(
    tmp_path: Path, slurm: FakeSlurmrestd, keys: OidcProvider, anyio_backend: str
) -> AsyncIterator[SignInSite]:
    slurm.key = KEY
    (tmp_path / "models").mkdir()
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    provider = OidcProvider(f"http://127.0.0.1:{port}", key=keys.key, other=keys.other)
    about = Issuer(issuer=provider.issuer, client_id=CLIENT)
    chosen = settings(tmp_path).model_copy(
        update={"oidc": about, "oidc_secret": str(tmp_path / "secret"), "tokens": str(tmp_path / "socket")}
    )
    maker = TokenMaker(IssuerClient(about), PEOPLE, KEY)
    service = serve(tmp_path, slurm, chosen)
    transport = httpx.ASGITransport(app=app.make(service), raise_app_exceptions=False)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(provider.application(), host="127.0.0.1", port=port))
        await stack.enter_async_context(running(tokens.application(maker), uds=chosen.tokens))
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://test"))
        yield SignInSite(provider, client, maker, slurm, [server])
        await service.stop()
        await maker.issuer.close()


async def browse(site: SignInSite, *, back: bool = True) -> httpx.Response:
    """As a browser: to the issuer and back."""
    begun = await site.client.get("/login/issuer")
    assert begun.status_code == 303, begun.text
    async with httpx.AsyncClient() as outside:
        sent = await outside.get(begun.headers["location"])
    url = sent.headers["location"]
    assert url.startswith("http://test/login/back?")
    return await site.client.get(url) if back else httpx.Response(303, headers={"location": url})


async def test_the_page_signs_in_and_out(site: SignInSite) -> None:
    login = await site.client.get("/login")
    assert '<a class="button" href="/login/issuer">Sign in</a>' in login.text
    done = await browse(site)
    assert (done.status_code, "You are signed in" in done.text) == (200, True)
    cookies = {each.split("=")[0]: each for each in done.headers.get_list("set-cookie")}
    assert "SameSite=strict" in cookies[COOKIE]
    assert "HttpOnly" in cookies[COOKIE]
    assert f"Max-Age={8 * 3600 - 1}" in cookies[COOKIE] or f"Max-Age={8 * 3600}" in cookies[COOKIE]
    assert "Max-Age=0" in cookies[sign_in.COOKIE], "it is used once"
    claims = jwt.decode(site.client.cookies[COOKIE], OctKey.import_key(KEY), algorithms=["HS256"]).claims
    assert (claims["sun"], set(claims)) == ("alice", {"sun", "iat", "exp"})
    assert "You have no jobs yet" in (await site.client.get("/jobs")).text
    out = await site.client.post("/logout", headers={"Origin": "http://test"})
    assert (out.status_code, COOKIE in site.client.cookies) == (303, False)
    assert (await site.client.get("/jobs")).status_code == 401


async def test_what_goes_to_the_issuer(site: SignInSite) -> None:
    begun = await site.client.get("/login/issuer")
    asked = parse_qs(urlsplit(begun.headers["location"]).query)
    assert set(asked) == {
        "response_type", "client_id", "redirect_uri", "scope", "state", "nonce", "code_challenge",
        "code_challenge_method",
    }  # fmt: skip
    cookie = begun.headers["set-cookie"]
    assert {"HttpOnly", "Path=/", "SameSite=lax"} <= {part.strip() for part in cookie.split(";")}
    verifier = cookie.split("=", 1)[1].split(";")[0].split(".")[2]
    assert verifier not in begun.headers["location"]
    other = parse_qs(urlsplit((await site.client.get("/login/issuer")).headers["location"]).query)
    assert not {asked[name][0] for name in ("state", "nonce", "code_challenge")} & {
        other[name][0] for name in ("state", "nonce", "code_challenge")
    }


async def test_a_sign_in_that_is_not_this_browsers_or_was_used(site: SignInSite) -> None:
    url = (await browse(site, back=False)).headers["location"]
    kept = dict(site.client.cookies)
    site.client.cookies.clear()
    stolen = await site.client.get(url)
    assert (stolen.status_code, "begun in another browser" in stolen.text) == (401, True)
    site.client.cookies.update(kept)
    wrong = await site.client.get(url.replace("state=", "state=x"))
    assert "begun in another browser" in wrong.text
    good = await site.client.get(url)
    assert good.status_code == 200
    site.client.cookies.clear()
    site.client.cookies.update(kept)
    again = await site.client.get(url)
    assert (again.status_code, "has been used" in again.text) == (401, True)


async def test_states_that_are_made_up_fill_nothing(site: SignInSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cookie and state both come from whoever asks."""
    monkeypatch.setattr(sign_in, "MOST", 3)
    used = site.client._transport.app.state.service.sign_in._used  # type: ignore[attr-defined]
    site.client.cookies.clear()
    for state in ("x", "x" * 42, "x" * 44, "ä" * 43, *(f"{number:043}" for number in range(5))):
        head = {"Cookie": f"{sign_in.COOKIE}={state}.n.v".encode("latin-1")}
        answer = await site.client.get("/login/back", params={"state": state, "error": "no"}, headers=head)
        assert answer.status_code == 401
        assert ("You were not signed in" in answer.text) == (state.isdigit()), state
    assert [int(state) for state in used] == [2, 3, 4]
    assert (await browse(site)).status_code == 200


async def test_a_link_to_the_way_back_signs_nobody_out(site: SignInSite) -> None:
    await browse(site)
    kept = site.client.cookies[COOKIE]
    for query in ("state=x", f"state={'x' * 43}&error=no"):
        assert (await site.client.get(f"/login/back?{query}")).status_code == 401
        assert site.client.cookies[COOKIE] == kept
    site.provider.user = ""
    assert "access_denied" in (await browse(site)).text
    assert site.client.cookies[COOKIE] == kept


async def test_an_issuers_token_in_the_page_becomes_slurms(site: SignInSite) -> None:
    """Browsers drop a cookie of more than 4096 bytes."""
    shown = site.provider.token(groups=["g" * 12] * 500)
    head = {"Origin": "http://test"}
    done = await site.client.post("/login", data={"token": f"{shown[:80]}\n{shown[80:]}"}, headers=head)
    assert (done.status_code, len(shown) > 8192) == (303, True)
    claims = jwt.decode(site.client.cookies[COOKIE], OctKey.import_key(KEY), algorithms=["HS256"]).claims
    assert claims["sun"] == "alice"


async def test_another_code_in_ones_own_sign_in(site: SignInSite) -> None:
    """Somebody else's code, with the verifier and the nonce of this browser."""
    others = parse_qs(urlsplit((await browse(site, back=False)).headers["location"]).query)["code"][0]
    url = (await browse(site, back=False)).headers["location"]
    mine = parse_qs(urlsplit(url).query)["code"][0]
    answer = await site.client.get(url.replace(mine, others))
    assert (answer.status_code, "You were not signed in" in answer.text) == (401, True)


async def test_who_says_no_and_who_is_nobody(site: SignInSite) -> None:
    site.provider.user = ""
    refused = await browse(site)
    assert (refused.status_code, "access_denied: &lt;b&gt;no&lt;/b&gt;" in refused.text) == (401, True)
    site.provider.user = "mallory"
    nobody = await browse(site)
    assert (nobody.status_code, "This cluster has no user mallory." in nobody.text) == (403, True)
    assert COOKIE not in site.client.cookies


async def test_the_interface_takes_tokens_of_the_issuer_beside_slurms(site: SignInSite) -> None:
    shown = site.provider.token()
    assert (await site.ask(shown)).json()["id"] == "alice"
    other = site.provider.token({"alg": "ES256", "kid": "two"}, site.provider.other, preferred_username="bob")
    assert (await site.ask(other)).json()["id"] == "bob"
    assert (await site.ask(token("bob"))).json()["id"] == "bob"
    both = site.provider.token(aud=["x", CLIENT], azp=CLIENT)
    assert (await site.ask(both)).json()["id"] == "alice"
    assert (site.provider.asked, len(site.slurm.calls) > 0) == (1, True), "its keys are remembered"
    eve = await site.ask(site.provider.token(preferred_username="eve"))
    assert (eve.status_code, eve.json()["error"]["code"]) == (403, "no-such-person")


async def test_slurms_token_never_outlives_the_one_that_was_shown(site: SignInSite) -> None:
    for given, most in ((120, 120), (10 * 86400, 8 * 3600)):
        now = int(time.time())
        made, _, ends = await site.maker.make(site.provider.token(exp=now + given))
        claims = jwt.decode(made, OctKey.import_key(KEY), algorithms=["HS256"]).claims
        assert claims["exp"] == ends
        assert most - 2 <= ends - now <= most + 2


async def test_a_rotated_key_of_slurm_ends_nobodys_sign_in(site: SignInSite) -> None:
    shown = site.provider.token()
    assert (await site.ask(shown)).status_code == 200
    site.slurm.key = KEY[::-1]
    object.__setattr__(site.maker, "key", KEY[::-1])
    site_door = site.client._transport.app.state.service.door  # type: ignore[attr-defined]
    site_door._until.clear()
    assert (await site.ask(shown)).status_code == 200


def with_header(good: str, key: bytes = b"", **header: Any) -> str:
    """Another header above the same claims, signed by HS256 with `key` where one is given."""
    _, body, signature = good.split(".")
    head = urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("=")
    if key:
        signature = urlsafe_b64encode(hmac.digest(key, f"{head}.{body}".encode(), "sha256")).decode().rstrip("=")
    return f"{head}.{body}.{signature}"


async def test_attacks(site: SignInSite) -> None:
    provider, now = site.provider, int(time.time())
    public = provider.key.as_pem(private=False)
    mine = RSAKey.generate_key(2048, {"kid": "one"})
    body = provider.token().split(".")[1]
    none = "eyJhbGciOiJub25lIn0"  # {"alg":"none"}
    shown = {
        provider.token(aud="another"): "it is for another client",
        provider.token(aud=None): "it is for another client",
        provider.token(aud=[CLIENT, "other"]): "it was given to another client",
        provider.token(iss="https://evil"): "another issuer made it",
        provider.token(iss=f"{provider.issuer}/"): "another issuer made it",
        provider.token(exp=now - 31): "it is over",
        provider.token(exp=None): "it doesn't say when it ends",
        provider.token(exp="tomorrow"): "it doesn't say when it ends",
        provider.token(nbf=now + 60): "it is not valid yet",
        provider.token(iat=now + 60): "it is not valid yet",
        provider.token(preferred_username=None): "it has no claim preferred_username",
        provider.token(preferred_username=["alice"]): "it has no claim preferred_username",
        f"{none}.{body}.": "this is no token of Slurm",
        f"{none}.{body}.AA": "signed in a way that isn't taken",
        with_header(provider.token(), public, alg="HS256", kid="one"): "signed in a way that isn't taken",
        provider.token({}, mine): "the issuer didn't sign it",
        provider.token({"kid": "other"}): "a key that the issuer doesn't name",
        provider.token({"kid": "two"}): "a key that the issuer doesn't name",
        provider.token({"kid": "x" * 300}): "the issuer didn't sign it",
        with_header(provider.token(), alg="RS256", kid="one", x="y"): "the issuer didn't sign it",
        with_header(provider.token(), alg="RS256", kid="one", crit=5): "the issuer didn't sign it",
        with_header(provider.token(), alg="RS256", kid="one", crit=["b64"], b64=5): "the issuer didn't sign it",
        provider.token()[:-4] + "AAAA": "the issuer didn't sign it",
        provider.token({"jku": "https://evil/keys", "jwk": mine.as_dict(private=False)}, mine): "didn't sign it",
        provider.token(nonce="n", x="y" * 13000): "this is no token of Slurm",
    }
    for each, why in shown.items():
        assert why in await site.refused(each), why


async def test_a_token_of_the_interface_is_no_answer_to_a_sign_in(site: SignInSite) -> None:
    for nonce in (None, "other"):
        with pytest.raises(issuer.NotSignedIn, match="answers another request"):
            await site.maker.issuer.whose(site.provider.token(nonce=nonce), "mine")


async def test_a_flood_of_unknown_keys_asks_the_issuer_once_a_minute(site: SignInSite) -> None:
    now = [0.0]
    site.maker.issuer._now = lambda: now[0]
    await asyncio.gather(*(site.ask(site.provider.token({"kid": f"k{number}"})) for number in range(40)))
    assert site.provider.asked == 1
    now[0] = issuer.AGAIN_S + 1
    await asyncio.gather(*(site.ask(site.provider.token({"kid": f"l{number}"})) for number in range(40)))
    assert site.provider.asked == 2
    assert (await site.ask(site.provider.token())).status_code == 200
    now[0] += issuer.KEYS_S + 1
    assert (await site.ask(site.provider.token(jti="2"))).status_code == 200
    assert site.provider.asked == 3


async def test_a_new_key_of_the_issuer_is_found(site: SignInSite) -> None:
    now = [0.0]
    site.maker.issuer._now = lambda: now[0]
    assert (await site.ask(site.provider.token())).status_code == 200
    site.provider.key = RSAKey.generate_key(2048, {"kid": "new", "use": "sig"})
    now[0] = issuer.AGAIN_S + 1
    assert (await site.ask(site.provider.token({"kid": "new"}))).status_code == 200
    gone = site.provider.token({"kid": "one"})
    assert "a key that the issuer doesn't name" in await site.refused(gone)


async def test_an_issuer_that_is_away_is_said_and_slurms_tokens_go_on(site: SignInSite) -> None:
    shown = site.provider.token()
    site.stop[0].should_exit = True
    while site.stop[0].servers and site.stop[0].servers[0].is_serving():
        await asyncio.sleep(0.01)
    answer = await site.ask(shown)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "issuer-away")
    assert site.provider.issuer in answer.json()["error"]["message"]
    page = await site.client.get("/login/issuer")
    assert (page.status_code, "answer as it should" in page.text) == (503, True)
    assert (await site.ask(token("alice"))).json()["id"] == "alice"


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"issuer": "https://other"}, "it calls itself https://other"),
        ({"jwks_uri": "http://10.0.0.1/keys"}, "its jwks_uri is no https address"),
        ({"jwks_uri": "file:///etc/passwd"}, "its jwks_uri is no https address"),
        ({"token_endpoint": None}, "its token_endpoint is no https address"),
        ({"token_endpoint": "https://["}, "its token_endpoint is no https address"),
        ({"token_endpoint": "https://i:x/"}, "its token_endpoint is no https address"),
        ({"jwks_uri": "https://i:99999999/"}, "its jwks_uri is no https address"),
        ([], "nothing that can be read"),
        (b"<html>", "nothing that can be read"),
        (b"x" * (issuer.MOST + 1), "its answer is too long"),
    ],
)
async def test_an_issuer_that_says_what_cant_be_used(document: Any, why: str, anyio_backend: str) -> None:
    good = dict.fromkeys(("authorization_endpoint", "token_endpoint", "jwks_uri"), "https://i/x")
    said = {"issuer": "https://i", **good, **document} if isinstance(document, dict) else document
    content = said if isinstance(said, bytes) else json.dumps(said).encode()
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=content))
    asked = IssuerClient(Issuer(issuer="https://i", client_id=CLIENT), transport=transport)
    with pytest.raises(issuer.Away) as refused:
        await asked.addresses()
    assert why in refused.value.what


async def test_a_key_of_no_form_is_none(keys: OidcProvider, anyio_backend: str) -> None:
    odd: list[Any] = [{"kty": ["RSA"]}, {"kty": "RSA", "n": 5}, {"kty": "EC", "kid": {}}, 5]
    about = {
        "issuer": "https://i",
        **dict.fromkeys(("authorization_endpoint", "token_endpoint", "jwks_uri"), "https://i"),
    }
    said = {**about, "keys": [*odd, keys.key.as_dict(private=False)]}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=said))
    asked = IssuerClient(Issuer(issuer="https://i", client_id=CLIENT), transport=transport)
    assert (await asked.whose(OidcProvider("https://i", key=keys.key, other=keys.other).token())).name == "alice"
    await asked.close()


async def test_no_token_and_no_secret_is_logged(site: SignInSite, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "rocstack")
    await browse(site)
    shown = site.provider.token()
    await site.ask(shown)
    await site.refused(site.provider.token(aud="x"))
    said = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("rocstack"))
    assert "a token for alice" in said
    for secret in (SECRET, shown, site.client.cookies[COOKIE], KEY.decode("latin-1")):
        assert secret not in said
    assert SECRET not in repr(site.maker)
    assert repr(KEY) not in repr(site.maker)


async def test_the_maker_is_away(tmp_path: Path, slurm: FakeSlurmrestd, anyio_backend: str) -> None:
    about = Issuer(issuer="http://127.0.0.1:1", client_id=CLIENT)
    service = serve(
        tmp_path, slurm, settings(tmp_path).model_copy(update={"oidc": about, "tokens": str(tmp_path / "none")})
    )
    transport = httpx.ASGITransport(app=app.make(service))
    shown = OidcProvider(about.issuer, key=OctKey.import_key(KEY)).token({"alg": "HS256"})
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/v1/me", headers={"Authorization": f"Bearer {shown}"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "tokens-away")
    await service.stop()


async def test_without_an_issuer_there_is_none(tmp_path: Path, slurm: FakeSlurmrestd, anyio_backend: str) -> None:
    service = serve(tmp_path, slurm)
    transport = httpx.ASGITransport(app=app.make(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert "/login/issuer" not in (await client.get("/login")).text
        assert (await client.get("/login/issuer")).status_code == 404
        shown = OidcProvider("http://i", key=OctKey.import_key(KEY)).token({"alg": "HS256"})
        answer = await client.get("/v1/me", headers={"Authorization": f"Bearer {shown}"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "bad-token")
    await service.stop()


def test_a_maker_that_cant_start_says_why(tmp_path: Path) -> None:
    file = tmp_path / "service.json"
    file.write_text(settings(tmp_path).model_dump_json())
    line = [sys.executable, "-m", "rocstack.service.tokens", str(file), "--key", str(tmp_path / "none")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "[no-issuer]" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
