"""How often something is tried again, and how long is waited before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from rocstack.registry.http import Stopped, Wire
from rocstack.registry.pusher import wait_before

ATTEMPTS = 5  # waits of 1, 2, 4 and 8 s between them


@dataclass
class Patience:
    """Counts failures in a row, waits longer after each, and gives up."""

    wire: Wire
    name: str
    stop: threading.Event
    attempts: int = ATTEMPTS
    sleep: Callable[[float], None] | None = None  # seconds
    failed: int = 0

    def wait(self, failure: Exception) -> None:
        """
        Raises:
            CheckFailed, Missing: enough is enough.
        """
        self.failed += 1
        if self.failed >= self.attempts:
            raise self.wire.error(str(failure), self.name, self.failed) from None
        seconds = wait_before(self.failed + 1) / 2
        if self.sleep:
            self.sleep(seconds)
        elif self.stop.wait(seconds):
            raise Stopped
