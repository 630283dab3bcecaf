"""Traces, as a collector gets them by OTLP on loopback: what was asked and how long it took, and nobody's secrets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import CHAT, lines, settings
from fake_slurmrestd import FakeSlurmrestd, token
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rocstack.service import app
from rocstack.service.service import Service
from rocstack.service.slurmrest import SlurmRest
from rocstack.service.tracing import Tracing, place, tracing

pytestmark = pytest.mark.anyio


class Collector:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.paths: set[str] = set()
        self.status = 200
        self.url = ""

    @property
    def requests(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    @property
    def spans(self) -> list[Any]:
        scopes = (scope for each in self.requests for row in each.resource_spans for scope in row.scope_spans)
        return [span for scope in scopes for span in scope.spans]


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if found.status == 200:
                found.bodies.append(body)
                found.paths.add(self.path)
            self.send_response(found.status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def values(span: Any) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


async def asked(folder: Path, slurm: FakeSlurmrestd, url: str) -> list[httpx.Response]:
    """What the service answers to a few requests; it has ended then."""
    (folder / "models").mkdir(exist_ok=True)
    traces = tracing(url, "test")
    rest = SlurmRest("http://slurmrestd", slurm.transport, traces)
    rest.patience = 0.0
    service = Service.of(settings(folder).model_copy(update={"otlp": url}), rest)
    service.storage.check()
    application = app.make(service)

    @application.get("/fails/{what}")
    async def fails(what: str) -> None:
        raise LookupError(what)

    transport = httpx.ASGITransport(app=application, raise_app_exceptions=False)
    head = {"Authorization": f"Bearer {token('alice')}", "traceparent": f"00-{'a' * 32}-{'b' * 16}-00"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=head) as client:
        file = {"file": ("secret-name.jsonl", lines(CHAT))}
        answers = [await client.post("/v1/files", files=file, data={"purpose": "fine-tune"})]
        answers.append(await client.post("/v1/jobs", json={"recipe": "mine", "arguments": ["secret-word"]}))
        answers.append(await client.get("/v1/files/file-secret"))
        answers.append(await client.get("/health"))
        slurm.down = True
        answers.append(await client.get("/v1/nodes?secret=1"))
        slurm.down = False
        answers.append(await client.get("/fails/secret"))
    await service.stop()
    traces.close()
    return answers


async def test_requests_and_what_they_ask_for_are_traced(tmp_path: Path, slurm: FakeSlurmrestd) -> None:
    with collecting() as collector:
        answers = await asked(tmp_path, slurm, collector.url)
        assert [each.status_code for each in answers] == [200, 200, 404, 200, 503, 500]
        spans = {span.span_id: span for span in collector.spans}
    assert collector.paths == {"/v1/traces"}
    roots = {span.name: span for span in spans.values() if not span.parent_span_id}
    assert set(roots) == {
        "POST /v1/files", "POST /v1/jobs", "GET /v1/files/{file_id}", "GET /v1/nodes", "GET /fails/{what}",
    }  # fmt: skip
    fails = values(roots["GET /fails/{what}"])
    assert (fails["http.route"], fails["http.response.status_code"]) == ("/fails/{what}", 500)
    assert (roots["GET /fails/{what}"].status.code, fails["error.type"]) == (2, "LookupError")
    below = {span.name for span in spans.values() if spans.get(span.parent_span_id) is roots["POST /v1/jobs"]}
    assert {"database", "slurmrestd POST /slurm/v0.0.42/job/submit"} <= below
    assert values(roots["GET /v1/files/{file_id}"])["http.response.status_code"] == 404
    nodes = roots["GET /v1/nodes"]
    assert (nodes.status.code, values(nodes)["error.type"]) == (2, "503")
    failed = [span for span in spans.values() if values(span).get("error.type") == "ConnectError"]
    small = ("nodes", "reservations")  # the second to see whether anything is answered
    assert {span.name for span in failed} == {f"slurmrestd GET /slurm/v0.0.42/{each}/" for each in small}
    about = values(collector.requests[0].resource_spans[0].resource)
    assert (about["service.name"], about["rocstack.cluster"]) == ("rocstack-service", "test")


async def test_nothing_of_people_is_in_them(tmp_path: Path, slurm: FakeSlurmrestd) -> None:
    with collecting() as collector:
        answers = await asked(tmp_path, slurm, collector.url)
    key = answers[0].json()["id"]
    said = b"\n".join(collector.bodies)
    for secret in ("secret", "alice", key, token("alice").split(".")[1], str(tmp_path), "says hi"):
        assert secret.encode() not in said, secret
    assert b"a" * 32 not in said, "a stranger's trace is not gone on with"


async def test_a_collector_that_is_away_costs_a_line(
    tmp_path: Path, slurm: FakeSlurmrestd, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting() as gone:
        url = gone.url
    with caplog.at_level(logging.WARNING):
        answers = await asked(tmp_path, slurm, url)
    assert [each.status_code for each in answers] == [200, 200, 404, 200, 503, 500]
    named = ("rocstack.service.tracing", "opentelemetry")
    said = [each.getMessage() for each in caplog.records if each.name.startswith(named)]
    assert said == [f"the collector {url} takes no traces: they are dropped until it does"] * 2, "one for each tracing"


async def test_it_says_when_the_collector_is_back(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector, caplog.at_level(logging.WARNING):
        collector.status = 400
        made: Any = tracing(collector.url, "test")
        for status in (400, 400, 200, 200):
            collector.status = status
            with made.span("x", "SERVER"):
                pass
            made._provider.force_flush()
        made.close()
    said = [each.getMessage() for each in caplog.records if each.name == "rocstack.service.tracing"]
    assert [("no traces" in each, "again" in each) for each in said] == [(True, False), (False, True)]
    assert len(collector.spans) == 2


def test_without_a_collector_there_is_nothing() -> None:
    assert type(tracing(None, "test")) is Tracing
    assert place("/slurm/v0.0.42/job/17?signal=10") == "/slurm/v0.0.42/job/ID"
