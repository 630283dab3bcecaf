"""How often something is tried again, and how long we wait before each new attempt.

Ours instead of tenacity: a build changes its request between two attempts, and an upload starts to count anew whenever
a chunk gets through.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Retry:
    """Counts the attempts of one piece of work. Pauses double: `first_s`, 2 `first_s`, ... up to `longest_s`.

    `sleep` waits between two attempts; it may raise to end the work.
    """

    attempts: int
    first_s: float = 1.0
    longest_s: float = 30.0
    sleep: Callable[[float], object] = time.sleep
    attempt: int = 1  # the one that runs now

    @property
    def last(self) -> bool:
        return self.attempt >= self.attempts

    @property
    def pause_s(self) -> float:
        """The pause before the next attempt."""
        return min(self.first_s * 2.0 ** (self.attempt - 1), self.longest_s)

    def wait(self) -> None:
        """Pauses; then the next attempt begins."""
        self.sleep(self.pause_s)
        self.attempt += 1

    def reset(self) -> None:
        """The work got further, so only failures from now on count."""
        self.attempt = 1


def stoppable(stop: threading.Event, stopped: type[Exception]) -> Callable[[float], None]:
    """A `sleep` that raises `stopped` as soon as `stop` is set."""

    def sleep(seconds: float) -> None:
        if stop.wait(seconds):
            raise stopped

    return sleep
