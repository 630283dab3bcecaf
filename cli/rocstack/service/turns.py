"""Turns at work that takes a processor, or much memory, for seconds."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rocstack.service.identity import Caller

AT_ONCE = 2


class Turns:
    """Of one person one at a time, so that nobody waits for all that another one asks for."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(AT_ONCE)
        self._own: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def of(self, caller: Caller) -> AsyncIterator[None]:
        async with self._own[caller.name], self._all:
            yield
