"""The service's page with a few jobs, for a browser: in front of the fake slurmrestd, signed in as alice."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fake_slurmrestd import FakeSlurmrestd, token
from simulated_run import simulated_run

from rocstack.cluster.service import report_name
from rocstack.service import app
from rocstack.service.config import ServicePerson, ServiceSettings
from rocstack.service.service import Service
from rocstack.service.slurmrest import SlurmRest

CHAT = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello, you"}]}


@dataclass
class PageSite:
    """`job` is a fine-tuning job that runs; its files are in `folder`. `reports` has one report of verify."""

    url: str
    job: str
    folder: Path
    reports: Path
    slurm: FakeSlurmrestd


def _service(folder: Path, slurm: FakeSlurmrestd) -> Service:
    settings = ServiceSettings(
        cluster="alpha", listen="127.0.0.1:8443", data=str(folder / "data"), models=str(folder / "models"),
        database=f"sqlite:///{folder}/service.db", reports=str(folder / "reports"),
        users={"alice": ServicePerson(uid=2000, gid=2000)},
    )  # fmt: skip
    service = Service.of(settings, SlurmRest("http://slurmrestd", slurm.transport))
    service.storage.check()
    return service


async def _filled(service: Service, slurm: FakeSlurmrestd) -> str:
    transport, headers = httpx.ASGITransport(app=app.make(service)), {"Authorization": f"Bearer {token('alice')}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        file = {"file": ("support-chats.jsonl", "".join(json.dumps(CHAT) + "\n" for _ in range(400)).encode())}
        key = (await client.post("/v1/files", files=file, data={"purpose": "fine-tune"})).json()["id"]
        body = {"model": "org/llama", "training_file": key, "suffix": "support", "rocstack": {"gpus_per_node": 0}}
        job: str = (await client.post("/v1/fine_tuning/jobs", json=body)).json()["id"]
        for name in ("evaluate", "try-7"):
            asked = {"recipe": "mine", "arguments": ["hostname"], "gpus_per_node": 0, "name": name}
            await client.post("/v1/jobs", json=asked)
        slurm.set(100, "RUNNING", nodes="n[1-2]")
        slurm.set(101, "FAILED", nodes="n1")
        await client.get("/v1/jobs")
    await service.stop()
    return job


def _trained(folder: Path, steps: int = 150) -> None:
    metrics, log = [], []
    for n in range(1, steps + 1):
        loss = 0.4 + 4.6 / math.sqrt(n) * (1 + 0.03 * math.sin(n * 1.7))
        row = {"step": n, "loss": loss, "tokens_per_s": 941 + 9 * math.sin(n * 2.3), "step_ms": 1050.0}
        metrics.append(json.dumps(row))
        log.append(f"step={n} loss={loss:.4f} tokens_per_s={row['tokens_per_s']:.0f}")
    (folder / "metrics.jsonl").write_text("\n".join(metrics) + "\n")
    (folder / "log").write_text("\n".join(log) + "\n")


@contextmanager
def serving(folder: Path) -> Iterator[PageSite]:
    (model := folder / "models/org/llama").mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "llama"}')
    slurm = FakeSlurmrestd()
    job = asyncio.run(_filled(_service(folder, slurm), slurm))
    (reports := folder / "reports").mkdir()
    (reports / report_name(3)).write_text(simulated_run(4, bad=("n2",), slow=(), virtual=True).dumps())
    _trained(own := folder / "data/alice/jobs" / job)
    application = app.make(_service(folder, slurm))

    async def signed_in(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            cookie = f"rocstack_token={token('alice')}".encode()
            scope = {**scope, "headers": [*scope["headers"], (b"cookie", cookie)]}
        await application(scope, receive, send)

    server = uvicorn.Server(uvicorn.Config(signed_in, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield PageSite(f"http://127.0.0.1:{port}", job, own, reports, slurm)
    finally:
        server.should_exit = True
        thread.join()
