"""Serving jobs of people: their script runs here, with a recorder in vLLM's place."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import tiny_adapters as tiny
import uvicorn
from conftest import Site
from fake_slurmrestd import FakeSlurmrestd, token

from rocstack.service.tables import ModelRow

ROOT = Path(__file__).resolve().parents[3]
FAKE = ROOT / "tests/support/fake_vllm.py"
BASE = "org/small"
CHAT = "/v1/chat/completions"


def commands(folder: Path) -> dict[str, str]:
    """`srun`, `rocstack-serve` and `vllm` as a node has them."""
    texts = {
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"',
        "rocstack-serve": f'exec {sys.executable} -m rocstack.serve "$@"',
        "vllm": f'exec {sys.executable} {FAKE} "$@"',
    }
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    more = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "cli"), "SLURM_CPUS_ON_NODE": "2"}
    return {**os.environ, **more}


async def until(true: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not await true():
        assert time.monotonic() < end, "it never came"
        await asyncio.sleep(0.1)


async def own_adapter(site: Site, user: str, name: str, seed: int) -> str:
    """A model of hers, as a job would have made it; the sha256 of its weights."""
    caller = await site.service.door.caller(token(user))
    folder = site.service.storage.adapters(caller) / f"adapter-{name}"
    tiny.adapter(folder, "small", seed=seed)
    row = ModelRow(
        id=f"ft:org-small:{user}:{name}", owner=user, base=BASE, folder=folder.name, job=None, rank=4, bytes=1,
        created=int(time.time()),
    )  # fmt: skip
    await site.service.database.run(lambda session: session.add(row))
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


@asynccontextmanager
async def serving_job(site: Site, slurm: FakeSlurmrestd, folder: Path, **body: Any) -> AsyncIterator[str]:
    """A serving job of alice's, whose script runs as Slurm would run it."""
    alice = site.of("alice")
    made = await alice.post("/v1/servers", json={"model": BASE, "max_rank": 8, **body})
    assert made.status_code == 200, made.text
    (row,) = made.json()["data"]
    assert row["status"] == "queued"
    slurm.set(slurm.next - 1, "RUNNING", nodes="n1")
    if len((await alice.get("/v1/servers")).json()["data"]) == 1:
        starts = (await alice.post(CHAT, json=chat(BASE))).json()["error"]
        assert (starts["code"], row["id"] in starts["message"]) == ("server-starts", True)
    script, place = slurm.submitted[-1]["script"], site.data / "alice/jobs" / row["id"]
    log = (folder / f"log-{row['id']}").open("w")
    process = subprocess.Popen(
        ["bash", "-c", script], env=commands(folder / f"bin-{row['id']}"), cwd=place, stdout=log, stderr=log,
        start_new_session=True,
    )  # fmt: skip
    try:

        async def ready() -> bool:
            assert process.poll() is None, Path(log.name).read_text()
            rows = (await alice.get("/v1/servers")).json()["data"]
            return [each["status"] for each in rows if each["id"] == row["id"]] == ["ready"]

        await until(ready)
        yield row["id"]
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        log.close()


def chat(model: str, text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


@asynccontextmanager
async def listening(site: Site) -> AsyncIterator[str]:
    """The service at a port of its own."""
    server = uvicorn.Server(uvicorn.Config(site.application, port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
