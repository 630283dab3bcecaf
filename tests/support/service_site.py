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
import oidc_provider
import uvicorn
from fake_slurmrestd import FakeSlurmrestd, token
from oidc_provider import OidcProvider
from simulated_run import simulated_run

from rocstack.cluster.oidc import Issuer
from rocstack.cluster.service import SiteServer, report_name
from rocstack.serve.own_certificate import new_certificate
from rocstack.service import app, tokens
from rocstack.service.config import ServicePerson, ServiceSettings
from rocstack.service.issuer import IssuerClient
from rocstack.service.service import Service
from rocstack.service.slurmrest import SlurmRest
from rocstack.service.tokens import TokenMaker

SAID = "Thank you for writing. A refund takes three working days; I have started yours, and you need do nothing more."
CHAT = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello, you"}]}


@dataclass
class PageSite:
    """`job` is a fine-tuning job that runs; its files are in `folder`. `reports` has one report of verify."""

    url: str
    job: str
    folder: Path
    reports: Path
    slurm: FakeSlurmrestd


def _service(folder: Path, slurm: FakeSlurmrestd, *servers: SiteServer) -> Service:
    settings = ServiceSettings(
        cluster="alpha", listen="127.0.0.1:8443", data=str(folder / "data"), models=str(folder / "models"),
        database=f"sqlite:///{folder}/service.db", reports=str(folder / "reports"),
        users={"alice": ServicePerson(uid=2000, gid=2000)}, servers=servers,
    )  # fmt: skip
    service = Service.of(settings, SlurmRest("http://slurmrestd", slurm.transport))
    service.storage.check()
    return service


async def _filled(service: Service, slurm: FakeSlurmrestd) -> str:
    transport, headers = httpx.ASGITransport(app=app.make(service)), {"Authorization": f"Bearer {token('alice')}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        file = {"file": ("support-chats.jsonl", "".join(json.dumps(CHAT) + "\n" for _ in range(400)).encode())}
        key = (await client.post("/v1/files", files=file, data={"purpose": "fine-tune"})).json()["id"]
        body = {"model": "org/llama", "training_file": key, "suffix": "support", "rocstack": {"nodes": 2}}
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
        row = {"step": n, "loss": loss, "tokens_per_s": 94100 + 900 * math.sin(n * 2.3), "step_ms": 1050.0}
        row |= {"gpu_busy": 94 + 4 * math.sin(n * 1.3), "mfu": 0.41, "memory_mb": 61400.0}
        metrics.append(json.dumps(row))
        log.append(f"step={n} loss={loss:.4f} tokens_per_s={row['tokens_per_s']:.0f}")
    (folder / "metrics.jsonl").write_text("\n".join(metrics) + "\n")
    (folder / "log").write_text("\n".join(log) + "\n")


@contextmanager
def serving(folder: Path) -> Iterator[PageSite]:
    (model := folder / "models/org/llama").mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "llama"}')
    slurm = FakeSlurmrestd()
    slurm.nodes = 4
    job = asyncio.run(_filled(_service(folder, slurm), slurm))
    (reports := folder / "reports").mkdir()
    (reports / report_name(3)).write_text(simulated_run(4, bad=("n2",), slow=(), virtual=True).dumps())
    _trained(own := folder / "data/alice/jobs" / job)

    async def signed_in(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            cookie = f"rocstack_token={token('alice')}".encode()
            scope = {**scope, "headers": [*scope["headers"], (b"cookie", cookie)]}
        await application(scope, receive, send)

    with _running(_model) as model_url:
        application = app.make(_service(folder, slurm, SiteServer(model="org/llama", url=model_url)))
        with _running(signed_in) as url:
            yield PageSite(url, job, own, reports, slurm)


@contextmanager
def signing_in(folder: Path) -> Iterator[str]:
    """The page's address by TLS, where nobody is signed in yet. Its issuer is another site, and signs alice in."""
    slurm = FakeSlurmrestd()
    slurm.key = key = bytes(64)
    (folder / "models").mkdir()
    (folder / "secret").write_text(oidc_provider.SECRET)
    own, own_key = new_certificate(folder)
    provider = OidcProvider("")
    with _running(provider.application()) as url:
        provider.issuer = url.replace("127.0.0.1", "localhost")
        about = Issuer(issuer=provider.issuer, client_id=oidc_provider.CLIENT)
        users, socket = {"alice": ServicePerson(uid=2000, gid=2000)}, str(folder / "socket")
        settings = ServiceSettings(
            cluster="alpha", listen="127.0.0.1:8443", data=str(folder / "data"), models=str(folder / "models"),
            database=f"sqlite:///{folder}/service.db", reports=str(folder / "reports"), users=users,
            oidc=about, oidc_secret=str(folder / "secret"), tokens=socket, certificate=str(own), key=str(own_key),
        )  # fmt: skip
        maker = TokenMaker(IssuerClient(about), users, key)
        service = Service.of(settings, SlurmRest("http://slurmrestd", slurm.transport))
        service.storage.check()
        with _running(tokens.application(maker), uds=socket), _running(app.make(service), tls=(own, own_key)) as page:
            yield page


async def _model(scope: Any, receive: Any, send: Any) -> None:
    """Answers each question with SAID, as a model of the site's would."""
    if scope["type"] == "http":
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": SAID}}]}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})


@contextmanager
def _running(application: Any, uds: str | None = None, tls: tuple[Path, Path] | None = None) -> Iterator[str]:
    """The address at which it is served; none at a socket's file."""
    files = {"ssl_certfile": tls[0], "ssl_keyfile": str(tls[1])} if tls else {}
    server = uvicorn.Server(uvicorn.Config(application, port=0, uds=uds, log_level="error", **files))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.05)
        scheme = "https" if tls else "http"
        yield "" if uds else f"{scheme}://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
