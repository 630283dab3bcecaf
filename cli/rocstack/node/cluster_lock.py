"""Holds the lock of a cluster on its control node for as long as the operator's machine is heard, and writes its
journal, which so only the holder can. Started over ssh; standard library, Python 3.8.

Lines of JSON: the first request is {"folder", "silence", "who"}, each further one {"n"} or {"n", "journal"}. Answers
follow a mark, because a login shell may say things of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

MARK = "rocstack-hold "
LOCK, JOURNAL = "deploy.lock", "deploy.json"


def answer(**said: Any) -> None:
    sys.stdout.write(MARK + json.dumps(said) + "\n")
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


def serve_lock(stream: BinaryIO) -> None:
    first = json.loads(stream.readline())
    folder = first["folder"]
    lock, journal = os.path.join(folder, LOCK), os.path.join(folder, JOURNAL)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        answer(held_by=read(lock))
        return
    os.ftruncate(handle, 0)
    os.write(handle, json.dumps(first["who"]).encode())
    answer(journal=read(journal))
    for request in requests(stream, first["silence"]):
        try:
            if "journal" in request:
                write(journal, request["journal"])
        except OSError as error:
            answer(n=request["n"], error=error.strerror or str(error))
        else:
            answer(n=request["n"])
    os.ftruncate(handle, 0)


if __name__ == "__main__":
    try:
        serve_lock(sys.stdin.buffer)
    except OSError as error:
        answer(error=f"{error.filename}: {error.strerror}")
