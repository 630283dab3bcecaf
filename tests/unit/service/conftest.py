"""The service in the test's process: SQLite, a folder, and slurmrestd as it answers."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_slurmrestd import FakeSlurmrestd, token

from rocstack.cluster.service import ClusterServiceLimits
from rocstack.service import app, circuit, jobs
from rocstack.service.config import ServicePerson, ServiceSettings
from rocstack.service.service import Service
from rocstack.service.slurmrest import SlurmRest

PEOPLE = {"alice": ServicePerson(uid=2000, gid=2000), "bob": ServicePerson(uid=2001, gid=2001)}


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What didn't answer is asked again at once."""
    monkeypatch.setattr(circuit, "REST_S", 0.0)


@pytest.fixture
def slurm() -> FakeSlurmrestd:
    return FakeSlurmrestd()


class Site:
    """`alice` and `bob` are clients with a token each."""

    def __init__(self, service: Service, client: httpx.AsyncClient, application: Any) -> None:
        self.service, self.client, self.application = service, client, application

    def of(self, user: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token(user)}"}
        transport = httpx.ASGITransport(app=self.application, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)

    @property
    def data(self) -> Path:
        return self.service.storage.root


def settings(folder: Path, **limits: int) -> ServiceSettings:
    return ServiceSettings(
        cluster="test", listen="127.0.0.1:8443", data=str(folder / "data"), models=str(folder / "models"),
        database=f"sqlite:///{folder}/service.db", reports=str(folder / "reports"),
        users=PEOPLE, limits=ClusterServiceLimits(**limits),
    )  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("setfacl") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="setfacl is not installed (package acl)"))


def serve(folder: Path, slurm: FakeSlurmrestd, chosen: ServiceSettings | None = None, **limits: int) -> Service:
    rest = SlurmRest("http://slurmrestd", slurm.transport)
    rest.patience = 0.0
    service = Service.of(chosen or settings(folder, **limits), rest)
    service.storage.check()
    return service


@pytest.fixture
async def site(tmp_path: Path, slurm: FakeSlurmrestd, anyio_backend: str) -> AsyncIterator[Site]:
    model = tmp_path / "models" / "org" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "llama"}')
    service = serve(tmp_path, slurm, file_mib=1, quota_mib=2, jobs=3)
    application = app.make(service)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=application), base_url="http://test") as client:
        yield Site(service, client, application)
    await service.stop()


CHAT = [
    {"messages": [{"role": "user", "content": f"{n} says hi"}, {"role": "assistant", "content": f"hello {n}"}]}
    for n in ("ann", "ben", "cat", "dan")
]


def lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


async def tuned(client: httpx.AsyncClient, **more: Any) -> Any:
    files = {"file": ("chat.jsonl", lines(CHAT))}
    key = (await client.post("/v1/files", files=files, data={"purpose": "fine-tune"})).json()["id"]
    body = {"model": "org/tiny", "training_file": key, "rocstack": {"gpus_per_node": 0}} | more
    return await client.post("/v1/fine_tuning/jobs", json=body)


def adapter(folder: Path, rank: int = 8) -> None:
    """As peft writes it, with two matrices."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank}))
    shape = [rank, 4]
    size = rank * 4 * 4
    head = {
        f"base_model.model.q_proj.lora_{name}.weight": {
            "dtype": "F32", "shape": shape, "data_offsets": [at * size, at * size + size]
        }
        for at, name in enumerate("AB")
    }  # fmt: skip
    text = json.dumps(head).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(2 * size))
    assert os.path.getsize(folder / "adapter_model.safetensors")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, slurm: FakeSlurmrestd) -> None:
    """What Slurm says is asked each time, and its nodes are this machine: jobs run here."""
    monkeypatch.setattr(jobs, "FRESH_S", 0.0)
    slurm.address = "127.0.0.1"
