"""What is loaded, and what leaves for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.serve.registry import Registered
from rocstack.serve.residency import Residency, pins_document, pins_of
from rocstack.serve.staging import Staged


class Recorder:
    """An engine that notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.refuses: set[str] = set()
        self.pause = 0.0

    async def load(self, staged: Staged, *, again: bool = False) -> None:
        await asyncio.sleep(self.pause)
        if staged.id in self.refuses:
            raise CheckFailed.of("adapter-not-loaded", name=staged.id, why="no")
        self.calls.append(f"+{staged.id}" if not again else f"={staged.id}")

    async def unload(self, staged: Staged) -> None:
        await asyncio.sleep(self.pause)
        self.calls.append(f"-{staged.id}")


def adapter(name: str) -> Registered:
    return Registered(name, None, "/", (name,))


def staged(name: str) -> Staged:
    return Staged(name, adapter(name), Path("/") / name, 1)


def made(engine: Recorder, capacity: int, **other: Any) -> Residency:
    return Residency(engine, capacity, **{"idle_s": 100, "pins": 4, **other})


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


async def ask(residency: Residency, *names: str) -> None:
    for name in names:
        async with residency.use(staged(name)):
            pass


def test_the_least_recently_used_leaves() -> None:
    async def work() -> None:
        engine = Recorder()
        residency = made(engine, 2)
        await ask(residency, "a", "b", "a", "c", "a", "b")
        assert engine.calls == ["+a", "+b", "-b", "+c", "-c", "+b"]
        assert [each.staged.id for each in residency.residents] == ["a", "b"]
        assert residency.of(adapter("a"))[0].requests == 3

    run(work())


def test_requests_at_once_load_it_once() -> None:
    async def work() -> None:
        engine = Recorder()
        engine.pause = 0.02
        residency = made(engine, 2)
        await asyncio.gather(*(ask(residency, "a") for _ in range(20)))
        assert engine.calls == ["+a"]

    run(work())


def test_none_leaves_while_a_request_runs_on_it() -> None:
    async def work() -> None:
        engine = Recorder()
        residency = made(engine, 1)
        async with residency.use(staged("a")):
            waiting = asyncio.create_task(ask(residency, "b"))
            await asyncio.sleep(0.05)
            assert engine.calls == ["+a"]
        await waiting
        assert engine.calls == ["+a", "-a", "+b"]

    run(work())


def test_who_gives_up_while_waiting_leaves_the_place_to_others() -> None:
    async def work() -> None:
        engine = Recorder()
        residency = made(engine, 1)
        async with residency.use(staged("a")):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ask(residency, "b"), 0.05)
        await ask(residency, "c")
        await asyncio.sleep(0.01)
        assert engine.calls[-1] == "+c"
        assert len(residency.residents) == 1

    run(work())


def test_an_adapter_comes_back_only_after_it_left() -> None:
    async def work() -> None:
        engine = Recorder()
        engine.pause = 0.02
        residency = made(engine, 1)
        await ask(residency, "a")
        await asyncio.gather(ask(residency, "b"), ask(residency, "a"), ask(residency, "b"), ask(residency, "a"))
        loaded: set[str] = set()
        for call in engine.calls:
            if call[0] == "+":
                assert call[1:] not in loaded
                loaded.add(call[1:])
            else:
                loaded.remove(call[1:])
            assert len(loaded) <= 1

    run(work())


def test_a_refused_adapter_takes_no_place() -> None:
    async def work() -> None:
        engine = Recorder()
        engine.refuses = {"bad"}
        residency = made(engine, 1)
        for _ in range(2):
            with pytest.raises(CheckFailed):
                await ask(residency, "bad")
        await ask(residency, "a")
        engine.refuses = set()
        await ask(residency, "bad")
        assert engine.calls == ["+a", "-a", "+bad"]
        assert residency.failures == 2

    run(work())


def test_pinned_adapters_stay_in_the_engine_too() -> None:
    async def work() -> None:
        engine = Recorder()
        residency = made(engine, 4)
        residency.pin("ann", adapter("p"))
        await ask(residency, "p", *"abcdefgh")
        await asyncio.sleep(0.01)
        assert "-p" not in engine.calls
        # The engine's own cache has 4 places: between two loads of p there are never 4 of others.
        others = 0
        for call in engine.calls:
            if call in ("+p", "=p"):
                others = 0
            elif call[0] == "+":
                others += 1
            assert others < 4
        residency.unpin("ann", adapter("p"))
        await ask(residency, *"ijkl")
        assert "-p" in engine.calls

    run(work())


def test_how_much_can_be_pinned() -> None:
    residency = Residency(Recorder(), 6, idle_s=1, pins=2)
    residency.pin("ann", adapter("a"))
    residency.pin("ann", adapter("a"))
    residency.pin("ann", adapter("b"))
    with pytest.raises(BadInput) as raised:
        residency.pin("ann", adapter("c"))
    assert raised.value.code == "too-many-pins"
    residency.pin("bob", adapter("c"))
    with pytest.raises(BadInput) as raised:
        residency.pin("bob", adapter("d"))
    assert raised.value.code == "no-place-to-pin"
    residency.pin("bob", adapter("a"))
    residency.unpin("ann", adapter("a"))
    assert residency.pins == {("", "a"): {"bob"}, ("", "b"): {"ann"}, ("", "c"): {"bob"}}
    assert list(pins_of(pins_document(residency.pins))) == [(("", "a"), "bob"), (("", "b"), "ann"), (("", "c"), "bob")]
    assert list(pins_of([1, ["a"], {"x": 1}, ["", "a", 3]])) == []


def test_a_lost_engine_is_filled_again() -> None:
    async def work() -> None:
        engine = Recorder()
        engine.pause = 0.05
        residency = made(engine, 4)
        await ask(residency, "a")
        waiting = asyncio.create_task(ask(residency, "b"))
        await asyncio.sleep(0.01)
        residency.lost()
        with pytest.raises(CheckFailed) as raised:
            await waiting
        assert raised.value.code == "engine-lost"
        assert residency.residents == []
        await ask(residency, "a")
        assert engine.calls == ["+a", "+a"]

    run(work())


def test_what_is_unused_or_gone_leaves() -> None:
    async def work() -> None:
        engine = Recorder()
        residency = made(engine, 8, idle_s=0.0)
        residency.pin("ann", adapter("p"))
        await ask(residency, "a", "p", "q")
        async with residency.use(staged("busy")):
            residency.tidy(lambda _: True)
            await asyncio.sleep(0.01)
            assert sorted(each.staged.id for each in residency.residents) == ["busy", "p"]
            residency.tidy(lambda each: each.name != "p")
            await asyncio.sleep(0.01)
            assert [each.staged.id for each in residency.residents] == ["busy"]

    run(work())
