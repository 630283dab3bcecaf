"""`/v1/recipes` and `/v1/jobs`: jobs of any recipe, with their log and the numbers of their steps."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from rocstack.client.answers import JobEventAnswer, JobStatus, ListOf, LogAnswer, RecipeAnswer, ServiceJob, StepsAnswer
from rocstack.jobs import recipe as recipes
from rocstack.jobs.recipe import JobRequest, Recipe
from rocstack.service import progress
from rocstack.service.identity import Caller
from rocstack.service.jobs import RECIPE, Word, request_of, to_dict
from rocstack.service.outcome import LIVE
from rocstack.service.routes import After, Limit, Person, Serving, page, stream, wants_stream
from rocstack.service.service import Service

router = APIRouter(prefix="/v1")
LOOK_S = 1.0
SETTLE = 3  # looks at the log after the job's end: the last lines may come late
Text = Annotated[str, Field(max_length=10_000)]


class JobBody(BaseModel):
    """What is left out is as the recipe has it, or as Slurm's configuration has it."""

    model_config = ConfigDict(extra="forbid")
    recipe: Annotated[str, Field(min_length=1, max_length=64)]
    parameters: Annotated[dict[str, Text | int | FiniteFloat | bool], Field(max_length=200)] = {}
    arguments: Annotated[list[Text], Field(max_length=1000)] = []
    name: Word | None = None
    nodes: Annotated[int, Field(ge=1, le=65536)] | None = None
    tasks_per_node: Annotated[int, Field(ge=1, le=4096)] | None = None
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] | None = None
    time: Word | None = None
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    share: bool = False
    preflight: bool = False
    spare: Annotated[int, Field(ge=0, le=65536)] = 0


@router.get(
    "/recipes", tags=["jobs"], summary="Kinds of jobs, with their typed parameters", response_model=ListOf[RecipeAnswer]
)
async def list_recipes(service: Serving, caller: Person) -> dict[str, Any]:
    rows = [recipe_to_dict(each) for each in service.jobs.recipes().values()]
    return page(rows, False)


@router.get("/recipes/{name}", tags=["jobs"], summary="One kind of job", response_model=RecipeAnswer)
async def get_recipe(service: Serving, caller: Person, name: str) -> dict[str, Any]:
    return recipe_to_dict(recipes.find(name, service.jobs.overlay))


@router.post("/jobs", tags=["jobs"], summary="Submit a job", response_model=ServiceJob)
async def create_job(service: Serving, caller: Person, body: JobBody) -> dict[str, Any]:
    """It runs in a folder of its own on the shared file system, where its log is, too."""
    return to_dict(await submit(service, caller, body))


async def submit(service: Service, caller: Caller, body: JobBody) -> Any:
    values = {name: shown(value) for name, value in body.parameters.items()}
    options = body.model_dump(exclude={"recipe", "parameters", "arguments"})

    def plan(_: str, folder: Path) -> JobRequest:
        return request_of(options, folder=str(folder), values=values, arguments=tuple(body.arguments))

    asked = body.model_dump(mode="json", exclude_none=True)
    return await service.jobs.create(caller, RECIPE, body.recipe, asked, plan)


@router.get(
    "/jobs",
    tags=["jobs"],
    summary="List jobs, the newest first; of one that waits, why",
    response_model=ListOf[ServiceJob],
)
async def list_jobs(
    service: Serving,
    caller: Person,
    after: After = None,
    limit: Limit = 20,
    status: Annotated[list[JobStatus] | None, Query(description="Only those; may be repeated")] = None,
    kind: Literal["recipe", "fine_tuning", "serving"] | None = None,
) -> dict[str, Any]:
    rows, more = await service.jobs.page(caller, kind, status or (), after, limit)
    return page([to_dict(row) for row in rows], more)


@router.get("/jobs/{job}", tags=["jobs"], summary="Show a job", response_model=ServiceJob)
async def get_job(service: Serving, caller: Person, job: str) -> dict[str, Any]:
    return to_dict(await service.jobs.get(caller, job))


@router.get(
    "/jobs/{job}/events",
    tags=["jobs"],
    summary="What happened to a job, the oldest first",
    response_model=ListOf[JobEventAnswer],
)
async def job_events(service: Serving, caller: Person, job: str) -> dict[str, Any]:
    rows = await service.jobs.rows.events(caller, job)
    return page([{"id": str(row.id), "at": row.at, "level": row.level, "message": row.message} for row in rows], False)


@router.get(
    "/jobs/{job}/log", tags=["jobs"], summary="A piece of a job's log, or all as it comes", response_model=None,
    responses={200: {"model": LogAnswer}},
)  # fmt: skip
async def job_log(
    request: Request,
    service: Serving,
    caller: Person,
    job: str,
    offset: Annotated[int, Query(ge=-(1 << 40), le=1 << 50, description="Bytes; below 0: from the end")] = 0,
    limit: Annotated[int, Query(ge=4, le=1 << 22)] = progress.PIECE,
    stream_: Annotated[bool, Query(alias="stream", description="Server-sent events until the job is over")] = False,
) -> Any:
    """`offset` of the answer is where the next piece begins. A stream's events have it as their id."""
    await service.jobs.rows.own(caller, job)
    if stream_ or wants_stream(request):
        last = request.headers.get("last-event-id", "")
        begin = int(last) if re.fullmatch(r"[0-9]{1,15}", last) else offset
        return stream(log_pieces(service, caller, job, begin), service)
    piece = await service.progress.log(caller, job, offset, limit)
    return piece.to_dict()


async def log_pieces(service: Service, caller: Caller, job: str, offset: int) -> AsyncIterator[dict[str, Any]]:
    left = SETTLE
    while True:
        row = await service.jobs.get(caller, job)
        piece = await service.progress.log(caller, job, offset)
        if piece.text:
            offset = piece.offset
            yield {"id": piece.offset, "text": piece.text}
            if piece.offset < piece.size:
                continue
        if row.status not in LIVE:
            left -= 1
        if left < 0 or service.stopping.is_set():
            return
        await asyncio.sleep(LOOK_S)


@router.get("/jobs/{job}/metrics", tags=["jobs"], summary="The numbers of each step", response_model=StepsAnswer)
async def job_metrics(
    service: Serving,
    caller: Person,
    job: str,
    after: Annotated[int, Query(ge=0, description="Only steps after this one")] = 0,
    limit: Annotated[int, Query(ge=1, le=100_000)] = 10_000,
) -> Response:
    await service.jobs.rows.own(caller, job)
    rows = await service.progress.metrics(caller, job, after)
    # Ten thousands of steps take half a second to write down.
    text = await service.progress.work(caller, _steps, rows[:limit], len(rows) > limit)
    return Response(text, media_type="application/json")


def _steps(rows: list[dict[str, Any]], more: bool) -> str:
    """Row by row: one call for all of them would let nothing else run meanwhile."""
    data = ",".join(json.dumps(row, separators=(",", ":")) for row in rows)
    return f'{{"object":"list","data":[{data}],"has_more":{json.dumps(more)}}}'


@router.post(
    "/jobs/{job}/cancel", tags=["jobs"], summary="End a job, or take it out of the queue", response_model=ServiceJob
)
async def cancel_job(service: Serving, caller: Person, job: str) -> dict[str, Any]:
    return to_dict(await service.jobs.cancel(caller, job))


@router.post("/jobs/{job}/requeue", tags=["jobs"], summary="End a job and run it once more", response_model=ServiceJob)
async def requeue_job(service: Serving, caller: Person, job: str) -> dict[str, Any]:
    """With checkpoints it goes on from the newest."""
    return to_dict(await service.jobs.requeue(caller, job))


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    found = recipe.model_dump(mode="json")
    parameters = {
        name: {**found["parameters"][name], "needed": each.needed} for name, each in recipe.parameters.items()
    }
    return found | {"id": recipe.name, "object": "recipe", "parameters": parameters}


def shown(value: str | int | float | bool) -> str:
    """As a recipe's parameters are written."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
