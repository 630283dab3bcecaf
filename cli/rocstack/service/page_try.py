"""The page on which a model is tried in a text box, and a server of it is started."""

from typing import Annotated, Any
from urllib.parse import quote

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
Name = Annotated[str, Query(max_length=255)]


@router.get("/try")
async def try_page(request: Request, service: Serving, caller: Person, model: Name) -> Response:
    return draw(request, "try", **await _about(service, caller, model), **_box())


@router.get("/try/servers")
async def try_servers(
    request: Request, service: Serving, caller: Person, model: Name, was: Annotated[str, Query(max_length=8)] = ""
) -> Response:
    """`was` is what the page was drawn for: where it is something else by now, the whole page is."""
    about = await _about(service, caller, model)
    answer = draw(request, "try-servers", **about)
    if was != about["now"]:
        answer.headers["HX-Refresh"] = "true"
    return answer


@router.post("/try")
async def try_it(request: Request, service: Serving, caller: Person, model: Name) -> Response:
    given = await fields(request)
    text, asked = given.get("text", ""), given.get("tokens") or str(TOKENS)
    said, message = "", ""
    try:
        if not text:
            raise ValueError("write something first")
        if not asked.isdecimal() or not 1 <= int(asked) <= MOST_TOKENS:
            raise ValueError(f"tokens: a number from 1 to {MOST_TOKENS:,}")
        said = await service.servers.ask(caller, model, [{"role": "user", "content": text}], int(asked))
    except (ValueError, RocstackError) as error:
        message = problem(error)
    box = _box(said, message, text, asked)
    if request.headers.get("hx-request"):
        return draw(request, "try-part", **box)
    return draw(request, "try", **await _about(service, caller, model), **box)


def _box(said: str = "", message: str = "", text: str = "", tokens: str = str(TOKENS)) -> dict[str, Any]:
    return {"said": said, "message": message, "text": text, "tokens": tokens, "given": {}}


async def _about(service: Service, caller: Caller, model: str) -> dict[str, Any]:
    """`now`: ready, where one can be asked; waits, where one will be; none."""
    base, _, _ = await service.models.find(caller, model)
    live = [await service.servers.to_dict(caller, row) for row in await service.servers.live(caller)]
    servers = [each for each in live if each["model"] == base]
    shared = any(each.model == base for each in service.settings.servers)
    ready = shared or any(each["status"] == "ready" for each in servers)
    return {
        "model": model, "base": base, "servers": servers, "shared": shared,
        "now": "ready" if ready else "waits" if servers else "none",
        "last": None if servers or shared else await service.servers.last(caller, base),
    }  # fmt: skip


@router.post("/servers")
async def serve(request: Request, service: Serving, caller: Person) -> Response:
    given = await fields(request)
    tried = given.get("tried") or given.get("model", "")  # an adapter is tried at a server of its base model
    try:
        asked = {
            name: given[name] for name in ("model", "replicas", "gpus_per_node", "time", "partition") if given.get(name)
        }
        await service.servers.start(caller, ServerRequest.model_validate(asked))
    except (ValidationError, RocstackError) as error:
        about = await _about(service, caller, tried)
        return draw(request, "try", 400, **about, **_box(message=problem(error)) | {"given": given})
    return RedirectResponse(f"/try?model={quote(tried, safe='')}", 303)
