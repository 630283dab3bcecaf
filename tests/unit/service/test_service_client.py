"""rocstack.client against the service in the test's process: both clients, each of their calls, and refusals."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from conftest import serve
from fake_slurmrestd import FakeSlurmrestd, token

from rocstack.client import AsyncServiceClient, RequestFailed, ServiceClient, service_client
from rocstack.service import app, jobs


@pytest.fixture
def url(tmp_path: Path, slurm: FakeSlurmrestd, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The service listens, with alice's token."""
    monkeypatch.setattr(jobs, "FRESH_S", 0.0)
    monkeypatch.setattr(service_client, "PAUSE_S", 0.0)
    model = tmp_path / "models" / "org" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "llama"}')
    server = uvicorn.Server(uvicorn.Config(app.make(serve(tmp_path, slurm)), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_a_job_from_its_submission_to_its_end(url: str, slurm: FakeSlurmrestd, tmp_path: Path) -> None:
    with ServiceClient(f"{url}/v1", token("alice")) as client:
        assert client.me()["id"] == "alice"
        assert client.recipe("finetune")["parameters"]["model"]["needed"]
        assert "mine" in [each["id"] for each in client.recipes()]
        job = client.submit("mine", arguments=["hostname"], nodes=2, gpus_per_node=0, name="first")
        assert (job["status"], job["name"]) == ("queued", "first")
        for _ in range(4):
            client.submit("mine", arguments=["true"], gpus_per_node=0)
        assert len({each["id"] for each in client.jobs(limit=2)}) == 5
        assert [each["id"] for each in client.jobs(status=["queued"], limit=1)][-1] == job["id"]
        folder = tmp_path / "data/alice/jobs" / job["id"]
        (folder / "log").write_text("one\ntwo\n")
        (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.0}\n')
        assert client.log(job["id"], -4) == {"text": "two\n", "offset": 8, "size": 8}
        assert client.metrics(job["id"], after=1)["data"] == [{"step": 2, "loss": 2.0}]
        slurm.set(100, "COMPLETED", nodes="n[1-2]")
        assert "".join(client.follow(job["id"])) == "one\ntwo\n"
        done = client.wait(job["id"])
        assert (done["status"], bool(done["finished_at"])) == ("succeeded", True)
        assert client.events(job["id"])[-1]["message"] == "it ended well"
        assert client.requeue(job["id"])["run"] == 2
        assert client.cancel(job["id"])["status"] == "cancelled"


def test_the_cluster_sizes_and_servers(url: str) -> None:
    with ServiceClient(url, token("alice")) as client:
        assert [each["gpus"] for each in client.nodes()] == [8, 8]
        assert "normal" in [each["name"] for each in client.qos()]
        assert client.reservations() == []
        assert client.verify_reports() == []
        assert client.size("llama-3.1-8b", nodes=1)["fits"]
        assert client.servers() == []
        assert [each["model"] for each in client.serve("org/tiny", replicas=2)] == ["org/tiny", "org/tiny"]


def test_the_awaited_one(url: str, slurm: FakeSlurmrestd) -> None:
    async def work() -> None:
        async with AsyncServiceClient(url, token("alice")) as client:
            job = await client.submit("mine", arguments=["hostname"], gpus_per_node=0)
            found: list[Any] = [each async for each in client.jobs()]
            assert [each["id"] for each in found] == [job["id"]]
            slurm.set(100, "FAILED")
            assert (await client.wait(job["id"]))["status"] == "failed"
            assert [text async for text in client.follow(job["id"])] == []
            assert (await client.log(job["id"]))["text"] == ""
            assert (await client.metrics(job["id"]))["data"] == []
            assert (await client.me())["uid"] == 2000
            for ask in (client.recipes, client.nodes, client.qos):
                assert await ask()
            assert await client.reservations() == []
            assert await client.servers() == []
            assert await client.verify_reports() == []
            with pytest.raises(RequestFailed, match="no verify report"):
                await client.verify_report("none")
            assert (await client.recipe("mine"))["id"] == "mine"
            assert (await client.size("llama-3.1-8b"))["model"]
            assert len(await client.events(job["id"])) >= 2
            assert (await client.cancel(job["id"]))["status"] == "failed"
            assert (await client.requeue(job["id"]))["run"] == 2
            assert len(await client.serve("org/tiny")) == 1
            with pytest.raises(RequestFailed) as refused:
                await client.job("job-x")
            assert (refused.value.status, refused.value.code) == (404, "no-such-own-job")

    asyncio.run(work())


def test_refusals_have_codes_and_parameters(url: str) -> None:
    with ServiceClient(url, "x") as client, pytest.raises(RequestFailed) as refused:
        client.me()
    assert (refused.value.status, refused.value.code) == (401, "bad-token")
    with ServiceClient(url, token("alice")) as client:
        with pytest.raises(RequestFailed) as refused:
            client.job("../files")
        assert refused.value.status == 404
        with pytest.raises(RequestFailed) as refused:
            client.submit("mine", nodes=0)
        assert (refused.value.code, refused.value.param) == ("bad-request", "nodes")
