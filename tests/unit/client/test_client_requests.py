"""What the clients send again, and what they take for no answer. Against the service itself: test_service_client.py."""

from __future__ import annotations

import socket

import httpx
import pytest

from rocstack.client import AsyncServiceClient, RequestFailed, ServiceClient, service_client


def test_both_clients_have_the_same_calls() -> None:
    own = {name for name in vars(ServiceClient) if not name.startswith("_")}
    assert own == {name for name in vars(AsyncServiceClient) if not name.startswith("_")}


def test_reads_are_tried_again_and_changes_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_client, "PAUSE_S", 0.0)
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        if asked.count("GET") > 2 and request.method == "GET":
            return httpx.Response(200, json={"id": "alice", "object": "person", "uid": 1})
        if len(asked) == 1:
            raise httpx.ReadError("reset", request=request)
        return httpx.Response(503, json={"error": {"message": "away", "code": "slurm-away", "param": None}})

    with ServiceClient("https://x", "t", transport=httpx.MockTransport(answer)) as client:
        assert client.me()["id"] == "alice"
        with pytest.raises(RequestFailed, match="away"):
            client.submit("mine")
    assert asked == ["GET", "GET", "GET", "POST"]


def test_what_is_no_answer_of_the_service() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with ServiceClient(f"http://127.0.0.1:{probe.getsockname()[1]}", "t") as client:
            with pytest.raises(RequestFailed) as refused:
                client.cancel("job-1")
            assert (refused.value.status, refused.value.code) == (0, "no-answer")
    page = httpx.MockTransport(lambda _: httpx.Response(502, text="<html>"))
    with ServiceClient("https://x", "t", transport=page) as client, pytest.raises(RequestFailed) as refused:
        client.nodes()
    assert (refused.value.status, refused.value.code) == (502, "no-answer")


@pytest.mark.parametrize("kind", [ServiceClient, AsyncServiceClient])
def test_no_token_goes_to_another_host_in_the_clear(kind: type[ServiceClient] | type[AsyncServiceClient]) -> None:
    for url in ("http://c1:8443", "HTTP://c1", "http://127.0.0.1.example.org/v1"):
        with pytest.raises(ValueError, match="use https"):
            kind(url, "t")
    for url in ("https://c1:8443/v1", "http://127.0.0.1:8000", "http://[::1]:8000"):
        kind(url, "t")
