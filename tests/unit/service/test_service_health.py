"""The check by which the engine, and so deploy and status, know whether the service is well."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

HEALTH = Path(__file__).parents[3] / "images/rootfs/service/usr/local/bin/rocstack-service-health"


@contextmanager
def answering(status: int, text: bytes) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()


def checked(folder: Path, port: int) -> subprocess.CompletedProcess[str]:
    settings, script = folder / "service.json", folder / "health"
    settings.write_text(json.dumps({"listen": f"0.0.0.0:{port}"}))
    script.write_text(HEALTH.read_text().replace("/etc/rocstack/service/service.json", str(settings)))
    return subprocess.run([sys.executable, "-I", str(script)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("status", "text", "says"), [(200, b"{}", ""), (503, b'{"database":\n "down"}', '503 {"database": "down"}')]
)
def test_what_it_says_counts(status: int, text: bytes, says: str, tmp_path: Path) -> None:
    with answering(status, text) as port:
        done = checked(tmp_path, port)
    assert (done.returncode == 0) == (status == 200)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_silence_is_no_health(tmp_path: Path) -> None:
    with answering(200, b"") as port:
        pass
    done = checked(tmp_path, port)
    assert done.returncode == 1
    assert f"does not answer at 127.0.0.1:{port}" in done.stderr
