"""One at a time works on a node: a module goes on when its operator has left, and the next deploy may begin then.
Standard library only."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager

from . import files
from .cluster_lock import PAUSE, try_lock
from .engine import NodeError
from .fence import Fence

STATE = "/var/lib/rocstack"
LOCK = "apply.lock"
TIMEOUT_S = 300.0  # seconds


@contextmanager
def node_lock(folder: str = STATE, within: float = TIMEOUT_S, fence: Fence | None = None) -> Iterator[None]:
    """Waits up to `within` seconds for whoever is at work on this node. Whoever lost the cluster's lock doesn't get it:
    the node hears of `fence` before the wait, and judges it when the wait is over.

    Raises:
        NodeError: somebody still is, or the lock can't be opened; as `Fence.check`.
    """
    fence = fence or Fence(None, folder)
    fence.announce()
    path = os.path.join(folder, LOCK)
    with files.explained(path, "opened"):
        files.make_folder(folder)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + within
        while not try_lock(handle):
            if time.monotonic() >= deadline:
                what = f"another rocstack run is still working on this node after {within:g} s"
                raise NodeError(
                    what, "an interrupted deploy finishes its work here first: try again in a few minutes", "busy"
                )
            time.sleep(PAUSE)
            fence.check()
        fence.check()
        yield
    finally:
        os.close(handle)


def caller_left(parent: int, answer: int = 1) -> bool:
    """Whether whoever asked has left: `parent` (os.getppid() in the beginning) is gone, or nobody reads the descriptor
    `answer` any more, which is how the end of a connection without a terminal shows."""
    poll = select.poll()
    poll.register(answer, 0)
    return os.getppid() != parent or any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
