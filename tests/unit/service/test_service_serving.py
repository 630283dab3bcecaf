"""Models of the service answer: by a person's own serving job, whose script runs here with a recorder in vLLM's place,
or by a server of the site."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import tiny_adapters as tiny
from conftest import CHAT as CHAT_ROWS
from conftest import Site, lines, settings
from fake_slurmrestd import FakeSlurmrestd, token
from model_servers import BASE, CHAT, FAKE, ROOT, chat, listening, own_adapter, serving_job, until
from test_service_page import browser

from rocstack.cluster.service import SiteServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("fresh")]


async def test_a_persons_own_server_answers_for_her_adapters_alone(
    site: Site, slurm: FakeSlurmrestd, tmp_path: Path
) -> None:
    tiny.base(site.service.models.folder / "org/small")
    mine = await own_adapter(site, "alice", "one", 1)
    await own_adapter(site, "bob", "his", 2)
    alice, bob = site.of("alice"), site.of("bob")
    none = await alice.post(CHAT, json=chat("ft:org-small:alice:one"))
    assert (none.status_code, none.json()["error"]["code"]) == (400, "not-served")
    async with serving_job(site, slurm, tmp_path) as job:
        client = openai.AsyncOpenAI(api_key=token("alice"), base_url="http://test/v1", http_client=alice, max_retries=0)
        said = await client.chat.completions.create(
            model="ft:org-small:alice:one", messages=[{"role": "user", "content": "hello"}]
        )
        assert (said.model, said.choices[0].message.content) == ("ft:org-small:alice:one", mine)
        said = await client.chat.completions.create(model=BASE, messages=[{"role": "user", "content": "hello"}])
        assert (said.model, said.choices[0].message.content) == (BASE, "the base")
        parts = await client.chat.completions.create(
            model="ft:org-small:alice:one", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        found = [each async for each in parts]
        assert {each.model for each in found} == {"ft:org-small:alice:one"}
        assert "".join(each.choices[0].delta.content or "" for each in found) == mine[:8]
        events = (await alice.post("/v1/responses", json={"model": BASE, "input": "hi", "stream": True})).text
        assert events.count("response.output_text.delta") == 16
        assert (await alice.post("/v1/completions", json={"model": BASE, "prompt": "hi"})).status_code == 200
        for user, model, status, code in (
            (alice, "ft:org-small:bob:his", 404, "no-such-served-model"),
            (bob, "ft:org-small:alice:one", 404, "no-such-served-model"),
            (bob, BASE, 400, "not-served"),
            (bob, "ft:org-small:bob:his", 400, "not-served"),
            (alice, "adapter-one", 404, "no-such-served-model"),
        ):
            refused = await user.post(CHAT, json=chat(model))
            assert (refused.status_code, refused.json()["error"]["code"]) == (status, code), model
        meant = (await alice.post(CHAT, json=chat("ft:org-small:alice:onne"))).json()["error"]
        assert (meant["param"], "did you mean 'ft:org-small:alice:one'?" in meant["message"]) == ("model", True)
        assert (await alice.post(CHAT, json=chat(BASE, chat_template="x"))).json()["error"]["code"] == "request-refused"
        assert (await alice.post(CHAT, content=b"{")).json()["error"]["code"] == "request-no-json"
        assert (await bob.delete(f"/v1/servers/{job}")).status_code == 404
        assert (await alice.delete(f"/v1/servers/{job}")).json()["deleted"]
        assert (await alice.get("/v1/servers")).json()["data"] == []


async def test_the_loop_from_a_file_to_an_answer_with_recorders_of_slurm_and_the_engine(
    site: Site, slurm: FakeSlurmrestd, tmp_path: Path
) -> None:
    """Its whole form, with Slurm and vLLM, is in tests/integration/test_service_api.py."""
    tiny.base(site.service.models.folder / "org/small")
    client = openai.AsyncOpenAI(
        api_key=token("alice"), base_url="http://test/v1", http_client=site.of("alice"), max_retries=0
    )
    file = await client.files.create(file=("chat.jsonl", lines(CHAT_ROWS)), purpose="fine-tune")
    made = await client.fine_tuning.jobs.create(
        model=BASE, training_file=file.id, suffix="loop", extra_body={"rocstack": {"nodes": 2, "gpus_per_node": 0}}
    )
    assert f"{site.data}/alice/files/{file.id}.jsonl" in slurm.submitted[0]["script"]
    own = tiny.adapter(site.data / "alice/jobs" / made.id / "adapter", str(site.service.models.folder / "org/small"))
    early = await site.of("alice").get(f"/v1/train/jobs/{made.id}/eval")
    assert (early.status_code, early.json()["error"]["code"]) == (409, "no-model-yet")
    slurm.set(slurm.next - 1, "COMPLETED", nodes="n[1-2]")
    job = await client.fine_tuning.jobs.retrieve(made.id)
    assert (job.status, job.error) == ("succeeded", None)
    model = str(job.fine_tuned_model)
    async with serving_job(site, slurm, tmp_path):
        said = await client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}])
        base = await client.chat.completions.create(model=BASE, messages=[{"role": "user", "content": "hello"}])
        beside = (await site.of("alice").get(f"/v1/train/jobs/{job.id}/eval")).json()
    assert [each["input"] for each in beside["eval_results"]] == [row["messages"][0]["content"] for row in CHAT_ROWS]
    both = [[(each["model_name"], each["output"]) for each in row["outputs"]] for row in beside["eval_results"]]
    assert both[0] == [(model, said.choices[0].message.content), (BASE, "the base")]

    async def gone() -> bool:
        said = (await site.of("alice").get(f"/v1/train/jobs/{job.id}/eval")).json()
        return said.get("error", {}).get("code") in ("server-starts", "server-lost")

    await until(gone)  # it is just ending
    digest = hashlib.sha256((own / "adapter_model.safetensors").read_bytes()).hexdigest()
    assert (said.model, said.choices[0].message.content) == (model, digest)
    assert base.choices[0].message.content == "the base"


async def test_on_the_page_a_model_is_tried(site: Site, slurm: FakeSlurmrestd, tmp_path: Path) -> None:
    tiny.base(site.service.models.folder / "org/small")
    mine = await own_adapter(site, "alice", "one", 1)
    page, place = browser(site), "/try?model=ft:org-small:alice:one"
    assert 'href="/try?model=ft%3Aorg-small%3Aalice%3Aone"' in (await page.get("/models")).text
    assert "Start a server" in (await page.get(place)).text
    assert "Nothing serves" in (await page.post(place, data={"text": "hello"})).text
    assert (await page.get("/try?model=nothing")).status_code == 404
    async with serving_job(site, slurm, tmp_path):
        assert "ready" in (await page.get(place)).text
        assert mine in (await page.post(place, data={"text": "hello"})).text
        part = await page.post(place, data={"text": "hello"}, headers={"HX-Request": "true"})
        assert (mine in part.text, "<html" in part.text) == (True, False)
        assert "Write something first" in (await page.post(place, data={"text": " "})).text
        assert "Tokens: a number from 1 to" in (await page.post(place, data={"text": "hello", "tokens": "-1"})).text
        assert "ready" in (await page.get(place.replace("/try?", "/try/servers?"))).text
    slurm.set(slurm.next - 1, "FAILED", nodes="n1")
    started = await page.post("/servers", data={"model": BASE, "tried": "ft:org-small:alice:one", "time": "1h"})
    assert (started.status_code, started.headers["location"]) == (303, "/try?model=ft%3Aorg-small%3Aalice%3Aone")
    waits = await page.get(place)
    assert ("Once it is ready" in waits.text, ">Ask<" in waits.text) == (True, False)
    for was, fresh in (("waits", None), ("none", "true"), ("ready", "true")):
        part = await page.get(place.replace("/try?", "/try/servers?") + f"&was={was}")
        assert part.headers.get("hx-refresh") == fresh, "a page drawn for another state is drawn again"
    servers = (await site.of("alice").get("/v1/servers")).json()["data"]
    assert [each["status"] for each in servers] == ["queued"]
    assert (await page.post("/servers", data={"model": "nothing"})).status_code == 404
    log = site.data / "alice/jobs" / servers[0]["id"] / "log"
    log.write_text("slurmstepd-n1: error: execve(): rocstack-serve: No such file or directory\nsrun: error: n1\n")
    slurm.set(slurm.next - 1, "FAILED", nodes="n1")
    failed = (await page.get(place)).text
    assert "doesn't run: it failed: the program rocstack-serve isn&#39;t on the node." in failed
    assert "Start a server" in failed
    wrong = await page.post("/servers", data={"model": BASE, "time": "soon", "replicas": "1"})
    assert (wrong.status_code, "&#39;soon&#39; is not a time" in wrong.text) == (400, True)
    assert 'name="time" value="soon"' in wrong.text, "what was written stays"


async def test_replicas_share_the_adapters_and_a_dead_one_is_routed_round_and_started_again(
    site: Site, slurm: FakeSlurmrestd, tmp_path: Path
) -> None:
    tiny.base(site.service.models.folder / "org/small")
    names = [f"a{number}" for number in range(16)]
    digests = {name: await own_adapter(site, "alice", name, number) for number, name in enumerate(names)}
    alice = site.of("alice")

    async def ask(name: str) -> str:
        answer = await alice.post(CHAT, json=chat(f"ft:org-small:alice:{name}"))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    async with serving_job(site, slurm, tmp_path) as first:
        async with serving_job(site, slurm, tmp_path, resident=33):
            assert {name: await ask(name) for name in names} == digests
            assert {name: await ask(name) for name in names} == digests
            rows = (await alice.get("/v1/servers")).json()["data"]
            loaded = [[each["id"] for each in await resident(site, row["id"])] for row in rows]
            assert sorted(loaded[0] + loaded[1]) == sorted(f"adapter-{name}" for name in names)  # each in one place
            assert all(loaded)
        # Slurm hasn't seen yet that the second one ended.
        assert {name: await ask(name) for name in names} == digests
        said = json.loads((site.data / "alice/jobs" / first / "server.json").read_text())
        os.kill(gateway_in(site.data / "alice/jobs" / first), signal.SIGKILL)

        async def again() -> bool:
            return (await alice.post(CHAT, json=chat(BASE))).status_code == 200

        await until(again)
        assert json.loads((site.data / "alice/jobs" / first / "server.json").read_text()) != said
        assert {name: await ask(name) for name in names} == digests


async def test_who_goes_away_in_the_middle_frees_the_server(site: Site, slurm: FakeSlurmrestd, tmp_path: Path) -> None:
    tiny.base(site.service.models.folder / "org/small")
    await own_adapter(site, "alice", "one", 1)
    async with listening(site) as url, serving_job(site, slurm, tmp_path) as job:
        body, head = chat("ft:org-small:alice:one", "slow 600"), {"Authorization": f"Bearer {token('alice')}"}
        async with httpx.AsyncClient(base_url=url, headers=head, timeout=60) as client:
            asked = asyncio.create_task(client.post(CHAT, json=body))

            async def runs(number: int) -> bool:
                return sum(each["running"] for each in await resident(site, job)) == number

            await until(lambda: runs(1))
            asked.cancel()
            await until(lambda: runs(0))


def gateway_in(folder: Path) -> int:
    """The process of the job that runs there."""
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (each / "cwd").resolve() == folder.resolve() and b"rocstack.serve" in (each / "cmdline").read_bytes():
                return int(each.name)
    raise AssertionError("no gateway runs there")


async def resident(site: Site, job: str) -> list[dict[str, Any]]:
    """What the job's gateway says of its adapters, to whoever has its token."""
    said = json.loads((site.data / "alice/jobs" / job / "server.json").read_text())
    async with httpx.AsyncClient(verify=False, headers={"Authorization": f"Bearer {said['token']}"}) as client:
        answer = await client.get(f"https://127.0.0.1:{said['port']}/v1/adapters?resident=true")
        assert (await client.get(answer.url, headers={"Authorization": "Bearer x"})).status_code == 401
    rows: list[dict[str, Any]] = answer.json()["data"]
    return rows


async def test_a_request_to_a_model_may_be_larger_than_others(site: Site) -> None:
    tiny.base(site.service.models.folder / "org/small")
    for size, code, status in ((2, "not-served", 400), (9, "request-too-large", 413)):
        answer = await site.of("alice").post(CHAT, json=chat(BASE, "x" * (size << 20)))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert (await site.client.post(CHAT, json=chat(BASE, "x" * (2 << 20)))).status_code == 401


async def test_who_i_am(site: Site) -> None:
    assert (await site.of("bob").get("/v1/me")).json() == {"id": "bob", "object": "person", "uid": 2001}


async def test_a_server_of_the_site_knows_people_by_their_own_tokens(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway asks the service who it is; each person has her own adapters there."""
    base = tiny.base(site.service.models.folder / "org/small")
    digests = {user: await own_adapter(site, user, "own", seed) for seed, user in enumerate(("alice", "bob"))}
    stack = AsyncExitStack()
    service, port = await stack.enter_async_context(listening(site)), free_port()
    document = {
        "model": str(base), "listen": f"127.0.0.1:{port}", "people": {"url": service}, "state": str(tmp_path / "state"),
        "sources": [{"folder": str(site.data), "layout": "users"}],
        "engine": {"command": [sys.executable, str(FAKE)]},
    }  # fmt: skip
    (tmp_path / "serve.json").write_text(json.dumps(document))
    here = SiteServer(model=BASE, url=f"http://127.0.0.1:{port}")
    object.__setattr__(site.service.servers, "settings", settings(tmp_path).model_copy(update={"servers": (here,)}))
    process = subprocess.Popen(
        [sys.executable, "-m", "rocstack.serve", str(tmp_path / "serve.json")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "cli")},
    )
    try:
        async with httpx.AsyncClient(base_url=here.url) as direct:

            async def ready() -> bool:
                try:
                    return (await direct.get("/health")).status_code == 200
                except httpx.HTTPError:
                    return False

            await until(ready)
            for user, digest in digests.items():
                answer = await site.of(user).post(CHAT, json=chat(f"ft:org-small:{user}:own"))
                assert answer.json()["choices"][0]["message"]["content"] == digest
                own = {"Authorization": f"Bearer {token(user)}"}
                assert (await direct.post(CHAT, json=chat("adapter-own"), headers=own)).status_code == 200
            for bad in (None, "x", token("alice", sign="forged"), token("eve")):
                heads = {"Authorization": f"Bearer {bad}"} if bad else {}
                assert (await direct.get("/v1/models", headers=heads)).status_code == 401
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 30)
        await stack.aclose()
    answer = await site.of("alice").post(CHAT, json=chat(BASE))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server-lost")
    away = SiteServer(model=BASE, url="https://127.0.0.1:1", ca=f"{tmp_path}/none.pem")
    object.__setattr__(site.service.servers, "settings", settings(tmp_path).model_copy(update={"servers": (away,)}))
    assert (await site.of("alice").post(CHAT, json=chat(BASE))).json()["error"]["code"] == "no-server-ca"


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
