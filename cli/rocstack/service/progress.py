"""What a job's files say: its log, the numbers of its steps, its checkpoints. The job's owner writes them: data."""

import json
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple

import anyio.to_thread

from rocstack.service.identity import Caller
from rocstack.service.storage import Storage
from rocstack.service.turns import Turns

Made = TypeVar("Made")
Given = TypeVarTuple("Given")
LOG, METRICS, CHECKPOINTS = "log", "metrics.jsonl", "checkpoints"
PIECE = 1 << 18  # bytes of a log in one answer
READ, STEPS = 16 << 20, 50_000  # bytes of metrics that are read, and steps, both the newest
READ_LINES = 200_000  # and lines: of a trainer's that many are more bytes
LARGEST = 1e30  # of a number that is shown: sums and squares of it are numbers, too
FILES, ROWS = 64, 200_000  # of metrics that are kept at most: files, and rows of all
NUMBERS = (
    *("loss", "eval_loss", "perplexity", "lr", "grad_norm", "tokens_per_s", "step_ms", "comm_ms"),
    *("memory_mb", "sent_mb", "mfu", "gpu_busy"),
)
_LOCK = threading.Lock()
_KNOWN: dict[tuple[str, str, str], tuple[tuple[int, int, int], list[dict[str, Any]]]] = {}  # the last used one last
_STEP = re.compile(r"step-(\d{1,12})")


@dataclass(frozen=True)
class LogPiece:
    """`offset` is where the next piece begins. `size` is the log's at the moment."""

    text: str
    offset: int
    size: int

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, "offset": self.offset, "size": self.size}


@dataclass
class Progress:
    """What they say, for those who ask: each person at her turn, so that nobody's odd files take all threads."""

    storage: Storage
    turns: Turns = field(default_factory=Turns)

    async def log(self, caller: Caller, job: str, offset: int, most: int = PIECE) -> LogPiece:
        return await anyio.to_thread.run_sync(log, self.storage, caller, job, offset, most)

    async def metrics(self, caller: Caller, job: str, after: int = 0) -> list[dict[str, Any]]:
        return await self.work(caller, metrics, self.storage, caller, job, after)

    async def checkpoints(self, caller: Caller, job: str) -> list[tuple[int, int]]:
        return await self.work(caller, checkpoints, self.storage, caller, job)

    async def work(self, caller: Caller, do: Callable[[*Given], Made], *given: *Given) -> Made:
        """What of a long job takes long, at her turn and in a thread."""
        async with self.turns.of(caller):
            return await anyio.to_thread.run_sync(do, *given)


def log(storage: Storage, caller: Caller, job: str, offset: int, most: int = PIECE) -> LogPiece:
    """A piece of the log from a byte on; a negative offset counts from its end. Only whole characters."""
    try:
        with storage.opened(caller, "jobs", job, LOG) as file:
            size = file.seek(0, 2)
            begin = max(0, size + offset) if offset < 0 else min(offset, size)
            file.seek(begin)
            data = file.read(most)
    except FileNotFoundError:
        return LogPiece("", max(0, offset), 0)
    cut = _whole_characters(data)
    return LogPiece(cut.decode(errors="replace"), begin + len(cut), size)


def metrics(storage: Storage, caller: Caller, job: str, after: int = 0) -> list[dict[str, Any]]:
    """The numbers of each step after that one, ascending; a step that was made twice counts as it was made last. Of
    very many those that were written last: whoever may write such a file could fill the memory of all. Many look at one
    job, so what was read stays until the file changes: the rows are nobody's to change."""
    try:
        with storage.opened(caller, "jobs", job, METRICS) as file:
            about, place = os.fstat(file.fileno()), (str(storage.root), caller.name, job)
            stamp = (about.st_ino, about.st_size, about.st_mtime_ns)
            with _LOCK:
                known = _KNOWN.pop(place, None)
            if known is None or known[0] != stamp:
                file.seek(max(0, file.seek(0, 2) - READ))  # amid a line: that one is no JSON
                known = stamp, _steps(file.read(READ))
    except FileNotFoundError:
        return []
    with _LOCK:
        _KNOWN[place] = known
        while len(_KNOWN) > FILES or (len(_KNOWN) > 1 and sum(len(rows) for _, rows in _KNOWN.values()) > ROWS):
            _KNOWN.pop(next(iter(_KNOWN)))
    rows = known[1]
    return rows[bisect_right(rows, after, key=lambda row: row["step"]) :]


def _steps(data: bytes) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for line in reversed(data.rsplit(b"\n", READ_LINES)):
        row = _row(line)
        if row is not None and row["step"] not in found:
            found[row["step"]] = row
            if len(found) >= STEPS:
                break
    return [found[step] for step in sorted(found)]


def checkpoints(storage: Storage, caller: Caller, job: str) -> list[tuple[int, int]]:
    """(step, when it was written), ascending."""
    found = [
        (int(match[1]), int(when))
        for name, when in storage.listed(caller, "jobs", job, CHECKPOINTS)
        if (match := _STEP.fullmatch(name))
    ]
    return sorted(found)


def _row(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{") or len(line) > 10_000:
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = row.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 1 << 40:
        return None
    return {"step": step} | {name: value for name in NUMBERS if (value := _number(row.get(name))) is not None}


def _number(value: object) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
        return None
    return value


def _whole_characters(data: bytes) -> bytes:
    """Without the beginning of a character at the end, whose rest may come."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needs = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if needs > back else data
    return data
