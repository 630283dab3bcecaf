"""The page on which a model is tried in a text box, and a server of it is started and ended."""

import json
from typing import Annotated, Any
from urllib.parse import quote

import httpx
from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from rocstack.base.errors import RocstackError
from rocstack.service.identity import Caller
from rocstack.service.page import draw, router
from rocstack.service.page_forms import fields, problem
from rocstack.service.routes import Person, Serving
from rocstack.service.service import Service
from rocstack.service.serving import ServerRequest

TOKENS = 256  # of an answer, unless another number is chosen
MOST_TOKENS = 4096
MOST_ANSWER = 4 << 20  # bytes
Name = Annotated[str, Query(max_length=255)]


@router.get("/try")
async def try_page(request: Request, service: Serving, caller: Person, model: Name) -> Response:
    base, _, _ = await service.models.find(caller, model)
    servers = [await service.servers.to_dict(caller, row) for row in await service.servers.live(caller)]
    shared = any(each.model == base for each in service.settings.servers)
    own = [each for each in servers if each["model"] == base]
    return draw(
        request, "try", user=caller.name, model=model, base=base, servers=own, shared=shared, said="", message="",
        tokens=TOKENS, text="",
    )  # fmt: skip


@router.post("/try")
async def try_it(request: Request, service: Serving, caller: Person, model: Name) -> Response:
    given = await fields(request)
    text = given.get("text", "")
    said, message = "", ""
    try:
        tokens = max(1, min(int(given.get("tokens") or TOKENS), MOST_TOKENS))
        said = await _asked(service, caller, model, text, tokens)
    except (ValueError, RocstackError) as error:
        message = problem(error)
    if request.headers.get("hx-request"):
        return draw(request, "try-part", said=said, message=message)
    base, _, _ = await service.models.find(caller, model)
    servers = [await service.servers.to_dict(caller, row) for row in await service.servers.live(caller)]
    return draw(
        request, "try", user=caller.name, model=model, base=base, servers=servers, shared=True, said=said,
        message=message, tokens=given.get("tokens") or TOKENS, text=text,
    )  # fmt: skip


async def _asked(service: Service, caller: Caller, model: str, text: str, tokens: int) -> str:
    """What the model answers to one message.

    Raises:
        RequestRefused, Away: nobody serves it. ValueError: its server refuses, and why.
    """
    if not text:
        raise ValueError("write something first")
    names, servers = await service.servers.find(caller, model)
    body = {"model": names.engine, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    why = ""
    for server in servers:
        async with server.client() as client:
            try:
                async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                    raw = b""
                    async for piece in answer.aiter_bytes():
                        raw += piece
                        if len(raw) > MOST_ANSWER:
                            raise ValueError("the answer is too long to show")
                found: Any = json.loads(raw)
                if answer.status_code == 200:
                    return str(found["choices"][0]["message"]["content"] or "")
                why = str(found["error"]["message"])
                raise ValueError(why)
            except (httpx.HTTPError, KeyError, TypeError, IndexError, RecursionError, json.JSONDecodeError):
                continue
    raise ValueError("its server doesn't answer: look at the log of its job")


@router.post("/servers")
async def serve(request: Request, service: Serving, caller: Person) -> Response:
    given = await fields(request)
    try:
        asked = {name: given[name] for name in ("model", "gpus_per_node", "time", "partition") if given.get(name)}
        await service.servers.start(caller, ServerRequest.model_validate(asked))
    except (ValidationError, RocstackError) as error:
        return draw(request, "error", 400, user=caller.name, message=problem(error))
    return RedirectResponse(f"/try?model={quote(given['model'], safe='')}", 303)
