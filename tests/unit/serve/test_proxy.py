"""What the gateway and the service pass on, without either of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from rocstack.base.errors import BadInput
from rocstack.serve import proxy
from rocstack.serve.proxy import ModelRequest, Names

CHAT = "/v1/chat/completions"


async def read(body: bytes) -> ModelRequest:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return await proxy.read(Request({"type": "http", "method": "POST", "path": CHAT, "headers": []}, receive), 1 << 20)


def part(content: dict[str, Any]) -> bytes:
    """A request with this part in its message."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": [content]}]}).encode()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"model": "m", "x": [' + b"[]," * 200_000 + b"0]}", "request-too-many-values"),
        (b'{"model": "m", "vllm_xargs": {"kv_transfer_params": {}}}', "request-refused"),
        (b'{"model": "m", "ec_transfer_params": {"a": 1}}', "request-refused"),
        (b'{"model": "m", "mm_processor_kwargs": {"a": 1}}', "request-refused"),
        (b'{"model": "m", "chat_template_kwargs": {"chat_template": "{{ 1 }}"}}', "request-refused"),
        (b'{"model": "m", "chat_template_kwargs": {"padding": "max_length", "a": 1}}', "request-refused"),
        (part({"type": "image_url", "image_url": {"url": "data:x"}, "uuid": "theirs"}), "request-refused"),
        (part({"type": "image_url", "image_url": None, "uuid": "theirs"}), "request-refused"),
        (part({"type": "image_embeds", "image_embeds": "AA=="}), "request-refused"),
        (part({"image_embeds": {"a": "AA=="}}), "request-refused"),
        (part({"type": "prompt_embeds", "data": "AA=="}), "request-refused"),
        (part({"type": ["prompt_embeds"], "image_url": {"url": "http://169.254.169.254/"}}), "request-elsewhere"),
    ],
)
def test_what_is_nobodys_to_ask(body: bytes, code: str) -> None:
    with pytest.raises(BadInput) as refused:
        asyncio.run(read(body))
    assert refused.value.code == code


def test_words_of_a_template_are_taken() -> None:
    words = {"enable_thinking": False}
    asked = asyncio.run(read(json.dumps({"model": "m", "chat_template_kwargs": words}).encode()))
    assert asked.body["chat_template_kwargs"] == words


@dataclass
class Asked:
    client: httpx.AsyncClient
    doubts: list[str] = field(default_factory=list)

    def doubt(self) -> None:
        self.doubts.append("doubt")


class Pieces(httpx.AsyncByteStream):
    """An answer in pieces; `None`: nothing comes any more."""

    def __init__(self, *pieces: bytes | None) -> None:
        self.pieces, self.closed = pieces, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            if piece is None:
                await asyncio.Event().wait()
            yield piece or b""

    async def aclose(self) -> None:
        self.closed = True


async def stays() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def engine(answer: httpx.Response | Exception) -> Asked:
    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Asked(httpx.AsyncClient(transport=httpx.MockTransport(handle), base_url="http://engine"))


async def stream(pieces: Pieces, **options: Any) -> tuple[Asked, AsyncIterator[bytes]]:
    asked = engine(httpx.Response(200, headers={"content-type": proxy.EVENTS}, stream=pieces))
    request = Request({"type": "http", "method": "POST", "path": CHAT, "headers": []}, stays)
    found = await proxy.forward(
        asked, request, ModelRequest("b", True, {}), Names("a", "b"), AsyncExitStack(), **options
    )
    assert isinstance(found, StreamingResponse)
    return asked, found.body_iterator  # type: ignore[return-value]


async def whole(pieces: Pieces, **options: Any) -> tuple[bytes, list[str]]:
    asked, body = await stream(pieces, **options)
    return b"".join([each async for each in body]), asked.doubts


def event(**said: Any) -> bytes:
    return b"data: " + json.dumps(said).encode() + b"\n\n"


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ConnectTimeout("off")])
def test_where_nobody_is_the_next_one_can_be_asked(error: Exception) -> None:
    request = Request({"type": "http", "method": "POST", "path": CHAT, "headers": []}, stays)
    asked = engine(error)
    with pytest.raises(proxy.NotSent):
        asyncio.run(proxy.forward(asked, request, ModelRequest("a", False, {}), Names("a", "a"), AsyncExitStack()))
    assert asked.doubts == ["doubt"]


def test_a_kind_of_answer_that_no_header_can_say() -> None:
    """A person's own server can call its answer anything."""
    request = Request({"type": "http", "method": "POST", "path": CHAT, "headers": []}, stays)
    kind = {"content-type": "application/json; \u2603".encode()}
    asked = engine(httpx.Response(200, headers=kind, stream=Pieces(b"{}")))
    stack = AsyncExitStack()
    found = asyncio.run(proxy.forward(asked, request, ModelRequest("a", False, {}), Names("a", "a"), stack))
    assert (found.headers["content-type"], found.body) == (proxy.UNKNOWN, b"{}")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_whole_however_they_come(size: int) -> None:
    sent = event(model="a", n=1) + b"\n" + event(model="a", n=2) + b"data: [DONE]\n\n"
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    assert asyncio.run(whole(Pieces(*pieces))) == (sent.replace(b'"a"', b'"b"'), [])


def test_an_event_without_end_is_bounded() -> None:
    said, doubts = asyncio.run(whole(Pieces(event(n=1), *[b"x" * 1000] * 10, b"\n\ndata: [DONE]\n\n"), most=5000))
    assert said == event(n=1) + proxy.broken(CHAT)
    assert doubts == ["doubt"]


def test_a_stream_ends_with_whoever_passes_it_on() -> None:
    async def work() -> tuple[list[bytes], Asked, Pieces]:
        stopping, pieces = asyncio.Event(), Pieces(event(n=1), None)
        asked, body = await stream(pieces, stopping=stopping)
        found = [await anext(body)]
        stopping.set()
        return found + [each async for each in body], asked, pieces

    said, asked, pieces = asyncio.run(asyncio.wait_for(work(), 20))
    assert said == [event(n=1), proxy.broken(CHAT)]
    assert (asked.doubts, pieces.closed) == ([], True)
    done = event(n=1) + b"data: [DONE]\n\n"

    async def in_time() -> tuple[bytes, list[str]]:
        return await whole(Pieces(done), stopping=asyncio.Event())

    assert asyncio.run(in_time()) == (done, [])
