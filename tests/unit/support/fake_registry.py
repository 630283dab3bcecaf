"""A registry of the OCI distribution protocol in this process, which fails on demand."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

Fault = Callable[["Handler"], bool]  # True: the fault has answered


@dataclass
class Store:
    """What the registry holds. `faults` are asked before each request, in order; `resumes`: it knows an offset."""

    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)
    uploads: dict[str, bytearray] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    resumes: bool = True
    password: str | None = None
    token: str | None = None
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, request)) for request in self.requests)


class Handler(BaseHTTPRequestHandler):
    store: Store
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self, upto: int | None = None) -> bytes:
        size = int(self.headers.get("Content-Length") or 0)
        return self.rfile.read(size if upto is None else min(size, upto))

    def hang_up(self) -> None:
        """As a registry that is killed: the connection is reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()

    def go(self) -> None:
        store, url = self.store, urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        store.requests.append(f"{self.command} {self.path}")
        if self.path.startswith("/token") and store.token:
            form = {key: values[0] for key, values in parse_qs(self.body().decode()).items()}
            return self._token(query, form)
        if not self._allowed():
            self.body()
            return self._deny()
        for fault in list(store.faults):
            if fault(self):
                return None
        if found := re.fullmatch(r"/v2/(.+)/(blobs/uploads|blobs|manifests|tags)/(.*)", url.path):
            getattr(self, found[2].replace("/", "_"))(found[1], found[3], query)
        else:
            self.answer(200, b"{}")
        return None

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = do_DELETE = go

    def _allowed(self) -> bool:
        said = self.headers.get("Authorization", "")
        if self.store.token:
            return said == f"Bearer {self.store.token}"
        wanted = base64.b64encode(f"ada:{self.store.password}".encode()).decode()
        return self.store.password is None or said == f"Basic {wanted}"

    def _deny(self) -> None:
        realm = f'Bearer realm="http://{self.store.host}/token",service="here"' if self.store.token else "Basic realm=x"
        self.answer(401, b'{"errors":[{"code":"UNAUTHORIZED"}]}', WWW_Authenticate=realm)

    def _token(self, query: dict[str, str], form: dict[str, str]) -> None:
        wanted = "Basic " + base64.b64encode(f"ada:{self.store.password}".encode()).decode()
        named = self.headers.get("Authorization") == wanted or form.get("refresh_token") == self.store.password
        good = named and {**query, **form}.get("scope", "").endswith((":pull,push", ":pull"))
        self.answer(200 if good else 401, json.dumps({"token": self.store.token}).encode() if good else b"")

    def tags(self, name: str, rest: str, query: dict[str, str]) -> None:
        found = [tag for repo, tag in self.store.manifests if repo == name and not tag.startswith("sha256:")]
        self.answer(200 if found else 404, json.dumps({"name": name, "tags": found}).encode())

    def manifests(self, name: str, rest: str, query: dict[str, str]) -> None:
        if self.command == "PUT":
            data = self.body()
            digest = "sha256:" + hashlib.sha256(data).hexdigest()
            for blob in [json.loads(data)["config"], *json.loads(data)["layers"]]:
                assert (name, blob["digest"]) in self.store.blobs, "a manifest of what isn't there"
            for key in (rest, digest):
                self.store.manifests[name, key] = (str(self.headers["Content-Type"]), data)
            return self.answer(201, Docker_Content_Digest=digest)
        kind, data = self.store.manifests.get((name, rest), ("", b""))
        self.answer(200 if data else 404, data, Content_Type=kind)
        return None

    def blobs(self, name: str, rest: str, query: dict[str, str]) -> None:
        data = self.store.blobs.get((name, rest))
        self.answer(404 if data is None else 200, data or b"", Content_Length=str(len(data or b"")))

    def blobs_uploads(self, name: str, rest: str, query: dict[str, str]) -> None:
        store = self.store
        if self.command == "POST":
            if query.get("mount") and (query["from"], query["mount"]) in store.blobs:
                store.blobs[name, query["mount"]] = store.blobs[query["from"], query["mount"]]
                return self.answer(201, Docker_Content_Digest=query["mount"])
            key = uuid.uuid4().hex
            store.uploads[key] = bytearray()
            return self.answer(202, Location=f"/v2/{name}/blobs/uploads/{key}?_state=s")
        if rest not in store.uploads:
            self.body()
            return self.answer(404)
        if self.command == "DELETE":
            del store.uploads[rest]
            return self.answer(204)
        upload = store.uploads[rest]
        if self.command == "PATCH":
            start = int(self.headers["Content-Range"].partition("-")[0])
            if start != len(upload):
                self.body()
                return self.answer(416)
        upload += self.body()
        if self.command == "PUT":
            digest = "sha256:" + hashlib.sha256(upload).hexdigest()
            if digest != query["digest"]:
                return self.answer(400, b'{"errors":[{"code":"DIGEST_INVALID"}]}')
            store.blobs[name, digest] = bytes(store.uploads.pop(rest))
            return self.answer(201, Docker_Content_Digest=digest)
        self.answer(202 if self.command == "PATCH" else 204, Location=self.path, Range=f"0-{len(upload) - 1}")
        return None


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Store]:
    store = Store()
    handler = type("Here", (Handler,), {"store": store})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    store.port = server.server_address[1]
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def failing(code: int, method: str, times: int = 1, body: bytes = b"") -> Fault:
    """Answers `code` to the first `times` requests of `method`."""
    left = [times]

    def fault(handler: Handler) -> bool:
        if handler.command != method or left[0] == 0:
            return False
        left[0] -= 1
        handler.body()
        handler.answer(code, body)
        return True

    return fault


def cutting(after: int, times: int = 1, *, keeps: bool = True) -> Fault:
    """Resets the connection `after` bytes of a PATCH; `keeps` says whether those stay."""
    left = [times]

    def fault(handler: Handler) -> bool:
        if handler.command != "PATCH" or left[0] == 0:
            return False
        left[0] -= 1
        got = handler.body(upto=after)
        key = urlsplit(handler.path).path.rpartition("/")[2]
        if keeps:
            handler.store.uploads[key] += got
        else:
            del handler.store.uploads[key]
        handler.hang_up()
        return True

    return fault
