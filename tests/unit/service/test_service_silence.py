"""Slurm or the database says nothing, though it may take connections: one finds out, the others are told at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Site
from fake_slurmrestd import FakeSlurmrestd
from sqlalchemy import text
from sqlalchemy.orm import Session

from rocstack.service import circuit, database, slurmrest
from rocstack.service.database import Database
from rocstack.service.failures import Away

pytestmark = pytest.mark.anyio
CONNECTIONS = 15  # of SQLAlchemy's pool
MINE = {"recipe": "mine", "arguments": ["true"], "gpus_per_node": 0}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long, and what didn't answer has its rest."""
    monkeypatch.setattr(circuit, "REST_S", 3600.0)
    monkeypatch.setattr(slurmrest, "SOON_S", 0.02)
    monkeypatch.setattr(slurmrest, "LATE_S", 0.02)


def code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


def rested(site: Site) -> None:
    site.service.slurm._circuits["slurm"]._until = 0.0


async def test_one_waits_and_the_others_are_told(site: Site, slurm: FakeSlurmrestd, soon: None) -> None:
    alice = site.of("alice")
    assert (await alice.get("/v1/nodes")).status_code == 200
    slurm.hangs = {"*"}
    assert code(await alice.get("/v1/nodes")) == "slurm-away"
    before = len(slurm.calls)
    for path in ("/v1/nodes", "/v1/reservations", "/cluster"):
        assert (await alice.get(path)).status_code == 503
    assert len(slurm.calls) == before, "nobody is asked"
    assert (await alice.get("/v1/qos")).status_code == 503  # by accounting, which nobody knew of
    assert len(slurm.calls) > before


async def test_it_is_asked_again_after_a_while(site: Site, slurm: FakeSlurmrestd, soon: None) -> None:
    alice = site.of("alice")
    assert (await alice.get("/v1/nodes")).status_code == 200
    slurm.hangs = {"*"}
    assert (await alice.get("/v1/nodes")).status_code == 503
    slurm.hangs = set()
    assert (await alice.get("/v1/nodes")).status_code == 503, "it has its rest"
    rested(site)
    slurm.calls.clear()
    assert (await alice.get("/v1/nodes")).status_code == 200
    assert [path.split("/")[-2] for _, path in slurm.calls] == ["reservations", "nodes"], "something small comes first"


async def test_what_takes_long_is_waited_for_while_something_is_answered(
    site: Site, slurm: FakeSlurmrestd, soon: None
) -> None:
    slurm.hangs = {"nodes"}
    asking = asyncio.ensure_future(site.of("alice").get("/v1/nodes"))
    while ("GET", "/slurm/v0.0.42/reservations/") not in slurm.calls[3:]:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert not asking.done()
    assert (await site.of("alice").get("/v1/reservations")).status_code == 200
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking


async def test_a_job_that_is_not_answered_is_kept_and_not_doubled(
    site: Site, slurm: FakeSlurmrestd, soon: None
) -> None:
    alice = site.of("alice")
    assert (await alice.post("/v1/jobs", json=MINE | {"name": "before"})).status_code == 200
    slurm.hangs = {"job/submit", "reservations", "jobs"}
    for _ in range(2):
        assert code(await alice.post("/v1/jobs", json=MINE)) == "job-kept"
    slurm.hangs = set()
    rested(site)
    answer = await alice.post("/v1/jobs", json=MINE)
    assert answer.json()["status"] == "queued"
    assert len(slurm.submitted) == 2, "it had been taken the first time"


async def test_the_page_says_that_it_is_old(site: Site, slurm: FakeSlurmrestd, soon: None) -> None:
    alice = site.of("alice")
    key = (await alice.post("/v1/jobs", json=MINE)).json()["id"]
    paths = ("/jobs", "/jobs/rows", f"/jobs/{key}", f"/jobs/{key}/part")
    old = "This is what was last seen"
    assert not [path for path in paths if old in (await alice.get(path)).text]
    slurm.hangs = {"*"}
    assert (await alice.get("/cluster")).status_code == 503
    assert [path for path in paths if old in (await alice.get(path)).text] == [*paths], "at once"
    part = await alice.get("/cluster/part", headers={"HX-Request": "true"})
    assert part.text.startswith("Slurm doesn't answer at the moment. ")
    assert "rocstack_slurm_silent 1.0" in (await site.client.get("/metrics")).text


@contextlib.contextmanager
def saying_nothing() -> Iterator[tuple[int, list[socket.socket]]]:
    """A port where connections are taken, and no word is said."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(server.accept()[0])

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1], taken
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in taken:
                each.close()


async def test_a_database_that_says_nothing(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit, "REST_S", 3600.0)
    monkeypatch.setattr(database, "ANSWER_S", 0.2)
    with saying_nothing() as (port, taken):
        silent = Database(f"mysql+pymysql://service@127.0.0.1:{port}/x")
        with pytest.raises(Away):
            await silent.run(lambda session: None)
        asked = len(taken)
        assert asked
        for _ in range(3):
            with pytest.raises(Away):
                await silent.run(lambda session: None)
            assert not await silent.answers()
        assert len(taken) == asked, "nobody is asked"
        silent.close()


async def test_whether_the_database_answers_is_asked_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """`/health` says it within the time of one question."""
    pings: list[Session] = []
    monkeypatch.setattr(database, "_ping", pings.append)
    used = site.service.database
    assert await used.answers()
    used._circuit._until = 0.0  # it was silent, and has had its rest
    assert await used.answers()
    assert not used._circuit.silent
    assert len(pings) == 2


async def test_a_busy_database_is_not_taken_for_a_silent_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does health, which has a way of its own."""
    used = site.service.database
    assert await used.answers()
    gate, within = threading.Event(), asyncio.Event()
    loop, inside = asyncio.get_running_loop(), list[Session]()

    def work(session: Session) -> None:
        session.execute(text("SELECT 1"))
        inside.append(session)
        if len(inside) == CONNECTIONS:
            loop.call_soon_threadsafe(within.set)
        gate.wait()

    running = [asyncio.ensure_future(used.run(work)) for _ in range(20)]
    try:
        await within.wait()
        with monkeypatch.context() as now:
            now.setattr(circuit, "REST_S", 3600.0)
            now.setattr(database, "SOON_S", 0.05)
            assert (await site.client.get("/health")).status_code == 200
    finally:
        gate.set()
    await asyncio.gather(*running)
    assert (await site.client.get("/health")).status_code == 200


async def test_what_one_asks_of_the_database_silences_nobody_else(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB says of a number that is none, and of a question that takes too long, what it says when it is away."""
    monkeypatch.setattr(circuit, "REST_S", 3600.0)
    there = Database(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(Away):
        await there.run(lambda session: session.execute(text("SELECT nothing")))
    assert await there.run(lambda session: session.execute(text("SELECT 7")).scalar()) == 7
    there.close()
    alice = site.of("alice")
    odd = '{"recipe": "mine", "parameters": {"x": %s}}'
    for number in ("NaN", "Infinity", "1e999"):
        answer = await alice.post("/v1/jobs", content=odd % number, headers={"Content-Type": "application/json"})
        assert (answer.status_code, code(answer)) == (400, "bad-request")


async def test_lists_by_metadata_are_made_one_after_the_other(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each looks through all that a person ever asked for: many at once would take all connections."""
    own, at_once, most = site.service.database.run, 0, 0

    async def counted(work: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            await asyncio.sleep(0)
            return await own(work)
        finally:
            at_once -= 1

    alice = site.of("alice")
    monkeypatch.setattr(site.service.database, "run", counted)
    answers = await asyncio.gather(*(alice.get("/v1/fine_tuning/jobs?metadata[a]=b") for _ in range(5)))
    assert {each.status_code for each in answers} == {200}
    assert most == 1
