"""Commands that move much data or work long at an engine: one that stands still is ended, not waited for."""

import os
import select
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import IO

from rocstack.node import pull

SILENCE_S = pull.SILENCE_S  # one limit for all ways of an image
LONGEST_S = 3000.0  # seconds without a byte at an engine that answers: a large image on a slow disk takes its time
_TICK_S = 1.0


class Stalled(Exception):
    """What stands still, for how long, and what to do."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}; its engine or disk hangs: see `journalctl -u docker` there, restart it, and run again"
        )


def run(
    command: Sequence[str],
    ask: Sequence[str],
    out: IO[bytes],
    err: IO[bytes],
    *,
    feed: Iterable[bytes] = (),
    reads_within: float = 0,
    stopped: threading.Event | None = None,
) -> int:
    """The exit status of `command`, which reads `feed` and writes into the files `out` and `err`.

    Every byte begins the wait anew. After SILENCE_S without one the command is ended: at once while it should read,
    then when `ask`, a command that an engine answers at any time, doesn't succeed either; after LONGEST_S in any case.
    `reads_within`: seconds that it may take before it reads. `stopped` ends it, too.

    Raises:
        Stalled: it stood still. OSError: the command can't be started.
    """
    stop = stopped or threading.Event()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err, bufsize=0)
    assert process.stdin is not None
    try:
        with suppress(BrokenPipeError):  # it ended; its exit status and words say why
            _write(process.stdin, feed, SILENCE_S + reads_within, stop)
        process.stdin.close()
        return _wait(process, ask, (out, err), stop)
    finally:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.stdin.close()


def _write(pipe: IO[bytes], feed: Iterable[bytes], silence: float, stop: threading.Event) -> None:
    """Not by blocking writes: what a stopped process's child holds open would not end with it."""
    os.set_blocking(pipe.fileno(), False)
    ready = select.poll()
    ready.register(pipe.fileno(), select.POLLOUT)
    for data in feed:
        view, moved = memoryview(data), time.monotonic()
        while view and not stop.is_set():
            if ready.poll(1000 * min(_TICK_S, SILENCE_S)):
                view, moved = view[os.write(pipe.fileno(), view) :], time.monotonic()
            elif time.monotonic() - moved >= silence:
                raise Stalled(f"no data was taken for {silence:g} s")
        if stop.is_set():
            return


def _wait(
    process: subprocess.Popen[bytes], ask: Sequence[str], files: Sequence[IO[bytes]], stop: threading.Event
) -> int:
    size, moved = -1, time.monotonic()
    asked = moved
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(_TICK_S, SILENCE_S))
        if stop.is_set():
            process.kill()
        now, written = time.monotonic(), sum(os.fstat(file.fileno()).st_size for file in files)
        if written != size:
            size, moved, asked = written, now, now
        elif now - moved >= LONGEST_S:
            raise Stalled(f"nothing came for {LONGEST_S:g} s")
        elif now - asked >= SILENCE_S:
            if not _answers(ask):
                raise Stalled(f"nothing came for {now - moved:.0f} s, and the engine doesn't answer")
            asked = time.monotonic()


def _answers(ask: Sequence[str]) -> bool:
    quiet = subprocess.DEVNULL
    with suppress(OSError, subprocess.TimeoutExpired):
        return not subprocess.run(ask, stdin=quiet, stdout=quiet, stderr=quiet, timeout=SILENCE_S).returncode
    return False
