"""The service under load: pages of a person with ten thousand jobs, people who poll, streams, new jobs, the page.

    .venv/bin/python bench/service [--jobs 10000] [--seconds 300] [--json FILE] [--slurmrestd URL --token FILE]

The service is a process of its own with SQLite; in slurmrestd's place are its recorded answers, so what is measured is
the service and not Slurm. A real slurmrestd with as many jobs can be named as a peer: its list is asked for between our
pages. First paint needs Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/unit/support"), str(ROOT / "tests/support")]
from chromium_pipe import chromium  # noqa: E402
from fake_slurmrestd import FakeSlurmrestd, token  # noqa: E402

from rocstack.cluster.service import ClusterServiceLimits  # noqa: E402
from rocstack.service import app  # noqa: E402
from rocstack.service.config import ServicePerson, ServiceSettings  # noqa: E402
from rocstack.service.service import Service  # noqa: E402
from rocstack.service.slurmrest import SlurmRest  # noqa: E402
from rocstack.service.tables import JobRow  # noqa: E402

LIVE, STEPS = 20, 200  # jobs that run, and steps that each has written
POLLERS, STREAMS, EVERY_S = 200, 50, 2.0
PAGES, CREATED = 500, 50
LIMIT = {"limit": 50}
PAINT = "performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)[0] || 0"
PEER, LIST = 10, "/slurm/v0.0.42/jobs/"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=300, help="of the load by many people")
    parser.add_argument("--json", type=Path, help="write the numbers there, too")
    parser.add_argument("--slurmrestd", help="address of a real one, whose list of jobs is asked for beside our pages")
    parser.add_argument("--token", type=Path, help="file with a Slurm token for it")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        asyncio.run(serve(chosen.serve, chosen.jobs))
        return
    with tempfile.TemporaryDirectory() as scratch:
        numbers = measured(chosen, Path(scratch))
    for name, value in numbers.items():
        print(f"{name:60} {value}")
    if chosen.json:
        chosen.json.write_text(json.dumps(numbers, indent=1) + "\n")


async def serve(folder: Path, jobs: int) -> None:
    """In the process that is measured: filled, then until it is ended."""
    (folder / "models").mkdir()
    slurm = FakeSlurmrestd()
    settings = ServiceSettings(
        cluster="bench", listen="127.0.0.1:8443", data=str(folder / "data"), models=str(folder / "models"),
        database=f"sqlite:///{folder}/service.db", users={"alice": ServicePerson(uid=2000, gid=2000)},
        limits=ClusterServiceLimits(jobs=1000),
    )  # fmt: skip
    service = Service.of(settings, SlurmRest("http://slurmrestd", slurm.transport))
    service.storage.check()
    server = uvicorn.Server(
        uvicorn.Config(app.make(service), port=0, log_level="error", access_log=False, timeout_keep_alive=30)
    )
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    keys = await filled(service, slurm, jobs)
    port = server.servers[0].sockets[0].getsockname()[1]
    print(json.dumps({"port": port, "live": keys}), flush=True)
    await serving


async def filled(service: Service, slurm: FakeSlurmrestd, jobs: int) -> list[str]:
    caller = await service.door.caller(token("alice"))
    rows, live = [], []
    for number in range(jobs):
        runs = number >= jobs - LIVE
        key = f"{'ftjob' if runs else 'job'}-{number:011x}"
        rows.append(
            JobRow(
                id=key, owner="alice", kind="fine_tuning" if runs else "recipe", recipe="mine", name=f"job-{number}",
                asked={"model": "tiny"}, script="#!/bin/sh\n" * 40, digest=f"{number:064x}", run=1,
                status="running" if runs else "succeeded", slurm_id=None, seen={"where": "n1", "state": "RUNNING"},
                error=None, result=None, created=1_700_000_000 + number, began=1, ended=None if runs else 2,
            )
        )  # fmt: skip
        if runs:
            live.append(key)
            folder = service.storage.job(caller, key)
            steps = [json.dumps({"step": n, "loss": 5 / n, "tokens_per_s": 900.0}) for n in range(1, STEPS)]
            (folder / "metrics.jsonl").write_text("\n".join(steps) + "\n")
            (folder / "log").write_text("step\n" * 10_000)
    await service.database.run(lambda session: session.add_all(rows))
    return live


def measured(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    line = [sys.executable, str(ROOT / "bench/service"), "--serve", str(folder), "--jobs", str(chosen.jobs)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            said = json.loads(process.stdout.readline())
            url = f"http://127.0.0.1:{said['port']}"
            load = os.getloadavg()[0]
            found = asyncio.run(asked(url, said["live"], chosen, process.pid))
            return {"jobs": chosen.jobs, **found, **page(url, said["live"][0], folder), **loads(load)}
        finally:
            process.terminate()
            process.wait(60)


def loads(before: float) -> dict[str, Any]:
    return {"load of this machine (1 min), before and after": f"{before:.1f}, {os.getloadavg()[0]:.1f}"}


async def asked(url: str, live: list[str], chosen: argparse.Namespace, pid: int) -> dict[str, Any]:
    head = {"Authorization": f"Bearer {token('alice')}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=head, timeout=60, limits=limits) as client:
        draw = random.Random(1)

        def after() -> dict[str, Any]:
            number = draw.randrange(100, chosen.jobs - LIVE)
            return LIMIT | {"after": f"job-{number:011x}"}

        used = processor(pid)
        newest, peer = await pages(client, chosen)
        page_ms = (processor(pid) - used) / PAGES * 1000
        any_ = [await timed(lambda: client.get("/v1/jobs", params=after())) for _ in range(PAGES)]
        used = processor(pid)
        body = {"recipe": "mine", "arguments": ["true"], "gpus_per_node": 0}
        new = [
            await timed(lambda number=number: client.post("/v1/jobs", json=body | {"name": f"new-{number}"}))  # type: ignore[misc]
            for number in range(CREATED)
        ]
        job_ms = (processor(pid) - used) / CREATED * 1000
        many = await crowd(client, live, chosen.seconds, pid)
    return {
        **summary("a page of 50, the newest", newest),
        "the same: processor time of one (ms)": round(page_ms, 1),
        **peer,
        **summary("a page of 50, anywhere", any_),
        **summary("a new job, Slurm's part not counted", new),
        "a new job: processor time of one (ms)": round(job_ms, 1),
        **many,
    }


async def pages(client: httpx.AsyncClient, chosen: argparse.Namespace) -> tuple[list[float], dict[str, Any]]:
    """Seconds of each, and what the peer took: slurmrestd has no pages, so it answers with all jobs."""
    newest: list[float] = []
    theirs: list[float] = []
    head = {"X-SLURM-USER-TOKEN": chosen.token.read_text().strip()} if chosen.slurmrestd else {}
    async with httpx.AsyncClient(base_url=chosen.slurmrestd or "", headers=head, timeout=60) as peer:
        for number in range(PAGES):
            newest.append(await timed(lambda: client.get("/v1/jobs", params=LIMIT)))
            if head and number % (PAGES // PEER) == 0:
                began = time.perf_counter()
                answer = await peer.get(LIST)
                theirs.append(time.perf_counter() - began)
        if not head:
            return newest, {}
    ratio = statistics.median(theirs) / statistics.median(newest)
    return newest, {
        "slurmrestd alone: jobs": len(answer.raise_for_status().json()["jobs"]),
        "slurmrestd alone: its list (MB)": round(len(answer.content) / 1e6, 1),
        "slurmrestd alone: p50 (ms)": round(statistics.median(theirs) * 1000, 1),
        "slurmrestd's list in pages of ours, by p50": round(ratio, 1),
    }


async def crowd(client: httpx.AsyncClient, live: list[str], seconds: int, pid: int) -> dict[str, Any]:
    """People who poll and streams, all at once."""
    took: list[float] = []
    errors: list[str] = []
    events = [0] * STREAMS
    end = time.monotonic() + seconds

    async def poller(number: int) -> None:
        await asyncio.sleep(EVERY_S * number / POLLERS)
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                took.append(await timed(lambda: client.get(f"/v1/fine_tuning/jobs/{live[number % len(live)]}")))
            except (httpx.HTTPError, AssertionError) as error:
                errors.append(repr(error))
            await asyncio.sleep(max(0, EVERY_S - (time.monotonic() - began)))

    async def reader(number: int) -> None:
        path = f"/v1/fine_tuning/jobs/{live[number % len(live)]}/events?stream=true"
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + end - time.monotonic()):
                async with client.stream("GET", path) as answer:
                    async for row in answer.aiter_lines():
                        events[number] += row.startswith("data: ")
            errors.append("a stream ended")
        except TimeoutError:
            pass
        except httpx.HTTPError as error:
            errors.append(repr(error))

    used = processor(pid)
    await asyncio.gather(*(poller(number) for number in range(POLLERS)), *(reader(number) for number in range(STREAMS)))
    return {
        **summary(f"{POLLERS} people who poll each {EVERY_S:.0f} s, {STREAMS} streams beside", took),
        "polls": len(took),
        "errors": len(errors),
        **({"first error": errors[0]} if errors else {}),
        "streams with all their events": sum(each >= STEPS - 1 for each in events),
        "processors that the service used meanwhile": round((processor(pid) - used) / seconds, 2),
    }


async def timed(ask: Callable[[], Awaitable[httpx.Response]]) -> float:
    began = time.perf_counter()
    answer = await ask()
    assert answer.status_code == 200, answer.text
    return time.perf_counter() - began


def summary(name: str, seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {f"{name}: p50 (ms)": round(cuts[49] * 1000, 1), f"{name}: p99 (ms)": round(cuts[98] * 1000, 1)}


def processor(pid: int) -> float:
    """Seconds that the process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def page(url: str, job: str, folder: Path) -> dict[str, Any]:
    """What a browser loads for the list of jobs, and when it shows something."""
    cookie = {"rocstack_token": token("alice")}
    with httpx.Client(base_url=url, cookies=cookie, timeout=60) as client:
        weights = {path: len(client.get(path).content) for path in ("/jobs", "/static/page.css", "/static/htmx.js")}
    found: dict[str, Any] = {"page of jobs, style and script (kB)": round(sum(weights.values()) / 1000, 1)}
    browser = shutil.which("chromium")
    for name, path in (("jobs", "/jobs"), ("a job", f"/jobs/{job}")):
        times = [first_paint(browser, url + path, cookie, folder / f"profile-{n}") for n in range(5)] if browser else []
        found[f"first paint of {name}, median of 5 (ms)"] = round(statistics.median(times)) if times else "no browser"
    return found


def first_paint(browser: str, url: str, cookies: Mapping[str, str], profile: Path) -> float:
    """Milliseconds from the start of the navigation, by Chromium's own clock, in a fresh profile."""
    with chromium(browser, profile) as tab:
        for name, value in cookies.items():
            tab.ask("Network.setCookie", name=name, value=value, url=url, httpOnly=True)
        tab.ask("Page.navigate", url=url)
        return float(tab.until(PAINT))


if __name__ == "__main__":
    main()
