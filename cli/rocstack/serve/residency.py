"""Which adapters the engine has: loaded at the first request, the least recently used one unloaded for the next, none
while a request runs on it, and pinned ones never."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from rocstack.base.errors import BadInput, CheckFailed, RocstackError
from rocstack.serve.registry import Registered
from rocstack.serve.staging import Staged

Key = tuple[str, str]  # owner, name


class Loader(Protocol):
    """The engine's admin calls."""

    async def load(self, staged: Staged, *, again: bool = False) -> None: ...
    async def unload(self, staged: Staged) -> None: ...


@dataclass
class Resident:
    staged: Staged
    ready: asyncio.Task[None]
    running: int = 0  # requests
    requests: int = 0  # since it was loaded
    used: float = field(default_factory=time.monotonic)
    since: float = field(default_factory=time.time)
    seconds: float = 0  # that its loading took
    behind: int = 0  # adapters that were loaded since it was used

    @property
    def loaded(self) -> bool:
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None


class Residency:
    """All of it runs on one event loop."""

    def __init__(self, loader: Loader, capacity: int, *, idle_s: float, pins: int) -> None:
        self._loader, self._capacity, self._idle, self._pins = loader, capacity, idle_s, pins
        self._entries: dict[str, Resident] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._pinned: dict[Key, set[str]] = {}  # and the users who want it so
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.loads = self.unloads = self.failures = 0

    @asynccontextmanager
    async def use(self, staged: Staged) -> AsyncIterator[Resident]:
        """The adapter, loaded, for as long as a request runs.

        Raises:
            RocstackError: the engine refuses it, or isn't there.
        """
        entry = self._entries.get(staged.id)
        if entry is None:
            entry = Resident(staged, self._spawn(self._bring(staged)))
            self._entries[staged.id] = entry
        entry.running += 1
        try:
            await asyncio.wait([entry.ready])
            if entry.ready.cancelled():
                raise CheckFailed.of("engine-lost", why="it ended")
            entry.ready.result()
            entry.requests += 1
            entry.behind = 0
            yield entry
        finally:
            entry.running -= 1
            entry.used = time.monotonic()
            await self._tell()

    def pin(self, user: str, adapter: Registered) -> None:
        """
        Raises:
            BadInput: the user has as many pins as are allowed, or half of all places are pinned.
        """
        users = self._pinned.get(adapter.key, set())
        if user in users:
            return
        if sum(user in each for each in self._pinned.values()) >= self._pins:
            raise BadInput.of("too-many-pins", most=self._pins)
        if not users and len(self._pinned) >= max(1, self._capacity // 2):
            raise BadInput.of("no-place-to-pin", places=self._capacity)
        self._pinned.setdefault(adapter.key, set()).add(user)

    def unpin(self, user: str, adapter: Registered) -> None:
        users = self._pinned.get(adapter.key, set())
        users.discard(user)
        if not users:
            self._pinned.pop(adapter.key, None)

    @property
    def pins(self) -> dict[Key, set[str]]:
        return {key: set(users) for key, users in self._pinned.items()}

    def of(self, adapter: Registered) -> list[Resident]:
        """Versions of it that are loaded: more than one while requests still run on an old one."""
        return [each for each in self._entries.values() if each.staged.adapter == adapter and each.loaded]

    @property
    def residents(self) -> list[Resident]:
        return [each for each in self._entries.values() if each.loaded]

    @property
    def ids(self) -> set[str]:
        """Of all whose files the engine may still read."""
        return {*self._entries, *self._leaving}

    def lost(self) -> None:
        """The engine ended, and with it all that it had loaded."""
        for entry in self._entries.values():
            entry.ready.cancel()
        self._entries = {}

    def tidy(self, known: Callable[[Registered], bool]) -> None:
        """Unloads what was unused for long, and what isn't registered any more."""
        before = time.monotonic() - self._idle
        for entry in self.residents:
            unused = not self._is_pinned(entry) and entry.used < before
            if not entry.running and (unused or not known(entry.staged.adapter)):
                self._leave(entry)

    async def end(self) -> None:
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _bring(self, staged: Staged) -> None:
        try:
            if leaving := self._leaving.get(staged.id):
                await asyncio.wait([leaving])
            await self._make_room(staged.id)
            start = time.monotonic()
            await self._loader.load(staged)
            self.loads += 1
            if entry := self._entries.get(staged.id):
                entry.seconds = time.monotonic() - start
            self._spawn(self._keep_pinned(staged.id))
        except BaseException as error:
            if isinstance(error, RocstackError):
                self.failures += 1
            if (entry := self._entries.get(staged.id)) and entry.ready is asyncio.current_task():
                del self._entries[staged.id]
            raise
        finally:
            await self._tell()

    async def _make_room(self, mine: str) -> None:
        """Waits until the engine has a place; those who came first get it first."""
        async with self._changed:
            while True:
                order = list(self._entries)
                places = {*order[: order.index(mine) + 1], *self._leaving} if mine in self._entries else set()
                if len(places) <= self._capacity:
                    return
                idle = [each for each in self.residents if not each.running and not self._is_pinned(each)]
                if idle and not self._leaving:
                    self._leave(min(idle, key=lambda each: each.used))
                    continue
                await self._changed.wait()

    def _leave(self, entry: Resident) -> None:
        del self._entries[entry.staged.id]
        self._leaving[entry.staged.id] = self._spawn(self._unload(entry.staged))

    async def _unload(self, staged: Staged) -> None:
        try:
            with suppress(RocstackError):  # an engine that ended has nothing left to unload
                await self._loader.unload(staged)
                self.unloads += 1
        finally:
            self._leaving.pop(staged.id, None)
            await self._tell()

    async def _keep_pinned(self, loaded: str) -> None:
        """The engine has a cache of its own, of as many places, which knows no pins: a pinned adapter that would be the
        next to leave it is loaded again in its place, which makes it the last one."""
        pinned = [each for each in self.residents if self._is_pinned(each) and each.staged.id != loaded]
        for entry in pinned:
            entry.behind += 1
            if entry.behind >= max(1, self._capacity - len(pinned) - 1):
                entry.behind = 0
                with suppress(RocstackError):
                    await self._loader.load(entry.staged, again=True)

    def _is_pinned(self, entry: Resident) -> bool:
        return entry.staged.adapter.key in self._pinned

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it has it; nobody else must


def waited(seconds: float) -> CheckFailed:
    return CheckFailed.of("no-slot", seconds=f"{seconds:g}")


def pins_document(pins: dict[Key, set[str]]) -> list[list[str]]:
    return sorted([*key, user] for key, users in pins.items() for user in users)


def pins_of(document: Any) -> Iterable[tuple[Key, str]]:
    """What `pins_document` wrote; anything else in it is left out."""
    for each in document if isinstance(document, list) else ():
        if isinstance(each, list) and len(each) == 3 and all(isinstance(word, str) for word in each):
            yield (each[0], each[1]), each[2]
