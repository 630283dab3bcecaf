"""The service as a process: a stream ends when it stops, a request that runs is finished; bad settings are said."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import uvicorn
from conftest import CHAT, lines, serve, settings
from fake_slurmrestd import FakeSlurmrestd, token

from rocstack.service import app
from rocstack.service.__main__ import ServiceServer

pytestmark = pytest.mark.anyio


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rocstack.service", *words], capture_output=True, text=True, timeout=60
    )


def test_the_document_and_the_version() -> None:
    document = json.loads(run("--openapi").stdout)
    assert document["openapi"].startswith("3.1")
    assert "/v1/fine_tuning/jobs" in document["paths"]
    assert run("--version").stdout.startswith("rocstack ")


def test_wrong_settings_are_said_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "service.json"
    file.write_text(json.dumps(json.loads(settings(tmp_path).model_dump_json()) | {"modles": "/x"}, indent=1))
    done = run(str(file))
    assert done.returncode == 2
    assert "unknown key 'modles': did you mean 'models'?" in done.stderr
    assert "service.json:" in done.stderr
    assert "Traceback" not in done.stderr
    missing = run(str(tmp_path / "none.json"))
    assert (missing.returncode, "Traceback" in missing.stderr) == (2, False)


async def test_a_stop_ends_streams_and_finishes_requests(tmp_path: Path, slurm: FakeSlurmrestd) -> None:
    service = serve(tmp_path, slurm)
    model = tmp_path / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    config = uvicorn.Config(app.make(service), host="127.0.0.1", port=0, log_config=None)
    server = ServiceServer(config, service)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    head = {"Authorization": f"Bearer {token('alice')}"}
    gate = asyncio.Event()

    async def slowly():  # type: ignore[no-untyped-def]
        data = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
        data += b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + lines(CHAT)
        yield data
        await gate.wait()
        yield b"\r\n--x--\r\n"

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=head, timeout=30) as client:
        files = {"file": ("a.jsonl", lines(CHAT))}
        file = (await client.post("/v1/files", files=files, data={"purpose": "fine-tune"})).json()["id"]
        body = {"model": "tiny", "training_file": file, "rocstack": {"gpus_per_node": 0}}
        job = (await client.post("/v1/fine_tuning/jobs", json=body)).json()["id"]
        form = {"Content-Type": "multipart/form-data; boundary=x"}
        upload = asyncio.create_task(client.post("/v1/files", content=slowly(), headers=form))
        async with client.stream("GET", f"/v1/fine_tuning/jobs/{job}/events?stream=true") as stream:
            said = stream.aiter_lines()
            assert (await anext(said)).startswith("id: ")
            server.handle_exit(signal.SIGTERM, None)
            server._captured_signals.clear()  # they would be raised again, here
            rest = [line async for line in said]  # it ends
            assert not any("[DONE]" in line for line in rest), "the job isn't over: who reads goes on elsewhere"
        gate.set()
        assert (await upload).status_code == 200
    await asyncio.wait_for(running, 30)
