"""Who waits for whom: at work that takes a processor, or much memory, for seconds, and between a look and a note."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rocstack.service.identity import Caller

AT_ONCE = 2


class Locks(defaultdict[str, asyncio.Lock]):
    """One for each name."""

    def __init__(self) -> None:
        super().__init__(asyncio.Lock)


class Turns:
    """Of one person one at a time, so that nobody waits for all that another one asks for."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(AT_ONCE)
        self._own = Locks()

    @asynccontextmanager
    async def of(self, caller: Caller) -> AsyncIterator[None]:
        async with self._own[caller.name], self._all:
            yield
