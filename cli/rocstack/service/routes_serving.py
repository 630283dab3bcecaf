"""`/v1/chat/completions`, `/v1/completions`, `/v1/responses` by a server of the model; `/v1/servers` to have one."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from rocstack.client.answers import ListOf, PersonAnswer, ServerAnswer
from rocstack.serve import proxy
from rocstack.serve.proxy import ModelRequest, Names
from rocstack.service.failures import Away, NotThere
from rocstack.service.identity import Caller
from rocstack.service.routes import Person, Serving, page
from rocstack.service.service import Service
from rocstack.service.serving import SERVING, ModelServer, ServerRequest

router = APIRouter(prefix="/v1")
MOST_BODY = 8 << 20  # bytes of a request
MOST_EVENT = 4 << 20  # and of an answer, or of one event of a stream
KINDS = ("application/json", proxy.EVENTS)  # of answers; a page that a server makes is shown to nobody
BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": {
    "type": "object", "required": ["model"], "properties": {"model": {"type": "string"}}, "additionalProperties": True,
}}}}}  # fmt: skip


class Deleted(BaseModel):
    id: str
    object: str = "server"
    deleted: bool = True


@dataclass(frozen=True)
class _Asked:
    """A server that is being asked."""

    client: httpx.AsyncClient

    def doubt(self) -> None:
        """The next request asks again: nothing is kept."""


async def answer(service: Service, request: Request, caller: Caller, asked: ModelRequest) -> Response:
    """Of the first server that is there.

    Raises:
        NotThere, RequestRefused, Away: as `ModelServers.find`; no server answers.
    """
    names, servers = await service.servers.find(caller, asked.model)
    for server in servers:
        try:
            return await _by(service, server, request, asked, names)
        except proxy.NotSent:
            continue
    raise Away.of("server-lost", model=names.user)


async def _by(service: Service, server: ModelServer, request: Request, asked: ModelRequest, names: Names) -> Response:
    stack = AsyncExitStack()
    try:
        client = await stack.enter_async_context(server.client())
        found = await proxy.forward(
            _Asked(client), request, asked, names, stack, most=MOST_EVENT, stopping=service.stopping
        )
    except BaseException:
        await stack.aclose()
        raise
    kind = found.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found.status_code == 401 or kind not in KINDS:  # its token is a new one's already, or it is no gateway
        await stack.aclose()
        raise Away.of("server-lost", model=names.user)
    return found


async def complete(request: Request, service: Serving, caller: Person) -> Response:
    asked = await proxy.read(request, MOST_BODY)
    return await answer(service, request, caller, asked)


for path in proxy.PATHS:
    place = path.removeprefix("/v1")
    router.add_api_route(
        place, complete, methods=["POST"], tags=["serving"], summary="Ask a model, as OpenAI's", response_model=None,
        operation_id=place.strip("/").replace("/", "_"), openapi_extra=BODY,
    )  # fmt: skip


@router.get("/me", tags=["service"], summary="Who I am", response_model=PersonAnswer)
async def me(caller: Person) -> dict[str, Any]:
    return {"id": caller.name, "object": "person", "uid": caller.uid}


@router.post(
    "/servers",
    tags=["serving"],
    summary="Serve a base model, and your adapters of it",
    response_model=ListOf[ServerAnswer],
)
async def start_server(service: Serving, caller: Person, body: ServerRequest) -> dict[str, Any]:
    """A job for each replica, on one node each. It can be asked once its `status` is ready."""
    rows = await service.servers.start(caller, body)
    return page([await service.servers.to_dict(caller, row) for row in rows], False)


@router.get(
    "/servers", tags=["serving"], summary="List your servers that wait or run", response_model=ListOf[ServerAnswer]
)
async def list_servers(service: Serving, caller: Person) -> dict[str, Any]:
    rows = await service.servers.live(caller)
    return page([await service.servers.to_dict(caller, row) for row in rows], False)


@router.delete("/servers/{server}", tags=["serving"], summary="End a server")
async def end_server(service: Serving, caller: Person, server: str) -> Deleted:
    if (await service.jobs.get(caller, server)).kind != SERVING:
        raise NotThere.of("no-such-own-job", job=server).about("server")
    await service.jobs.cancel(caller, server)
    return Deleted(id=server)
