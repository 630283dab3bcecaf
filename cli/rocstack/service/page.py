"""The page: what people see in a browser. It calls the same functions as the interface; every text of a job, a file or
a node is data, escaped by the templates, and the browser is told to run no script but ours."""

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import jinja2
from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, StreamingResponse
from fastapi.routing import APIRoute

from rocstack.base import paths
from rocstack.base.errors import RocstackError
from rocstack.base.text import count, listed, visible, visible_lines
from rocstack.node import hostlist
from rocstack.serve.adapter_check import CONFIG, WEIGHTS
from rocstack.service import failures, field_faults, sign_in
from rocstack.service.curve import HEIGHT, LEFT, WIDTH, StepCurve, curve
from rocstack.service.failures import NotAllowed, NotSignedIn
from rocstack.service.files import LEAST
from rocstack.service.identity import COOKIE, Caller, cookie_name
from rocstack.service.jobs import TUNING, expected_start, start_unknown, why
from rocstack.service.outcome import LIVE, PAUSED
from rocstack.service.routes import Person, Serving
from rocstack.service.service import Service
from rocstack.service.tables import JobRow
from rocstack.verify.report.page import words

OWN = {"page.css": "text/css", "page.js": "text/javascript"}
HTMX = Path("/usr/share/javascript/htmx/htmx.min.js")  # Debian's libjs-htmx
ROWS = 50  # of a list
LOG_END, LINES = 64 << 10, 30  # of a log are shown: bytes, and lines of them
CURVES = (
    ("loss", "loss"),
    ("tokens_per_s", "tokens a second"),
    ("gpu_busy", "GPUs busy, %"),
    ("eval_loss", "loss on held-out data"),
)
STATES = {  # of a node, in plain words; slurm.schedmd.com/sinfo.html, "NODE STATE CODES"
    "IDLE": "free",
    "MIXED": "partly in use",
    "ALLOCATED": "in use",
    "COMPLETING": "a job is ending",
    "PLANNED": "kept for the next job",
    "RESERVED": "reserved",
    "MAINTENANCE": "in maintenance",
    "DRAIN": "takes no new jobs",
    "FAIL": "about to fail",
    "NOT_RESPONDING": "doesn't answer",
    "INVALID_REG": "has less than Slurm was told",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def _moment(seconds: int | None) -> str:
    """How long ago, or how long until then."""
    if not seconds:
        return ""
    away = int(time.time()) - seconds
    text = duration(abs(away))
    return f"{text} ago" if away >= 0 else f"in {text}"


def duration(seconds: int) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _size(bytes_: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if bytes_ < 1000 or unit == "GB":
            return f"{bytes_:.0f} {unit}" if unit == "B" else f"{bytes_:.1f} {unit}"
        bytes_ = bytes_ / 1000  # type: ignore[assignment]
    raise AssertionError


def _number(value: float) -> str:
    if 1000 <= abs(value) < 1e12:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _places(nodes: str) -> str:
    """Slurm's list of nodes as names."""
    try:
        return listed(hostlist.expand(nodes)) if nodes else ""
    except ValueError:
        return nodes


def _state_words(states: Sequence[str]) -> str:
    """Of a node, what Slurm's words for its state mean. One that is drained isn't free, whatever it does."""
    states = [each for each in states if each != "IDLE" or "DRAIN" not in states]
    return ", ".join(STATES.get(each, each.lower().replace("_", " ")) for each in states)


def _rough(value: float) -> str:
    """Two digits of it, and no exponent."""
    return f"{float(f'{value:.2g}'):,.10f}".rstrip("0").rstrip(".")


def _examples(file: Mapping[str, Any]) -> str:
    """How many, and of what."""
    return count(file["samples"], "conversation" if file["kind"] == "conversations" else "text")


TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(paths.templates() / "service"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals["least"] = LEAST
TEMPLATES.filters |= {
    "moment": _moment,
    "bytes": _size,
    "sentence": failures.one_sentence,
    "places": _places,
    "state_words": _state_words,
    "number": _number,
    "rough": _rough,
    "examples": _examples,
    "visible": visible,
    "lines": visible_lines,
    "words": words,
    "path": lambda text: quote(text, safe=""),
}


def browses(request: Request) -> bool:
    """Whether a person's browser asks for a page, and not a program for an answer."""
    path = request.url.path
    return "text/html" in request.headers.get("accept", "") and not path.startswith(("/v1/", "/static/"))


def draw(request: Request, name: str, status: int = 200, **names: Any) -> HTMLResponse:
    """A page, or with htmx the part of one that is named."""
    service: Service = request.app.state.service
    settings = service.settings
    known = {
        "cluster": settings.cluster, "user": getattr(request.state, "user", ""), "live": HTMX.exists(),
        "issuer": settings.oidc is not None, "silent": service.slurm.silent,
    }  # fmt: skip
    return HTMLResponse(
        TEMPLATES.get_template(f"{name}.html.j2").render(known | names), status, {"Content-Security-Policy": POLICY}
    )


def keep_cookie(answer: Response, service: Service, name: str, value: str, *, lax: bool = False, **more: Any) -> None:
    tls = service.settings.tls
    answer.set_cookie(
        cookie_name(name, tls=tls), value, httponly=True, secure=tls, samesite="lax" if lax else "strict", **more
    )


def forget_cookie(answer: Response, service: Service, name: str) -> None:
    tls = service.settings.tls
    answer.delete_cookie(cookie_name(name, tls=tls), secure=tls)  # browsers don't listen otherwise


class PageRoute(APIRoute):
    """Answers errors with a page; who isn't signed in gets the way in."""

    def get_route_handler(self) -> Handler:
        work = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                answer = await work(request)
            except NotSignedIn as error:
                answer = _to_login(request, "" if error.code == "no-token" else failures.on_page(error))
            except RocstackError as error:
                answer = _refused(request, error)
            except RequestValidationError as error:
                answer = draw(request, "error", 400, message=field_faults.first(error.errors()).sentence())
            answer.headers.setdefault("Content-Security-Policy", POLICY)
            answer.headers["Referrer-Policy"] = "no-referrer"
            return answer

        return handle


router = APIRouter(route_class=PageRoute, include_in_schema=False)


def _refused(request: Request, error: RocstackError) -> Response:
    message, status = failures.on_page(error), failures.status_of(error)
    if request.headers.get("hx-request"):  # a part of a page stays as it is, and page.js says why
        return PlainTextResponse(message, status)
    again = status == failures.Away.status and request.method == "GET"
    return draw(request, "error", status, message=message, again=again)


def _to_login(request: Request, why: str) -> Response:
    if request.headers.get("hx-request"):  # a part of a page: htmx asks for the whole, which says why
        return Response(status_code=401, headers={"HX-Refresh": "true"})
    answer = draw(request, "login", 401, message=why)
    if not request.url.path.startswith(f"{sign_in.PATH}/"):  # a sign-in that failed says nothing of the session
        forget_cookie(answer, request.app.state.service, COOKIE)
    return answer


@router.get("/")
async def start(caller: Person) -> Response:
    return RedirectResponse("/jobs", 303)


# Jobs


@router.get("/jobs")
async def jobs(request: Request, service: Serving, caller: Person, after: str | None = None) -> Response:
    rows, more = await service.jobs.page(caller, after=after, limit=ROWS)
    return draw(request, "jobs", jobs=[_line(row) for row in rows], more=more, after=after or "")


@router.get("/jobs/rows")
async def job_rows(request: Request, service: Serving, caller: Person, after: str | None = None) -> Response:
    rows, _ = await service.jobs.page(caller, after=after or None, limit=ROWS)
    return draw(request, "job-rows", jobs=[_line(row) for row in rows])


@router.get("/jobs/{job}")
async def job(request: Request, service: Serving, caller: Person, job: str) -> Response:
    return draw(request, "job", **await _about(service, caller, job))


@router.get("/jobs/{job}/part")
async def job_part(request: Request, service: Serving, caller: Person, job: str) -> Response:
    return draw(request, "job-part", **await _about(service, caller, job))


@router.get("/jobs/{job}/log")
async def job_log(service: Serving, caller: Person, job: str) -> Response:
    """The whole of it, as plain text."""
    row = await service.jobs.get(caller, job)

    async def pieces() -> AsyncIterator[str]:
        offset = 0
        while (piece := await service.progress.log(caller, row.id, offset)).text:
            yield piece.text
            offset = piece.offset

    return StreamingResponse(pieces(), media_type="text/plain")


@router.post("/jobs/{job}/{verb}")
async def change_job(service: Serving, caller: Person, job: str, verb: str) -> Response:
    verbs = {each: getattr(service.jobs, each) for each in ("cancel", "pause", "resume", "requeue")}
    if verb not in verbs:
        raise NotAllowed.of("no-such-verb", verb=visible(verb[:32]))
    await verbs[verb](caller, job)
    return RedirectResponse(f"/jobs/{quote(job, safe='')}", 303)


def _line(row: JobRow) -> dict[str, Any]:
    return {
        "id": row.id, "name": row.name, "status": row.status, "recipe": row.recipe, "number": row.slurm_id,
        "created": row.created, "why": why(row), "start": expected_start(row), "live": row.status in LIVE,
        "nodes": row.seen.get("where") or "", "model": row.result, "gpus": row.seen.get("gpus"),
        "error": (row.error or {}).get("message", ""), "start_unknown": start_unknown(row),
        "saving": row.status == PAUSED and row.seen.get("state") in ("RUNNING", "COMPLETING"), "ran": _ran(row),
        "steps": row.asked.get("_numbers", {}).get("steps"), "tuning": row.kind == TUNING,
    }  # fmt: skip


def _ran(row: JobRow) -> str:
    """How long it runs, or ran the last time."""
    if not row.began or row.status in ("sending", "queued", PAUSED):
        return ""
    return duration(max(0, (row.ended or int(time.time())) - row.began))


async def _about(service: Service, caller: Caller, key: str) -> dict[str, Any]:
    row = await service.jobs.get(caller, key)
    steps = await service.progress.metrics(caller, row.id)
    log = await service.progress.log(caller, row.id, -LOG_END, LOG_END)
    saved = await service.progress.checkpoints(caller, row.id)
    drawn = await service.progress.work(caller, _curves, steps)
    adapter = await service.models.folder_of(caller, row.result) if row.result else None
    can = {"cancel": row.status in LIVE, "requeue": row.status not in LIVE and not row.result}
    if row.kind == TUNING:
        can |= {"pause": row.status in ("queued", "running"), "resume": row.status == PAUSED}
    return {
        "job": _line(row), "asked": _asked(row), "script": row.script,
        "events": [(each.at, each.level, each.message) for each in await service.jobs.rows.events(caller, row.id)],
        "curves": drawn, "numbers": steps[-1] if steps else {},
        "log": "\n".join(log.text.splitlines()[-LINES:]), "log_size": log.size,
        "cut": log.size > LOG_END or log.text.count("\n") > LINES, "saved": saved[::-1][:10],
        "adapter": str(adapter or ""), "can": [verb for verb, may in can.items() if may],
        "box": {"width": int(WIDTH), "height": int(HEIGHT), "left": int(LEFT)},
    }  # fmt: skip


def _curves(steps: list[dict[str, Any]]) -> list[StepCurve]:
    drawn = (curve(label, [(each["step"], each[name]) for each in steps if name in each]) for name, label in CURVES)
    return [each for each in drawn if each]


def _asked(row: JobRow) -> dict[str, str]:
    """What its owner chose, flat."""
    found: dict[str, str] = {}
    for name, value in row.asked.items():
        for key, each in value.items() if isinstance(value, dict) else ((name, value),):
            if not name.startswith("_") and each not in (None, "", [], {}):
                found[str(key)] = str(each)
    return found


# Models and files


@router.get("/models")
async def models(request: Request, service: Serving, caller: Person) -> Response:
    rows = await service.models.all(caller)
    folders = {each["id"]: await service.models.folder_of(caller, each["id"]) for each in rows if each["base"]}
    return draw(request, "models", models=rows, folders=folders, parts=(CONFIG, WEIGHTS))


@router.get("/files")
async def files(
    request: Request, service: Serving, caller: Person, after: Annotated[str | None, Query(max_length=64)] = None
) -> Response:
    rows, more = await service.files.page(caller, None, after, ROWS, "desc")
    used = await service.files.used(caller)
    quota = service.settings.limits.quota_mib << 20
    return draw(request, "files", files=rows, more=more, used=used, quota=quota, message="")


# What the pages are made of


@router.get("/static/{name}")
async def static(name: str) -> Response:
    known = {each: paths.templates() / "service" / each for each in OWN} | {"htmx.js": HTMX}
    if name not in known or not known[name].is_file():
        return Response("there is no such file", 404, media_type="text/plain")
    # Not by FileResponse: of a request for thousands of ranges, it reads each by itself.
    kind = OWN.get(name, "text/javascript")
    return Response(known[name].read_bytes(), media_type=kind, headers={"Cache-Control": "max-age=3600"})
