"""The service on two deployed nodes, by the stock openai client: a file becomes an adapter, trained under Slurm as its
owner, and answers by vLLM; nobody else sees it; what is paused goes on; a Slurm that hangs loses nothing."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from shared_folder import share
from site_registry import free_port
from workspace import REPO, Built, Workspace, engine

from rocstack.deploy.plan import tls
from rocstack.image import gateway_package

pytestmark = [pytest.mark.engine, pytest.mark.slow]

INVENTORY = Path(".rocstack/local/inventory.yml")
SERVICE_UID, PORT = 64033, 8443
TALKS = [
    {
        "messages": [
            {"role": "user", "content": f"{who} says hi{'!' * n}"},
            {"role": "assistant", "content": f"hello {who}"},
        ]
    }
    for who in ("ann", "bob", "eve", "joe")
    for n in range(6)
]
ONE_TASK = {"tasks_per_node": 1, "gpus_per_node": 0, "seq_len": 128, "rank": 4}
MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(1)
sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
ends = dict(eos_token_id=256, pad_token_id=256, max_position_embeddings=512)
for name in ("tiny-llama", "own-llama"):
    folder = Path({folder!r}) / name
    LlamaForCausalLM(LlamaConfig(vocab_size=260, **sizes, **ends)).save_pretrained(folder)
    tokenizer(folder)
"""


@dataclass
class ServedCluster:
    workspace: Workspace
    shared: Path
    url: str
    ca: str
    tokens: dict[str, str]
    gateway: str  # address and port that the service knows a gateway by

    def client(self, token: str) -> httpx.Client:
        context = ssl.create_default_context(cadata=self.ca)
        return httpx.Client(base_url=self.url, verify=context, headers={"Authorization": f"Bearer {token}"}, timeout=90)

    def openai(self, user: str) -> openai.OpenAI:
        token = self.tokens[user]
        return openai.OpenAI(api_key=token, base_url=f"{self.url}/v1", http_client=self.client(token), max_retries=0)

    def control(self, command: str) -> str:
        node = self.workspace.nodes()["n1"]
        line = ["docker", "exec", node, "docker", "exec", "rocstack-control", "sh", "-c", command]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def served(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    folder = tmp_path_factory.mktemp("served")
    workspace = Workspace(folder, built.workspace.prefix, made=built.workspace.made)
    shared = Path(tempfile.mkdtemp(prefix="rocstack-shared-"))
    shared.chmod(0o755)
    users = "alice: {uid: 2000}, bob: {uid: 2001}"
    text = f"inventory: {INVENTORY}\ncluster:\n  mounts: [{shared}]\n  users: {{{users}}}\n  health: {{drain: false}}\n"
    (folder / "rocstack.yml").write_text(text)
    process = None
    try:
        ran(workspace, "local", "up", "--nodes", "2")
        nodes = workspace.nodes()
        share(shared, nodes.values())
        ran(workspace, "deploy")
        model(nodes["n1"], shared)
        gateway = f"{outside(nodes['n1'])}:{free_port()}"
        process, url, ca = start(workspace, nodes["n1"], shared, gateway)
        tokens = {user: ran(workspace, "token", "--user", user).strip() for user in ("alice", "bob")}
        yield ServedCluster(workspace, shared, url, ca, tokens, gateway)
    finally:
        if process:
            process.terminate()
            process.wait(60)
        workspace.run("local", "down")
        for place in (shared, settings_folder(shared)):
            shutil.rmtree(place, ignore_errors=True)


def settings_folder(shared: Path) -> Path:
    return shared.with_name(f"{shared.name}-service")


def ran(workspace: Workspace, *words: str) -> str:
    done = workspace.run(*words)
    assert done.code == 0, f"{words}: {done.out}{done.err}"
    return done.out


def model(node: str, shared: Path) -> None:
    """Tiny seeded Llamas with a tokenizer, made by the worker's own transformers."""
    script = (REPO / "images/trainer/tests/chats.py").read_text() + MODEL.format(folder=f"{shared}/models")
    line = ["docker", "exec", "-i", node, "docker", "exec", "-i", "rocstack-worker", "python3", "-"]
    subprocess.run(line, input=script, text=True, capture_output=True, check=True)
    (shared / "models").chmod(0o755)
    for path in (shared / "models").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def outside(node: str) -> str:
    """This machine's address in the nodes' own network."""
    form = "{{range .NetworkSettings.Networks}}{{.Gateway}}{{end}}"
    return subprocess.run(
        ["docker", "inspect", "--format", form, node], capture_output=True, text=True, check=True
    ).stdout.strip()


def start(workspace: Workspace, node: str, shared: Path, gateway: str) -> tuple[subprocess.Popen[str], str, str]:
    """In the control node's network, where slurmrestd listens on loopback; with the uid of its image, if that may read
    this checkout."""
    form = "{{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    said = subprocess.run(["docker", "inspect", "--format", form, node], capture_output=True, text=True, check=True)
    pid, address = said.stdout.split()
    now, folder = datetime.now(UTC), settings_folder(shared)
    ca, ca_key = tls.make_ca(now)
    key = tls.make_key()
    folder.mkdir(mode=0o755)
    its_key, place = tls.make_key(), gateway.rpartition(":")[0]
    files = {"ca.pem": ca, "server.pem": tls.certificate(ca, ca_key, key, [address], now), "server.key": key}
    files |= {"gateway.pem": tls.certificate(ca, ca_key, its_key, [place], now), "gateway.key": its_key}
    for name, text in files.items():
        (folder / name).write_text(text)
    settings = {
        "cluster": "rocstack", "listen": f"0.0.0.0:{PORT}", "data": f"{shared}/rocstack", "models": f"{shared}/models",
        "database": f"sqlite:///{folder}/service.db", "certificate": f"{folder}/server.pem",
        "key": f"{folder}/server.key",
        "users": {"alice": {"uid": 2000, "gid": 2000}, "bob": {"uid": 2001, "gid": 2001}},
        "limits": {"file_mib": 1, "quota_mib": 4, "jobs": 10},
        "servers": [{"model": "tiny-llama", "url": f"https://{gateway}", "ca": f"{folder}/ca.pem"}],
    }  # fmt: skip
    (folder / "service.json").write_text(json.dumps(settings))
    (shared / "rocstack").mkdir()
    places = [REPO, *REPO.parents, Path(sys.executable).parent, *Path(sys.executable).parents]
    uid = SERVICE_UID if all(place.stat().st_mode & 0o001 for place in places) else 0
    for path in (folder, *folder.iterdir(), shared / "rocstack"):
        os.chown(path, uid, uid)
    as_service = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    line = ["nsenter", "--target", pid, "--net", *as_service, sys.executable, "-m", "rocstack.service"]
    environment = {**os.environ, "PYTHONPATH": str(REPO / "cli"), "PYTHONDONTWRITEBYTECODE": "1"}
    log = (workspace.folder / "service.log").open("w")
    process = subprocess.Popen([*line, str(folder / "service.json")], env=environment, stderr=log, text=True)
    url = f"https://{address}:{PORT}"
    context = ssl.create_default_context(cadata=ca)

    def healthy() -> bool:
        assert process.poll() is None, (workspace.folder / "service.log").read_text()
        try:
            return httpx.get(f"{url}/health", verify=context).status_code == 200
        except httpx.TransportError:
            return False

    until(healthy, 60)
    return process, url, ca


def until(true: Callable[[], Any], seconds: float = 180, said: Callable[[], Any] = lambda: "") -> Any:
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {said()}"
        time.sleep(0.5)
    return found


def chat(client: openai.OpenAI) -> str:
    data = "".join(f"{json.dumps(each)}\n" for each in TALKS).encode()
    return client.files.create(file=("chat.jsonl", data), purpose="fine-tune").id


def test_a_file_becomes_an_adapter_of_its_owner(served: ServedCluster) -> None:
    client = served.openai("alice")
    where = {"nodes": 2, "steps": 6, "checkpoint_every": 3, **ONE_TASK}
    made = client.fine_tuning.jobs.create(
        model="tiny-llama", training_file=chat(client), suffix="hi", extra_body={"rocstack": where}
    )
    raw = served.client(served.tokens["alice"])
    with raw.stream("GET", f"/v1/fine_tuning/jobs/{made.id}/events?stream=true", timeout=300) as stream:
        data = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: ")]
    log = raw.get(f"/v1/jobs/{made.id}/log", params={"offset": -4000}).json()["text"]
    assert data[-1] == "[DONE]", log
    events = [json.loads(line) for line in data[:-1]]
    steps = [each["data"]["step"] for each in events if each["type"] == "metrics"]
    assert steps == [1, 2, 3, 4, 5, 6], log
    job = client.fine_tuning.jobs.retrieve(made.id)
    assert job.status == "succeeded", (job.error, log)
    assert [each.step_number for each in client.fine_tuning.jobs.checkpoints.list(made.id)] == [6, 3]
    said = [each.message for each in client.fine_tuning.jobs.list_events(made.id, limit=100)]
    assert "running on n[1-2]" in said
    assert job.fine_tuned_model in [each.id for each in client.models.list()]
    number = raw.get(f"/v1/jobs/{made.id}").json()["slurm_job"]
    assert served.control(f"sacct -nX -j {number} -o uid,state").split() == ["2000", "COMPLETED"]
    (adapter,) = (served.shared / "rocstack/alice/adapters").iterdir()
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"]) == ("LORA", 4)
    assert (adapter / "adapter_model.safetensors").stat().st_size > 1000
    as_bob = ["setpriv", "--reuid=2001", "--regid=2001", "--clear-groups", "ls", str(adapter)]
    assert subprocess.run(as_bob, capture_output=True, check=False).returncode != 0
    other = served.openai("bob")
    for ask in (
        lambda: other.fine_tuning.jobs.retrieve(made.id),
        lambda: other.fine_tuning.jobs.cancel(made.id),
        lambda: other.files.retrieve(made.training_file),
        lambda: other.models.retrieve(job.fine_tuned_model or ""),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    assert [each.id for each in other.models.list()] == ["own-llama", "tiny-llama"]


def test_a_wrong_and_an_expired_token(served: ServedCluster) -> None:
    good = served.tokens["alice"]
    forged = good[:-6] + ("AAAAAA" if good[-6:] != "AAAAAA" else "BBBBBB")
    short = ran(served.workspace, "token", "--user", "alice", "--lifespan", "1s").strip()
    time.sleep(1.5)
    for token, code in ((forged, "token-refused"), (short, "token-expired"), ("x", "bad-token")):
        answer = served.client(token).get("/v1/files")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, code)


def test_a_job_of_a_recipe_runs_as_its_owner_and_has_a_log(served: ServedCluster) -> None:
    bob = served.client(served.tokens["bob"])
    body = {"recipe": "mine", "gpus_per_node": 0, "arguments": ["id", "-u"]}
    key = bob.post("/v1/jobs", json=body).json()["id"]
    until(lambda: bob.get(f"/v1/jobs/{key}").json()["status"] == "succeeded", said=lambda: bob.get("/v1/jobs").text)
    assert "2001" in bob.get(f"/v1/jobs/{key}/log").json()["text"].splitlines()
    refused = bob.post("/v1/jobs", json=body | {"account": "nobodys"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "slurm-refuses")
    assert [each["name"] for each in bob.get("/v1/nodes").json()["data"]] == ["n1", "n2"]
    assert {"low", "normal", "high"} <= {each["name"] for each in bob.get("/v1/qos").json()["data"]}


def test_what_is_paused_saves_and_goes_on(served: ServedCluster) -> None:
    client, raw = served.openai("alice"), served.client(served.tokens["alice"])
    where = {"nodes": 1, "steps": 100_000, "checkpoint_every": 50_000, **ONE_TASK}
    job = client.fine_tuning.jobs.create(
        model="tiny-llama", training_file=chat(client), extra_body={"rocstack": where}
    ).id
    steps = lambda: [each["step"] for each in raw.get(f"/v1/jobs/{job}/metrics").json()["data"]]  # noqa: E731
    state = lambda: raw.get(f"/v1/jobs/{job}").json()  # noqa: E731
    until(lambda: len(steps()) > 3, said=state)
    assert client.fine_tuning.jobs.pause(job).status == "paused"
    until(lambda: state()["slurm"]["state"] == "COMPLETED", said=state)
    (saved,) = [each.step_number for each in client.fine_tuning.jobs.checkpoints.list(job)]
    assert client.fine_tuning.jobs.resume(job).status == "queued"
    until(lambda: steps()[-1] > saved, said=state)
    assert f"resume: step {saved} from" in raw.get(f"/v1/jobs/{job}/log", params={"limit": 1 << 22}).json()["text"]
    assert client.fine_tuning.jobs.cancel(job).status == "cancelled"


def test_a_slurm_that_hangs_loses_nothing_and_doubles_nothing(served: ServedCluster) -> None:
    """slurmctld takes the job when it goes on, though slurmrestd had given it up."""
    raw = served.client(served.tokens["alice"])
    body = {"recipe": "mine", "gpus_per_node": 0, "name": "once", "arguments": ["true"]}
    assert raw.post("/v1/jobs", json=body | {"name": "before"}).status_code == 200
    daemon = "kill -{} $(pidof slurmctld slurmctld-wlm | cut -d' ' -f1)"
    served.control(daemon.format("STOP"))
    try:
        kept = raw.post("/v1/jobs", json=body)
        assert "rocstack_slurm_silent 1.0" in raw.get("/metrics").text
        assert raw.get("/v1/nodes").json()["error"]["code"] == "slurm-away"
        assert raw.get("/health").status_code == 200
    finally:
        served.control(daemon.format("CONT"))
    assert (kept.status_code, kept.json()["error"]["code"]) == (503, "job-kept")
    job = lambda: next(each for each in raw.get("/v1/jobs").json()["data"] if each["name"] == "once")  # noqa: E731
    until(lambda: job()["status"] == "succeeded", said=job)
    assert served.control("sacct -nX --name=once -o jobid").split() == [str(job()["slurm_job"])]


GATEWAYS_NEED = ("fastapi", "uvicorn", "httpx", "prometheus-client", "cryptography", "pydantic", "pyyaml")


def install_recorder(served: ServedCluster) -> None:
    """The gateway as its image has it and a recorder in vLLM's place, in the workers, whose image has neither."""
    lib = served.shared / "lib"
    wheels = ["--target", str(lib), "--python-version=3.13", "--only-binary=:all:", "--quiet", *GATEWAYS_NEED]
    subprocess.run([sys.executable, "-m", "pip", "install", *wheels], check=True, capture_output=True)
    for name, file in gateway_package.files().items():
        if name.startswith(place := "vllm/package/"):
            path = lib / name.removeprefix(place)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
    shutil.copy(REPO / "tests/support/fake_vllm.py", lib)
    for path in (lib, *lib.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    lines = {"rocstack-serve": "-m rocstack.serve", "vllm": f"{lib}/fake_vllm.py"}
    for node in served.workspace.nodes().values():
        for name, what in lines.items():
            text = f'#!/bin/sh\nPYTHONPATH={lib} exec python3 {what} "$@"\n'
            script = f"cat >/usr/local/bin/{name} && chmod 755 /usr/local/bin/{name}"
            line = ["docker", "exec", "-i", node, "docker", "exec", "-i", "rocstack-worker", "sh", "-c", script]
            subprocess.run(line, input=text, text=True, check=True, capture_output=True)


def test_a_server_of_ones_own_is_a_job_with_a_recorder_of_the_engine(served: ServedCluster) -> None:
    """Under Slurm, as its owner: it reads her adapters, and the service reads what it announces, by ACLs alone."""
    install_recorder(served)
    client, raw = served.openai("alice"), served.client(served.tokens["alice"])
    where = {"nodes": 1, "steps": 2, **ONE_TASK}
    job = client.fine_tuning.jobs.create(
        model="own-llama", training_file=chat(client), suffix="own", extra_body={"rocstack": where}
    ).id
    until(lambda: client.fine_tuning.jobs.retrieve(job).status == "succeeded", 300)
    model = client.fine_tuning.jobs.retrieve(job).fine_tuned_model or ""
    body = {"model": "own-llama", "gpus_per_node": 0, "replicas": 2}
    made = [each["id"] for each in raw.post("/v1/servers", json=body).json()["data"]]
    rows = lambda: raw.get("/v1/servers").json()["data"]  # noqa: E731
    until(lambda: [each["status"] for each in rows()] == ["ready", "ready"], 120, said=lambda: logs(raw, made))
    adapter = max((served.shared / "rocstack/alice/adapters").iterdir(), key=lambda each: each.name)
    digest = hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest()

    def ask(name: str) -> tuple[str, str | None]:
        said = client.chat.completions.create(model=name, messages=[{"role": "user", "content": "hello"}])
        return said.model, said.choices[0].message.content

    assert ask(model) == (model, digest), logs(raw, made)
    assert ask("own-llama") == ("own-llama", "the base")
    stream = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}], stream=True)
    assert "".join(each.choices[0].delta.content or "" for each in stream) == digest[:8]
    with pytest.raises(openai.BadRequestError):  # nobody serves it to bob
        served.openai("bob").chat.completions.create(model="own-llama", messages=[{"role": "user", "content": "x"}])
    number = raw.get(f"/v1/jobs/{made[0]}").json()["slurm_job"]
    assert served.control(f"squeue -h -j {number} -o %U").split() == ["2000"]
    announced = served.shared / "rocstack/alice/jobs" / made[0] / "server.json"
    as_bob = ["setpriv", "--reuid=2001", "--regid=2001", "--clear-groups", "cat", str(announced)]
    assert subprocess.run(as_bob, capture_output=True, check=False).returncode != 0
    assert raw.delete(f"/v1/servers/{made[0]}").json()["deleted"]
    assert ask(model) == (model, digest)  # by the other one
    assert raw.delete(f"/v1/servers/{made[1]}").json()["deleted"]
    until(lambda: not announced.exists(), 60)
    with pytest.raises(openai.BadRequestError):
        ask(model)


def logs(raw: httpx.Client, jobs: list[str]) -> str:
    return "\n".join(raw.get(f"/v1/jobs/{job}/log", params={"offset": -2000}).text for job in jobs)


@contextmanager
def vllm(served: ServedCluster, image: str, prefix: str) -> Iterator[None]:
    """A gateway of the site's, with vLLM: it asks the service who it is, and has each person's adapters."""
    folder, shared = settings_folder(served.shared), served.shared
    container = f"{prefix.replace('/', '-')}-loop-{secrets.token_hex(3)}"
    command = served.workspace.command(
        "serve", f"{shared}/models/tiny-llama", f"--user-adapters={shared}/rocstack", f"--people={served.url}",
        f"--people-ca={folder}/ca.pem", f"--listen={served.gateway}", f"--certificate={folder}/gateway.pem",
        f"--key={folder}/gateway.key", "--max-rank=8", f"--image={image}", f"--container={container}", "--gpus=none",
        "--cache=1", "--", "--enforce-eager", "--dtype=float32", "--max-model-len=256",
    )  # fmt: skip
    place = served.workspace.folder
    context = ssl.create_default_context(cadata=served.ca)
    with (place / "serve.log").open("w") as log:
        running = subprocess.Popen(command, stderr=log, cwd=place, env=served.workspace.environ())

        def answers() -> bool:
            assert running.poll() is None, (place / "serve.log").read_text()[-3000:]
            try:
                return httpx.get(f"https://{served.gateway}/health", verify=context).status_code == 200
            except httpx.TransportError:
                return False

        try:
            until(answers, 900)
            yield
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(60)
            finally:
                engine("rm", "--force", container, check=False)


def by_peft(served: ServedCluster, base: Path, tokens: int, adapter: Path) -> dict[str, list[int]]:
    """Plain peft and transformers of a worker, as root: the adapter is its owner's."""
    node, script = served.workspace.nodes()["n1"], (REPO / "tests/support/greedy_answers.py").read_text()
    line = ["docker", "exec", "-i", node, "docker", "exec", "-i", "rocstack-worker", "python3", "-"]
    words = ["--ids", str(base), str(tokens), str(adapter)]
    done = subprocess.run([*line, *words], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_the_loop_from_a_file_to_an_answer(served: ServedCluster, vllm_image: str, prefix: str) -> None:
    """Uploaded, trained on two nodes, served by vLLM: the adapter answers as by plain peft, and not as the base."""
    client, tokens = served.openai("alice"), 12
    where = {"nodes": 2, "steps": 40, **ONE_TASK}
    job = client.fine_tuning.jobs.create(
        model="tiny-llama", training_file=chat(client), suffix="loop", extra_body={"rocstack": where},
        hyperparameters={"learning_rate_multiplier": 100},
    ).id  # fmt: skip
    state = lambda: client.fine_tuning.jobs.retrieve(job)  # noqa: E731
    until(lambda: state().status not in ("queued", "running"), 300, said=state)
    model = state().fine_tuned_model
    assert model, state()
    folders = (served.shared / "rocstack/alice/adapters").iterdir()
    adapter = max(folders, key=lambda each: each.name)
    wanted = by_peft(served, served.shared / "models/tiny-llama", tokens, adapter)
    assert wanted[""] != wanted[adapter.name]
    with vllm(served, vllm_image, prefix):

        def ask(name: str, user: str = "alice") -> tuple[str, list[int]]:
            said = served.openai(user).chat.completions.create(
                model=name, messages=[{"role": "user", "content": "hello"}], max_tokens=tokens, temperature=0,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )  # fmt: skip
            return said.model, said.choices[0].to_dict()["token_ids"]  # type: ignore[return-value]

        assert ask(model) == (model, wanted[adapter.name])
        assert ask("tiny-llama") == ("tiny-llama", wanted[""])
        assert ask("tiny-llama", "bob") == ("tiny-llama", wanted[""])
        with pytest.raises(openai.NotFoundError):
            ask(model, "bob")
        stream = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=tokens, stream=True
        )
        assert {each.model for each in stream} == {model}
