"""The page on which a model is tried in a text box, and a server of it is started and ended."""

from typing import Annotated
from urllib.parse import quote

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from rocstack.base.errors import RocstackError
from rocstack.service.page import draw, router
from rocstack.service.page_forms import fields, problem
from rocstack.service.routes import Person, Serving
from rocstack.service.serving import ServerRequest

TOKENS = 256  # of an answer, unless another number is chosen
MOST_TOKENS = 4096
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
        if not text:
            raise ValueError("write something first")
        said = await service.servers.ask(caller, model, [{"role": "user", "content": text}], tokens)
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


@router.post("/servers")
async def serve(request: Request, service: Serving, caller: Person) -> Response:
    given = await fields(request)
    try:
        asked = {name: given[name] for name in ("model", "gpus_per_node", "time", "partition") if given.get(name)}
        await service.servers.start(caller, ServerRequest.model_validate(asked))
    except (ValidationError, RocstackError) as error:
        return draw(request, "error", 400, user=caller.name, message=problem(error))
    return RedirectResponse(f"/try?model={quote(given['model'], safe='')}", 303)
