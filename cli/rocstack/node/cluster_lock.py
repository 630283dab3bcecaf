"""Holds a lock on a node for as long as the operator's machine is heard, and writes the file that only the holder may
write. Started over ssh, by its source alone: so it imports nothing of the package and has a `write` of its own.

Lines of JSON: the first request is {"lock", "file", "silence", "wait", "who"}, each further one {} or {"text"}.
Answers follow a mark, because a login shell may say things of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

MARK = "rocstack-hold "
PAUSE = 0.5  # seconds


def answer(**values: Any) -> None:
    sys.stdout.write(MARK + json.dumps(values) + "\n")
    sys.stdout.flush()


def requests(stream: BinaryIO, silence: int) -> Iterator[dict[str, Any]]:
    """Whoever is silent for longer loses the lock: the alarm ends this process, and with it the lock."""
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


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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


def hold(stream: BinaryIO) -> None:
    first = json.loads(stream.readline())
    path, file = first["lock"], first["file"]
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if not take(handle, path, first["wait"], stream):
        return
    os.ftruncate(handle, 0)
    os.write(handle, json.dumps(first["who"]).encode())
    answer(text=read(file) if file else "")
    for request in requests(stream, first["silence"]):
        try:
            if "text" in request:
                write(file, request["text"])
        except OSError as error:
            answer(error=error.strerror or str(error))
        else:
            answer()
    os.ftruncate(handle, 0)


if __name__ == "__main__":
    try:
        hold(sys.stdin.buffer)
    except OSError as error:
        answer(error=f"{error.filename}: {error.strerror}")
