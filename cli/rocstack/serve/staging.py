"""Copies of adapters that the engine loads from: in a folder that only the gateway writes, made once an adapter was
checked. So what is loaded is what was checked, whatever its owner does to the files meanwhile."""

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.serve import adapter_check
from rocstack.serve.adapter_check import CONFIG, MOST_CONFIG, WEIGHTS, Limits
from rocstack.serve.base_model import BaseModel
from rocstack.serve.registry import OpenAdapter, Registered
from rocstack.serve.safetensors_header import read_header

PIECE = 16 << 20  # bytes
KEPT_S = 60  # a copy that nothing uses
Opened = Callable[[Registered], AbstractContextManager[OpenAdapter]]


@dataclass(frozen=True)
class Staged:
    """A checked copy. Its id changes with the adapter's files, so the engine never mixes two versions of one."""

    id: str
    adapter: Registered
    folder: Path
    size: int  # bytes of the weights


class Staging:
    """Thread-safe: its calls block on files, and are made off the event loop."""

    def __init__(self, folder: Path, base: BaseModel, opened: Opened, *, rank: int, most_bytes: int) -> None:
        self._folder, self._base, self._limits, self._most = folder, base, Limits(rank), most_bytes
        self._opened = opened
        self._used: dict[str, float] = {}
        self._lock = threading.Lock()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)

    def stage(self, adapter: Registered) -> Staged:
        """
        Raises:
            BadInput: it can't be served, and why.
            CheckFailed: there is no room for its copy.
        """
        with self._opened(adapter) as files:
            name = "a" + hashlib.sha256("\0".join((*adapter.key, files.stamp)).encode()).hexdigest()[:24]
            place = self._folder / name
            with self._lock:
                self._used[name] = time.monotonic()
                there = place.is_dir()
            if not there:
                try:
                    self._copy(adapter, files, place)
                except OSError as error:
                    raise CheckFailed.of("adapter-not-copied", folder=self._folder, why=error.strerror) from None
            return Staged(name, adapter, place, files.size)

    def clear(self, used: set[str]) -> None:
        """Removes copies that are neither among `used` nor were asked for in the last minute."""
        with self._lock:
            before = time.monotonic() - KEPT_S
            old = [name for name, at in self._used.items() if at < before and name not in used]
            for name in old:
                del self._used[name]
                shutil.rmtree(self._folder / name, ignore_errors=True)

    def _copy(self, adapter: Registered, files: OpenAdapter, place: Path) -> None:
        if files.size > self._most:
            why = f"it has {files.size / (1 << 20):,.0f} MiB; this server takes {self._most >> 20:,}"
            raise BadInput.of("adapter-unread", file=WEIGHTS, why=why)
        raw = os.read(files.config, MOST_CONFIG + 1)
        if len(raw) > MOST_CONFIG:
            raise BadInput.of("adapter-unread", file=CONFIG, why="it is larger than 1 MiB")
        config = adapter_check.parse_config(raw)
        self._check(config, files.weights, files.size)  # before any room is used
        partial = place.with_name(f".{place.name}-{threading.get_ident()}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        try:
            with (partial / WEIGHTS).open("w+b") as copy:
                _copy_bytes(files.weights, copy.fileno(), files.size)
                checked = self._check(config, copy.fileno(), files.size)  # they may have changed meanwhile
            (partial / CONFIG).write_text(json.dumps(dict(checked.config)), encoding="utf-8")
            with self._lock:
                if not place.exists():
                    partial.rename(place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _check(self, config: dict[str, object], file: int, size: int) -> adapter_check.Checked:
        os.lseek(file, 0, os.SEEK_SET)
        try:
            with os.fdopen(os.dup(file), "rb") as reader:
                tensors = read_header(reader.read, size)
        except ValueError as error:
            raise BadInput.of("adapter-unread", file=WEIGHTS, why=error) from None
        return adapter_check.check(config, tensors, self._base, self._limits)


def _copy_bytes(source: int, target: int, size: int) -> None:
    os.lseek(source, 0, os.SEEK_SET)
    left = size
    while left:
        piece = os.read(source, min(left, PIECE))
        if not piece:
            raise BadInput.of("adapter-unread", file=WEIGHTS, why="it became shorter while it was copied")
        view = memoryview(piece)
        while view:
            view = view[os.write(target, view) :]
        left -= len(piece)
