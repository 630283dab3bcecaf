"""Commands that move much data or work long at an engine: one that stands still is ended, not waited for."""

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from rocstack.node import pull

SILENCE_S = pull.SILENCE_S  # one limit for all ways of an image
LONGEST_S = 3000.0  # seconds at an engine that answers: a large image on a slow disk takes its time
MOST = 16 << 20  # bytes that a command may say
KEPT = 64 << 10  # bytes of its end that are read for a complaint
ROOM = 256 << 20  # bytes of the disk that data leaves free
_TICK_S = 0.1


class Stalled(Exception):
    """What stands still, for how long, and what to do."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}; its engine or disk hangs: see `journalctl -u docker` there, restart it, and run again"
        )


class Flooded(Stalled):
    """What says too much, or fills this machine's disk."""

    def __init__(self, what: str) -> None:
        Exception.__init__(self, what)


def run(
    command: Sequence[str],
    ask: Sequence[str],
    out: IO[bytes],
    err: IO[bytes],
    *,
    feed: Iterable[bytes] = (),
    reads_within: float = 0,
    data: bool = False,
    stopped: threading.Event | None = None,
) -> int:
    """The exit status of `command`, which reads `feed` and writes into the files `out` and `err`.

    After SILENCE_S without a byte the command is ended: at once while it should read, then when `ask`, a command that
    an engine answers at any time, doesn't succeed either; LONGEST_S after it has read in any case. With `data`, what
    it writes to `out` may be as much as leaves ROOM on the disk, and each KEPT bytes of it begin that wait anew.
    `reads_within`: seconds that it may take before it reads. `stopped` ends it, too.

    Raises:
        Stalled: it stood still, or said more than MOST. OSError: the command can't be started.
    """
    stop, files = stopped or threading.Event(), _Files(out, err, data)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err, bufsize=0, process_group=0)
    assert process.stdin is not None
    try:
        with suppress(BrokenPipeError):  # it ended; its exit status and words say why
            _write(process.stdin, feed, SILENCE_S + reads_within, files, stop)
        process.stdin.close()
        return _wait(process, ask, files, stop)
    finally:
        _kill(process)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.stdin.close()


def tail(file: IO[bytes]) -> bytes:
    """The last of what was said."""
    file.seek(max(0, os.fstat(file.fileno()).st_size - KEPT))
    return file.read(KEPT)


@dataclass(frozen=True)
class _Files:
    """What a command says, and how much it may."""

    out: IO[bytes]
    err: IO[bytes]
    data: bool

    def sizes(self) -> tuple[int, int]:
        """
        Raises:
            Flooded: it is too much.
        """
        out, err = (os.fstat(file.fileno()).st_size for file in (self.out, self.err))
        if err > MOST or (out > MOST and not self.data):
            raise Flooded(f"it said more than {MOST >> 20} MB")
        if self.data:
            disk = os.fstatvfs(self.out.fileno())
            if disk.f_bavail * disk.f_frsize < ROOM:
                raise Flooded(f"this machine's disk has less than {ROOM >> 20} MB left")
        return out, err


def _write(pipe: IO[bytes], feed: Iterable[bytes], silence: float, files: _Files, stop: threading.Event) -> None:
    """Not by blocking writes: what a stopped process's child holds open would not end with it."""
    os.set_blocking(pipe.fileno(), False)
    ready = select.poll()
    ready.register(pipe.fileno(), select.POLLOUT)
    for data in feed:
        view, moved = memoryview(data), time.monotonic()
        while view and not stop.is_set():
            files.sizes()
            if ready.poll(1000 * min(_TICK_S, SILENCE_S)):
                view, moved = view[os.write(pipe.fileno(), view) :], time.monotonic()
            elif time.monotonic() - moved >= silence:
                raise Stalled(f"no data was taken for {silence:g} s")
        if stop.is_set():
            return


def _wait(process: subprocess.Popen[bytes], ask: Sequence[str], files: _Files, stop: threading.Event) -> int:
    began = moved = asked = time.monotonic()
    known, counted = (-1, -1), 0
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(_TICK_S, SILENCE_S))
        now, sizes = time.monotonic(), files.sizes()
        if process.returncode is not None:
            return process.returncode
        if stop.is_set():
            _kill(process)
        if files.data and sizes[0] - counted >= KEPT:
            counted, began = sizes[0], now
        if sizes != known:
            known, moved, asked = sizes, now, now
        if now - began >= LONGEST_S:
            few = f"less than {KEPT >> 10} KB came in" if files.data else "it has not ended within"
            raise Stalled(f"{few} {LONGEST_S:g} s")
        if now - asked >= SILENCE_S:
            if not _answers(ask):
                raise Stalled(f"nothing came for {now - moved:.0f} s, and the engine doesn't answer")
            asked = time.monotonic()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With what it has started, which would go on to fill the disk."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)


def _answers(ask: Sequence[str]) -> bool:
    quiet = subprocess.DEVNULL
    with suppress(OSError, subprocess.TimeoutExpired):
        return not subprocess.run(ask, stdin=quiet, stdout=quiet, stderr=quiet, timeout=SILENCE_S).returncode
    return False
