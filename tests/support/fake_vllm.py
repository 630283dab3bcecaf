"""An engine for tests of the gateway: vLLM's calls on a socket file, and answers that say which adapter gave them.

    fake_vllm.py serve MODEL --uds=PATH ...     as the gateway starts vLLM
A prompt of `die` ends it in the middle of a stream, `slow N` answers after N seconds, `/record` lists what was asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

OPTIONS = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[3:] if "=" in word)
BASE = OPTIONS["served-model-name"]
LOADED: dict[str, str] = {}
RECORD: list[str] = []


def fault(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "BadRequestError", "code": status}}, status)


async def load(request: Request) -> Response:
    body = await request.json()
    name, folder = body["lora_name"], Path(body["lora_path"])
    if request.headers.get("authorization") != f"Bearer {os.environ['VLLM_API_KEY']}":
        return fault(401, "Unauthorized")
    if name in LOADED and not body.get("load_inplace"):
        return fault(400, f"The lora adapter '{name}' has already been loaded.")
    assert sorted(each.name for each in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    if json.loads((folder / "adapter_config.json").read_text())["lora_alpha"] == 666:
        return fault(500, "no such adapter can be loaded")
    LOADED[name] = hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()
    RECORD.append(f"load {name}" + (" again" if body.get("load_inplace") else ""))
    return PlainTextResponse("Success")


async def unload(request: Request) -> Response:
    name = (await request.json())["lora_name"]
    if name not in LOADED:
        return fault(404, f"The lora adapter '{name}' cannot be found.")
    del LOADED[name]
    RECORD.append(f"unload {name}")
    return PlainTextResponse("Success")


async def answer(request: Request) -> Response:
    body = await request.json()
    model = body["model"]
    if model not in LOADED and model != BASE:
        return fault(404, f"The model `{model}` does not exist.")
    prompt = body["messages"][-1]["content"] if "messages" in body else body.get("prompt") or body.get("input")
    if prompt.startswith("slow"):
        await asyncio.sleep(float(prompt.split()[1]))
    said = LOADED.get(model, "the base")
    if body.get("stream"):
        return StreamingResponse(stream(request.url.path, model, said, prompt), media_type="text/event-stream")
    if prompt == "die":
        os._exit(3)
    return JSONResponse({"id": "x", "model": model, "choices": [{"index": 0, "message": {"content": said}}]})


async def stream(path: str, model: str, said: str, prompt: str) -> AsyncIterator[bytes]:
    for number, letter in enumerate(said[:8]):
        if prompt == "die" and number == 3:
            os._exit(3)
        await asyncio.sleep(0.01)
        part: dict[str, Any] = {"id": "x", "model": model, "choices": [{"index": 0, "delta": {"content": letter}}]}
        if path == "/v1/responses":
            part = {"type": "response.output_text.delta", "delta": letter}
            yield f"event: {part['type']}\n".encode()
        yield b"data: " + json.dumps(part).encode() + b"\n\n"
    if path == "/v1/responses":
        done = {"type": "response.completed", "response": {"model": model}}
        yield b"event: response.completed\ndata: " + json.dumps(done).encode() + b"\n\n"
    else:
        yield b"data: [DONE]\n\n"


async def record(request: Request) -> Response:
    return JSONResponse({"loaded": sorted(LOADED), "record": RECORD, "arguments": sys.argv[1:]})


async def health(request: Request) -> Response:
    return Response()


async def metrics(request: Request) -> Response:
    return PlainTextResponse("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n")


ROUTES = [
    Route("/v1/load_lora_adapter", load, methods=["POST"]),
    Route("/v1/unload_lora_adapter", unload, methods=["POST"]),
    *(Route(f"/v1/{path}", answer, methods=["POST"]) for path in ("chat/completions", "completions", "responses")),
    Route("/record", record),
    Route("/health", health),
    Route("/metrics", metrics),
]

if __name__ == "__main__":
    print("fake engine starts", flush=True)
    if not Path(sys.argv[2], "config.json").is_file():
        sys.exit("ValueError: no model there")
    uvicorn.run(Starlette(routes=ROUTES), uds=OPTIONS["uds"], log_level="warning")
