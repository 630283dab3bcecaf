"""Logins that the person has for other hosts stay here, wherever a registry leads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rocstack.registry.registry_http import RegistryHttp, RegistryLogin


@pytest.fixture
def heard() -> Iterator[tuple[int, list[tuple[str, str | None]]]]:
    """The port of a server that leads from /v2/from to another name of itself, and the logins that it heard."""
    found: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.append((self.path, self.headers.get("Authorization")))
            self.send_response(307 if self.path == "/v2/from" else 404)
            self.send_header("Location", f"http://localhost:{server.server_address[1]}/v2/to")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1]), found
        server.shutdown()


@pytest.mark.parametrize("login", [None, RegistryLogin("user", "password")])
def test_no_login_of_netrc_is_sent(
    login: RegistryLogin | None,
    heard: tuple[int, list[tuple[str, str | None]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "netrc").write_text("machine localhost login me password a\nmachine 127.0.0.1 login me password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    port, found = heard
    registry = RegistryHttp(f"127.0.0.1:{port}", login, plain=True)
    for address in ("/v2/at-home", "/v2/from", f"http://localhost:{port}/v2/away"):
        registry.request("GET", address, good={404})
    registry.close()
    assert found == [("/v2/at-home", None), ("/v2/from", None), ("/v2/to", None), ("/v2/away", None)]
