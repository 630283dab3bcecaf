"""A vendor's archive from an address: once, whole, and the one that was meant."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocstack.base.errors import CheckFailed, Missing
from rocstack.release import download

ARCHIVE = b"archive" * 1000
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()


class Mirror(http.server.BaseHTTPRequestHandler):
    asked: list[str] = []
    logins: list[str | None] = []

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.logins.append(self.headers.get("Authorization"))
        if self.path.startswith("/elsewhere"):
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/libbnxt_re-1.tar.gz")
            self.end_headers()
            return
        found = self.path.startswith("/libbnxt_re")
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(ARCHIVE) if found else 0))
        self.end_headers()
        if found:
            self.wfile.write(ARCHIVE if "cut" not in self.path else ARCHIVE[:100])


@pytest.fixture
def mirror() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Mirror)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
    thread.start()
    Mirror.asked.clear()
    Mirror.logins.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_it_is_fetched_once_and_again_where_it_is_damaged(mirror: str, tmp_path: Path) -> None:
    said: list[str] = []
    url = f"{mirror}/libbnxt_re-1.tar.gz?token=secret"
    found = download.fetched(url, SHA256, tmp_path, said.append)
    assert (found.name, found.read_bytes()) == ("libbnxt_re-1.tar.gz", ARCHIVE)
    assert download.fetched(url, SHA256, tmp_path, said.append) == found
    assert len(Mirror.asked) == len(said) == 1
    assert "secret" not in said[0]
    found.write_bytes(b"damaged")
    assert download.fetched(url, SHA256, tmp_path, said.append).read_bytes() == ARCHIVE


def test_no_login_of_netrc_goes_along(mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine localhost login me password a\ndefault login me password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert download.fetched(f"{mirror}/elsewhere", SHA256, tmp_path, print).read_bytes() == ARCHIVE
    assert Mirror.logins == [None, None]


def test_another_archive_is_refused_and_not_kept(mirror: str, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed) as caught:
        download.fetched(f"{mirror}/libbnxt_re-1.tar.gz", "0" * 64, tmp_path, print)
    assert caught.value.code == "other-download"
    assert SHA256 in caught.value.what
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("path", ["/nothing.tar.gz", "/libbnxt_re-cut.tar.gz"])
def test_what_does_not_come_whole_is_missing(mirror: str, tmp_path: Path, path: str) -> None:
    with pytest.raises(Missing) as caught:
        download.fetched(mirror.replace("http://", "http://ada:secret@") + path, SHA256, tmp_path, print)
    assert caught.value.code == "download-failed"
    assert "secret" not in str(caught.value.to_dict())


def test_no_more_is_read_than_an_archive_has(mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "LARGEST", 1000)
    with pytest.raises(CheckFailed, match="larger"):
        download.fetched(f"{mirror}/libbnxt_re-1.tar.gz", SHA256, tmp_path, print)


def test_the_name_of_a_file_stays_in_its_folder(mirror: str, tmp_path: Path) -> None:
    found = download.fetched(f"{mirror}/libbnxt_re/..%2f..%2fx", SHA256, tmp_path, print)
    assert found.parent.parent == tmp_path
