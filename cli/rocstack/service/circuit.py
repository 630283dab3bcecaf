"""Whether something that is needed answers. Who finds out that it doesn't has waited for it; for some seconds the
others are told at once, and then one of them asks."""

import time
from collections.abc import Awaitable, Callable

REST_S = 5.0  # that nobody asks; longer than asking takes
SOON_S = 4.0  # within which a small question is answered


class Circuit:
    def __init__(self) -> None:
        self._until: float | None = None  # None: it answers

    @property
    def silent(self) -> bool:
        return self._until is not None

    def failed(self) -> None:
        self._until = time.monotonic() + REST_S

    async def passes(self, answers: Callable[[], Awaitable[bool]]) -> bool:
        """Whether it may be asked. `answers` asks it something small, if it's time to look."""
        if self._until is None:
            return True
        if time.monotonic() < self._until:
            return False
        self.failed()  # the others don't wait for what comes of this
        if not await answers():
            return False
        self._until = None
        return True
