"""DiLoCo groups of forked ranks, and the store they meet in, for the tests."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from conftest import _fork

from rocstack_trainer.ranks import launch
from rocstack_trainer.ranks.store import serve


@contextmanager
def store_process(port: int = 0) -> Iterator[tuple[str, int]]:
    """HOST:PORT of a store process, and its pid."""
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        os.dup2(writing, 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - for the life of the process
        os._exit(serve(port))
    os.close(writing)
    with open(reading) as lines:
        port = lines.readline().rpartition(":")[2].strip()
    try:
        yield f"127.0.0.1:{port}", pid
    finally:
        kill(pid)


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it ended, and a test waited for it


class Group:
    """`world` ranks that run `body(rank, store, *args)` in the process group of DiLoCo group `number`."""

    def __init__(
        self, address: str, number: int, groups: int, world: int, body: Any, *args: Any, timeout_s: float = 60
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            passed = (address, number, groups, timeout_s, body, args)
            self.children = [_fork(rank, world, unused, _inside, passed) for rank in range(world)]

    def signal(self, number: signal.Signals) -> None:
        for pid, _ in self.children:
            os.kill(pid, number)

    def results(self, timeout_s: float = 60) -> list[Any]:
        """What the body returned or raised on each rank; None of a rank that was killed or hangs."""
        deadline = time.monotonic() + timeout_s
        found = []
        for pid, pipe in self.children:
            left = max(0, deadline - time.monotonic())
            data = pipe.read() if select.select([pipe], [], [], left)[0] else b""
            found.append(pickle.loads(data) if data else None)
            kill(pid)
            pipe.close()
        return found


def _inside(rank: launch.Rank, address: str, number: int, groups: int, timeout_s: float, body: Any, args: Any) -> Any:
    rank = replace(rank, group=number, groups=groups)
    with launch.process_group(rank, timeout_s, address, 15) as store:
        return body(rank, store, *args)
