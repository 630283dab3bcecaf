"""A real registry: the distribution's docker-registry in a container, with a password, and TLS if asked for."""

from __future__ import annotations

import http.client
import os
import secrets
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

USER = "ada"
DOCKERFILE = f"""\
RUN apt-get update -qq && apt-get install -qqy --no-install-recommends docker-registry
WORKDIR /etc/docker/registry
CMD perl -e 'print "{USER}:", crypt($ENV{{PASSWORD}}, q($2y$05$) . "a" x 22), "\\n"' >htpasswd \\
 && exec docker-registry serve config.yml
"""


def engine(*args: str, stdin: str | None = None, **env: str) -> str:
    done = subprocess.run(["docker", *args], input=stdin, capture_output=True, text=True, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def certificate(folder: Path, name: str) -> Path:
    """A certificate of its own for `name` (such as IP:10.0.0.11), and its key beside it."""
    files = ["-keyout", str(folder / "server.key"), "-out", str(folder / "server.pem")]
    line = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days=2"]
    subprocess.run([*line, "-subj=/CN=test", f"-addext=subjectAltName={name}", *files], check=True, capture_output=True)
    return folder / "server.pem"


@dataclass(frozen=True)
class Registry:
    port: int
    password: str
    container: str
    tls: bool = False

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def wait(self) -> None:
        for _ in range(200):
            trust = ssl._create_unverified_context()
            http_, https = http.client.HTTPConnection, http.client.HTTPSConnection
            answer = https(self.host, timeout=5, context=trust) if self.tls else http_(self.host, timeout=5)
            try:
                answer.request("GET", "/v2/")
                assert answer.getresponse().status == 401, "the registry must ask for a login"
                return
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)
            finally:
                answer.close()
        raise AssertionError("the registry does not answer: " + engine("logs", self.container))

    def start(self) -> None:
        engine("start", self.container)
        self.wait()

    def stop(self) -> None:
        engine("kill", self.container)


@contextmanager
def running(base: str, tls: Path | None = None) -> Iterator[Registry]:
    """A registry in a container of its own. `tls` is a folder with server.pem and server.key."""
    name = f"rocstack-test-registry-{secrets.token_hex(4)}"
    port, password = free_port(), secrets.token_hex(16)
    engine("build", "--quiet", "--tag", name, "-", stdin=f"FROM {base}\n{DOCKERFILE}")
    flags = [f"--publish=127.0.0.1:{port}:5000", "--env=PASSWORD"]
    if tls:
        flags += [f"--volume={tls}:/tls:ro"]
        flags += ["--env=REGISTRY_HTTP_TLS_CERTIFICATE=/tls/server.pem", "--env=REGISTRY_HTTP_TLS_KEY=/tls/server.key"]
    try:
        engine("create", "--name", name, *flags, name, PASSWORD=password)
        here = Registry(port, password, name, tls is not None)
        here.start()
        yield here
    finally:
        subprocess.run(["docker", "rm", "--force", "--volumes", name], capture_output=True)
        subprocess.run(["docker", "rmi", "--force", name], capture_output=True)
