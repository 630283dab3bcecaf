"""Holds a lock on a node for as long as the operator's machine is heard, numbers those who take it, and writes the
files that only the holder may write. Started over ssh, by its source alone: so it imports nothing of the package and
has a `write` of its own.

Lines of JSON: the first request is {"lock", "file", "fence", "least", "history", "entry", "silence", "wait", "who"},
each further one {}, {"text"} or {"end"}. Answers follow a mark, because a login shell may say things of its own.

With the argument `guard` it runs a command, unless somebody has taken the lock since: see `guard`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Dict  # noqa: UP035

MARK = "rocstack-hold "
PAUSE = 0.5  # seconds
FENCE = "fence.json"  # in the folder of the lock, and of each node's state
MOST = 1 << 53  # a fence number that another node claims counts up to here
REFUSED = 75  # what `guard` ends with where it runs nothing
Row = Dict[str, Any]  # noqa: UP006  (evaluated by Python 3.8)


def answer(**values: Any) -> None:
    sys.stdout.write(MARK + json.dumps(values) + "\n")
    sys.stdout.flush()


class Silence(Exception):
    """The operator's machine was not heard."""


def requests(stream: BinaryIO, silence: int) -> Iterator[Row]:
    """
    Raises:
        Silence: nothing came for `silence` seconds.
    """

    def end(*_: Any) -> None:
        raise Silence

    signal.signal(signal.SIGALRM, end)
    signal.alarm(silence)
    for line in iter(stream.readline, b""):
        signal.alarm(silence)
        yield json.loads(line)


def write(path: str, text: str) -> None:
    temporary = path + ".new"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)  # else a power cut may bring the file before back
    finally:
        os.close(folder)


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def append(path: str, row: Row) -> None:
    """A line more, whole or not at all: what an earlier power cut left of one is a line of its own."""
    line = json.dumps(row).encode() + b"\n"
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        size = os.lseek(handle, 0, os.SEEK_END)
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        if os.write(handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        os.fsync(handle)
    finally:
        os.close(handle)


def try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def newest(path: str) -> Row:
    """{"number", "who"} of the last who took the lock, as far as this node knows; 0 where that can't be told."""
    try:
        row = json.loads(read(path))
        return {"number": max(0, int(row["number"])), "who": str(row["who"])}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return {"number": 0, "who": ""}


@contextmanager
def alone(path: str) -> Iterator[None]:
    """With the file at `path`, for a moment."""
    handle = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def issue(path: str, least: int, who: str) -> int:
    """The next number: larger than all before and than `least`. Where the file is lost, the clock makes it so."""
    with alone(path):
        number = max(int(newest(path)["number"]), min(least, MOST), int(time.time())) + 1
        write(path, json.dumps({"number": number, "who": who}))
    return number


def announce(path: str, fence: Row) -> Row:
    """This node hears of a number, and remembers it if it knows no larger one. Gives what it knows then."""
    with alone(path):
        known = newest(path)
        if known["number"] < fence["number"]:
            known = {"number": fence["number"], "who": fence["who"]}
            write(path, json.dumps(known))
    return known


def refusal(path: str, fence: Row, known: Row) -> tuple[str, str]:
    """Why nothing may be changed under `fence` any more, and the likely cause; two empty texts where it may."""
    if known["number"] <= fence["number"]:
        return "", ""
    what = "{} has taken the cluster's lock since, so this run may change nothing here any more".format(known["who"])
    cause = (
        "this run lost the lock; or the control node lost its state: if no other run is at work, remove {} on this node"
    )
    return what, cause.format(path)


def take(handle: int, path: str, wait: float, stream: BinaryIO) -> bool:
    """Whether the lock is ours within `wait` seconds. The operator says nothing meanwhile; its end ends the wait."""
    deadline = time.monotonic() + wait
    told = False
    while not try_lock(handle):
        if time.monotonic() >= deadline:
            answer(held_by=read(path))
            return False
        if not told:
            told = True
            answer(waits_for=read(path))
        if select.select([stream], [], [], PAUSE)[0]:
            return False
    return True


def utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def hold(stream: BinaryIO) -> None:
    first = json.loads(stream.readline())
    path, file, fence, who = first["lock"], first["file"], first["fence"], first["who"]
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if not take(handle, path, first["wait"], stream):
        return
    before = newest(fence)["number"] if fence else 0
    number = issue(fence, first["least"], who["who"]) if fence else 0
    os.ftruncate(handle, 0)
    os.write(handle, json.dumps({**who, "fence": number}).encode())
    history = first["history"] if first["entry"] else ""
    entry = {"fence": number, "who": who["who"], "began": utc(), **first["entry"]}
    if history:
        append(history, entry)
    answer(text=read(file) if file else "", fence=number, before=before)
    end: Row = {}
    lost = "the connection to the operator's machine ended"
    try:
        for request in requests(stream, first["silence"]):
            try:
                if "text" in request:
                    write(file, request["text"])
                if "end" in request:
                    end = request["end"]
            except OSError as error:
                answer(error=error.strerror or str(error))
            else:
                answer()
    except Silence:
        lost = "nothing was heard of it for {} s".format(first["silence"])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(5)  # with a disk that hangs, too, the lock is free
    if history:
        append(history, {**entry, "ended": utc(), **(end or {"outcome": "interrupted", "why": lost})})
    os.ftruncate(handle, 0)


def guard(order: Row, command: list[str]) -> int:
    """Becomes a command here for somebody with a fence number, unless this node knows a larger one.

    Args:
        order: "fence" is {"number", "who"}, "path" the file in which this node remembers it. With "lock" the command
            has that lock, and waits up to "within" seconds for it.
    """
    path, fence = order["path"], order["fence"]
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    why = refusal(path, fence, announce(path, fence))[0]
    if not why and "lock" in order:
        handle = os.open(order["lock"], os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.set_inheritable(handle, True)  # until the command has ended
        deadline = time.monotonic() + order["within"]
        while not why and not try_lock(handle):
            time.sleep(PAUSE)
            why = "another rocstack run is still working on this node" if time.monotonic() >= deadline else ""
        why = why or refusal(path, fence, newest(path))[0]
    if why:
        sys.stderr.write(why + "\n")
        return REFUSED
    os.execvp(command[0], command)


if __name__ == "__main__":
    if sys.argv[1:2] == ["guard"]:
        sys.exit(guard(json.loads(sys.argv[2]), sys.argv[3:]))
    try:
        hold(sys.stdin.buffer)
    except OSError as error:
        answer(error=": ".join(filter(None, [error.filename, error.strerror or str(error)])))
