"""Locks: of a folder on this machine, and of a cluster, on one of its nodes.

A process on the node holds the cluster's lock as long as it hears from us. A laptop that is lost, asleep or cut off is
silent, and loses the lock after half a minute; we know of it earlier than anybody else can have it. Each who takes the
lock has a larger number, a fence: nodes refuse what comes with an older one, such as from a laptop that wakes.
"""

import fcntl
import getpass
import json
import os
import posixpath
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rocstack.base.errors import CheckFailed
from rocstack.base.text import from_json
from rocstack.base.words import Value
from rocstack.edge import ssh
from rocstack.edge.ssh import Program, SshHost
from rocstack.node import cluster_lock as holder_program
from rocstack.node import node_lock

SILENCE = 30  # seconds without a word from us after which the node gives the lock away
LONGEST = 64 << 20  # bytes of an answer; in it is the journal
WHY = 300  # characters of a reason in the history
Sign = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # a line of the history -> what it gets that proves whose it is
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while a laptop sleeps
_START = "import sys; exec(compile(sys.stdin.buffer.read({size}), 'hold', 'exec'))"


def unsigned(line: Mapping[str, Any]) -> dict[str, Any]:
    """Where nobody signs the history."""
    return {}


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
    """One of a cluster's locks. Beside it on the node are, if any: `file`, which only the holder writes; `fence`, which
    numbers the holders; and `history`, a line of JSON for the beginning and the end of each one's work."""

    path: str
    work: Literal["deploy", "verify"]
    resume: str  # the command that goes on when the lock is lost, or the file can't be written
    file: str = ""
    fence: str = ""
    history: str = ""


class _Answer(Value):
    """What the node says. `text` is what its file holds; `held_by` and `waits_for` what the lock's file does. `before`
    is the number of the holder before us."""

    text: str = ""
    fence: int = 0
    before: int = 0
    held_by: str | None = None
    waits_for: str | None = None
    error: str = ""


@dataclass
class ClusterLock:
    """A lock that we have. `text` is what its file held when it was taken, `before` the number of who had it before,
    `fence` {"number", "who"} for the nodes; `end` is what the history says of our work when it has ended, beyond its
    outcome.

    `lost` alone decides whether it is still ours: what must end with the lock asks there.
    """

    spec: LockSpec
    text: str
    before: int
    fence: Mapping[str, Any]
    _program: Program
    _silence: int
    end: dict[str, Any] = field(default_factory=dict)
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

    def guarded(self, python: str, command: Sequence[str], alone_within: float | None = None) -> list[str]:
        """A command line that runs `command` on a node unless another run has taken the lock since; with `alone_within`
        it has the node to itself, and waits so many seconds for it. `python` is the node's; -I: as root it takes no
        module from the folder where it starts."""
        folder = posixpath.dirname(self.spec.fence)
        order: dict[str, Any] = {"fence": self.fence, "path": self.spec.fence}
        if alone_within is not None:
            order |= {"lock": f"{folder}/{node_lock.LOCK}", "within": alone_within}
        return [python, "-I", "-c", _source().decode(), "guard", json.dumps(order), *command]

    def _converse(self, stop: threading.Event) -> None:
        """One request at a time, each answered: the text to write, else a sign of life."""
        try:
            while True:
                with self._words:
                    if self._new_text is None and not stop.is_set():
                        self._words.wait(self._silence / 10)
                    text, asked, self._new_text = self._new_text, self._asked, None
                over = text is None and stop.is_set()
                sent = time.clock_gettime(_CLOCK)
                request = {"text": text} if text is not None else {"end": self.end} if over else {}
                _send(self._program, json.dumps(request).encode() + b"\n")
                reply = _answer(self._program)
                if over:
                    return
                with self._words:
                    self._heard = sent
                    if text is not None:
                        self._written, self._refused = asked, reply.error
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
    least: int = 0,
    entry: Mapping[str, Any] | None = None,
    sign: Sign = unsigned,
) -> Iterator[ClusterLock]:
    """The lock, for the length of the block. `on_wait` is called once when another has it; then we wait up to `wait`
    seconds. Its number is larger than `least`, the largest that a node knows. `entry` says in the history what it is
    taken for; without one the history has no line of it. `sign` adds to the line of its end, of which the node adds the
    times alone.

    Raises:
        CheckFailed: another has it (the error says who), or ssh doesn't get through.
    """
    who = {"who": operator(), "since": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "pid": os.getpid()}
    request = {
        "lock": spec.path, "file": spec.file, "fence": spec.fence, "least": least, "history": spec.history,
        "entry": dict(entry or {}), "silence": silence, "wait": wait, "who": who,
    }  # fmt: skip
    program, answer = _begin(ssh_host, spec, request, on_wait)
    fence = {"number": answer.fence, "who": who["who"]} if spec.fence else {}
    lock = ClusterLock(spec, answer.text, answer.before, fence, program, silence)
    stop = threading.Event()
    talk = threading.Thread(target=lock._converse, args=(stop,), daemon=True)
    talk.start()
    try:
        yield lock
        lock.end = {"outcome": "done", **lock.end}
    except BaseException as error:
        failed = isinstance(error, Exception)  # else somebody stopped it
        why = getattr(error, "what", str(error)) if failed else "stopped by its operator"
        lock.end |= {"outcome": "failed" if failed else "interrupted", "why": why[:WHY]}
        raise
    finally:
        if entry:
            lock.end |= sign({"fence": answer.fence, "who": who["who"], **entry, **lock.end})
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
        other = from_json(text)
        return f"{other['who']} (process {other['pid']}) since {other['since']}"
    except (ValueError, KeyError, TypeError):
        return "somebody who began this moment"


def _begin(
    ssh_host: SshHost, spec: LockSpec, request: dict[str, Any], on_wait: Callable[[], None]
) -> tuple[Program, _Answer]:
    source = _source()
    python = [ssh_host.python, "-I", "-u", "-c", _START.format(size=len(source))]
    program = Program(ssh_host.argv(python, options=["-T"]))
    try:
        with suppress(OSError):
            _send(program, source + json.dumps(request).encode() + b"\n")
        with program.within(ssh.TIMEOUT_S):
            answer = _answer(program)
        if answer.waits_for is not None:
            on_wait()
            with program.within(request["wait"] + ssh.TIMEOUT_S):
                answer = _answer(program)
        if answer.held_by is not None:
            raise CheckFailed.of(
                "deploy-running" if spec.work == "deploy" else "verify-running",
                holder=holder(answer.held_by), path=spec.path, host=ssh_host.host, silence=SILENCE,
            )  # fmt: skip
        if answer.error:
            raise ssh_host.error("no lock on", answer.error)
        return program, answer
    except BaseException as error:
        program.end()
        if isinstance(error, EOFError | ValueError):
            raise ssh_host.error("no lock on", program.complaints()) from None
        raise


def _source() -> bytes:
    return Path(holder_program.__file__).read_bytes()


def _send(program: Program, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[program.stdin.write(view) :]  # unbuffered: it may take a part


def _answer(program: Program) -> _Answer:
    """
    Raises:
        EOFError, ValueError: it says no more, or what it never says.
    """
    for line in iter(lambda: program.line(LONGEST), b""):
        _, mark, text = line.decode(errors="replace").partition(holder_program.MARK)
        if mark:
            return _Answer.model_validate_json(text)
    raise EOFError
