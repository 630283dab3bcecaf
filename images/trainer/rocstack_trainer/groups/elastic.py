"""Outer steps of DiLoCo groups that come and go; no rank is special.

The groups meet in a store that no rank has. One key in it, the view, says who takes part in which attempt of which
outer step. Each group's leader looks at it and at the others' heartbeats, and moves it on by compare_set: the first
one wins, and all see the same. An attempt counts once every member has everybody's data; when one is lost before that,
the others try again without it. So all survivors make an outer step with the same members, or none of them does.
Of two that live but don't reach each other, one is left out after a while: the one with the fewest working links.
Who comes late, or was left out, joins at the end of an outer step, with the weights of a member.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rocstack_trainer.errors import ConfigError, PeerLostError
from rocstack_trainer.groups.leader import Stopped
from rocstack_trainer.groups.mesh import Broken, Buffers, Mesh
from rocstack_trainer.groups.roster import Roster, View
from rocstack_trainer.report import wire

ATTEMPTS = 6  # with the same members, each after twice the pause of the one before: in all 2 x lost_after_s


class Excluded(Exception):
    """This group isn't a member any more."""


class Membership:
    """The leader's part in it. `terms` are what all groups must have in common."""

    def __init__(self, roster: Roster, terms: str, say: Callable[[str], None]) -> None:
        self.roster, self.terms, self.say = roster, terms, say
        settings = roster.settings
        try:
            own = wire.own_address(*roster.address) or "127.0.0.1"
            self.mesh = Mesh(own, settings.port, 2 * settings.lost_after_s)
        except OSError as error:
            raise ConfigError(f"diloco.port={settings.port}: {error}") from None
        self.address = (settings.address or self.mesh.address[0], self.mesh.address[1])
        self.cut: set[str] = set()  # whom it didn't reach in this outer step
        self.view, self.offset = View(), 0  # what this group counts samples from: who joins takes the donor's

    def enter(self, step: int, digest: str, state: Buffers) -> bool:
        """Starts together with the others, who must have the same weights at the same step, or joins them.

        Returns:
            Did it join? Then `state` was overwritten with that of `view.step`.

        Raises:
            ConfigError: another group has other weights or settings, or this one's number.
            PeerLostError: the store is gone, or groups that are needed to start didn't come.
        """
        roster = self.roster
        roster.connect()
        while True:
            mine = {"address": self.address, "step": step, "digest": digest, "terms": self.terms}
            roster.introduce(mine | {"offset": self.offset})
            self.view = self._admitted()
            roster.write(f"wants/{roster.group}", "")
            about = {uid: roster.about(uid) for uid in self.view.members}
            for uid, other in about.items():
                if other["terms"] != self.terms:
                    raise ConfigError(f"{roster.name(uid)} has other settings: {other['terms']}\n  here: {self.terms}")
            if roster.uid not in self.view.joiners:
                others = {uid: each for uid, each in about.items() if uid not in self.view.joiners}
                self._same({uid: each["digest"] for uid, each in others.items()}, digest)
                if len({each["offset"] for each in others.values()}) > 1:
                    raise ConfigError("groups count the samples differently: give all of them checkpoints of one run")
                self.hand_over(state)
                return False
            try:
                self._transfer(self.view.donor, roster.uid, state)
                self.offset = about[self.view.donor]["offset"]
                roster.tell(mine | {"offset": self.offset})
                self.say(f"joined at step {self.view.step}, with the weights of {roster.name(self.view.donor)}")
                return True
            except Broken as error:
                self.say(f"could not join at step {self.view.step} ({error}): tries again")

    def exchange(self, data: memoryview, digest: str, to: int) -> list[memoryview]:
        """The data of all members, in the order of their names, for the outer step to `to`.

        Raises:
            Excluded: the others went on without this group, or the store was started anew: it has to enter again.
            PeerLostError: the store is gone, or the groups don't reach each other.
            ConfigError: the groups' anchors differ.
        """
        roster, start, announced, tried, found = self.roster, self.view.step, View(), View(), []
        self.cut = set()
        roster.connect()
        while True:
            view = roster.view()
            at = f"{view.step}/{view.attempt}"
            joined = roster.uid in view.members and roster.uid not in view.joiners
            if joined and view.step == to and tried.members:  # nobody moves on before all members of `tried` are done
                self.view = view
                return found
            if view.step != start or roster.uid not in view.members:
                raise Excluded("the others went on without this one" if view.members else "the store was started anew")
            if not view.exchanging:
                if announced != view:
                    roster.write(f"ready/{at}/{roster.uid}", json.dumps([len(data), digest]))
                    announced = view
                ready = [uid for uid in view.members if roster.read(f"ready/{at}/{uid}")]
                if all(uid in ready or roster.gone(uid) for uid in view.members):
                    members = tuple(uid for uid in ready if not roster.gone(uid))
                    roster.move(view, View(view.step, view.attempt, True, members))
            elif view != tried:
                try:
                    found, tried = self._swap(view, data, digest), view
                    roster.write(f"done/{at}/{roster.uid}", "yes")
                except Broken as error:
                    self._broken(view, error)
            elif all(roster.read(f"done/{at}/{uid}") for uid in view.members):
                joiners = tuple(uid for uid in roster.newcomers() if uid not in view.members and roster.alive(uid))
                members, donor = tuple(sorted(view.members + joiners)), view.members[0] if joiners else ""
                roster.move(view, View(to, members=members, joiners=joiners, donor=donor))
            elif any(roster.gone(uid) for uid in view.members):
                self._again(view, "no sign of life")
            roster.pause()

    def hand_over(self, state: Buffers) -> None:
        """Gives `state` to those who join in the present view, if this group is the one to do it and needn't stop."""
        for joiner in self.view.joiners if self.view.donor == self.roster.uid else ():
            try:
                self._transfer(self.roster.uid, joiner, state)
                self.say(f"{self.roster.name(joiner)} joined at step {self.view.step}")
            except (Broken, Stopped) as error:
                self.say(f"{self.roster.name(joiner)} could not join at step {self.view.step} ({error})")

    def _admitted(self) -> View:
        """The first view with this group: members took it in, or none of them lives and all groups start anew."""
        roster = self.roster
        deadline = time.monotonic() + roster.timeout_s
        while True:
            view = roster.view()
            if roster.uid in view.members:
                return view
            here = roster.newcomers()
            absent = [group for group, uid in enumerate(here) if uid in view.members or not roster.alive(uid)]
            if not all(roster.gone(uid) for uid in view.members):
                deadline = time.monotonic() + roster.timeout_s  # they will take it in at their next outer step
            elif not absent:
                steps = {uid: roster.about(uid)["step"] for uid in here}
                newest = max(steps.values())
                late = tuple(uid for uid in here if steps[uid] < newest)
                donor = next(uid for uid in here if uid not in late) if late else ""
                roster.move(view, View(newest, members=tuple(here), joiners=late, donor=donor))
            elif time.monotonic() > deadline:
                raise PeerLostError(
                    f"group {', '.join(map(str, absent))} of {len(here)} didn't come within {roster.timeout_s:.0f} s\n"
                    "  all have to be started with the same parallel.store, each with its own diloco.group"
                )
            roster.pause()

    def _swap(self, view: View, data: memoryview, digest: str) -> list[memoryview]:
        roster, at = self.roster, f"{view.step}/{view.attempt}"
        ready = {uid: json.loads(roster.read(f"ready/{at}/{uid}")) for uid in view.members}
        self._same({uid: digest for uid, (_, digest) in ready.items()}, digest)
        into = {uid: [memoryview(bytearray(size))] for uid, (size, _) in ready.items() if uid != roster.uid}

        def check() -> None:
            if roster.view() != view:
                raise Broken("another group gave up")

        self._talk(str(view), {uid: [data] for uid in into}, into, 2 * roster.settings.lost_after_s, check)
        return [into.get(uid, [data])[0] for uid in view.members]

    def _transfer(self, donor: str, joiner: str, state: Buffers) -> None:
        peer, gives = (joiner, True) if donor == self.roster.uid else (donor, False)
        new = [] if gives else [memoryview(bytearray(part.nbytes)) for part in state]  # half of it would be nothing
        has_it = f"joined/{self.view.step}/{joiner}"

        def check() -> None:
            if not gives and self.roster.read(has_it):
                raise Broken(f"{self.roster.name(donor)} gave up")

        try:
            self._talk(
                f"{self.view} {joiner}", {peer: state if gives else []}, {peer: new}, self.roster.timeout_s, check
            )
        except Broken:
            if gives:
                self.roster.write(has_it, "no")  # it would wait for long, and all others for it
            raise
        for part, came in zip(state, new, strict=False):
            part[:] = came
        if not gives:
            self.roster.write(has_it, "yes")
        while gives and not self.roster.read(has_it) and not self.roster.gone(joiner):
            self.roster.pause()  # a donor that has finished leaves only when all has arrived

    def _talk(
        self, token: str, out: Mapping[str, Buffers], into: Mapping[str, Buffers], patience_s: float, check: Any = bool
    ) -> None:
        def careful() -> None:
            self.roster.tick()
            check()
            if gone := [self.roster.name(uid) for uid in out if self.roster.gone(uid)]:
                raise Broken(f"{', '.join(gone)}: no sign of life")

        careful()
        peers = {uid: tuple(self.roster.about(uid)["address"]) for uid in out}
        self.mesh.swap(token, self.roster.uid, peers, out, into, patience_s, careful)

    def _broken(self, view: View, error: Broken) -> None:
        """The next attempt after a pause, or without one of those that don't reach each other."""
        roster, last = self.roster, (view.attempt + 1) % ATTEMPTS == 0
        self.cut |= error.peers
        roster.write(f"cut/{view.step}/{roster.uid}", json.dumps(sorted(self.cut)))
        pause_s = 2 * roster.settings.lost_after_s / 2 ** (ATTEMPTS - view.attempt % ATTEMPTS)
        until = time.monotonic() + pause_s
        while time.monotonic() < until and roster.view() == view:  # the others find out meanwhile whom they reach
            roster.pause()
        if not last or any(roster.gone(uid) for uid in view.members):
            self._again(view, str(error))
            return
        cuts = {
            frozenset((a, b)) for a in view.members for b in json.loads(roster.read(f"cut/{view.step}/{a}") or "[]")
        }
        count = {uid: sum(uid in cut <= set(view.members) for cut in cuts) for uid in view.members}
        worst = max(count, key=lambda uid: (count[uid], uid))
        if len(view.members) < 3 or not count[worst]:
            raise PeerLostError(
                f"outer step at {view.step}: {ATTEMPTS} attempts failed, the last one so: {error}\n"
                "  the groups reach the store, but not each other: is a firewall between their leaders?"
            )
        works = len(view.members) - 1 - count[worst]
        self._again(view, f"{roster.name(worst)} is left out, {works} of its links work ({error})", worst)

    def _again(self, view: View, why: str, without: str = "") -> None:
        """The next attempt, without those that are gone."""
        left = tuple(uid for uid in view.members if uid != without and not self.roster.gone(uid))
        if self.roster.move(view, replace(view, attempt=view.attempt + 1, exchanging=False, members=left)):
            self.say(f"outer step at {view.step}: {why}; tries again with {len(left)} of {len(view.members)} groups")

    def _same(self, digests: dict[str, str], mine: str) -> None:
        if others := [f"{self.roster.name(uid)}: {digest[:12]}" for uid, digest in digests.items() if digest != mine]:
            raise ConfigError(
                f"groups started from different weights: here {mine[:12]}, {', '.join(others)}\n"
                "  give all of them the same model, train.seed, and checkpoints of one run"
            )
