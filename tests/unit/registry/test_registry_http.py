"""Reaching a registry as an engine would: which may speak http, whom it trusts, what `docker login` left."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fake_registry import Handler, Store, serving
from memory_image import NAME

from rocstack.base.errors import CheckFailed, Missing
from rocstack.deploy.plan import tls
from rocstack.registry import registry_http
from rocstack.registry.registry_http import RegistryHttp, RegistryLogin, as_engine, docker_login, is_insecure
from rocstack.registry.repository import Repository, _Lost

LOOPBACK: dict[str, Any] = {"RegistryConfig": {"InsecureRegistryCIDRs": ["127.0.0.0/8"], "IndexConfigs": {}}}


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[tuple[Store, Path]]:
    """A registry with TLS, and the CA that no system knows."""
    now = datetime.now(UTC)
    ca, ca_key = tls.make_ca(now)
    key = tls.make_key()
    (tmp_path / "server.pem").write_text(tls.certificate(ca, ca_key, key, ["127.0.0.1"], now))
    (tmp_path / "server.key").write_text(key)
    (tmp_path / "ca.pem").write_text(ca)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with serving(context) as store:
        yield store, tmp_path / "ca.pem"


@pytest.mark.parametrize(
    ("host", "insecure"),
    [
        ("127.0.0.1:5000", True),
        ("127.1.2.3", True),
        ("localhost:5000", True),
        ("[::1]:5000", True),
        ("10.0.0.5:5000", False),
        ("10.1.0.5:5000", True),
        ("registry.example:5000", True),
        ("registry.example", False),
        ("docker.io", False),
    ],
)
def test_registries_that_an_engine_takes_for_insecure(host: str, insecure: bool) -> None:
    named = {"registry.example:5000": {"Secure": False}, "docker.io": {"Secure": True}}
    info = {"RegistryConfig": {"InsecureRegistryCIDRs": ["10.1.0.0/16", "127.0.0.0/8"], "IndexConfigs": named}}
    assert is_insecure(info, host) is insecure


def test_a_name_is_never_insecure_by_the_addresses_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers for DNS could claim one on loopback beside their own, and would get the login."""
    rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("127.0.0.1", "203.0.113.9")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: rows)
    assert not is_insecure(LOOPBACK, "registry.example:5000")


def test_a_registry_on_loopback_may_speak_http_or_have_any_certificate(signed: tuple[Store, Path]) -> None:
    with serving() as plain:
        for store, scheme in ((plain, "http"), (signed[0], "https")):
            http = as_engine(LOOPBACK, store.host)
            assert Repository(http, NAME).tags() == []
            assert http.base == f"{scheme}://{store.host}/"


def test_any_other_must_be_trusted_by_the_system_or_certs_d(
    signed: tuple[Store, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ca = signed
    monkeypatch.setattr(registry_http, "CERTIFICATES", tmp_path / "certs.d")
    with pytest.raises(Missing) as caught:
        Repository(RegistryHttp(store.host), NAME, attempts=1).tags()
    assert caught.value.code == "registry-untrusted"
    (tmp_path / "certs.d" / store.host).mkdir(parents=True)
    (tmp_path / "certs.d" / store.host / "company.crt").write_text(ca.read_text())
    assert Repository(RegistryHttp(store.host), NAME).tags() == []


@pytest.mark.parametrize("name", ["client.cert", "company.crt"])
def test_certificates_that_cannot_be_read_are_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a client's key is for an ordinary user, though the engine reads it."""
    monkeypatch.setattr(registry_http, "CERTIFICATES", tmp_path)
    (tmp_path / "r:5000").mkdir()
    (tmp_path / "r:5000" / name).write_text("")
    with pytest.raises(Missing, match=r"for r:5000 .* can't be used") as caught:
        RegistryHttp("r:5000")
    assert caught.value.code == "registry-untrusted"


def test_http_where_https_is_due_is_refused() -> None:
    with serving() as store, pytest.raises(Missing) as caught:
        Repository(RegistryHttp(store.host), NAME, attempts=1).tags()
    assert caught.value.code == "registry-plain-http"


def test_loopback_is_reached_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with serving() as store:
        assert Repository(as_engine(LOOPBACK, store.host), NAME, attempts=1).tags() == []


def test_docker_hub_is_asked_by_its_api_name() -> None:
    assert RegistryHttp("docker.io").base == "https://registry-1.docker.io/"


@pytest.mark.filterwarnings("ignore:docker-credential-gone")
def test_what_docker_login_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert docker_login("r:5000") is None
    auths = {"r:5000": {"auth": base64.b64encode(b"ada:se:cret").decode()}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    assert docker_login("r:5000") == RegistryLogin("ada", "se:cret")
    helper = tmp_path / "docker-credential-test"
    helper.write_text('#!/bin/sh\necho \'{"ServerURL": "r:5000", "Username": "<token>", "Secret": "t0k"}\'\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "config.json").write_text('{"credHelpers": {"r:5000": "test"}}')
    assert docker_login("r:5000") == RegistryLogin("", "t0k")
    (tmp_path / "config.json").write_text('{"credHelpers": {"r:5000": "gone"}}')
    with pytest.raises(Missing) as caught:
        docker_login("r:5000")
    assert caught.value.code == "no-credentials"


def test_an_identity_token_is_changed_for_an_access_token() -> None:
    with serving() as store:
        store.password, store.token = "t0k", "access"
        http = RegistryHttp(store.host, RegistryLogin("", "t0k"), plain=True)
        assert Repository(http, NAME).manifest("x") is None
        assert "t0k" not in " ".join(store.requests)


def test_a_location_by_http_gets_no_login_in_the_clear(signed: tuple[Store, Path]) -> None:
    """A registry behind a proxy that ends TLS names itself by http; a hostile one may, too."""
    store, ca = signed
    http = RegistryHttp(store.host, RegistryLogin("me", "secret"), ca=ca)
    asked = []
    send = http._session.send
    http._session.send = lambda request, **more: asked.append(request.url) or send(request, **more)  # type: ignore
    http.request("GET", f"http://{store.host}/v2/", good=range(200, 600))
    assert asked == [f"https://{store.host}/v2/"]


@pytest.mark.parametrize("code", [307, 202])
def test_what_a_registry_leads_to_by_http_is_never_asked(signed: tuple[Store, Path], code: int) -> None:
    """Such as an engine's API, or another service that believes whoever reaches it on loopback."""
    store, ca = signed
    with serving() as victim:

        def lead(handler: Handler) -> bool:
            handler.body()
            handler.answer(code, Location=f"http://{victim.host}/containers/x/kill")
            return True

        store.faults.append(lead)
        repository = Repository(RegistryHttp(store.host, ca=ca), NAME, attempts=1)
        for act in (repository.check_access, repository.tags, lambda: repository.put_blob(b"x")):
            with pytest.raises(CheckFailed):
                act()
        assert victim.requests == []


def test_an_answer_is_neither_unpacked_nor_longer_than_any(
    signed: tuple[Store, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_http, "LONGEST", 1000)
    store, ca = signed
    http, body = RegistryHttp(store.host, ca=ca), gzip.compress(bytes(100_000))

    def answer(handler: Handler) -> bool:
        handler.answer(200, body, Content_Encoding="gzip")
        return True

    store.faults.append(answer)
    assert http.request("GET", "v2/", good=(200,)).content == body
    body = bytes(1001)
    with pytest.raises(CheckFailed) as caught:
        http.request("GET", "v2/", good=(200,))
    assert "its answer has more than" in str(caught.value.cause)


def test_its_own_name_by_http_is_no_way_around_https(signed: tuple[Store, Path]) -> None:
    """Whoever is on the network answers there, and could ask for the login."""
    store, ca = signed

    def lead(handler: Handler) -> bool:
        handler.body()
        handler.answer(307, Location=f"http://{store.host}/v2/")
        return True

    store.faults.append(lead)
    http = RegistryHttp(store.host, RegistryLogin("me", "secret"), ca=ca)
    with pytest.raises(CheckFailed) as caught:
        http.request("GET", "v2/", good=(200,))
    assert f"http://{store.host}/v2/, which is not https" in str(caught.value.cause)


@pytest.mark.parametrize("place", ["https://[", "https://a:99999999/x", "//[::1", "https://"])
@pytest.mark.parametrize("code", [202, 307, 401])
def test_an_address_that_is_none_is_the_registrys_fault(place: str, code: int) -> None:
    with serving() as store:

        def lead(handler: Handler) -> bool:
            handler.body()
            more = {"WWW-Authenticate": f'Bearer realm="{place}"'} if code == 401 else {"Location": place}
            handler.answer(code, **more)
            return True

        store.faults += [lead] * 20
        repository = Repository(RegistryHttp(store.host, plain=True), NAME, attempts=1, sleep=lambda seconds: None)
        with pytest.raises((CheckFailed, Missing)):
            repository.check_access()


@pytest.mark.parametrize(
    "body", [b"[1]", b"{", b"[" * 100_000, b'{"tags": 5}', b'{"tags": [{}]}', b"\xff", b"1" + b"0" * 400, b""]
)
def test_tags_of_another_shape_are_the_registrys_fault(body: bytes) -> None:
    with serving() as store:

        def say(handler: Handler) -> bool:
            handler.answer(200, body)
            return True

        store.faults.append(say)
        with pytest.raises(CheckFailed) as caught:
            Repository(RegistryHttp(store.host, plain=True), NAME, attempts=1).tags()
        assert "by something else" in f"{caught.value.cause}"


@pytest.mark.parametrize(("host", "sent"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_a_plain_registry_sends_the_login_to_no_other_host_in_clear(host: str, sent: bool) -> None:
    with serving() as store, serving() as other:
        asked: list[str | None] = []

        def listen(handler: Handler) -> bool:
            asked.append(handler.headers.get("Authorization"))
            handler.answer(200, b'{"token": "t"}')
            return True

        def lead(handler: Handler) -> bool:
            realm = f"http://{host}:{other.host.rpartition(':')[2]}/token"
            handler.answer(401, **{"WWW-Authenticate": f'Bearer realm="{realm}"'})
            return True

        store.faults, other.faults = [lead] * 4, [listen] * 4
        http = RegistryHttp(store.host, RegistryLogin("me", "secret"), plain=True)
        with pytest.raises((CheckFailed, Missing)):
            http.request("GET", "v2/", good=(200,))
        assert bool(asked) is sent


@pytest.mark.parametrize(("place", "sent"), [("127.0.0.1", True), ("localhost", False)])
def test_an_insecure_registry_can_have_the_login_sent_to_no_other_host(
    place: str, sent: bool, signed: tuple[Store, Path]
) -> None:
    """Not by https either: nobody looks at the certificate there, and who names the host proved nothing."""
    asked: list[str | None] = []

    def listen(handler: Handler) -> bool:
        asked.append(handler.headers.get("Authorization"))
        handler.answer(200, b'{"token": "t"}')
        return True

    def lead(handler: Handler) -> bool:
        realm = f"https://{place}:{signed[0].host.rpartition(':')[2]}/token"
        handler.answer(401, **{"WWW-Authenticate": f'Bearer realm="{realm}"'})
        return True

    with serving() as store:
        store.faults, signed[0].faults = [lead] * 4, [listen] * 4
        http = RegistryHttp(store.host, RegistryLogin("me", "secret"), insecure=True)
        with pytest.raises((CheckFailed, Missing)):
            http.request("GET", "v2/", good=(200,))
        assert bool(asked) is sent


def test_a_token_of_docker_login_is_sent_on_to_nobody() -> None:
    """It is the request's body, which a redirect would take along to whomever it names."""
    with serving() as store, serving() as other:
        asked: list[bytes] = []

        def listen(handler: Handler) -> bool:
            handler.body()
            handler.answer(200, b'{"token": "t"}')
            return True

        def lead(handler: Handler) -> bool:
            if handler.path.startswith("/token"):
                asked.append(handler.body())
                handler.answer(307, Location=f"http://{other.host.replace('127.0.0.1', 'localhost')}/v2/")
            else:
                handler.answer(401, **{"WWW-Authenticate": f'Bearer realm="http://{store.host}/token"'})
            return True

        store.faults, other.faults = [lead] * 4, [listen] * 4
        http = RegistryHttp(store.host, RegistryLogin("", "identity"), insecure=True)
        with pytest.raises((CheckFailed, Missing)):
            http.request("GET", "v2/", good=(200,))
        assert b"refresh_token=identity" in asked[0]
        assert not other.requests


@pytest.mark.parametrize("digits", ["9" * 5000, "9" * 19])
def test_how_much_of_an_upload_arrived_is_no_number_of_any_length(digits: str) -> None:
    with serving() as store:

        def say(handler: Handler) -> bool:
            handler.answer(204, Location="/v2/x", Range=f"0-{digits}")
            return True

        store.faults.append(say)
        with pytest.raises(_Lost):
            Repository(RegistryHttp(store.host, plain=True), NAME)._where("/v2/x")


@pytest.mark.parametrize("body", [b"[1]", b"{", b"[" * 100_000, b'{"token": 5}', b'{"token": "a\\nX: y"}', b"\xff"])
def test_a_token_of_another_shape_is_the_registrys_fault(body: bytes) -> None:
    with serving() as store:

        def say(handler: Handler) -> bool:
            if handler.path.startswith("/token"):
                handler.answer(200, body)
            else:
                handler.answer(401, **{"WWW-Authenticate": f'Bearer realm="http://{store.host}/token"'})
            return True

        store.faults.append(say)
        with pytest.raises(CheckFailed) as caught:
            Repository(RegistryHttp(store.host, plain=True), NAME, attempts=1).tags()
        assert "by something else" in f"{caught.value.cause}"
