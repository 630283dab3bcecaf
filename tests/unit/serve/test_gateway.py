"""The gateway as its users meet it: a process of its own in front of an engine that speaks as vLLM does."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny_adapters as tiny

from rocstack.base.errors import BadInput
from rocstack.serve import proxy, settings
from rocstack.serve.engine_arguments import refuse_own

ROOT = Path(__file__).resolve().parents[3]
FAKE = ROOT / "tests/support/fake_vllm.py"
TOKENS = {"ann": "anns-token", "bob": "bobs-token"}
CHAT = "/v1/chat/completions"


@dataclass
class Running:
    client: httpx.Client
    folder: Path
    process: subprocess.Popen[str]

    def ask(self, model: str, text: str = "hello", user: str = "ann", path: str = CHAT, **other: Any) -> httpx.Response:
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}]}
        if path != CHAT:
            body = {"model": model, "input" if path == "/v1/responses" else "prompt": text}
        return self.client.post(path, json=body | other, headers=bearer(user))

    def record(self) -> dict[str, Any]:
        """What the engine was told; it is reached as its own user alone reaches it."""
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.folder / "state/engine.sock"))) as client:
            return client.get("http://engine/record").json()  # type: ignore[no-any-return]


def bearer(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS.get(user, user)}"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def written(folder: Path, **change: Any) -> Path:
    """Settings of a gateway in `folder`, with a base model, users' adapters and shared ones."""
    base = tiny.base(folder / "tiny-llama")
    for number, place in enumerate(("shared/poet", "users/ann/adapters/mine", "users/bob/adapters/his", "shared/his")):
        tiny.adapter(folder / place, "tiny-llama", seed=number)
    tokens = folder / "tokens"
    digests = {user: hashlib.sha256(token.encode()).hexdigest() for user, token in TOKENS.items()}
    tokens.write_text("# users\n" + "".join(f"{user} {digest}\n" for user, digest in digests.items()))
    tokens.chmod(0o600)
    document = {
        "model": str(base), "listen": f"127.0.0.1:{free_port()}", "tokens": str(tokens), "state": str(folder / "state"),
        "sources": [{"folder": str(folder / "shared")}, {"folder": str(folder / "users"), "layout": "users"}],
        "max_rank": 8, "active": 2, "resident": 3, "pins": 1, "wait_s": 20, "body_mib": 1,
        "engine": {"command": [sys.executable, str(FAKE)]},
    }  # fmt: skip
    file = folder / "serve.json"
    file.write_text(json.dumps(document | change))
    return file


@contextmanager
def gateway(folder: Path, **change: Any) -> Iterator[Running]:
    file = written(folder, **change)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "cli")}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "rocstack.serve", str(file)], stderr=log, env=environment, text=True
        ) as it,
    ):
        listen = json.loads(file.read_text())["listen"]
        try:
            with httpx.Client(base_url=f"http://{listen}", timeout=60) as client:
                until(lambda: answers(client, it, folder))
                yield Running(client, folder, it)
        finally:
            it.send_signal(signal.SIGTERM)
            it.wait(30)


def answers(client: httpx.Client, process: subprocess.Popen[str], folder: Path) -> bool:
    assert process.poll() is None, (folder / "log").read_text()
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with gateway(tmp_path_factory.mktemp("gateway")) as it:
        yield it


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


def said(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def events(raw: str) -> list[str]:
    return [line.removeprefix("data: ") for line in raw.splitlines() if line.startswith("data: ")]


def test_base_and_adapters_answer(running: Running) -> None:
    assert said(running.ask("tiny-llama")) == "the base"
    answer = running.ask("poet")
    assert said(answer) == digest(running.folder / "shared/poet")
    assert answer.json()["model"] == "poet"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", CHAT])
def test_streams(running: Running, path: str) -> None:
    answer = running.ask("poet", path=path, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = events(answer.text)
    assert "error" not in answer.text
    assert len(parts) == 9
    models = {part["model"] for part in map(json.loads, parts[:8]) if "model" in part}
    assert models <= {"poet"}
    last = parts[-1]
    assert last == "[DONE]" or json.loads(last)["response"]["model"] == "poet"


def test_what_the_engine_says_of_a_request_comes_back(running: Running) -> None:
    answer = running.ask(
        "tiny-llama", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    )
    assert answer.status_code == 200


def test_each_has_adapters_of_her_own(running: Running) -> None:
    assert said(running.ask("mine", user="ann")) == digest(running.folder / "users/ann/adapters/mine")
    assert running.ask("mine", user="bob").status_code == 404
    assert said(running.ask("his", user="bob")) == digest(running.folder / "users/bob/adapters/his")
    assert said(running.ask("his", user="ann")) == digest(running.folder / "shared/his")
    listed = running.client.get("/v1/models", headers=bearer("bob")).json()
    assert [each["id"] for each in listed["data"]] == ["tiny-llama", "his", "poet"]
    assert {each["owned_by"] for each in listed["data"]} == {"rocstack", "bob", "shared"}
    for path in ("/v1/models/mine", "/v1/adapters/mine"):
        assert running.client.get(path, headers=bearer("bob")).status_code == 404
        assert running.client.get(path, headers=bearer("ann")).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic anns-token"}])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/adapters", "/v1/models/poet"])
def test_who_is_nobody_sees_nothing(running: Running, headers: dict[str, str], path: str) -> None:
    answer = running.client.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "no-token"
    assert running.client.post(CHAT, json={"model": "poet"}, headers=headers).status_code == 401


def test_a_misspelt_model(running: Running) -> None:
    answer = running.ask("peot")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unserved-model"
    assert "did you mean 'poet'" in answer.json()["error"]["message"]
    assert "mine" not in running.ask("mime", user="bob").text


@pytest.mark.parametrize("name", ["../users/ann/adapters/mine", "ann/adapters/mine", "/etc", "..", "x" * 255])
def test_names_that_lead_elsewhere(running: Running, name: str) -> None:
    assert running.ask(name).status_code == 404


def test_the_engines_ids_are_no_names(running: Running) -> None:
    running.ask("mine")
    for name in running.record()["loaded"]:
        assert running.ask(name, user="bob").status_code == 404


PARTS: tuple[dict[str, Any], ...] = (
    {"type": "image_url", "image_url": {"url": "http://127.0.0.1:300/slurm"}},
    {"type": "image_url", "image_url": "https://example.org/a.png"},
    {"image_url": "file:///etc/passwd"},
    {"type": "video_url", "video_url": {"url": " data:x", "uuid": None}},
    {"type": "input_file", "file_url": "ftp://example.org/a"},
)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", ["messages", "input"])
def test_the_engine_fetches_nothing_for_a_user(running: Running, part: dict[str, Any], name: str) -> None:
    """It reaches more than she does: Slurm's interface on its loopback, or a cloud's keys."""
    said = [{"role": "user", "content": [{"type": "text", "text": "image_url: what is it?"}, part]}]
    answer = running.client.post(CHAT, json={"model": "poet", name: said}, headers=bearer("ann"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request-elsewhere")


def test_what_is_in_the_request_itself_is_passed_on() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}, {"image_url": "data:,"}]
    tools = [{"type": "function", "function": {"parameters": {"image_url": "https://example.org"}}}]
    assert not [*proxy._parts({"messages": [{"role": "user", "content": parts}, "x", None], "tools": tools})]
    assert not [*proxy._parts({"messages": 3, "input": "see https://example.org"})]


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/record", "/v1/responses/1"])
def test_the_engines_other_calls_are_closed(running: Running, path: str) -> None:
    body = {"lora_name": "x", "lora_path": "/x"}
    assert running.client.post(path, json=body, headers=bearer("ann")).status_code in (404, 405)


def test_the_engine_is_reached_by_its_own_user_alone(running: Running) -> None:
    state = running.folder / "state"
    assert state.stat().st_mode & 0o077 == 0
    assert (state / "engine.sock").is_socket()
    assert not any("--port" in word or "--host" in word for word in running.record()["arguments"])


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "request-no-json"),
        (b"[]", 400, "request-without-model"),
        (b'{"model": 3}', 400, "request-without-model"),
        (b"[" * 100_000, 400, "request-no-json"),
        (b'{"model": ""}', 400, "request-model-name"),
        (b'{"model": "a\\nb"}', 400, "request-model-name"),
        (b'{"model": "' + b"x" * 256 + b'"}', 400, "request-model-name"),
        (b'{"model": "poet", "prompt_embeds": "x"}', 400, "request-refused"),
        (b'{"model": "poet", "previous_response_id": "another"}', 400, "request-refused"),
        (b'{"model": "' + b"x" * (2 << 20) + b'"}', 413, "request-too-large"),
    ],
)
def test_requests_that_are_refused(running: Running, body: bytes, status: int, code: str) -> None:
    headers = bearer("ann") | {"Content-Type": "application/json"}
    answer = running.client.post(CHAT, content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"base_model_name_or_path": "another"}, "adapter-base"),
        ({"r": 512}, "adapter-rank"),
        ({"r": 2}, "adapter-shape"),
        ({"lora_alpha": 666}, "adapter-not-loaded"),
    ],
)
def test_bad_adapters_never_reach_the_engine(running: Running, change: dict[str, Any], code: str) -> None:
    name = f"bad-{code}"
    tiny.adapter(running.folder / "users/ann/adapters" / name, "tiny-llama", **change)
    answer = running.ask(name)
    assert answer.json()["error"]["code"] == code
    assert answer.status_code == (502 if code == "adapter-not-loaded" else 400)
    checked = running.client.post(f"/v1/adapters/{name}/check", headers=bearer("ann"))
    assert checked.status_code == (200 if code == "adapter-not-loaded" else 400)


def test_a_new_version_answers_and_a_removed_one_is_gone(running: Running) -> None:
    folder = tiny.adapter(running.folder / "users/bob/adapters/fresh", "tiny-llama", seed=50)
    first = said(running.ask("fresh", user="bob"))
    (folder / "adapter_model.safetensors").write_bytes(tiny.safetensors(tiny.pairs(51)))
    until(lambda: said(running.ask("fresh", user="bob")) != first)
    assert said(running.ask("fresh", user="bob")) == digest(folder)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    until(lambda: running.ask("fresh", user="bob").status_code == 404)


def test_residency_is_seen_and_pins_hold(running: Running) -> None:
    for number in range(4):
        tiny.adapter(running.folder / f"shared/many-{number}", "tiny-llama", seed=100 + number)
    about = running.client.put("/v1/adapters/many-0/pin", headers=bearer("ann")).json()
    assert (about["resident"], about["pinned"]) == (True, True)
    for number in (1, 2, 3):
        running.ask(f"many-{number}")
    listed = running.client.get("/v1/adapters?resident=true", headers=bearer("ann")).json()["data"]
    assert [each["id"] for each in listed] == ["many-0", "many-2", "many-3"]
    assert len(running.record()["loaded"]) == 3
    assert running.client.get("/v1/adapters/many-0", headers=bearer("bob")).json()["pinned"] is False
    again = running.client.put("/v1/adapters/many-1/pin", headers=bearer("ann"))
    assert (again.status_code, again.json()["error"]["code"]) == (409, "too-many-pins")
    assert running.client.delete("/v1/adapters/many-0/pin", headers=bearer("ann")).json()["pinned"] is False
    page = running.client.get("/v1/adapters?limit=2", headers=bearer("ann")).json()
    assert (len(page["data"]), page["has_more"]) == (2, True)


def test_metrics_of_both_and_no_names(running: Running) -> None:
    running.ask("mine")
    text = running.client.get("/metrics").text
    assert "rocstack_serve_engine_up 1.0" in text
    assert "vllm:num_requests_running" in text
    assert "mine" not in text
    assert "ann" not in text


def test_an_engine_that_dies_in_a_stream(running: Running) -> None:
    running.client.put("/v1/adapters/mine/pin", headers=bearer("ann"))
    starts = running.client.get("/metrics").text
    answer = running.ask("mine", "die", stream=True)
    parts = events(answer.text)
    assert len(parts) == 4
    error = json.loads(parts[-1])["error"]
    assert error["code"] == "stream-broken"
    assert "ask again" in error["message"]
    assert said(running.ask("mine")) == digest(running.folder / "users/ann/adapters/mine")
    assert running.client.get("/metrics").text != starts
    broken = running.ask("poet", "die", path="/v1/responses", stream=True).text
    assert broken.rpartition("event: ")[2].startswith("error\n")
    until(lambda: bool(running.client.get("/v1/adapters/mine", headers=bearer("ann")).json()["resident"]))
    running.client.delete("/v1/adapters/mine/pin", headers=bearer("ann"))


def test_an_engine_that_dies_before_it_answers(running: Running) -> None:
    answer = running.ask("mine", "die")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine-lost")
    assert answer.headers["retry-after"]
    assert said(running.ask("mine")) == digest(running.folder / "users/ann/adapters/mine")


def test_who_hangs_up_frees_her_place(running: Running) -> None:
    with pytest.raises(httpx.ReadTimeout):
        running.client.post(
            CHAT, json={"model": "mine", "messages": [{"role": "user", "content": "slow 30"}]}, headers=bearer("ann"),
            timeout=0.5,
        )  # fmt: skip
    until(lambda: running.client.get("/v1/adapters/mine", headers=bearer("ann")).json()["running"] == 0, 10)


def test_without_tokens_only_loopback_names_are_answered(tmp_path: Path) -> None:
    with gateway(tmp_path, tokens=None) as it:
        assert it.client.get("/v1/models").status_code == 200
        assert it.client.get("/v1/models", headers={"Host": "evil.example:80"}).status_code == 401
        page = it.client.post(CHAT, content=b'{"model": "poet"}', headers={"Content-Type": "text/plain"})
        assert page.json()["error"]["code"] == "request-no-json"


def test_sigterm_lets_a_stream_end(tmp_path: Path) -> None:
    with gateway(tmp_path) as it:
        with it.client.stream(
            "POST", CHAT, json={"model": "poet", "stream": True, "messages": [{"role": "user", "content": "x"}]},
            headers=bearer("ann"),
        ) as answer:  # fmt: skip
            it.process.send_signal(signal.SIGTERM)
            text = "".join(answer.iter_text())
        assert events(text)[-1] == "[DONE]"
        assert it.process.wait(30) == 0


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"modle": "x"}, "serve-settings", "modle: there is no such key"),
        ({"listen": "0.0.0.0:80"}, "serve-settings", "no loopback address"),
        ({"active": 9}, "serve-settings", "can't be more"),
        ({"model": "/nowhere"}, "no-base-model", "/nowhere"),
        ({"engine": {"command": ["/nowhere/vllm"]}}, "no-vllm-command", "/nowhere/vllm"),
        ({"engine": {"command": [sys.executable, str(FAKE)], "arguments": ["--port=1"]}}, "engine-argument", "--port"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, change: dict[str, Any], code: str, words: str) -> None:
    file = written(tmp_path, **change)
    ran = subprocess.run(
        [sys.executable, "-m", "rocstack.serve", str(file)], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "cli")},
    )  # fmt: skip
    assert ran.returncode in (1, 2)
    assert f"error: {code}" in ran.stderr
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_engine_that_never_starts_ends_the_gateway(tmp_path: Path) -> None:
    file = written(
        tmp_path, engine={"command": [sys.executable, "-c", "raise SystemExit('ValueError: no such model')"]}
    )
    ran = subprocess.run(
        [sys.executable, "-m", "rocstack.serve", str(file)], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "cli")},
    )  # fmt: skip
    assert ran.returncode == 1
    assert "error: engine-start" in ran.stderr
    assert "cause: ValueError: no such model" in ran.stderr


def test_it_is_announced_once_the_engine_answers(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    late = f'while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; exec {sys.executable} {FAKE} "$@"'
    announced = tmp_path / "server.json"
    announced.write_text("of one that was killed")
    file = written(
        tmp_path, listen="127.0.0.1:0", tokens=None, announce=str(announced),
        engine={"command": ["sh", "-c", late, "late"]},
    )  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "cli")}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen([sys.executable, "-m", "rocstack.serve", str(file)], stderr=log, env=environment) as it,
    ):
        try:
            until(lambda: " at https://" in (tmp_path / "log").read_text())
            url = (tmp_path / "log").read_text().partition(" at ")[2].partition("/v1")[0]
            with httpx.Client(base_url=url, verify=False) as client:
                assert client.get("/health").status_code == 503
                assert not announced.exists()
                (tmp_path / "go").touch()
                until(announced.exists)
                assert client.get("/health").status_code == 200
            assert url.endswith(f":{json.loads(announced.read_text())['port']}")
        finally:
            it.send_signal(signal.SIGTERM)
            it.wait(30)
    assert not announced.exists()


def test_tokens_that_others_can_read(tmp_path: Path) -> None:
    from rocstack.serve.identity import TokenFile

    written(tmp_path)
    (tmp_path / "tokens").chmod(0o644)
    with pytest.raises(BadInput, match="others may read"):
        TokenFile(tmp_path / "tokens")
    (tmp_path / "tokens").chmod(0o600)
    (tmp_path / "tokens").write_text("ann secret\n")
    with pytest.raises(BadInput) as raised:
        TokenFile(tmp_path / "tokens")
    assert str(raised.value.where).endswith("tokens:1")


def test_arguments_that_are_the_gateways() -> None:
    refuse_own(("--max-model-len=4096", "--dtype=bfloat16"))
    for each in ("--uds=/x", "--api_key=x", "--lora-modules"):
        with pytest.raises(BadInput):
            refuse_own((each,))


def test_defaults_hold_together() -> None:
    found = settings.ServeSettings.model_validate_json('{"model": "/models/llama", "state": "/run/serve"}')
    assert (found.base, found.host, found.port) == ("llama", "127.0.0.1", 8000)
