"""The gateway over HTTP: OpenAI's calls passed through to the engine, and the gateway's own about adapters."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response

from rocstack.base import __version__
from rocstack.base.errors import BadInput, RocstackError
from rocstack.base.server_address import LOOPBACK
from rocstack.serve import metrics, proxy
from rocstack.serve.gateway import Gateway
from rocstack.serve.identity import Anyone

STATUS = {"unserved-model": 404, "adapter-gone": 404, "no-token": 401, "request-too-large": 413, "user-gone": 499}
STATUS |= {"too-many-pins": 409, "no-place-to-pin": 409, "adapter-not-loaded": 502, "adapter-not-copied": 507}
TYPES = {401: "authentication_error", 404: "not_found_error", 499: "client_closed_request"}
RETRY_S = 5
PAGE = 1000


def make_app(gateway: Gateway) -> FastAPI:
    """The gateway starts and ends with the application."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    app = FastAPI(
        title="rocstack serve",
        version=__version__,
        description=f"Many adapters of {gateway.settings.base}, with OpenAI's interface",
        lifespan=life,
        docs_url=None,  # its pages come from another host
        redoc_url=None,
    )
    app.add_exception_handler(RocstackError, _error)

    async def user(request: Request) -> str:
        """Who asks.

        Raises:
            BadInput: it is nobody known.
        """
        if isinstance(gateway.identity, Anyone):
            _refuse_page_of_another(request)
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        found = await gateway.identity.user(token.strip() if kind.lower() == "bearer" else None)
        if found is None:
            raise BadInput.of("no-token")
        return found

    User = Annotated[str, Depends(user)]

    async def passed(request: Request, user: str, asked: proxy.ModelRequest) -> Response:
        stack = AsyncExitStack()
        try:
            names = await proxy.unless_gone(request, gateway.enter(user, asked.model, stack))
            return await proxy.forward(gateway.engine, request, asked, names, stack)
        except BaseException:
            await stack.aclose()
            raise

    async def answer(request: Request, user: User) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise BadInput.of("request-no-json")
        asked = await proxy.read(request, gateway.settings.body_mib << 20)
        gateway.asked += 1
        try:
            return await passed(request, user, asked)
        except proxy.NotSent:
            return await passed(request, user, asked)

    for path in proxy.PATHS:
        app.post(path, response_model=None, name=path.rpartition("v1/")[2])(answer)

    @app.get("/v1/models")
    async def models(user: User) -> dict[str, Any]:
        """The base model, the user's adapters and the shared ones."""
        listed = [_model(gateway.settings.base, "rocstack")]
        listed += [
            _model(each.name, each.owner or "shared", gateway.settings.base)
            for each in gateway.registry.visible(user)
            if each.name != gateway.settings.base
        ]
        return {"object": "list", "data": listed}

    @app.get("/v1/models/{name}")
    async def model(name: str, user: User) -> dict[str, Any]:
        if name == gateway.settings.base:
            return _model(name, "rocstack")
        found = gateway.find(user, name)
        return _model(name, found.owner or "shared", gateway.settings.base)

    @app.get("/v1/adapters")
    async def adapters(
        user: User,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = 100,
        after: str = "",
        resident: bool | None = None,
    ) -> dict[str, Any]:
        """The user's adapters and the shared ones by name, and what is loaded of them. `after` is a name."""
        names = [each for each in gateway.registry.visible(user) if each.name > after]
        if resident is not None:
            loaded = {each.staged.adapter for each in gateway.residency.residents}
            names = [each for each in names if (each in loaded) is resident]
        page = [gateway.about(user, each) for each in names[:limit]]
        return {"object": "list", "data": page, "has_more": len(names) > limit}

    @app.get("/v1/adapters/{name}")
    async def adapter(name: str, user: User) -> dict[str, Any]:
        return gateway.about(user, gateway.find(user, name))

    @app.post("/v1/adapters/{name}/check")
    async def check(name: str, user: User) -> dict[str, Any]:
        """Whether it can be served; an error says why not."""
        found = gateway.find(user, name)
        await gateway.staged(found)
        return gateway.about(user, found)

    @app.put("/v1/adapters/{name}/pin")
    async def pin(name: str, user: User) -> dict[str, Any]:
        """Loads it, and keeps it loaded."""
        found = gateway.find(user, name)
        await gateway.pin(user, found)
        return gateway.about(user, found)

    @app.delete("/v1/adapters/{name}/pin")
    async def unpin(name: str, user: User) -> dict[str, Any]:
        found = gateway.find(user, name)
        gateway.unpin(user, found)
        return gateway.about(user, found)

    @app.get("/health")
    async def health() -> Response:
        """200 once the engine answers; 503 while it starts."""
        state = gateway.engine.state
        return JSONResponse({"engine": state, "version": __version__}, 200 if state == "ready" else 503)

    @app.get("/metrics")
    async def measured() -> Response:
        """The gateway's numbers and vLLM's, for Prometheus. Adapters stand in them by ids that name nobody."""
        return Response(await metrics.text(gateway), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


def _model(name: str, owner: str, parent: str | None = None) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner, "parent": parent}


def _refuse_page_of_another(request: Request) -> None:
    """Without tokens, a web page that the user looks at could ask as well: by a name that leads to loopback.

    Raises:
        BadInput: the request's Host is no loopback name.
    """
    host = request.headers.get("host", "")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.strip("[]").lower() not in LOOPBACK:
        raise BadInput.of("no-token")


async def _error(_: Request, error: Exception) -> JSONResponse:
    """In the shape that OpenAI's clients know."""
    assert isinstance(error, RocstackError)
    status = STATUS.get(error.code, 400 if isinstance(error, BadInput) else 503)
    message = "; ".join(each for each in (error.what, error.cause, error.next_step) if each)
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"message": message, "type": kind, "param": None, "code": error.code}
    headers = (
        {"Retry-After": str(RETRY_S)} if status == 503 else {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    )
    return JSONResponse({"error": body}, status, headers)
