"""DiLoCo (arXiv 2311.08105): groups train apart, and now and then average how far each went from their common anchor.

The outer optimizer is SGD with Nesterov momentum, as in torch.optim.SGD. Only rank 0 of each group, its leader, has its
state, in CPU memory; the state of the inner optimizer stays in the group.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store
from torch.nn import Module

from rocstack_trainer.config import Config
from rocstack_trainer.errors import NonFiniteError, PeerLostError, TrainerError
from rocstack_trainer.gradients import flat
from rocstack_trainer.gradients.compress import CODECS
from rocstack_trainer.groups.elastic import Excluded, Membership
from rocstack_trainer.groups.roster import Roster
from rocstack_trainer.models import fingerprint
from rocstack_trainer.ranks import beat
from rocstack_trainer.ranks.launch import Rank

WAITING, FAILED = -1, -2  # what the leader tells its group instead of a step
TELL_S = 2.0  # how often: a collective that waits for hours would time out


class Outer:
    """`store` is where the group's ranks met: with several groups, the one that all of them reach."""

    def __init__(self, config: Config, rank: Rank, store: Store, net: Module, say: Callable[[str], None]) -> None:
        self.settings, self.steps, self.rank, self.say = config.diloco, config.train.steps, rank, say
        self.parameters = list(net.parameters())
        self.word, self.told = torch.zeros(1, dtype=torch.int64, device=rank.device), 0.0
        self.members: Membership | None = None
        if rank.rank:
            return
        numel, pinned = sum(p.numel() for p in self.parameters), rank.device != "cpu"
        self.anchor, self.momentum, self.delta = (torch.zeros(numel, pin_memory=pinned) for _ in range(3))
        self.at = torch.full((1,), -1)  # the step of the anchor
        self.codec = CODECS[self.settings.compress]
        self.residual = torch.zeros(numel)
        if self.settings.groups > 1:
            common = ("inner_steps", "outer_lr", "outer_momentum", "compress")
            terms = ", ".join(f"{key}={getattr(self.settings, key)}" for key in common)
            where, timeout_s = beat.where(store), config.parallel.timeout_s
            roster = Roster(where, rank.group, self.settings, timeout_s, self._tell_waiting)
            self.members = Membership(roster, f"{numel} parameters, train.steps={self.steps}, {terms}", say)

    @property
    def sent(self) -> int:
        """Bytes that this rank sent to other groups."""
        return self.members.mesh.sent if self.members else 0

    def tensors(self) -> dict[str, Tensor]:
        """The state by name, to be saved, and loaded in place before `join`; empty if this rank isn't the leader."""
        if self.rank.rank:
            return {}
        state = {"anchor": self.anchor, "momentum": self.momentum, "residual": self.residual, "step": self.at}
        return {f"outer.{name}": tensor for name, tensor in state.items()}

    def notes(self) -> dict[str, Any]:
        """For the person who reads a checkpoint."""
        groups = len(self.members.view.members) if self.members else 1
        return {} if self.rank.rank else {"anchor_step": int(self.at), "groups": groups}

    @torch.no_grad()
    def join(self, step: int) -> int:
        """Meets the other groups. Returns the step to go on from: who comes late gets the others' weights and step.

        Raises:
            ConfigError: another group has other weights or settings, or this one's number.
            PeerLostError: the store is gone, or groups that are needed to start didn't come.
        """
        return self._together(lambda: self._join(step))

    @torch.no_grad()
    def sync(self, step: int) -> int:
        """After every step: makes an outer step if one is due, which is also after the last step.

        Returns:
            The step to go on from: another one if the groups had gone on without this one, which then joins them.

        Raises:
            NonFiniteError: the weights are NaN or infinite: nothing was sent.
            PeerLostError: the store is gone, or the groups don't reach each other.
        """
        if step % self.settings.inner_steps and step != self.steps:
            return step
        return self._together(lambda: self._outer_step(step))

    def close(self) -> None:
        """No other group waits for this one any more."""
        if self.members:
            self.members.roster.leave()

    def _join(self, step: int) -> int:
        if self.at < 0:
            flat.gather(self.parameters, self.anchor)
            self.at.fill_(step)
        if self.members and step < self.steps and self._enter(self.members):
            return int(self.at)
        return step

    def _enter(self, members: Membership) -> bool:
        if not members.enter(int(self.at), self._digest(), self._state()):
            return False
        self.at.fill_(members.view.step)
        self.residual.zero_()
        flat.scatter(self.anchor, self.parameters)
        return True

    def _outer_step(self, step: int) -> int:
        if self.at == step:
            return step
        flat.gather(self.parameters, self.delta)
        torch.sub(self.anchor, self.delta, out=self.delta)
        if not math.isfinite(self.delta.norm().item()):
            raise NonFiniteError(f"step {step}: weights are NaN or infinite, not sent to the other groups")
        if self.members and not self._average(self.members, step):
            return int(self.at)
        self.momentum.mul_(self.settings.outer_momentum).add_(self.delta)
        self.delta.add_(self.momentum, alpha=self.settings.outer_momentum)  # Nesterov
        self.anchor.add_(self.delta, alpha=-self.settings.outer_lr)
        self.at.fill_(step)
        flat.scatter(self.anchor, self.parameters)
        if self.members:
            self.members.hand_over(self._state())
        return step

    def _average(self, members: Membership, step: int) -> bool:
        """Makes `delta` the mean of all groups' deltas. All add in the same order, so all get the same to the last bit.

        Returns:
            False if it got the others' anchor instead.
        """
        data = memoryview(self.codec.encode(self.delta, self.residual).numpy())
        while True:
            try:
                parts = members.exchange(data, self._digest(), step)
                break
            except Excluded as why:
                self.say(f"step {step}: {why}")
                if self._enter(members):
                    return False
        self.delta.zero_()
        for part in parts:
            self.codec.add_to(torch.frombuffer(part, dtype=torch.uint8), self.delta)
        self.delta.div_(len(parts))
        return True

    def _together(self, do: Callable[[], int]) -> int:
        """What `do` returns, on all ranks, and rank 0's weights. Rank 0 does it; the others wait, however long."""
        if self.rank.world == 1:
            return do()
        if self.rank.rank == 0:
            try:
                word = do()
            except TrainerError:
                self._tell(FAILED)
                raise
            self._tell(word)
        else:
            while (word := self._tell(WAITING)) == WAITING:
                pass
            if word == FAILED:
                raise PeerLostError("rank 0 of this group could not go on: it says why")
        flat.broadcast(self.parameters)
        return word

    def _tell(self, word: int) -> int:
        """Rank 0's word, on all ranks."""
        self.word.fill_(word)
        dist.broadcast(self.word, src=0)
        self.told = time.monotonic()
        return int(self.word.item())

    def _tell_waiting(self) -> None:
        if self.rank.world > 1 and time.monotonic() > self.told + TELL_S:
            self._tell(WAITING)

    def _state(self) -> list[memoryview]:
        return [memoryview(tensor.numpy()).cast("B") for tensor in (self.anchor, self.momentum)]

    def _digest(self) -> str:
        return fingerprint.tensor_sha256(self.anchor)
