"""The interface by HTTP: who asks, errors in one form, health, metrics; the routes are in routes_*.py."""

import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from rocstack import base
from rocstack.base.errors import RocstackError
from rocstack.base.text import visible
from rocstack.service import (
    failures,
    field_faults,
    page,
    page_cluster,
    page_sign_in,
    page_try,
    routes_cluster,
    routes_files,
    routes_jobs,
    routes_serving,
    routes_tuning,
)
from rocstack.service.body_limit import BodyLimit
from rocstack.service.failures import to_body
from rocstack.service.service import Service
from rocstack.service.slurmrest import AnswerLost
from rocstack.service.tracing import Span, Tracing

QUIET, _NONE = ("/health", "/metrics"), Tracing()  # asked every few seconds
REQUEST_ID = "X-Request-ID"  # openai's client shows it as `request_id`
UNREAD = "There was an error parsing the body"  # FastAPI's words
log = logging.getLogger(__name__)
ABOUT = """\
Files, fine-tuning jobs and models as OpenAI's interface has them, so the stock `openai` client works; and jobs of any
recipe, nodes and sizes. Send your own Slurm token: `Authorization: Bearer $(rocstack token INVENTORY)`.
Errors have one form: `{"error": {"message", "type", "code", "param"}}`."""


class Numbers:
    """What /metrics gives. Of one application: tests make many."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "rocstack_requests", "Requests answered", ("method", "route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "rocstack_request_seconds", "Seconds to the head of an answer", ("method", "route"), registry=self.registry
        )
        self.open = Gauge("rocstack_requests_open", "Requests that are being answered", registry=self.registry)
        self.up = Gauge("rocstack_database_up", "1: the database answers", registry=self.registry)
        self.silent = Gauge("rocstack_slurm_silent", "1: Slurm didn't answer when last asked", registry=self.registry)


def make(service: Service) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(
        title="rocstack", version=base.__version__, description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.service, app.state.numbers = service, Numbers()
    _errors(app)
    app.add_middleware(BodyLimit)
    _watch(app)
    _open(app)
    interface = (routes_files, routes_tuning, routes_jobs, routes_serving, routes_cluster)
    for routes in (*interface, page_sign_in, page_cluster, page_try):
        app.include_router(routes.router)  # page_try's is that of the other pages
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """With the one way to sign in, and the one form of errors."""
    if not app.openapi_schema:
        found = FastAPI.openapi(app)
        found.setdefault("components", {})["securitySchemes"] = {
            "slurm": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
        }
        found["security"] = [{"slurm": []}]
        error = {
            "type": "object",
            "required": ["error"],
            "properties": {
                "error": {
                    "type": "object",
                    "required": ["message", "type", "code", "param"],
                    "properties": {
                        "message": {"type": "string"},
                        "type": {"type": "string"},
                        "code": {"type": "string"},
                        "param": {"type": ["string", "null"]},
                    },
                }
            },
        }
        schemas = found["components"].setdefault("schemas", {})
        schemas["Error"] = error
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        for path, methods in found["paths"].items():
            for method in methods.values():
                method["responses"].pop("422", None)
                method["responses"]["default"] = {"description": "What can't be done, and why", "content": content}
                if path in ("/health", "/metrics"):
                    method["security"] = []
        app.openapi_schema = found
    return app.openapi_schema


def _errors(app: FastAPI) -> None:
    @app.exception_handler(RocstackError)
    async def refused(_: Request, error: RocstackError) -> JSONResponse:
        status = failures.status_of(error)
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {"Retry-After": "2"} if status == 503 else None
        return JSONResponse(to_body(error), status, headers)

    @app.exception_handler(AnswerLost)
    async def lost(_: Request, __: AnswerLost) -> JSONResponse:
        return JSONResponse(to_body(failures.Away.of("slurm-away")), 503, {"Retry-After": "2"})

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        fault = field_faults.first(error.errors())
        message, param = fault.sentence(), ".".join(fault.place) or None
        return JSONResponse(failures.body(message, "invalid_request_error", "bad-request", param), 400)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        unread = error.status_code == 400 and error.detail == UNREAD
        known = {404: "no-such-page", 405: "no-such-method", 413: "request-too-large"}
        code = known.get(error.status_code, "bad-request")
        what = f"{request.method} {visible(request.url.path)[:200]}"
        absent = error.status_code in (404, 405)
        message = f"nothing is at {what}: /openapi.json has what there is" if absent else str(error.detail)
        message = "the body: it is no JSON, or is nested too deep" if unread else message
        if page.browses(request):
            return page.draw(
                request, "error", error.status_code, message="there is no such page" if absent else message
            )
        body = failures.body(message, "invalid_request_error", code)
        return JSONResponse(body, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        key = getattr(request.state, "key", "")
        log.error("%s: %s %s failed", key, request.method, visible(request.url.path)[:200], exc_info=error)
        message = f"the service failed at this request; its log says why, at {key}"
        if page.browses(request):
            return page.draw(request, "error", 500, message=message)
        return JSONResponse(failures.body(message, "server_error", "service-failed"), 500, {REQUEST_ID: key})


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def _watch(app: FastAPI) -> None:
    numbers: Numbers = app.state.numbers
    traces: Tracing = app.state.service.traces

    def tell(request: Request, span: Span, status: int, began: float) -> None:
        route = getattr(request.scope.get("route"), "path", "none")  # never the path itself: it is without bounds
        method = request.method if request.method in METHODS else "other"  # a stranger's may be of any length
        span.name(f"{method} {route}")
        span.tell({"http.request.method": method, "http.route": route, "http.response.status_code": status})
        numbers.requests.labels(method, route, str(status)).inc()
        numbers.seconds.labels(method, route).observe(time.monotonic() - began)

    @app.middleware("http")
    async def measured(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        began, request.state.key = time.monotonic(), f"req_{secrets.token_hex(8)}"
        quiet = request.url.path in QUIET
        with numbers.open.track_inprogress(), (_NONE if quiet else traces).span("", "SERVER") as span:
            try:
                answer = await call(request)
            except Exception:  # `unexpected` answers it
                tell(request, span, 500, began)
                raise
            tell(request, span, answer.status_code, began)
            if answer.status_code >= 500:
                span.fail(str(answer.status_code))
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers[REQUEST_ID] = request.state.key
        answer.headers.setdefault("Cache-Control", "no-store")
        return answer


def _open(app: FastAPI) -> None:
    service: Service = app.state.service

    @app.get("/health", tags=["service"], summary="Whether it works")
    async def health() -> Response:
        """200 if the database answers; Slurm may be away: then jobs are kept and handed over later."""
        ok = await service.database.answers()
        said = {"status": "ok" if ok else "database-away", "version": base.__version__}
        return JSONResponse(said, 200 if ok else 503)

    @app.get("/metrics", tags=["service"], summary="Prometheus", response_class=PlainTextResponse)
    async def metrics() -> Response:
        app.state.numbers.up.set(await service.database.answers())
        app.state.numbers.silent.set(service.slurm.silent)
        return Response(generate_latest(app.state.numbers.registry), media_type=CONTENT_TYPE_LATEST)
