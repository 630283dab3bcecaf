"""`/v1/fine_tuning/jobs`, as OpenAI's, and the same verbs as Lamini's `/v1/train/jobs`."""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from rocstack.service import evaluation
from rocstack.service.failures import RequestRefused
from rocstack.service.jobs import TUNING
from rocstack.service.routes import After, Limit, Person, Serving, cut, page, stream, wants_stream
from rocstack.service.tuning import PAIRS, TuningRequest, to_dict

router = APIRouter()
JOBS = "/v1/fine_tuning/jobs"
TRAIN = "/v1/train/jobs"
METADATA = {
    "name": "metadata", "in": "query", "style": "deepObject", "explode": True, "required": False,
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
    "description": "Only jobs that have these pairs: metadata[KEY]=VALUE",
}  # fmt: skip
_PAIR = re.compile(r"metadata\[(.*)\]", re.DOTALL)
_KEY = re.compile(r"[^\"\\\x00-\x1f]{1,64}")


@router.post(JOBS, tags=["fine-tuning"], summary="Fine-tune a model")
async def create(service: Serving, caller: Person, body: TuningRequest) -> dict[str, Any]:
    """Nodes and limits of the job are in `rocstack`: by the openai client, `extra_body={"rocstack": {"nodes": 2}}`."""
    return to_dict(await service.tuning.create(caller, body), service.settings.cluster)


@router.get(
    JOBS, tags=["fine-tuning"], summary="List fine-tuning jobs, the newest first",
    openapi_extra={"parameters": [METADATA]},
)  # fmt: skip
async def list_jobs(
    request: Request, service: Serving, caller: Person, after: After = None, limit: Limit = 20
) -> dict[str, Any]:
    rows, more = await service.jobs.page(caller, TUNING, (), after, limit, _metadata(request))
    return page([to_dict(row, service.settings.cluster) for row in rows], more)


def _metadata(request: Request) -> dict[str, str]:
    """
    Raises:
        RequestRefused: a key that no database can be asked for.
    """
    found = {match[1]: value for key, value in request.query_params.items() if (match := _PAIR.fullmatch(key))}
    if len(found) > PAIRS or any(not _KEY.fullmatch(key) or "\0" in value for key, value in found.items()):
        raise RequestRefused.of("bad-metadata-filter", most=PAIRS).about("metadata")
    return found


@router.get(f"{JOBS}/{{job}}", tags=["fine-tuning"], summary="Show a fine-tuning job")
async def get(service: Serving, caller: Person, job: str) -> dict[str, Any]:
    return to_dict(await service.tuning.get(caller, job), service.settings.cluster)


@router.get(f"{JOBS}/{{job}}/events", tags=["fine-tuning"], summary="What happened, the newest first; or as it comes")
async def events(
    request: Request,
    service: Serving,
    caller: Person,
    job: str,
    after: Annotated[str | None, Query(max_length=160)] = None,
    limit: Limit = 20,
    stream_: Annotated[bool, Query(alias="stream", description="Server-sent events, the oldest first")] = False,
) -> Any:
    if stream_ or wants_stream(request):
        await service.tuning.get(caller, job)  # what is wrong is said before the stream begins
        last = request.headers.get("last-event-id")
        return stream(service.tuning.stream(caller, job, last), service)
    found = await service.tuning.events(caller, job)
    return cut(found[::-1], after, limit)


@router.get(f"{JOBS}/{{job}}/checkpoints", tags=["fine-tuning"], summary="Checkpoints, the newest first")
async def checkpoints(
    service: Serving, caller: Person, job: str, after: After = None, limit: Limit = 10
) -> dict[str, Any]:
    return cut(await service.tuning.checkpoints(caller, job), after, limit)


@router.post(f"{JOBS}/{{job}}/cancel", tags=["fine-tuning"], summary="End a job")
@router.post(f"{TRAIN}/{{job}}/cancel", tags=["Lamini's names"], summary="End a job", operation_id="train_cancel")
async def cancel(service: Serving, caller: Person, job: str) -> dict[str, Any]:
    await service.tuning.get(caller, job)
    return to_dict(await service.jobs.cancel(caller, job), service.settings.cluster)


@router.post(f"{JOBS}/{{job}}/pause", tags=["fine-tuning"], summary="Save and end a job, to go on later")
async def pause(service: Serving, caller: Person, job: str) -> dict[str, Any]:
    await service.tuning.get(caller, job)
    return to_dict(await service.jobs.pause(caller, job), service.settings.cluster)


@router.post(f"{JOBS}/{{job}}/resume", tags=["fine-tuning"], summary="Go on from the newest checkpoint")
@router.post(f"{TRAIN}/{{job}}/resume", tags=["Lamini's names"], summary="Go on", operation_id="train_resume")
async def resume(service: Serving, caller: Person, job: str) -> dict[str, Any]:
    await service.tuning.get(caller, job)
    return to_dict(await service.jobs.resume(caller, job), service.settings.cluster)


@router.get(f"{TRAIN}/{{job}}", tags=["Lamini's names"], summary="Show a job", operation_id="train_status")
async def train_status(service: Serving, caller: Person, job: str) -> dict[str, Any]:
    row = await service.tuning.get(caller, job)
    own = to_dict(row, service.settings.cluster)
    words = {"succeeded": "COMPLETED", "validating_files": "QUEUED"}
    return own | {"job_id": own["id"], "status": words.get(own["status"], str(own["status"]).upper())}


@router.get(f"{TRAIN}/{{job}}/eval", tags=["Lamini's names"], summary="What it says beside its base model")
async def train_eval(service: Serving, caller: Person, job: str) -> dict[str, Any]:
    """To the first conversations of its validation file, else of the file that it was trained on."""
    return await evaluation.evaluate(service, caller, await service.tuning.get(caller, job))


@router.get(TRAIN, tags=["Lamini's names"], summary="List jobs", operation_id="train_list")
async def train_list(
    request: Request, service: Serving, caller: Person, after: After = None, limit: Limit = 20
) -> dict[str, Any]:
    return await list_jobs(request, service, caller, after, limit)
