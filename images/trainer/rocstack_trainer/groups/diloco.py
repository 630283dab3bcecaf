"""DiLoCo (arXiv 2311.08105): groups train apart, and now and then average how far each went from their common anchor.

The outer optimizer is SGD with Nesterov momentum, as in torch.optim.SGD. Only rank 0 of each group, its leader, has its
state, in CPU memory; the state of the inner optimizer stays in the group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store
from torch.nn import Module

from rocstack_trainer.config import Config
from rocstack_trainer.data.samples import Samples
from rocstack_trainer.errors import NonFiniteError
from rocstack_trainer.gradients import flat
from rocstack_trainer.gradients.compress import CODECS
from rocstack_trainer.groups.elastic import Excluded, Membership
from rocstack_trainer.groups.leader import Leader, Stopped
from rocstack_trainer.groups.roster import Roster
from rocstack_trainer.models import fingerprint
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks import beat
from rocstack_trainer.ranks.peers import Peers
from rocstack_trainer.stop import StopSignals

OWES = -3  # the leader's word instead of a step


class Outer:
    """`store` is where the group's ranks met: with several groups, the one that all of them reach. A stop signal ends
    the waiting for other groups; if it `owes` the outer step then, `join` makes up for it at the next start."""

    def __init__(
        self,
        config: Config,
        rank: Rank,
        store: Store,
        net: Module,
        say: Callable[[str], None],
        stop: StopSignals | None = None,
        data: Samples | None = None,
    ) -> None:
        self.settings, self.steps, self.rank, self.say = config.diloco, config.train.steps, rank, say
        self.parameters, self.leader = (
            [p for p in net.parameters() if p.requires_grad],
            Leader(rank, stop or StopSignals()),
        )
        self.owes, self.data = False, data
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
            roster = Roster(where, rank.group, self.settings, timeout_s, self.leader.tick)
            terms += f", train.steps={self.steps}, train.batch={config.train.batch}"
            terms += f", {data.identity()}" if data else ""
            self.members = Membership(roster, f"{numel} parameters, {terms}", say)

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
        return {"owes": self.owes} | ({} if self.rank.rank else {"anchor_step": int(self.at), "groups": groups})

    @torch.no_grad()
    def join(self, step: int) -> int:
        """Meets the other groups, also after the last step: one of them may have missed that.

        Returns:
            The step to go on from: who comes late gets the others' weights and step.

        Raises:
            ConfigError: another group has other weights or settings, or this one's number.
            PeerLostError: the store is gone, or groups that are needed to start didn't come.
        """
        return self._together(step, lambda: self._join(step))

    @torch.no_grad()
    def sync(self, step: int) -> int:
        """After every step: makes an outer step if one is due, which is also after the last step.

        Returns:
            The step to go on from: another one if the groups had gone on without this one, which then joins them.

        Raises:
            NonFiniteError: the weights are NaN or infinite: nothing was sent.
            PeerLostError: the store is gone, or the groups don't reach each other.
        """
        return self._together(step, lambda: self._outer_step(step)) if self.due(step) else step

    def close(self) -> None:
        """No other group waits for this one any more."""
        if self.members:
            self.members.roster.leave()

    def _join(self, step: int) -> int:
        if self.at < 0:
            flat.gather(self.parameters, self.anchor)
            self.at.fill_(step)
        if self.members and self._enter(self.members):
            return int(self.at)
        return self._outer_step(step) if self.due(step) else step

    def due(self, step: int) -> bool:
        return step % self.settings.inner_steps == 0 or step == self.steps

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
        self.leader.tick()
        before, parts = self.residual.clone(), []
        data = memoryview(self.codec.encode(self.delta, self.residual).numpy())
        try:
            while not parts:
                try:
                    parts = members.exchange(data, self._digest(), step)
                except Excluded as why:
                    self.say(f"step {step}: {why}")
                    if self._enter(members):
                        return False
        except Stopped:
            self.residual.copy_(before)
            raise
        self.delta.zero_()
        for part in parts:
            self.codec.add_to(torch.frombuffer(part, dtype=torch.uint8), self.delta)
        self.delta.div_(len(parts))
        return True

    def _together(self, step: int, do: Callable[[], int]) -> int:
        """What `do` returned on the leader, which alone does it; `step` if that was stopped. All get its weights."""

        def work() -> int:
            try:
                return do()
            except Stopped:
                self.close()
                owes = self.due(step) and self.at != step
                then = "; the outer step is made at the next start" if owes else ""
                self.say(f"step {step}: waits for the other groups no longer{then}")
                return OWES if owes else step

        if self.members and self.data:
            self.members.offset = self.data.offset
        word = self.leader.does(work)
        if data := self.data:  # who joined counts the samples as the others do
            data.offset = Peers(self.rank).first(lambda: self.members.offset if self.members else data.offset)
        self.owes = word == OWES
        if self.rank.world > 1:
            flat.broadcast(self.parameters)
        return step if self.owes else word

    def _state(self) -> list[memoryview]:
        return [memoryview(tensor.numpy()).cast("B") for tensor in (self.anchor, self.momentum)]

    def _digest(self) -> str:
        return fingerprint.tensor_sha256(self.anchor)
