"""`/v1/files`, `/v1/uploads` and `/v1/models`, as OpenAI's."""

import os
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from rocstack.service.failures import NotThere, RequestRefused
from rocstack.service.files import to_dict
from rocstack.service.multipart import FileForm
from rocstack.service.routes import After, Person, Serving, cut, page

router = APIRouter(prefix="/v1")
FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "purpose": {"type": "string", "enum": ["fine-tune"]},
                        "file": {"type": "string", "format": "binary"},
                    },
                }
            }
        },
    }
}
PART = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["data"],
                    "properties": {"data": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}


class UploadRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    bytes: Annotated[int, Field(ge=1, le=1 << 50)]
    filename: Annotated[str, Field(min_length=1, max_length=1024)]
    mime_type: Annotated[str, Field(max_length=255)] = "application/jsonl"
    purpose: Annotated[str, Field(max_length=64)]


class UploadComplete(BaseModel):
    part_ids: Annotated[list[Annotated[str, Field(max_length=64)]], Field(min_length=1, max_length=10_000)]
    md5: Annotated[str, Field(max_length=64)] | None = None


@router.post("/files", tags=["files"], summary="Upload a file that trains", openapi_extra=FORM)
async def create_file(request: Request, service: Serving, caller: Person) -> dict[str, Any]:
    """JSON lines: each a conversation (`messages`) or a text (`text`). A file that can't train is refused, with the
    numbers of its lines."""
    form = FileForm(request.headers.get("content-type", ""), request.stream().__aiter__(), "file")
    await form.begin()

    def purpose() -> str | None:
        if any(name.startswith("expires_after") for name in form.fields):
            raise RequestRefused.of("no-expiry").about("expires_after")
        return form.fields.get("purpose")

    return await service.files.create(caller, form.filename, form.pieces(), purpose)


@router.get("/files", tags=["files"], summary="List files")
async def list_files(
    service: Serving,
    caller: Person,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    order: Literal["asc", "desc"] = "desc",
    purpose: Annotated[str | None, Query(max_length=64)] = None,
) -> dict[str, Any]:
    return page(*await service.files.page(caller, purpose, after, limit, order))


@router.get("/files/{file_id}", tags=["files"], summary="Show a file")
async def get_file(service: Serving, caller: Person, file_id: str) -> dict[str, Any]:
    return to_dict(await service.files.get(caller, file_id))


@router.get("/files/{file_id}/content", tags=["files"], summary="Download a file", response_class=FileResponse)
async def file_content(service: Serving, caller: Person, file_id: str) -> FileResponse:
    row = await service.files.get(caller, file_id)
    path = service.files.path(caller, row.id)
    if not os.path.isfile(path):
        raise NotThere.of("no-such-file", file=file_id).about("file_id")
    # The name goes as an attachment's: whatever it is, no browser shows it as a page.
    return FileResponse(path, media_type="application/octet-stream", filename=row.name)


@router.delete("/files/{file_id}", tags=["files"], summary="Delete a file")
async def delete_file(service: Serving, caller: Person, file_id: str) -> dict[str, Any]:
    await service.files.delete(caller, file_id)
    return {"id": file_id, "object": "file", "deleted": True}


@router.post("/uploads", tags=["uploads"], summary="Begin a file that comes in parts")
async def begin_upload(service: Serving, caller: Person, body: UploadRequest) -> dict[str, Any]:
    return await service.uploads.begin(caller, body.filename, body.purpose, body.bytes)


@router.get("/uploads/{upload_id}", tags=["uploads"], summary="Which parts are there")
async def get_upload(service: Serving, caller: Person, upload_id: str) -> dict[str, Any]:
    """After a broken connection, send the parts that are missing."""
    return await service.uploads.get(caller, upload_id)


@router.post("/uploads/{upload_id}/parts", tags=["uploads"], summary="Send a part", openapi_extra=PART)
async def add_part(request: Request, service: Serving, caller: Person, upload_id: str) -> dict[str, Any]:
    form = FileForm(request.headers.get("content-type", ""), request.stream().__aiter__(), "data")
    await form.begin()
    return await service.uploads.add_part(caller, upload_id, form.pieces())


@router.post("/uploads/{upload_id}/complete", tags=["uploads"], summary="Make the parts a file")
async def complete_upload(service: Serving, caller: Person, upload_id: str, body: UploadComplete) -> dict[str, Any]:
    return await service.uploads.complete(caller, upload_id, body.part_ids, body.md5)


@router.post("/uploads/{upload_id}/cancel", tags=["uploads"], summary="Drop the parts")
async def cancel_upload(service: Serving, caller: Person, upload_id: str) -> dict[str, Any]:
    return await service.uploads.cancel(caller, upload_id)


@router.get("/models", tags=["models"], summary="List base models and your own")
async def list_models(service: Serving, caller: Person) -> dict[str, Any]:
    rows = await service.models.all(caller)
    return cut(rows, None, len(rows) or 1)


@router.get(
    "/models/{model:path}/files/{name}",
    tags=["models"],
    summary="Download a file of your own model",
    response_class=FileResponse,
)
async def model_file(
    service: Serving, caller: Person, model: str, name: Literal["adapter_config.json", "adapter_model.safetensors"]
) -> FileResponse:
    """The two files of an adapter, as peft and vLLM read them from a folder."""
    path = await service.models.file(caller, model, name)
    return FileResponse(path, media_type="application/octet-stream", filename=name)


@router.get("/models/{model:path}", tags=["models"], summary="Show a model")
async def get_model(service: Serving, caller: Person, model: str) -> dict[str, Any]:
    return await service.models.get(caller, model)


@router.delete("/models/{model:path}", tags=["models"], summary="Delete a model of your own")
async def delete_model(service: Serving, caller: Person, model: str) -> dict[str, Any]:
    await service.models.delete(caller, model)
    return {"id": model, "object": "model", "deleted": True}
