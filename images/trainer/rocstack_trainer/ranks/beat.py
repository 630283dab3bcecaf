"""Signs of life: everyone adds to a counter of its own in a store, and others see whether it still counts.

No clock is compared with another: a watcher counts how often in a row it saw a counter stand still. So a job that
is suspended as a whole and goes on (`scontrol suspend`) has lost nobody.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from torch.distributed import PrefixStore, Store, TCPStore

from rocstack_trainer.config import Parallel
from rocstack_trainer.errors import PeerLostError, few
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks import connect, rendezvous

LEFT = -(1 << 40)  # added to a counter by one who leaves on purpose: no number of beats makes it positive again
LOSS = 1 << 40  # added to rank 0's own when it lost somebody: the others look at nothing else, so a beat asks little


class Pulses:
    """Who is alive, as one watcher sees it that looks every `every_s`."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self.store: Store | None = None
        self.counts: dict[str, int] = {}
        self.still: dict[str, int] = {}  # looks in a row at which a count was the same
        self.moved: set[str] = set()  # whose count was seen to change

    def look(self, store: Store, *names: str) -> None:
        """Many are read in one request: each costs a store without libuv as much as it has connections."""
        for name in names if store is not self.store or len(names) == 1 else set(names) - self.counts.keys():
            count = store.add(f"beat/{name}", 0)  # unlike get, doesn't wait for one who never came
        counts = [count] if len(names) == 1 else map(int, store.multi_get([f"beat/{name}" for name in names]))
        for name, count in zip(names, counts, strict=True):
            before = self.counts.get(name, count)
            self.still[name] = self.still.get(name, -1) + 1 if before == count else 0
            if count != before:
                self.moved.add(name)
            self.counts[name] = count
        self.store = store

    def silent_s(self, name: str) -> float:
        return self.still.get(name, 0) * self.every_s

    def left(self, name: str) -> bool:
        return self.counts.get(name, 0) < 0


class Beat:
    """A thread that beats for `name` every `every_s` and then calls `look(store)`.

    Requests to a store whose host is gone never return. So the store has a connection of its own here, made by
    `reach` and made again when it breaks, and a second thread calls `end` when nothing was answered in `patience_s`.
    The caller's thread makes the first: PyTorch enters a new TCPStore into pybind11's table of objects without the GIL
    (torch/csrc/distributed/c10d/init.cpp, its call_guard), and a thread that makes objects meanwhile may crash.
    """

    def __init__(
        self,
        reach: Callable[[], Store],
        name: str,
        every_s: float,
        patience_s: float,
        look: Callable[[Store], None],
        end: Callable[[], None],
    ) -> None:
        self.reach, self.name, self.every_s, self.patience_s = reach, name, every_s, patience_s
        self.look, self.end, self.answered = look, end, 0
        self.stopping, self.goodbye = threading.Event(), False
        self.store = self._reached()
        self.thread = threading.Thread(target=self._beat, name="beat", daemon=True)
        self.thread.start()
        threading.Thread(target=self._guard, name="beat guard", daemon=True).start()

    def stop(self, goodbye: bool) -> None:
        """With `goodbye`, nobody will take the silence that follows for a loss."""
        self.goodbye = goodbye
        self.stopping.set()
        self.thread.join(self.every_s + 1)  # longer only if the store doesn't answer

    def _reached(self) -> Store | None:
        try:
            return self.reach()
        except (RuntimeError, PeerLostError):
            return None

    def _beat(self) -> None:
        while not self.stopping.is_set():
            self.store = self.store or self._reached()
            if self.store:
                try:
                    self.store.add(f"beat/{self.name}", 1)
                    self.look(self.store)
                    self.answered += 1
                except (RuntimeError, PeerLostError):
                    self.store = None
            self.stopping.wait(self.every_s)
        if self.store and self.goodbye:
            with contextlib.suppress(RuntimeError):  # it ended first, and nobody reads this any more
                self.store.add(f"beat/{self.name}", LEFT)

    def _guard(self) -> None:
        unanswered, before = 0.0, 0
        while not self.stopping.wait(self.every_s):
            unanswered = unanswered + self.every_s if self.answered == before else 0.0
            before = self.answered
            if unanswered >= self.patience_s:
                self.end()


class Watchdog:
    """Ends this process when a rank of its group gives no sign of life for `lost_after_s`, wherever the main thread is.

    Collectives don't notice a peer that is stopped or can't be reached. Rank 0 watches all, and says in the store whom
    it lost; the others watch rank 0, whose counter also tells them to look for that. One rank alone is not watched.
    """

    def __init__(self, store: Store, rank: Rank, parallel: Parallel, step: Callable[[], int]) -> None:
        """`store` is where the ranks met. One that isn't rank 0's own may be away for `timeout_s`: nobody is watched
        meanwhile, and training goes on."""
        self.store, self.rank, self.step = store, rank, step
        self.lost_after_s, self.every_s = parallel.lost_after_s, min(2.0, parallel.lost_after_s / 5)
        self.apart = bool(parallel.store or os.environ.get(rendezvous.STORE))
        self.patience_s = parallel.timeout_s if self.apart else parallel.lost_after_s
        self.watched = range(1, rank.world) if rank.rank == 0 else range(1)
        self.pulses, self.hosts = Pulses(self.every_s), {rank.rank: socket.gethostname()}
        self.introduced: Store | None = None

    def __enter__(self) -> Watchdog:
        if self.rank.world > 1:
            if self.rank.rank == 0:
                self.store.set("watch", f"{os.urandom(8).hex()} {self.hosts[0]}")  # a corner no earlier start has used
            corner, _, self.hosts[0] = self.store.get("watch").decode().partition(" ")
            self.host, self.port = where(self.store)

            def again() -> Store:
                return PrefixStore(f"watch/{corner}", reach(self.host, self.port, self.every_s))

            name = str(self.rank.rank)
            self.beat = Beat(again, name, self.every_s, self.patience_s, self._look, self._unanswered)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.rank.world > 1:
            self.beat.stop(goodbye=kind is None)

    def _look(self, store: Store) -> None:
        if store is not self.introduced:
            store.set(f"host/{self.rank.rank}", self.hosts[self.rank.rank])
            self.introduced = store
        self.pulses.look(store, *map(str, self.watched))
        silent = (n for n in self.watched if self.pulses.silent_s(str(n)) >= self.lost_after_s)
        who = few(self._name(n, store) for n in silent if not self.pulses.left(str(n)))
        if who and self.rank.rank == 0:
            store.set("lost", who)
            store.add("beat/0", LOSS)
            time.sleep(2 * self.every_s)  # the others have to read it before this store ends with us
        elif not who and self.pulses.counts.get("0", 0) >= LOSS:
            who = store.get("lost").decode()
        if who:
            self._end(who, self.lost_after_s)

    def _unanswered(self) -> None:
        self._end(f"the store at {self.host}:{self.port}" if self.apart else self._name(0), self.patience_s)

    def _name(self, number: int, store: Store | None = None) -> str:
        if store and number not in self.hosts and store.check([f"host/{number}"]):
            self.hosts[number] = store.get(f"host/{number}").decode()
        return f"rank {number} on {self.hosts.get(number, 'an unknown host')}"

    def _end(self, who: str, silent_s: float) -> NoReturn:
        end(
            f"rank {self.rank.rank}: {who} gave no sign of life for {silent_s:.0f} s (here: step {self.step()}):"
            " it ended, is stopped, or its host or network is down; look there, then start again"
            " from the newest checkpoint"
        )


def end(text: str) -> NoReturn:
    """Ends the process from any thread; no lock that another thread holds is in the way."""
    os.write(2, f"error: {text}\n".encode())
    os._exit(PeerLostError.exit_code)


def where(store: Store) -> tuple[str, int]:
    """Host and port of the TCPStore that this one is a corner of."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    assert isinstance(store, TCPStore)
    return store.host, store.port


def reach(host: str, port: int, patience_s: float) -> Store:
    """Another connection to a store: in one connection requests wait for each other, and an idle one may be cut."""
    return connect.connect(host, port, patience_s, 60, "the store", "did it end, or is its host or network down?")
