"""Who may ask, one form of errors, health, the document, sizes and nodes."""

from __future__ import annotations

import asyncio
import difflib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from conftest import CHAT, PEOPLE, Site, lines, settings
from fake_slurmrestd import FakeSlurmrestd, token

from rocstack.base.errors import BadInput, hinted
from rocstack.service import config, identity
from rocstack.service.database import Database
from rocstack.service.failures import NotSignedIn
from rocstack.service.routes_cluster import SizeBody
from rocstack.service.tables import Table
from rocstack.size import ask

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (None, "no-token"),
        ("Basic YTpi", "no-token"),
        ("Bearer ", "no-token"),
        ("Bearer x.y", "bad-token"),
        ("Bearer a.b.c", "bad-token"),
        ("Bearer " + "a" * 5000, "bad-token"),
        (f"Bearer {token('alice', -5)}", "token-expired"),
        (f"Bearer {token('alice', sign='forged')}", "token-refused"),
    ],
)
async def test_without_a_token_that_slurm_takes_nothing_is_told(site: Site, head: str | None, code: str) -> None:
    headers = {"Authorization": head} if head else {}
    for path in ("/v1/files", "/v1/jobs", "/v1/models", "/v1/recipes", "/v1/nodes"):
        answer = await site.client.get(path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, code)
        assert answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/jobs", "application/json"),
        ("/v1/fine_tuning/jobs", "application/json"),
        ("/v1/size", "text/plain"),
        ("/v1/uploads", "application/json"),
        ("/v1/uploads/upload-1/complete", "application/json"),
        ("/login", "application/x-www-form-urlencoded"),
        ("/login", "multipart/form-data; boundary=x"),
    ],
)
async def test_a_strangers_request_without_end_is_refused(site: Site, path: str, kind: str) -> None:
    """Its body is read before anybody knows who sends it."""
    taken = 0
    file = b'--x\r\nContent-Disposition: form-data; name="token"; filename="a"\r\n\r\n'

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal taken
        yield file if "multipart" in kind else b'{"a": "'
        for _ in range(1000):
            taken += 1
            yield b"x" * 65536

    answer = await site.client.post(path, content=pieces(), headers={"Content-Type": kind})
    assert (answer.status_code, taken < 20) == (413, True)
    if path.startswith("/v1"):
        assert answer.json()["error"]["code"] == "request-too-large"


@pytest.mark.parametrize("colon", [":", " \n:"])
async def test_a_request_of_very_many_names_is_refused(site: Site, colon: str) -> None:
    """Each would become a sentence about what is wrong with it, and nobody else is answered meanwhile."""
    names = ",".join(f'"n{number}"{colon}1' for number in range(10_001))
    head = {"Content-Type": "application/json"}
    for body in (f"{{{names}}}", f'{{"model": "m", "training_file": "f", "metadata": {{{names}}}}}'):
        answer = await site.of("alice").post("/v1/fine_tuning/jobs", content=body, headers=head)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request-too-large")


@pytest.mark.parametrize("path", ["/v1/files", "/v1/uploads/upload-1/parts", "/files"])
async def test_a_file_of_a_stranger_is_not_read(site: Site, path: str) -> None:
    taken = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield b"x" * 65536

    head = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = await site.client.post(path, content=pieces(), headers=head)
    assert (answer.status_code, taken < 3) == (401, True)


async def test_somebody_who_is_none_of_the_cluster(site: Site) -> None:
    answer = await site.of("eve").get("/v1/files")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "no-such-person")


async def test_a_verdict_is_remembered_for_a_minute_and_never_beyond_the_token(
    site: Site, slurm: FakeSlurmrestd, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, good = site.service.door, token("alice", 30)
    asked = lambda: len([path for _, path in slurm.calls if path.endswith("reservations/")])  # noqa: E731
    assert (await door.caller(good)).uid == 2000
    once = asked()
    await door.caller(good)
    assert asked() == once
    later = time.time() + 29
    monkeypatch.setattr(identity.time, "time", lambda: later)
    await door.caller(good)
    assert asked() == once
    monkeypatch.setattr(identity.time, "time", lambda: later + 2)
    with pytest.raises(NotSignedIn):
        await door.caller(good)


async def test_a_refused_token_stays_so_and_slurm_is_not_asked_again_at_once(site: Site, slurm: FakeSlurmrestd) -> None:
    forged = token("alice", sign="forged")
    for _ in range(2):
        with pytest.raises(NotSignedIn):
            await site.service.door.caller(forged)
        asked = len(slurm.calls)
    with pytest.raises(NotSignedIn):
        await site.service.door.caller(forged)
    assert len(slurm.calls) == asked


async def test_the_pages_cookie_counts_only_for_our_own_pages(site: Site) -> None:
    cookies = {"Cookie": f"{identity.COOKIE}={token('alice')}"}
    assert (await site.client.get("/v1/files", headers=cookies)).status_code == 200
    body = {"bytes": 1, "filename": "a", "purpose": "fine-tune"}
    for more, status in (
        ({}, 401),
        ({"Sec-Fetch-Site": "cross-site"}, 401),
        ({"Origin": "http://evil"}, 401),
        ({"Origin": "https://test"}, 401),  # of somebody on the network, where the page is https
        ({"Origin": "http://[::1"}, 401),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://test"}, 200),
    ):
        answer = await site.client.post("/v1/uploads", json=body, headers=cookies | more)
        assert answer.status_code == status, more


async def test_slurm_away_is_said(site: Site, slurm: FakeSlurmrestd) -> None:
    slurm.down = True
    answer = await site.of("alice").get("/v1/files")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "slurm-away")
    assert answer.headers["retry-after"] == "2"
    assert (await site.client.get("/health")).status_code == 200
    slurm.down = False
    assert (await site.of("alice").get("/v1/files")).status_code == 200


async def test_a_database_that_is_away_comes_back_without_a_restart(site: Site, tmp_path: Path) -> None:
    alice = site.of("alice")
    good = site.service.database
    nowhere = Database(f"sqlite:///{tmp_path}/nowhere/x.db")
    object.__setattr__(site.service.files, "database", nowhere)
    site.service.database = nowhere
    answer = await alice.get("/v1/files")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database-away")
    assert (await site.client.get("/health")).status_code == 503
    (tmp_path / "nowhere").mkdir()
    assert (await alice.get("/v1/files")).status_code == 200
    assert (await site.client.get("/health")).json()["status"] == "ok"
    good.close()


async def test_every_error_has_one_form(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = site.of("alice")

    def broken(*_: Any) -> None:
        raise RuntimeError("secret of the inside")

    monkeypatch.setattr(type(site.service.files), "page", broken)
    answers = [
        await alice.get("/v1/nothing"),
        await alice.put("/v1/files"),
        await alice.post("/v1/jobs", content=b"{"),
        await alice.get("/v1/jobs", params={"limit": "many"}),
        await alice.get("/v1/files"),
    ]
    assert [each.status_code for each in answers] == [404, 405, 400, 400, 500]
    for each in answers:
        assert set(each.json()["error"]) == {"message", "type", "code", "param"}
        assert "secret" not in each.text


async def test_numbers_for_prometheus_have_no_names_of_people_or_files(site: Site) -> None:
    await site.of("alice").get("/v1/files/file-secret")
    await site.of("alice").get("/v1/x/secret")
    said = (await site.client.get("/metrics")).text
    assert 'rocstack_requests_total{method="GET",route="/v1/files/{file_id}",status="404"} 1.0' in said
    assert "secret" not in said


async def test_a_request_that_fails_is_counted(site: Site) -> None:
    @site.application.get("/fails/{what}")
    async def fails(what: str) -> None:
        raise LookupError(what)

    answer = await site.of("alice").get("/fails/secret")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "service-failed")
    said = (await site.client.get("/metrics")).text
    assert 'rocstack_requests_total{method="GET",route="/fails/{what}",status="500"} 1.0' in said
    assert 'rocstack_request_seconds_count{method="GET",route="/fails/{what}"} 1.0' in said


async def test_a_strangers_methods_are_counted_as_one(site: Site) -> None:
    for number in range(3):
        await site.client.request(f"STRANGE{number}" * 100, "/health")
    said = (await site.client.get("/metrics")).text
    assert 'rocstack_requests_total{method="other",route="/health",status="405"} 3.0' in said
    assert "STRANGE" not in said


async def test_of_many_ranges_none_is_read(site: Site) -> None:
    """Starlette sorts and merges them in quadratic time, and reads each by itself."""
    many = {"Range": "bytes=" + ",".join(f"{n}-{n}" for n in range(0, 2000, 2))}
    answer = await site.client.get("/static/page.css", headers=many)
    assert (answer.status_code, "multipart" in answer.headers["content-type"]) == (200, False)
    alice = site.of("alice")
    sent = {"file": ("chat.jsonl", lines(CHAT))}
    key = (await alice.post("/v1/files", files=sent, data={"purpose": "fine-tune"})).json()["id"]
    whole = await alice.get(f"/v1/files/{key}/content", headers=many)
    assert (whole.status_code, whole.content) == (200, lines(CHAT))
    part = await alice.get(f"/v1/files/{key}/content", headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, lines(CHAT)[10:20])


async def test_the_document_names_what_there_is(site: Site) -> None:
    found = (await site.client.get("/openapi.json")).json()
    assert {"/v1/files", "/v1/fine_tuning/jobs", "/v1/jobs", "/v1/size", "/v1/train/jobs/{job}/cancel"} <= set(
        found["paths"]
    )
    names = [each["operationId"] for path in found["paths"].values() for each in path.values()]
    assert len(names) == len(set(names))
    assert found["paths"]["/v1/files"]["get"]["responses"]["default"]


async def test_nodes_qos_reservations_recipes(site: Site) -> None:
    alice = site.of("alice")
    nodes = (await alice.get("/v1/nodes")).json()["data"]
    assert [(each["name"], each["gpus"], each["usable"]) for each in nodes] == [("n1", 8, True), ("n2", 8, True)]
    assert "normal" in [each["name"] for each in (await alice.get("/v1/qos")).json()["data"]]
    assert (await alice.get("/v1/reservations")).json()["data"] == []
    recipe = (await alice.get("/v1/recipes/finetune")).json()
    assert recipe["parameters"]["model"] == {
        "about": "folder of the model (Hugging Face)", "type": "path", "default": None, "optional": False,
        "choices": [], "least": None, "needed": True,
    }  # fmt: skip
    assert (await alice.get("/v1/recipes/finetun")).json()["error"]["code"] == "unknown-recipe"


async def test_size_by_name_and_never_by_path(site: Site, tmp_path: Path) -> None:
    alice = site.of("alice")
    found = (await alice.post("/v1/size", json={"model": "llama-3.1-8b", "nodes": 1})).json()
    assert found["fits"] is True
    secret = tmp_path / "config.json"
    secret.write_text("{}")
    for path in (str(secret), str(tmp_path), "../models/org/tiny"):
        answer = await alice.post("/v1/size", json={"model": path})
        assert answer.json()["error"]["code"] == "no-such-served-model", path


async def test_one_persons_sizes_take_no_others_turn(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take a processor for half a minute, and the threads are everybody's."""
    go, running, most = threading.Event(), [0], [0]
    real = ask.size

    def slow(body: SizeBody) -> Any:
        running[0] += 1
        most[0] = max(most[0], running[0])
        go.wait(30)
        running[0] -= 1
        return real(body)

    monkeypatch.setattr(ask, "size", slow)
    asked = {"model": "llama-3.1-8b", "nodes": 1}
    alice, bob = site.of("alice"), site.of("bob")
    first = [asyncio.create_task(alice.post("/v1/size", json=asked)) for _ in range(6)]
    await until(lambda: running[0] == 1)
    other = asyncio.create_task(bob.post("/v1/size", json=asked))
    await until(lambda: running[0] == 2)
    go.set()
    assert {each.status_code for each in await asyncio.gather(*first, other)} == {200}
    assert most == [2]


async def until(true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError


def test_no_name_of_a_megabyte_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took seconds, in which the service answered nobody."""
    monkeypatch.setattr(difflib, "get_close_matches", lambda *_, **__: pytest.fail("it is looked for"))
    assert "did you mean" not in hinted("model_output_run" * 60_000, ("data", "batch"))


def test_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "service.json"
    good = json.loads(settings(tmp_path).model_dump_json())
    file.write_text(json.dumps(good))
    assert config.load(file).users == PEOPLE
    for change, code in (
        ({"listen": "0.0.0.0:8443"}, "bad-value"),
        ({"data": "../x"}, "bad-value"),
        ({"modles": "/x"}, "unknown-key"),
        ({"certificate": str(file), "key": str(tmp_path / "none")}, "service-file-unreadable"),
    ):
        file.write_text(json.dumps(good | change))
        with pytest.raises(BadInput) as refused:
            config.load(file)
        assert refused.value.code == code


def test_migrations_make_what_the_tables_say(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/x.db")
    database.migrate()
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Table.metadata) == []
    again = Database(f"sqlite:///{tmp_path}/x.db")
    again.migrate()
    again.close()
    database.close()


async def test_the_stock_client(site: Site, slurm: FakeSlurmrestd) -> None:
    import openai

    http = site.of("alice")
    client = openai.AsyncOpenAI(api_key=token("alice"), base_url="http://test/v1", http_client=http, max_retries=0)

    file = await client.files.create(file=("a.jsonl", lines(CHAT)), purpose="fine-tune")
    assert [each.id async for each in client.files.list()] == [file.id]
    assert (await client.files.content(file.id)).content == lines(CHAT)
    job = await client.fine_tuning.jobs.create(
        model="org/tiny",
        training_file=file.id,
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 1}}},
        extra_body={"rocstack": {"gpus_per_node": 0, "nodes": 2}},
    )
    assert (await client.fine_tuning.jobs.retrieve(job.id)).status == "queued"
    assert [each.id async for each in client.fine_tuning.jobs.list(limit=1)] == [job.id]
    events = [each async for each in client.fine_tuning.jobs.list_events(job.id, limit=1)]
    assert [each.message for each in events] == ["queued: Slurm's job 100", "created: recipe finetune"]
    assert [each async for each in client.fine_tuning.jobs.checkpoints.list(job.id)] == []
    assert (await client.fine_tuning.jobs.cancel(job.id)).status == "cancelled"
    assert [each.id async for each in client.models.list()] == ["org/tiny"]
    with pytest.raises(openai.NotFoundError) as refused:
        await client.fine_tuning.jobs.retrieve("ftjob-x")
    assert refused.value.code == "no-such-own-job"
    assert (refused.value.request_id or "").startswith("req_")
    for walk in (client.fine_tuning.jobs.list_events, client.fine_tuning.jobs.checkpoints.list):
        with pytest.raises(openai.NotFoundError) as refused:  # what walks through pages would never end
            await walk(job.id, after="ftevent-x")
        assert (refused.value.code, refused.value.param) == ("no-such-after", "after")
        assert (await walk(job.id, after="")).object == "list"  # of a script's empty variable: from the beginning
    with pytest.raises(openai.BadRequestError):
        await client.files.create(file=("a.jsonl", b"no"), purpose="fine-tune")
    soon = {"anchor": "created_at", "seconds": 3600}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.files.create(file=("a.jsonl", lines(CHAT)), purpose="fine-tune", expires_after=soon)
    assert (refused.value.code, refused.value.param) == ("no-expiry", "expires_after")
    assert (await client.files.delete(file.id)).deleted
    assert isinstance(http, httpx.AsyncClient)


async def test_the_stock_client_finds_jobs_by_their_metadata(site: Site) -> None:
    import openai

    client = openai.AsyncOpenAI(api_key=token("alice"), base_url="http://test/v1", http_client=site.of("alice"))
    jobs = client.fine_tuning.jobs
    file = await client.files.create(file=("a.jsonl", lines(CHAT)), purpose="fine-tune")
    for pairs in ({"team": "a b", "ü.1": "é"}, {"team": "c"}, None):
        await jobs.create(model="org/tiny", training_file=file.id, metadata=pairs, suffix=pairs and pairs["team"][0])

    async def found(**pairs: str) -> list[Any]:
        return [(each.metadata or {}).get("team") async for each in jobs.list(metadata=pairs, limit=1)]

    assert await found() == [None, "c", "a b"]
    assert await found(team="a b") == await found(**{"ü.1": "é", "team": "a b"}) == ["a b"]
    assert await found(team="a", other="") == []
    for pairs in ({'a"b': "x"}, {"a" * 65: "x"}, {str(n): "x" for n in range(17)}):
        with pytest.raises(openai.BadRequestError) as refused:
            await jobs.list(metadata=pairs)
        assert refused.value.code == "bad-metadata-filter"
    with pytest.raises(openai.BadRequestError, match="more than 16 parts"):
        await jobs.create(model="org/tiny", training_file=file.id, metadata={str(n): "x" for n in range(17)})
