"""What a gateway does, apart from HTTP: users, adapters and the engine brought together."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput, RocstackError
from rocstack.serve import residency
from rocstack.serve.adapter_repository import AdapterRepository
from rocstack.serve.base_model import BaseModel, read_base
from rocstack.serve.engine import Engine
from rocstack.serve.identity import Anyone, Identity, ServicePeople, TokenFile
from rocstack.serve.proxy import Names
from rocstack.serve.registry import FolderRegistry, Registered, hint
from rocstack.serve.residency import Residency, Resident
from rocstack.serve.settings import ServeSettings
from rocstack.serve.sources import AdapterSources
from rocstack.serve.staging import Staged, Staging

FRESH_S = 2.0  # for which an adapter's files aren't looked at again
TIDY_S = 5.0
Say = Callable[[str], None]


class Gateway:
    def __init__(
        self,
        settings: ServeSettings,
        say: Say,
        identity: Identity | None = None,
        base: BaseModel | None = None,
    ) -> None:
        """
        Raises:
            BadInput: the base model, the tokens, a repository's files or the engine's arguments are wrong.
        """
        self.settings, self._say = settings, say
        base = base or read_base(Path(settings.model), (settings.base, *settings.also))
        state = Path(settings.state)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        state.chmod(0o700)
        self.identity: Identity = identity or _identity(settings)
        most = settings.adapter_mib << 20
        repositories = [AdapterRepository(each, most) for each in settings.repositories]
        self.registry = AdapterSources(FolderRegistry(settings.sources), repositories, say)
        copies = state / "adapters"
        self._staging = Staging(copies, base, self.registry.opened, rank=settings.max_rank, most_bytes=most)
        self.engine = Engine(settings, self._engine_lost, say)
        self.residency = Residency(self.engine, settings.resident, idle_s=settings.idle_s, pins=settings.pins)
        self._pins = state / "pins.json"
        self._staged: dict[residency.Key, tuple[float, str, Staged]] = {}  # looked at, stamp, copy
        self._looking: dict[Registered, asyncio.Future[Staged]] = {}
        self._waiting = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.registered = self.asked = 0
        self.ended: asyncio.Future[None] | None = None  # done once the engine can't be started

    async def start(self) -> None:
        began = time.monotonic()
        self.registered = await asyncio.to_thread(self.registry.rescan)
        self._say(f"{self.registered} adapters registered in {time.monotonic() - began:.2f} s")
        self._read_pins()
        loop = asyncio.get_running_loop()
        self.ended = loop.create_future()
        self._tasks = [loop.create_task(each()) for each in (self._run_engine, self._rescan, self._tidy)]

    async def stop(self) -> None:
        await self.engine.stop()
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.residency.end()

    def find(self, user: str, name: str) -> Registered:
        """
        Raises:
            BadInput: the user has no such adapter.
        """
        if (found := self.registry.find(user, name)) and name != self.settings.base:
            return found
        names = [self.settings.base, *(each.name for each in self.registry.visible(user))]
        raise BadInput.of("unserved-model", name=ascii(name[:96])[1:-1], hint=hint(name, names))

    async def enter(self, user: str, name: str, stack: AsyncExitStack) -> Names:
        """Waits until the engine can answer as the model `name`; until `stack` is closed, it stays so.

        Raises:
            BadInput: there is none, or it can't be served.
            CheckFailed: the engine isn't there in time, or refuses the adapter.
        """
        adapter = None if name == self.settings.base else self.find(user, name)
        if self._waiting >= self.settings.waiting:
            raise residency.waited(0)
        self._waiting += 1
        try:
            async with asyncio.timeout(self.settings.wait_s):
                await self.engine.ready(self.settings.wait_s)
                if adapter is None:
                    return Names(name, name)
                staged = await self.staged(adapter)
                await stack.enter_async_context(self.residency.use(staged))
                return Names(staged.id, name)
        except TimeoutError:
            raise residency.waited(self.settings.wait_s) from None
        finally:
            self._waiting -= 1

    async def staged(self, adapter: Registered) -> Staged:
        """Its checked copy; looked at again when its files may have changed.

        Raises:
            BadInput: it can't be served.
        """
        known = self._staged.get(adapter.key)
        if known and known[0] > time.monotonic() - FRESH_S and known[2].id in self.residency.ids:
            return known[2]
        # Who asks meanwhile waits for the same copy: a registry's file isn't fetched for each of them.
        if (looking := self._looking.get(adapter)) is None:
            looking = self._looking[adapter] = asyncio.ensure_future(self._look(adapter))
            looking.add_done_callback(partial(self._looked, adapter))
        return await asyncio.shield(looking)

    def _looked(self, adapter: Registered, done: asyncio.Future[Staged]) -> None:
        del self._looking[adapter]
        if not done.cancelled():
            done.exception()  # who asked may have gone

    async def _look(self, adapter: Registered) -> Staged:
        known = self._staged.get(adapter.key)
        run = partial(asyncio.get_running_loop().run_in_executor, self.registry.threads(adapter))
        try:
            now = await run(self.registry.stamp, adapter)
            if known and known[1] == now and known[2].id in self.residency.ids:
                staged = known[2]
            else:
                staged = await run(self._staging.stage, adapter)
        except RocstackError:
            self._staged.pop(adapter.key, None)
            raise
        self._staged[adapter.key] = (time.monotonic(), now, staged)
        return staged

    async def pin(self, user: str, adapter: Registered) -> None:
        """Loads it and keeps it so.

        Raises:
            BadInput: it can't be served, or too many are pinned.
            CheckFailed: the engine isn't there.
        """
        async with AsyncExitStack() as stack:
            self.residency.pin(user, adapter)
            try:
                await self.enter(user, adapter.name, stack)
            except BaseException:
                self.residency.unpin(user, adapter)
                raise
        self._write_pins()

    def unpin(self, user: str, adapter: Registered) -> None:
        self.residency.unpin(user, adapter)
        self._write_pins()

    def about(self, user: str, adapter: Registered) -> dict[str, Any]:
        """An adapter as its users see it."""
        versions: list[Resident] = self.residency.of(adapter)
        newest = max(versions, key=lambda each: each.since, default=None)
        return {
            "id": adapter.name,
            "object": "adapter",
            "owned_by": adapter.owner or "shared",
            "base": self.settings.base,
            "resident": newest is not None,
            "pinned": user in self.residency.pins.get(adapter.key, ()),
            "loaded_at": int(newest.since) if newest else None,
            "load_seconds": round(newest.seconds, 4) if newest else None,
            "running": sum(each.running for each in versions),
            "requests": sum(each.requests for each in versions),
            "bytes": newest.staged.size if newest else None,
        }

    def _engine_lost(self) -> None:
        self.residency.lost()

    async def _run_engine(self) -> None:
        assert self.ended
        try:
            await self.engine.run()
        except RocstackError as error:
            self.ended.set_exception(error)
            self.ended.exception()  # whoever waits for it has it; nobody must

    async def _rescan(self) -> None:
        while True:
            await asyncio.sleep(self.settings.rescan_s)
            with suppress(RocstackError):
                self.registered = await asyncio.to_thread(self.registry.rescan)

    async def _tidy(self) -> None:
        while True:
            await self._load_pinned()
            await asyncio.sleep(TIDY_S)
            self.residency.tidy(self.registry.has)
            kept = self.residency.ids
            self._staged = {key: each for key, each in self._staged.items() if each[2].id in kept}
            await asyncio.to_thread(self._staging.clear, kept)

    async def _load_pinned(self) -> None:
        """After a start, and after one of the engine."""
        for (owner, name), users in self.residency.pins.items():
            adapter = self.registry.find(owner, name)
            if adapter and users and not self.residency.of(adapter):
                with suppress(RocstackError):
                    async with AsyncExitStack() as stack:
                        await self.enter(owner, name, stack)

    def _read_pins(self) -> None:
        with suppress(OSError, ValueError, RecursionError):
            for (owner, name), user in residency.pins_of(json.loads(self._pins.read_text(encoding="utf-8"))):
                adapter = self.registry.find(owner or user, name)
                if adapter and adapter.key == (owner, name):
                    with suppress(BadInput):
                        self.residency.pin(user, adapter)

    def _write_pins(self) -> None:
        partial = self._pins.with_suffix(".new")
        with suppress(OSError):  # a full disk: they are kept until the gateway ends
            partial.write_text(json.dumps(residency.pins_document(self.residency.pins)), encoding="utf-8")
            partial.replace(self._pins)


def _identity(settings: ServeSettings) -> Identity:
    """
    Raises:
        BadInput: a file of it can't be read.
    """
    if settings.people:
        return ServicePeople(settings.people.url, Path(settings.people.ca) if settings.people.ca else None)
    return TokenFile(Path(settings.tokens)) if settings.tokens else Anyone()
