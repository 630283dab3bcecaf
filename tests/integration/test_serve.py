"""Adapters served by vLLM itself, in the image of the stack vllm-cpu: built here, 2 GB of packages and wheels, unless
ROCSTACK_SERVE_IMAGE names one."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny_adapters as tiny
from site_registry import free_port
from workspace import REPO, Workspace, engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TOKENS = 12
KILL = """
import os, pathlib
CORE = b"VLLM::EngineCore"
cores = [each for each in pathlib.Path("/proc").glob("[0-9]*") if (each / "cmdline").read_bytes().startswith(CORE)]
assert cores
for each in cores:
    os.kill(int(each.name), 9)
"""
ADAPTERS = ("one", "two", "three")


@dataclass
class Server:
    client: httpx.Client
    folder: Path
    image: str
    container: str

    def body(self, model: str, **other: Any) -> dict[str, Any]:
        message = {"role": "user", "content": "hello"}
        body = {"model": model, "messages": [message], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        return body | other

    def ask(self, model: str, **other: Any) -> str:
        answer = self.client.post("/v1/chat/completions", json=self.body(model, **other))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def server(vllm_image: str, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    tiny.llama(folder / "tiny")
    for number, name in enumerate(ADAPTERS):
        tiny.adapter(folder / "adapters" / name, "tiny", seed=number)
    tiny.adapter(folder / "adapters/foreign", "another", seed=9)
    workspace = Workspace(folder, prefix)
    container, port = f"{prefix.replace('/', '-')}-serve-{secrets.token_hex(3)}", free_port()
    command = workspace.command(
        "serve", str(folder / "tiny"), f"--adapters={folder / 'adapters'}", f"--listen=127.0.0.1:{port}",
        "--max-rank=8",
        f"--image={vllm_image}", f"--container={container}", "--gpus=none", "--cache=1", "--",
        "--enforce-eager", "--dtype=float32", "--max-model-len=512",
    )  # fmt: skip
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stderr=log, cwd=folder, env=workspace.environ()) as running,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client,
    ):
        try:
            until_it_answers(client, running, folder / "log")
            yield Server(client, folder, vllm_image, container)
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(60)
            finally:
                engine("rm", "--force", container, check=False)


def until_it_answers(client: httpx.Client, running: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 900
    while time.monotonic() < end:
        assert running.poll() is None, log.read_text()[-3000:]
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    pytest.fail(log.read_text()[-3000:])


def test_answers_are_those_of_transformers(server: Server) -> None:
    folder = server.folder
    script = REPO / "tests/support/greedy_answers.py"
    ran = engine(
        "run", "--rm", "--network=none", "--env=PYTHONPATH=/opt/vllm/lib", "--env=HOME=/tmp", "--entrypoint=python3",
        f"--volume={folder}:{folder}:ro", f"--volume={script}:/greedy_answers.py:ro", server.image,
        "/greedy_answers.py", str(folder / "tiny"), str(TOKENS), *(f"{folder}/adapters/{name}" for name in ADAPTERS),
    )  # fmt: skip
    wanted = json.loads(ran.stdout.splitlines()[-1])
    base = server.ask("tiny")
    assert base == wanted[""]
    for name in ADAPTERS:
        assert server.ask(name) == wanted[name] != base


def test_streams_schemas_and_responses(server: Server) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    said = server.ask("one", response_format=asked, max_tokens=60, ignore_eos=False)
    assert isinstance(json.loads(said)["n"], bool)
    stream = server.client.post("/v1/chat/completions", json=server.body("one", stream=True)).text
    parts = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    assert parts[-1] == "[DONE]"
    assert {json.loads(part)["model"] for part in parts[:-1]} == {"one"}
    text = "".join(each["delta"].get("content") or "" for part in parts[:-1] for each in json.loads(part)["choices"])
    assert text == server.ask("one")
    answer = server.client.post("/v1/responses", json={"model": "two", "input": "hello", "max_output_tokens": 4})
    assert answer.json()["model"] == "two"


def test_a_foreign_adapter_is_refused(server: Server) -> None:
    answer = server.client.post("/v1/chat/completions", json=server.body("foreign"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "adapter-base")


def test_an_engine_that_is_killed_in_a_stream(server: Server) -> None:
    before = server.ask("one")
    said = ""
    with server.client.stream(
        "POST", "/v1/chat/completions", json=server.body("one", stream=True, max_tokens=450)
    ) as answer:
        for part in answer.iter_text():
            if not said:
                engine("exec", server.container, "python3", "-c", KILL)
            said += part
    error = json.loads(said.strip().rpartition("data: ")[2])["error"]
    assert error["code"] == "stream-broken"
    assert server.ask("one") == before
