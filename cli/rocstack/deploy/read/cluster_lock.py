"""One deploy at a time for a cluster: a process on its control node holds a lock as long as it hears from us.

A laptop that is lost, asleep or cut off is silent, and loses it after half a minute; we know of it earlier than anybody
else can have it.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import IO, Any

from rocstack.base.errors import CheckFailed
from rocstack.deploy.read import journal
from rocstack.edge import ssh
from rocstack.edge.ssh import SshHost
from rocstack.node import cluster_lock as node_hold

SILENCE = 30  # seconds without a word from us after which the node gives the lock away
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while a laptop sleeps
_START = "import sys; exec(compile(sys.stdin.buffer.read({size}), 'hold', 'exec'))"


@dataclass
class Held:
    """The lock, held. `journal` is what the control node had when it was taken."""

    journal: str
    _process: Popen[bytes]
    _silence: int
    _words: threading.Condition = field(default_factory=threading.Condition)
    _heard: float = field(default_factory=lambda: time.clock_gettime(_CLOCK))
    _text: str | None = None  # to be written
    _asked: int = 0  # writes asked for
    _written: int = 0  # of those, done
    _refused: str = ""  # why the last write failed
    _over: bool = False  # the conversation has ended

    @property
    def lost(self) -> str:
        """Why the lock is not ours any more; empty while it is. To be asked before every step."""
        if self._over or self._process.poll() is not None:
            return "the connection to the control node has ended"
        silent = time.clock_gettime(_CLOCK) - self._heard
        return f"the control node has not answered for {silent:.0f} s" if silent > self._silence * 2 / 3 else ""

    def write(self, text: str, *, wait: bool = True) -> None:
        """The control node's journal becomes `text`, at once or not at all. Without `wait` it is written soon, and
        only the latest of several.

        Raises:
            CheckFailed: the lock is lost, or the node can't write.
        """
        with self._words:
            self._text, self._asked = text, self._asked + 1
            if wait:
                self._refused = ""
            mine = self._asked
            self._words.notify_all()
            while wait and self._written < mine and not self.lost and not self._refused:
                self._words.wait(0.5)
            self.check()
            if self._refused:
                raise CheckFailed(
                    f"the control node can't write {journal.PATH}: {self._refused}",
                    code="journal-unwritten",
                    next_step="make room there, then `rocstack deploy --resume`",
                )

    def check(self) -> None:
        """
        Raises:
            CheckFailed: the lock is lost.
        """
        if why := self.lost:
            raise CheckFailed(
                f"the lock on the cluster is lost: {why}",
                code="lock-lost",
                cause="another deploy may begin now, so this one must stop",
                next_step="`rocstack deploy --resume` goes on where this one stopped",
            )

    def _converse(self, stop: threading.Event) -> None:
        """One request at a time, each answered: the text to write, else a sign of life."""
        number = 0
        try:
            while True:
                with self._words:
                    if self._text is None and not stop.is_set():
                        self._words.wait(self._silence / 10)
                    text, asked, self._text = self._text, self._asked, None
                if text is None and stop.is_set():
                    return
                number += 1
                sent = time.clock_gettime(_CLOCK)
                said = self._ask({"n": number, **({} if text is None else {"journal": text})})
                with self._words:
                    self._heard = sent
                    if text is not None:
                        self._written, self._refused = asked, str(said.get("error", ""))
                    self._words.notify_all()
        except (OSError, ValueError, EOFError):
            pass  # what is lost says so
        finally:
            with self._words:
                self._over = True
                self._words.notify_all()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        _send(self._process, json.dumps(request).encode() + b"\n")
        return _answer(self._process)


@contextmanager
def hold(ssh_host: SshHost, *, folder: str = str(Path(journal.PATH).parent), silence: int = SILENCE) -> Iterator[Held]:
    """The cluster's lock, on its control node, for the length of the block.

    Raises:
        CheckFailed: another deploy has it (it says whose), or ssh doesn't get through.
    """
    who = {"who": me(), "since": journal.now(), "pid": os.getpid()}
    with tempfile.TemporaryFile() as log:
        process, first = _begin(ssh_host, {"folder": folder, "silence": silence, "who": who}, log)
        held = Held(first, process, silence)
        stop = threading.Event()
        talk = threading.Thread(target=held._converse, args=(stop,), daemon=True)
        talk.start()
        try:
            yield held
        finally:
            stop.set()
            with held._words:
                held._words.notify_all()
            if not held.lost:
                talk.join(silence)  # what is to be written is written
            ssh.end(process)


def me() -> str:
    """user@machine, as others know this operator."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _begin(ssh_host: SshHost, first: dict[str, Any], log: IO[bytes]) -> tuple[Popen[bytes], str]:
    source = Path(node_hold.__file__).read_bytes()
    command = ssh_host.argv([ssh_host.python, "-u", "-c", _START.format(size=len(source))], options=["-a", "-x", "-T"])
    process = ssh.start(command, log)
    timer = threading.Timer(ssh.TIMEOUT_S, process.kill)
    timer.start()
    try:
        with suppress(OSError):
            _send(process, source + json.dumps(first).encode() + b"\n")
        said = _answer(process)
        if "held_by" in said:
            raise _running(ssh_host, said["held_by"])
        if "error" in said:
            raise ssh_host.error("no lock on", said["error"])
        return process, str(said["journal"])
    except BaseException as error:
        ssh.end(process)
        if isinstance(error, EOFError | ValueError):
            log.seek(0)
            raise ssh_host.error("no lock on", log.read().decode(errors="replace")) from None
        raise
    finally:
        timer.cancel()


def holder(text: str) -> str:
    """Whose lock it is, by what is in its file."""
    try:
        other = json.loads(text)
        return f"{other['who']} (process {other['pid']}) since {other['since']}"
    except (ValueError, KeyError, TypeError):
        return "somebody who began this moment"


def _running(ssh_host: SshHost, text: str) -> CheckFailed:
    return CheckFailed(
        f"another deploy of this cluster is running: {holder(text)}",
        code="deploy-running",
        cause=f"it holds the lock on {ssh_host.host}",
        next_step=f"wait for it. If its machine is lost, the lock is free {SILENCE} s after its last word",
    )


def _send(process: Popen[bytes], data: bytes) -> None:
    assert process.stdin
    view = memoryview(data)
    while view:
        view = view[process.stdin.write(view) :]  # unbuffered: it may take a part


def _answer(process: Popen[bytes]) -> dict[str, Any]:
    assert process.stdout
    for line in iter(process.stdout.readline, b""):
        _, mark, said = line.decode(errors="replace").partition(node_hold.MARK)
        if mark:
            found: dict[str, Any] = json.loads(said)
            return found
    raise EOFError
