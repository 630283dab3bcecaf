"""Locks: of a folder on this machine, and of a cluster, on one of its nodes.

A process on the node holds the cluster's lock as long as it hears from us. A laptop that is lost, asleep or cut off is
silent, and loses the lock after half a minute; we know of it earlier than anybody else can have it.
"""

import fcntl
import getpass
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from rocstack.base.errors import CheckFailed
from rocstack.edge import ssh
from rocstack.edge.ssh import Program, SshHost
from rocstack.node import cluster_lock as holder_program

SILENCE = 30  # seconds without a word from us after which the node gives the lock away
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while a laptop sleeps
_START = "import sys; exec(compile(sys.stdin.buffer.read({size}), 'hold', 'exec'))"


@contextmanager
def file_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """One process at a time on this machine; the others wait. `on_wait` is called when another one has the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class LockSpec:
    """One of a cluster's locks. `file`, if any, is a file beside it on the node, which only the holder writes."""

    path: str
    work: Literal["deploy", "verify"]
    resume: str  # the command that goes on when the lock is lost, or the file can't be written
    file: str = ""


@dataclass
class ClusterLock:
    """A lock that we have. `text` is what its file held when it was taken.

    `lost` alone decides whether it is still ours: what must end with the lock asks there.
    """

    spec: LockSpec
    text: str
    _program: Program
    _silence: int
    _words: threading.Condition = field(default_factory=threading.Condition)
    _heard: float = field(default_factory=lambda: time.clock_gettime(_CLOCK))
    _new_text: str | None = None  # to be written
    _asked: int = 0  # writes asked for
    _written: int = 0  # of those, done
    _refused: str = ""  # why the last write failed
    _over: bool = False  # the conversation has ended

    @property
    def lost(self) -> str:
        """Why the lock is not ours any more; empty while it is. To be asked before every step."""
        if self._over or self._program.poll() is not None:
            return "the connection to the control node has ended"
        silent = time.clock_gettime(_CLOCK) - self._heard
        return f"the control node has not answered for {silent:.0f} s" if silent > self._silence * 2 / 3 else ""

    def write(self, text: str, *, wait: bool = True) -> None:
        """The lock's file becomes `text`, at once or not at all. Without `wait` it is written soon, and only the
        latest of several.

        Raises:
            CheckFailed: the lock is lost, or the node can't write.
        """
        with self._words:
            self._new_text, self._asked = text, self._asked + 1
            if wait:
                self._refused = ""
            mine = self._asked
            self._words.notify_all()
            while wait and self._written < mine and not self.lost and not self._refused:
                self._words.wait(0.5)
            self.check()
            if self._refused:
                spec = self.spec
                raise CheckFailed.of("journal-unwritten", file=spec.file, why=self._refused, resume=spec.resume)

    def check(self) -> None:
        """
        Raises:
            CheckFailed: the lock is lost.
        """
        if why := self.lost:
            raise CheckFailed.of("lock-lost", why=why, work=self.spec.work, resume=self.spec.resume)

    def _converse(self, stop: threading.Event) -> None:
        """One request at a time, each answered: the text to write, else a sign of life."""
        try:
            while True:
                with self._words:
                    if self._new_text is None and not stop.is_set():
                        self._words.wait(self._silence / 10)
                    text, asked, self._new_text = self._new_text, self._asked, None
                if text is None and stop.is_set():
                    return
                sent = time.clock_gettime(_CLOCK)
                _send(self._program, json.dumps({} if text is None else {"text": text}).encode() + b"\n")
                reply = _answer(self._program)
                with self._words:
                    self._heard = sent
                    if text is not None:
                        self._written, self._refused = asked, str(reply.get("error", ""))
                    self._words.notify_all()
        except (OSError, ValueError, EOFError):
            pass  # `lost` says why
        finally:
            with self._words:
                self._over = True
                self._words.notify_all()


@contextmanager
def cluster_lock(
    ssh_host: SshHost,
    spec: LockSpec,
    *,
    wait: float = 0,
    on_wait: Callable[[], None] = lambda: None,
    silence: int = SILENCE,
) -> Iterator[ClusterLock]:
    """The lock, for the length of the block. `on_wait` is called once when another has it; then we wait up to `wait`
    seconds.

    Raises:
        CheckFailed: another has it (the error says who), or ssh doesn't get through.
    """
    who = {"who": operator(), "since": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "pid": os.getpid()}
    request = {"lock": spec.path, "file": spec.file, "silence": silence, "wait": wait, "who": who}
    with tempfile.TemporaryFile() as log:
        program, text = _begin(ssh_host, spec, request, on_wait, log)
        lock = ClusterLock(spec, text, program, silence)
        stop = threading.Event()
        talk = threading.Thread(target=lock._converse, args=(stop,), daemon=True)
        talk.start()
        try:
            yield lock
        finally:
            stop.set()
            with lock._words:
                lock._words.notify_all()
            if not lock.lost:
                talk.join(silence)  # what is to be written is written
            program.end()


def operator() -> str:
    """user@machine, as others know whoever runs this."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def holder(text: str) -> str:
    """Whose lock it is, by what is in its file."""
    try:
        other = json.loads(text)
        return f"{other['who']} (process {other['pid']}) since {other['since']}"
    except (ValueError, KeyError, TypeError):
        return "somebody who began this moment"


def _begin(
    ssh_host: SshHost, spec: LockSpec, request: dict[str, Any], on_wait: Callable[[], None], log: IO[bytes]
) -> tuple[Program, str]:
    source = Path(holder_program.__file__).read_bytes()
    python = [ssh_host.python, "-u", "-c", _START.format(size=len(source))]
    program = Program(ssh_host.argv(python, options=["-a", "-x", "-T"]), log)
    try:
        with suppress(OSError):
            _send(program, source + json.dumps(request).encode() + b"\n")
        with program.within(ssh.TIMEOUT_S):
            answer = _answer(program)
        if "waits_for" in answer:
            on_wait()
            with program.within(request["wait"] + ssh.TIMEOUT_S):
                answer = _answer(program)
        if "held_by" in answer:
            raise CheckFailed.of(
                "deploy-running" if spec.work == "deploy" else "verify-running",
                holder=holder(answer["held_by"]), path=spec.path, host=ssh_host.host, silence=SILENCE,
            )  # fmt: skip
        if "error" in answer:
            raise ssh_host.error("no lock on", answer["error"])
        return program, str(answer["text"])
    except BaseException as error:
        program.end()
        if isinstance(error, EOFError | ValueError):
            log.seek(0)
            raise ssh_host.error("no lock on", log.read().decode(errors="replace")) from None
        raise


def _send(program: Program, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[program.stdin.write(view) :]  # unbuffered: it may take a part


def _answer(program: Program) -> dict[str, Any]:
    for line in iter(program.stdout.readline, b""):
        _, mark, text = line.decode(errors="replace").partition(holder_program.MARK)
        if mark:
            answer: dict[str, Any] = json.loads(text)
            return answer
    raise EOFError
