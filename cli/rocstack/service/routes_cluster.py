"""`/v1/nodes`, `/v1/qos`, `/v1/reservations`, `/v1/verify/reports` and `/v1/size`."""

import os
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, Literal

import anyio.to_thread
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from rocstack.client.answers import ListOf, NodeAnswer, QosAnswer, ReservationAnswer, VerifyReportAnswer
from rocstack.service.identity import Caller
from rocstack.service.routes import Person, Serving, page
from rocstack.service.service import Service
from rocstack.size import ask, models
from rocstack.size.sizing import Sized

router = APIRouter(prefix="/v1")
Count = Annotated[int, Field(ge=1, le=1 << 22)] | None
PIECE = 1 << 18  # bytes of a report that are in memory at a time


class SizeBody(BaseModel):
    """As `rocstack size` has it: what of a layout is left out is chosen."""

    model_config = ConfigDict(extra="forbid")
    model: Annotated[str, Field(min_length=1, max_length=255)]
    gpu: Annotated[str, Field(max_length=32)] = "mi300x"
    nodes: Annotated[int, Field(ge=1, le=4096)] | None = None
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    network: Annotated[str, Field(max_length=16)] | None = None
    seq: Count = None
    batch: Count = None
    method: Literal["full", "lora"] = "full"
    rank: Annotated[int, Field(ge=1, le=4096)] | None = None
    tp: Count = None
    cp: Count = None
    pp: Count = None
    dp: Count = None
    shard: Count = None
    ep: Count = None
    micro_batch: Count = None
    accumulate: Count = None
    interleave: Count = None
    recompute: Literal["auto", "none", "layers"] = "auto"


@router.get("/nodes", tags=["cluster"], summary="Nodes and their state", response_model=ListOf[NodeAnswer])
async def nodes(service: Serving, caller: Person) -> dict[str, Any]:
    found = await service.slurm.nodes(caller.token)
    return page([each.to_dict() | {"id": each.name, "object": "node", "usable": each.usable} for each in found], False)


@router.get("/qos", tags=["cluster"], summary="Qualities of service", response_model=ListOf[QosAnswer])
async def qos(service: Serving, caller: Person) -> dict[str, Any]:
    found = await service.slurm.qos(caller.token)
    return page([each.to_dict() | {"id": each.name, "object": "qos"} for each in found], False)


@router.get("/reservations", tags=["cluster"], summary="Reserved nodes", response_model=ListOf[ReservationAnswer])
async def reservations(service: Serving, caller: Person) -> dict[str, Any]:
    found = await service.slurm.reservations(caller.token)
    return page([each.to_dict() | {"id": each.name, "object": "reservation"} for each in found], False)


@router.get(
    "/verify/reports",
    tags=["cluster"],
    summary="The last report of `rocstack verify` to each level, the newest first",
    response_model=ListOf[VerifyReportAnswer],
)
async def verify_reports(service: Serving, caller: Person) -> dict[str, Any]:
    return page(await anyio.to_thread.run_sync(service.reports.rows), False)


@router.get(
    "/verify/reports/{report}", tags=["cluster"], summary="A whole report, as report.json", response_model=None,
    responses={200: {"content": {"application/json": {"schema": {"type": "object", "additionalProperties": True}}}}},
)  # fmt: skip
async def verify_report(service: Serving, caller: Person, report: str) -> Response:
    file = await anyio.to_thread.run_sync(service.reports.opened, report)
    headers = {"Content-Length": str(os.fstat(file.fileno()).st_size)}
    return StreamingResponse(_pieces(file), media_type="application/json", headers=headers)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while piece := file.read(PIECE):
            yield piece


@router.post("/size", tags=["cluster"], summary="What a model needs, and how fast it would be")
async def size(service: Serving, caller: Person, body: SizeBody) -> dict[str, Any]:
    """By formula. The model is one of rocstack's names, or a base model of the site."""
    return (await sized(service, caller, body)).to_dict()


async def sized(service: Service, caller: Caller, body: SizeBody) -> Sized:
    """
    Raises:
        BadInput: an unknown model or GPU, or a layout that is impossible.
    """
    if body.model.lower() not in models.names():
        _, folder, _ = await service.models.find(caller, body.model)  # a path that somebody writes is never opened
        body = body.model_copy(update={"model": str(folder / "config.json")})
    async with service.sizing.of(caller):  # one of a cluster of thousands of nodes takes half a minute
        return await anyio.to_thread.run_sync(ask.size, body)
