"""Changes at the node's container engine, through its command line. Standard library only."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
from typing import Any, Dict, NamedTuple  # noqa: UP035

from . import engine_errors

Row = Dict[str, Any]  # noqa: UP006  (evaluated by Python 3.8)
TIMEOUT_S = 60.0  # seconds for a command that has nothing to wait for
PROGRAM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin"


class NodeError(Exception):
    """What can't be done on this node, in one line, and what probably led to it. `kind` is a word for programs."""

    def __init__(self, what: str, cause: str = "", kind: str = "engine") -> None:
        super().__init__(what)
        self.what, self.cause, self.kind = what, cause, kind


class CommandOutput(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def why(self) -> str:
        """What it complained of, in one line."""
        return engine_errors.without_noise(self.err.strip() or self.out.strip()) or f"exit status {self.code}"


def docker(*words: str, stdin: str = "", seconds: float = TIMEOUT_S, check: bool = True) -> CommandOutput:
    """
    Raises:
        NodeError: there is no docker command, no answer within `seconds`, or (with `check`) its complaint.
    """
    try:
        output = run_docker(*words, stdin=stdin, seconds=seconds)
    except subprocess.TimeoutExpired:
        raise NodeError(
            f"the engine didn't answer `docker {words[0]}` within {seconds:g} s",
            "the engine or its disk hangs: see its log on the node",
        ) from None
    if check and output.code:
        raise NodeError(output.why)
    return output


def run_docker(*words: str, stdin: str = "", seconds: float) -> CommandOutput:
    """
    Raises:
        NodeError: there is no docker command.
        TimeoutExpired, OSError: as subprocess.run.
    """
    line, env = [_docker_path(), *words], _environment()
    for _ in engine_errors.tries():
        done = subprocess.run(line, input=stdin.encode(), capture_output=True, timeout=seconds, env=env)
        out, err = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
        if engine_errors.NOT_STARTED not in err:
            break
    return CommandOutput(done.returncode, out, err)


def inspect_existing(kind: str, *names: str) -> list[Row]:
    """What `docker <kind> inspect` says of those that exist."""
    output = docker(kind, "inspect", *names, check=False)
    complaints = [line for line in output.err.lower().splitlines() if line and "no such" not in line]
    if output.code and complaints:
        raise NodeError(output.why)
    rows: list[Row] = json.loads(output.out.strip() or "[]")
    return rows


class EngineApi(http.client.HTTPConnection):
    """The engine's own API, through the docker command: whatever that one reaches, this does."""

    def __init__(self, silence: float) -> None:
        """`silence`: seconds without a byte after which reading raises socket.timeout."""
        super().__init__("engine", timeout=silence)
        self._process: subprocess.Popen[bytes] | None = None

    def connect(self) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(self.timeout)
        with theirs:
            self._process = subprocess.Popen(
                [_docker_path(), "system", "dial-stdio"], stdin=theirs.fileno(), stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL, env=_environment(),
            )  # fmt: skip

    def close(self) -> None:
        """The engine ends what it was asked for."""
        super().close()
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None


def _docker_path() -> str:
    program = shutil.which("docker", path=os.environ.get("PATH", "") + ":" + PROGRAM_FOLDERS)
    if not program:
        raise NodeError("there is no docker command", "no container engine is installed", "no-engine")
    return program


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}
