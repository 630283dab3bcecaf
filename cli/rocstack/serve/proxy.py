"""A request on its way to the engine and its answer on the way back: the adapter's name becomes the engine's own id for
it and again its name, and a stream that breaks off ends with an error that OpenAI's clients raise."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.base.text import values_of
from rocstack.serve.engine import DEAD, DEAD_EVENT

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
# Of a request: what reaches beyond it, into the engine or to another's answers.
REFUSED = (
    "prompt_embeds", "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "logits_processors",
    "previous_response_id", "chat_template", "mm_processor_kwargs", "media_io_kwargs",
)  # fmt: skip
# Of `chat_template_kwargs`: what is no word of a template, but says how the tokenizer works; older engines pass it on.
TOKENIZERS = (
    "chat_template", "conversation", "max_length", "padding", "return_dict", "return_tensors", "tokenize",
    "tokenizer_kwargs", "truncation",
)  # fmt: skip
MOST_VALUES = 400_000  # of a request: more than a context has tokens
# Of a message's parts: the engine would fetch what they name, from wherever it reaches.
MEDIA = ("image_url", "audio_url", "video_url", "file_url")
# Or take as they are: tensors, and names by which it keeps a picture, which are the same for all who ask.
KEPT = ("image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "uuid")
MOST_EVENT = 64 << 20  # bytes of one event
LONGEST = 255  # characters of a model's name
EVENTS, UNKNOWN = "text/event-stream", "application/octet-stream"
_MODEL = rb'("model"\s*:\s*)'
_DONE = b"data: [DONE]"
_LAST = (_DONE, b"event: response.completed", b"event: response.incomplete", b"event: response.failed")


class Upstream(Protocol):
    """Whoever answers: the engine, or for the service a gateway."""

    @property
    def client(self) -> httpx.AsyncClient: ...
    def doubt(self) -> None:
        """A request found it gone."""


@dataclass(frozen=True)
class ModelRequest:
    """A request, read and checked as far as it is the gateway's affair."""

    model: str
    stream: bool
    body: dict[str, Any]


async def read(request: Request, most: int) -> ModelRequest:
    """
    Raises:
        BadInput: it is too large, no JSON, names no model, or asks for what is nobody's to ask.
    """
    raw = bytearray()
    async for piece in request.stream():
        raw += piece
        if len(raw) > most:
            raise BadInput.of("request-too-large", most=most >> 20)
    if values_of(bytes(raw)) > MOST_VALUES:
        raise BadInput.of("request-too-many-values", most=f"{MOST_VALUES:,}")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise BadInput.of("request-no-json") from None
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise BadInput.of("request-without-model")
    if not (0 < len(body["model"]) <= LONGEST and body["model"].isprintable()):
        raise BadInput.of("request-model-name", most=LONGEST)
    for name in REFUSED:
        if body.get(name) is not None:
            raise BadInput.of("request-refused", name=name)
    words = body.get("chat_template_kwargs")
    for name in words if isinstance(words, dict) else ():
        if name in TOKENIZERS:
            raise BadInput.of("request-refused", name=f"chat_template_kwargs.{name}")
    if body.get("background"):
        raise BadInput.of("request-refused", name="background")
    for name in _parts(body):
        raise BadInput.of("request-refused" if name in KEPT else "request-elsewhere", name=name)
    return ModelRequest(body["model"], body.get("stream") is True, body)


def _parts(body: dict[str, Any]) -> Iterator[str]:
    """What of the messages' parts isn't in the request itself, or is the engine's own."""
    left: list[Any] = [body.get("messages"), body.get("input")]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            if each.get("type") in KEPT:
                yield each["type"]
            for name, value in each.items():
                address = value.get("url") if isinstance(value, dict) else value
                outside = name in MEDIA and isinstance(address, str) and not address.startswith("data:")
                if outside or (name in KEPT and value is not None):
                    yield str(name)
                left.append(value)


@dataclass(frozen=True)
class Names:
    """The engine's name of a model, and the one that the user knows."""

    engine: str
    user: str

    def back(self, raw: bytes) -> bytes:
        if self.engine == self.user:
            return raw
        # Only as a value of `model`: quotes in a text are escaped, but a text may be the name and nothing else.
        there, user = _MODEL + re.escape(json.dumps(self.engine).encode()), json.dumps(self.user).encode()
        return re.sub(there, lambda found: found[1] + user, raw)


class NotSent(CheckFailed):
    """The engine wasn't there: it has seen nothing of the request, which can be sent to the next one."""


async def forward(
    engine: Upstream,
    request: Request,
    asked: ModelRequest,
    names: Names,
    stack: AsyncExitStack,
    *,
    most: int = MOST_EVENT,
    stopping: asyncio.Event | None = None,
) -> Response:
    """The engine's answer. `stack` is closed once the last byte of it is sent, or the user is gone. An answer, or an
    event of a stream, has `most` bytes at most; a stream ends once `stopping` is set.

    Raises:
        CheckFailed: the engine ended before it answered.
        NotSent: it was not there.
    """
    path = request.url.path
    content = json.dumps({**asked.body, "model": names.engine}).encode()
    sent = engine.client.build_request("POST", path, content=content, headers={"Content-Type": "application/json"})
    try:
        answer = await unless_gone(request, engine.client.send(sent, stream=True))
        stack.push_async_callback(answer.aclose)
        kind = answer.headers.get("content-type", "application/json")
        kind = kind if kind.isascii() else UNKNOWN  # another one can't be said on
        if kind.startswith(EVENTS):
            body = _events(engine, _until(stopping, answer.aiter_raw()), names, path, stack, most)
            return StreamingResponse(body, answer.status_code, media_type=kind, headers={"Cache-Control": "no-cache"})
        raw = await unless_gone(request, _whole(answer, most))
    except (httpx.ConnectError, httpx.ConnectTimeout):
        engine.doubt()
        raise NotSent.of("engine-lost", why="it was not there") from None
    except httpx.HTTPError as error:
        engine.doubt()
        raise CheckFailed.of("engine-lost", why=type(error).__name__) from None
    if answer.status_code >= 500 and DEAD.search(raw):
        engine.doubt()
        raise CheckFailed.of("engine-lost", why="its core ended")
    await stack.aclose()
    return Response(names.back(raw), answer.status_code, media_type=kind)


async def _whole(answer: httpx.Response, most: int) -> bytes:
    """
    Raises:
        httpx.DecodingError: it is larger than any answer.
    """
    raw = bytearray()
    async for piece in answer.aiter_raw():
        raw += piece
        if len(raw) > most:
            raise httpx.DecodingError("too large")
    return bytes(raw)


async def unless_gone(request: Request, work: Any) -> Any:
    """What `work` gives. It is cancelled once the user is gone, which frees the engine of it."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise CheckFailed.of("user-gone")
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Stopping(Exception):
    """This process is asked to end; the engine isn't."""


async def _until(stopping: asyncio.Event | None, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """
    Raises:
        _Stopping: it was set before the last piece came.
    """
    if stopping is None:
        async for piece in pieces:
            yield piece
        return
    end = asyncio.ensure_future(stopping.wait())
    coming: asyncio.Future[bytes] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(_next(pieces))
            await asyncio.wait([coming, end], return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                raise _Stopping
            if not (piece := coming.result()):
                return
            yield piece
    finally:
        end.cancel()
        if coming and not coming.done():
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _next(pieces: AsyncIterator[bytes]) -> bytes:
    """Nothing after the last."""
    async for piece in pieces:
        if piece:
            return piece
    return b""


async def _events(
    engine: Upstream, pieces: AsyncIterator[bytes], names: Names, path: str, stack: AsyncExitStack, most: int
) -> AsyncIterator[bytes]:
    """Whole events, so that no name is cut in two, and an error if they end before their end."""
    async with stack:
        rest, last = bytearray(), b""
        try:
            async for piece in pieces:
                seen = max(0, len(rest) - 1)  # up to here no event ends
                rest += piece
                if (end := rest.rfind(b"\n\n", seen)) >= 0:
                    whole = bytes(rest[: end + 2])
                    del rest[: end + 2]
                    if DEAD_EVENT.search(whole):  # vLLM's own word for it, in an event that looks like an answer's end
                        break
                    last = whole[:-2].rpartition(b"\n\n")[2].lstrip()
                    yield names.back(whole)
                if len(rest) > most:
                    break
            else:
                if _ended(last, path):
                    return
        except httpx.HTTPError:
            pass
        except _Stopping:
            yield broken(path)
            return
        engine.doubt()
        yield broken(path)


def _ended(last: bytes, path: str) -> bool:
    """Whether the last event says that it is the last."""
    return last.startswith(_LAST) if path == "/v1/responses" else last.strip() == _DONE


def broken(path: str) -> bytes:
    """The event of a stream whose engine ended, in the shape that OpenAI's clients raise."""
    error = CheckFailed.of("stream-broken")
    said = {"message": f"{error.what}: {error.next_step}", "param": None, "code": error.code}
    if path == "/v1/responses":
        return b"event: error\ndata: " + json.dumps({"type": "error", **said, "sequence_number": 0}).encode() + b"\n\n"
    return b"data: " + json.dumps({"error": {"type": "server_error", **said}}).encode() + b"\n\n"
