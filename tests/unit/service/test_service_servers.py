"""The servers of a model: how they are started, found and asked, and what of them is data."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny_adapters as tiny
import uvicorn
from conftest import PEOPLE, Site, serve, settings
from fake_slurmrestd import FakeSlurmrestd, token
from model_servers import BASE, CHAT, chat, listening, own_adapter
from sqlalchemy import update
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rocstack.base.errors import BadInput
from rocstack.cluster.service import SiteServer
from rocstack.serve.announcement import Announcement
from rocstack.serve.own_certificate import new_certificate
from rocstack.service import app, config, loopback_peer
from rocstack.service.failures import Away
from rocstack.service.identity import Caller
from rocstack.service.serving import ModelServer, by_nearness
from rocstack.service.tables import JobRow

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("fresh")]


def test_when_a_server_ends_only_its_own_adapters_move() -> None:
    servers = [ModelServer(key, "", ssl.create_default_context(), "") for key in "abcd"]
    names = [f"adapter-{number}" for number in range(400)]
    before = {name: by_nearness(name, servers)[0].key for name in names}
    after = {name: by_nearness(name, servers[:3])[0].key for name in names}
    assert all(after[name] == before[name] for name in names if before[name] != "d")
    counts = [list(before.values()).count(key) for key in "abcd"]
    assert min(counts) > 60


@pytest.mark.parametrize(
    "said",
    [
        b"", b"[]", b"{", b"[" * 5000, b'{"port": 22, "token": "x", "certificate": ""}',
        json.dumps({"port": 8443, "token": "a" * 40, "certificate": "none"}).encode(), b"x" * 100_000,
        json.dumps({"port": 8443, "token": "a" * 40, "certificate": "é"}).encode(),
    ],
)  # fmt: skip
async def test_what_a_job_announces_is_data(site: Site, slurm: FakeSlurmrestd, said: bytes) -> None:
    tiny.base(site.service.models.folder / "org/small")
    alice = site.of("alice")
    key = (await alice.post("/v1/servers", json={"model": BASE})).json()["data"][0]["id"]
    slurm.set(100, "RUNNING", nodes="n1")
    (site.data / "alice/jobs" / key / "server.json").write_bytes(said)
    answer = await alice.post(CHAT, json=chat(BASE))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server-starts")


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("endless", [b"HTTP/1.1 100 \r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"x" * 4096])
async def test_the_head_of_an_answer_ends(tmp_path: Path, tls: bool, endless: bytes) -> None:
    """A job's own program in place of its server: what it says before an answer would keep the others waiting."""
    certificate, key = new_certificate(tmp_path)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while True:
                writer.write(endless * 1000)
                await writer.drain()

    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate, key)
    listener = await asyncio.start_server(flood, "127.0.0.1", 0, ssl=own if tls else None)
    port, trust = listener.sockets[0].getsockname()[1], Announcement(0, "", certificate.read_text()).trust()
    server = ModelServer("one", f"http{'s' if tls else ''}://127.0.0.1:{port}", trust, "token")
    try:
        async with asyncio.timeout(60), server.client() as client:
            with pytest.raises(httpx.HTTPError):
                await client.get("/")
    finally:
        listener.close()


async def test_a_server_of_an_adapter_or_of_nothing_is_refused(site: Site) -> None:
    tiny.base(site.service.models.folder / "org/small")
    await own_adapter(site, "alice", "one", 1)
    alice = site.of("alice")
    for body, code in (
        ({"model": "ft:org-small:alice:one"}, "serve-the-base"),
        ({"model": "org/smal"}, "no-such-served-model"),
        ({"model": BASE, "max_rank": 7}, "bad-max-rank"),
        ({"model": BASE, "replicas": 4}, "too-many-jobs"),
    ):
        assert (await alice.post("/v1/servers", json=body)).json()["error"]["code"] == code
    assert (await alice.post("/v1/servers", json={"model": BASE, "replicas": 0})).status_code == 400
    assert (await alice.post("/v1/servers", json={"model": BASE, "max_rank": 1})).status_code == 200


async def test_replicas_are_all_started_or_none(site: Site, slurm: FakeSlurmrestd, monkeypatch: Any) -> None:
    tiny.base(site.service.models.folder / "org/small")
    alice, submit = site.of("alice"), slurm._submit
    refused = await alice.post("/v1/servers", json={"model": BASE, "replicas": 4})
    assert refused.json()["error"]["code"] == "too-many-jobs"
    assert [number for number, _ in slurm.cancelled] == [100, 101, 102]
    assert (await alice.get("/v1/servers")).json()["data"] == []

    def gone(request: httpx.Request, body: dict[str, Any], user: str) -> httpx.Response:
        if len(slurm.submitted) == 4:
            raise httpx.ConnectError("refused", request=request)
        return submit(request, body, user)

    monkeypatch.setattr(slurm, "_submit", gone)
    refused = await alice.post("/v1/servers", json={"model": BASE, "replicas": 3})
    assert refused.json()["error"]["code"] == "slurm-away"
    assert [number for number, _ in slurm.cancelled] == [100, 101, 102, 103]
    assert (await alice.get("/v1/servers")).json()["data"] == []  # none is kept to be sent later
    monkeypatch.setattr(slurm, "_submit", submit)
    await site.service.jobs.handover.resend()
    assert len(slurm.submitted) == 4


async def test_a_server_on_each_of_some_nodes(site: Site, slurm: FakeSlurmrestd) -> None:
    tiny.base(site.service.models.folder / "org/small")
    alice = site.of("alice")
    made = (await alice.post("/v1/servers", json={"model": BASE, "nodes": ["n2", "n1"]})).json()["data"]
    assert len(made) == 2
    assert [each["job"]["required_nodes"] for each in slurm.submitted] == [["n2"], ["n1"]]
    for bad in ("n1,n2", "n[1-2]", "--help", "n1\n#SBATCH --account=x"):
        refused = await alice.post("/v1/servers", json={"model": BASE, "nodes": [bad]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad-job-option")
    assert len(slurm.submitted) == 2


async def test_a_server_is_found_behind_many_others(tmp_path: Path, slurm: FakeSlurmrestd) -> None:
    service = serve(tmp_path, slurm, jobs=40)
    site = Site(service, httpx.AsyncClient(), app.make(service))
    for name in ("org/small", "org/other"):
        tiny.base(service.models.folder / name)
    alice = site.of("alice")
    first = (await alice.post("/v1/servers", json={"model": BASE})).json()["data"][0]["id"]
    assert (await alice.post("/v1/servers", json={"model": "org/other", "replicas": 16})).status_code == 200
    await service.database.run(
        lambda session: session.execute(update(JobRow).where(JobRow.id == first).values(created=1))
    )
    starts = (await alice.post(CHAT, json=chat(BASE))).json()["error"]
    assert (starts["code"], first in starts["message"]) == ("server-starts", True)
    assert len((await alice.get("/v1/servers")).json()["data"]) == 17
    await service.stop()


@asynccontextmanager
async def answering(answer: Response) -> AsyncIterator[tuple[SiteServer, list[Request]]]:
    """A server of the site that says this to everybody, and what it was asked."""
    asked: list[Request] = []

    async def said(request: Request) -> Response:
        asked.append(request)
        return answer

    served = Starlette(routes=[Route(CHAT, said, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(served, port=0, log_level="error"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield SiteServer(model=BASE, url=f"http://127.0.0.1:{port}"), asked
    finally:
        server.should_exit = True
        await serving


def of_site(site: Site, *servers: SiteServer) -> None:
    more = site.service.settings.model_copy(update={"servers": servers})
    object.__setattr__(site.service.servers, "settings", more)


async def say(site: Site, caller: Caller | None = None) -> str:
    caller = caller or await site.service.door.caller(token("alice"))
    return await site.service.servers.ask(caller, BASE, [{"role": "user", "content": "hello"}], 8)


GOOD = {"choices": [{"message": {"content": "good"}}]}


async def test_a_job_at_the_port_of_the_sites_gateway_hears_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the control node, while the gateway is away: it would get the Slurm tokens of all who ask."""
    tiny.base(site.service.models.folder / "org/small")
    async with answering(JSONResponse(GOOD)) as (server, asked):
        of_site(site, server)
        monkeypatch.setattr(loopback_peer, "_owner", lambda *_: PEOPLE["bob"].uid)
        with pytest.raises(Away):
            await say(site)
        posted = {"model": BASE, "messages": [{"role": "user", "content": "hello"}]}
        assert (await site.of("alice").post(CHAT, json=posted)).status_code == 503
        assert not asked
        monkeypatch.setattr(loopback_peer, "_owner", lambda *_: 990)  # whoever runs the site's
        assert await say(site) == "good"


async def test_one_bad_server_hides_no_good_one(site: Site, slurm: FakeSlurmrestd, tmp_path: Path) -> None:
    tiny.base(site.service.models.folder / "org/small")
    lost = SiteServer(model=BASE, url="https://127.0.0.1:1", ca=f"{tmp_path}/none.pem")
    bad = [JSONResponse({"error": {"message": "no"}}, status) for status in (401, 500, 503)]
    async with AsyncExitStack() as stack:
        servers = [(await stack.enter_async_context(answering(each)))[0] for each in (*bad, JSONResponse(GOOD))]
        of_site(site, lost, *servers)
        assert await say(site) == "good"
        # Her own runs, and Slurm doesn't say where.
        key = (await site.of("alice").post("/v1/servers", json={"model": BASE})).json()["data"][0]["id"]
        slurm.set(100, "RUNNING", nodes="n1")
        said = {"port": 8443, "token": "a" * 40, "certificate": "none"}
        (site.data / "alice/jobs" / key / "server.json").write_text(json.dumps(said))
        assert await say(site) == "good"
        alice = await site.service.door.caller(token("alice"))  # whoever asks Slurm about her token finds it down
        slurm.down = True
        for nodes in ((0.0, site.service.jobs.cluster._nodes[1]), (0.0, [])):
            site.service.jobs.cluster._nodes = nodes
            assert await say(site, alice) == "good"
        of_site(site, *servers[:3])
        with pytest.raises(Away, match="doesn't answer"):
            await say(site, alice)
    of_site(site)
    site.service.jobs.cluster._nodes = (0.0, [])
    with pytest.raises(Away) as away:
        await say(site)
    assert away.value.code == "slurm-away"


async def test_an_answer_is_bounded_as_it_comes(site: Site) -> None:
    """A gateway of a person's own job may say anything; packed, it would be large only here."""
    tiny.base(site.service.models.folder / "org/small")
    packed = gzip.compress(json.dumps({"choices": [{"message": {"content": "x" * (20 << 20)}}]}).encode())
    bomb = Response(packed, headers={"Content-Encoding": "gzip"}, media_type="application/json")
    async with answering(bomb) as (server, asked):
        of_site(site, server)
        with pytest.raises(Away) as lost:
            await say(site)
    assert lost.value.code == "server-lost"
    assert asked[0].headers["accept-encoding"] == "identity"


async def test_a_stream_ends_when_the_service_does(site: Site) -> None:
    tiny.base(site.service.models.folder / "org/small")

    async def endless() -> AsyncIterator[bytes]:
        yield b'data: {"n": 1}\n\n'
        await asyncio.Event().wait()

    async with (
        answering(StreamingResponse(endless(), media_type="text/event-stream")) as (server, _),
        listening(site) as url,
        httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token('alice')}"}, timeout=30) as client,
    ):
        of_site(site, server)
        async with client.stream("POST", CHAT, json=chat(BASE, stream=True)) as answer:
            pieces = answer.aiter_text()
            assert await anext(pieces) == 'data: {"n": 1}\n\n'
            site.service.stopping.set()
            assert "stream-broken" in "".join([each async for each in pieces])


def test_tokens_of_people_go_to_no_site_in_the_clear(tmp_path: Path) -> None:
    good, file = json.loads(settings(tmp_path).model_dump_json()), tmp_path / "service.json"
    file.write_text(json.dumps(good | {"servers": [{"model": "x", "url": "https://10.0.0.1:1"}]}))
    assert config.load(file).servers == (SiteServer(model="x", url="https://10.0.0.1:1"),)
    file.write_text(json.dumps(good | {"servers": [{"model": "x", "url": "http://10.0.0.1:1"}]}))
    with pytest.raises(BadInput, match="in the clear"):
        config.load(file)
