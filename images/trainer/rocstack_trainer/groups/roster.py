"""What DiLoCo groups tell each other in the store: who is there, who is alive, and who takes part in what."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from torch.distributed import PrefixStore, Store

from rocstack_trainer.config import DiLoCo
from rocstack_trainer.errors import ConfigError, PeerLostError
from rocstack_trainer.ranks import connect
from rocstack_trainer.ranks.beat import LEFT, Beat, Pulses, end, reach

SHORT_S, LONG_S = 0.005, 0.25  # between looks at the store: the longer one waits, the less often
NOTHING = "-"


@dataclass(frozen=True)
class View:
    """Who takes part in which attempt of which outer step.

    `step` is the training step whose weights are the anchor. `joiners` are those members that still need the anchor,
    from `donor`. No two views are equal: steps and attempts only grow, and members have new names at each start.
    """

    step: int = -1
    attempt: int = 0
    exchanging: bool = False
    members: tuple[str, ...] = ()
    joiners: tuple[str, ...] = ()
    donor: str = ""

    def __str__(self) -> str:
        return json.dumps(asdict(self)) if self.members else ""

    @classmethod
    def parse(cls, text: str) -> View:
        fields = json.loads(text or "{}")
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})


class Roster:
    """One leader's connection to the store. `uid` is its name, new for each start; `tick` is called while it waits,
    and what that raises ends the waiting."""

    def __init__(
        self, address: tuple[str, int], group: int, settings: DiLoCo, timeout_s: float, tick: Callable[[], None]
    ) -> None:
        self.address, self.group, self.settings, self.timeout_s = address, group, settings, timeout_s
        self.tick, self.uid, self.nap_s = tick, "", SHORT_S
        self.beat: Beat | None = None
        self.pulses = Pulses(settings.beat_s)

    def connect(self) -> None:
        """A new connection: hours may have passed since the last one was used."""
        self.store = self._corner(self.timeout_s / 2)

    def introduce(self, about: dict[str, Any]) -> None:
        """Gives this group a new name that beats and wants to become a member. The one before is dead, or dies now.

        Raises:
            ConfigError: another one that lives has this group's number.
        """
        before = self.read(f"here/{self.group}")
        if self.uid:
            self.ask("add", f"beat/{self.uid}", LEFT)
        self.uid = f"{self.group:04}.{os.urandom(4).hex()}"
        if self.beat:
            self.beat.name = self.uid
        else:
            every_s = self.settings.beat_s
            again = partial(self._corner, every_s)
            self.beat = Beat(again, self.uid, every_s, self.timeout_s, self._watch, self._unanswered)
        deadline = time.monotonic() + 2 * self.settings.lost_after_s + 5 * self.settings.beat_s
        while before and not self.gone(before):
            if time.monotonic() > deadline:
                raise ConfigError(f"{self.name(before)} is already running: give each its own diloco.group")
            self.pause()
        self.tell(about)
        self.write(f"here/{self.group}", self.uid)
        self.write(f"wants/{self.group}", self.uid)

    def tell(self, about: dict[str, Any]) -> None:
        """What the others may know of this group."""
        self.write(f"about/{self.uid}", json.dumps(about | {"host": socket.gethostname()}))

    def leave(self) -> None:
        """Nobody waits for this group any more."""
        if self.beat:
            self.beat.stop(goodbye=True)

    def view(self) -> View:
        return View.parse(self.read("view"))

    def move(self, old: View, new: View) -> bool:
        """Puts `new` in the place of `old`, unless somebody was faster."""
        return self.ask("compare_set", "view", str(old), str(new)).decode() == str(new)

    def newcomers(self) -> list[str]:
        """Of each group, the name that wants to become a member; "" if none does."""
        return [self.read(f"wants/{group}") for group in range(self.settings.groups)]

    def about(self, uid: str) -> dict[str, Any]:
        return dict(json.loads(self.read(f"about/{uid}") or "{}"))

    def name(self, uid: str) -> str:
        return f"group {int(uid[:4])} on {self.about(uid).get('host', 'an unknown host')}"

    def gone(self, uid: str) -> bool:
        """It left, or was silent for long. Not so one that was never looked at."""
        return self.pulses.left(uid) or self.pulses.silent_s(uid) >= self.settings.lost_after_s

    def alive(self, uid: str) -> bool:
        """It was seen to beat, and isn't gone."""
        return uid == self.uid or (uid in self.pulses.moved and not self.gone(uid))

    def read(self, key: str) -> str:
        """Empty if there is no such key."""
        return _read(self.ask, key)

    def write(self, key: str, text: str) -> None:
        self.nap_s = SHORT_S  # others answer soon
        self.ask("set", key, text or NOTHING)

    def ask(self, what: str, *args: Any) -> Any:
        try:
            return getattr(self.store, what)(*args)
        except RuntimeError as error:
            raise PeerLostError(
                f"the store at {self.address[0]}:{self.address[1]}, in which the groups meet, is gone:"
                f" {connect.first_line(error)}\n  start it again, then all groups: they go on from their checkpoints"
            ) from None

    def pause(self) -> None:
        self.tick()
        time.sleep(self.nap_s)
        self.nap_s = min(1.2 * self.nap_s, LONG_S)

    def _corner(self, patience_s: float) -> Store:
        return PrefixStore("diloco", reach(*self.address, patience_s))

    def _watch(self, store: Store) -> None:
        keys = ["view", *(f"here/{group}" for group in range(self.settings.groups))]
        view, *here = (_read(lambda what, *args: getattr(store, what)(*args), key) for key in keys)
        if others := {*View.parse(view).members, *here} - {"", self.uid}:
            self.pulses.look(store, *others)

    def _unanswered(self) -> None:
        host, port = self.address
        end(f"the store at {host}:{port} gave no answer for {self.timeout_s:.0f} s: is its host up?")


def _read(ask: Callable[..., bytes], key: str) -> str:
    """`get` would wait for a key that isn't there; compare_set then answers with what was expected, and sets nothing.
    Not with "": that takes TCPStore 200 ms."""
    found = ask("compare_set", key, NOTHING, NOTHING).decode()
    return "" if found == NOTHING else found
