"""People whom the service knows, and gateways that announce how they are reached."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.serve import announcement, settings
from rocstack.serve.__main__ import _uvicorn
from rocstack.serve.announcement import Announcement, Holder
from rocstack.serve.identity import ServicePeople
from rocstack.serve.own_certificate import new_certificate


def people(*answers: httpx.Response | Exception) -> tuple[ServicePeople, list[httpx.Request]]:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        found = answers[min(len(asked), len(answers)) - 1]
        if isinstance(found, Exception):
            raise found
        return found

    return ServicePeople("https://service", transport=httpx.MockTransport(answer)), asked


def test_headers_of_a_stranger_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's image has httptools, by which uvicorn would keep all that come: one connection filled the memory."""
    monkeypatch.setattr("uvicorn.protocols.http.auto.AutoHTTPProtocol", None)
    chosen = settings.ServeSettings(model="/models/tiny", state=str(tmp_path))
    config = _uvicorn(FastAPI(), chosen, None, None)
    config.load()
    assert config.http_protocol_class is H11Protocol
    assert config.h11_max_incomplete_event_size == 64 << 10


def test_a_token_is_asked_for_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    identity, asked = people(httpx.Response(200, json={"id": "ann"}))

    async def work() -> list[str | None]:
        return list(await asyncio.gather(*(identity.user("a-token") for _ in range(20))))

    assert asyncio.run(work()) == ["ann"] * 20
    assert [each.headers["authorization"] for each in asked] == ["Bearer a-token"]
    monkeypatch.setattr("rocstack.serve.identity.time.monotonic", lambda: 1e12)
    assert asyncio.run(identity.user("a-token")) == "ann"
    assert len(asked) == 2


def test_a_service_that_hangs_for_one_holds_up_nobody_else() -> None:
    ends = asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        if "slow" in request.headers["authorization"]:
            await ends.wait()
        return httpx.Response(200, json={"id": "ann"})

    async def work() -> None:
        identity = ServicePeople("https://service", transport=httpx.MockTransport(answer))
        gone, stays = (asyncio.create_task(identity.user("slow")) for _ in range(2))
        await asyncio.sleep(0)
        assert await identity.user("quick") == "ann"
        gone.cancel()  # she went away; the other request with her token goes on
        ends.set()
        assert await stays == "ann"
        assert not identity._asking

    asyncio.run(work())


def test_no_proxy_of_the_environment_sees_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert not ServicePeople("https://service")._client._mounts


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_of_nobody(status: int) -> None:
    identity, asked = people(httpx.Response(status, json={"error": {}}))
    assert [asyncio.run(identity.user("x")) for _ in range(3)] == [None] * 3
    assert len(asked) == 1
    for token in (None, "", "x" * 20_000, "ü"):
        assert asyncio.run(identity.user(token)) is None
    assert len(asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        httpx.ConnectError("refused"), httpx.Response(503, json={}), httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"id": "../root"}), httpx.Response(200, json=[]), httpx.Response(200, json={"id": 7}),
    ],
)  # fmt: skip
def test_a_service_that_is_away_or_is_none(answer: Any) -> None:
    identity, _ = people(answer, httpx.Response(200, json={"id": "ann"}))
    with pytest.raises(CheckFailed) as failed:
        asyncio.run(identity.user("x"))
    assert failed.value.code == "people-away"
    assert asyncio.run(identity.user("x")) == "ann"  # the next time


def test_a_ca_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no")
    for file in (tmp_path / "ca.pem", tmp_path / "none"):
        with pytest.raises(BadInput) as refused:
            ServicePeople("https://service", file)
        assert refused.value.code == "people-ca"


def test_what_is_announced_is_read_again_and_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    certificate, key = new_certificate(tmp_path)
    assert [each.stat().st_mode & 0o077 for each in (certificate, key)] == [0, 0]
    said = Announcement(8443, announcement.new_token(), certificate.read_text())
    said.write(tmp_path / "server.json")
    assert (tmp_path / "server.json").stat().st_mode & 0o777 == 0o600
    assert announcement.parse((tmp_path / "server.json").read_bytes()) == said
    assert said.trust().verify_mode == ssl.CERT_REQUIRED
    assert [asyncio.run(Holder(said.token).user(each)) for each in (said.token, "x", None, "ü")] == [
        "local",
        *[None] * 3,
    ]
    tmp_path.chmod(0o755)
    with pytest.raises(CheckFailed) as failed:
        said.write(tmp_path / "again.json")
    assert (failed.value.code, list(tmp_path.glob("*again*"))) == ("not-announced", [])


@pytest.mark.skipif(shutil.which("setfacl") is None, reason="setfacl is not installed (package acl)")
def test_whom_the_folder_names_may_read_what_is_announced(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    subprocess.run(["setfacl", "--default", "--modify=user:64033:r", str(tmp_path)], check=True)
    Announcement(8443, announcement.new_token(), "").write(tmp_path / "server.json")
    listed = subprocess.run(
        ["getfacl", "-n", str(tmp_path / "server.json")], capture_output=True, text=True, check=True
    )
    assert "user:64033:r--\n" in listed.stdout
    assert "other::---" in listed.stdout


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"listen": "0.0.0.0:0"}, "it needs announce"),
        ({"listen": "0.0.0.0:8443"}, "it needs a certificate and a key"),
        ({"announce": "/x/a", "tokens": "/x/t"}, "choose one"),
        ({"people": {"url": "https://s"}, "tokens": "/x/t"}, "choose one"),
        ({"announce": "/x/a", "certificate": "/x/c", "key": "/x/k"}, "a certificate of its own"),
        ({"people": {"url": "https://u:p@s"}}, "people.url"),
        ({"people": {"url": "http://10.0.0.1:8443"}}, "in the clear"),
    ],
)
def test_settings_that_do_not_go_together(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "serve.json").write_text(json.dumps({"model": "/m", "state": "/s", **change}))
    with pytest.raises(BadInput) as refused:
        settings.load(tmp_path / "serve.json")
    assert says in refused.value.what
