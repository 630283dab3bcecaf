"""Sums written out to be compared with: a ring over send and receive, and one blocking all-reduce per parameter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist

from rocstack_trainer.gradients.buckets import Gradients
from rocstack_trainer.gradients.collectives import Collective
from rocstack_trainer.gradients.team import Team, everybody


class RingMaker:
    """Makes rings where `Maker` makes what a plan says."""

    def __init__(self) -> None:
        self.team = everybody()

    def __call__(self, numel: int) -> Collective:
        return Ring(self.team)

    @property
    def sent(self) -> int:
        return self.team.sent


class NaiveGradients(Gradients):
    def finish(self) -> None:
        super().finish()
        for parameter in self.parameters:
            dist.all_reduce(parameter.grad)


class Ring(Collective):
    """The ring all-reduce: 2(n-1) steps, each of which passes 1/n of the tensor on to the next member.

    First each chunk travels once around and grows into a sum, then the sums travel around. What a step receives is
    what the next one sends. Chunks move in pieces: while one is added up, others are on the line.
    """

    def __init__(self, team: Team, order: Sequence[int] = (), pieces: int = 4) -> None:
        """`order` are the team's ranks around the ring; without it they are in ascending order."""
        ring = [team.ranks.index(rank) for rank in order or team.ranks]
        self.n, self.pieces, self.place = len(ring), pieces, ring.index(team.place)
        self.pass_on = partial(team.pass_on, left=ring[self.place - 1], right=ring[(self.place + 1) % self.n])

    def __call__(self, flat: torch.Tensor) -> None:
        chunks = [chunk.tensor_split(self.pieces) for chunk in flat.tensor_split(self.n)]
        moving: dict[int, tuple[list[dist.Work], torch.Tensor, torch.Tensor]] = {}
        for step in range(2 * (self.n - 1)):
            outgoing, incoming = chunks[(self.place - step) % self.n], chunks[(self.place - step - 1) % self.n]
            for i, (out, target) in enumerate(zip(outgoing, incoming, strict=True)):
                self._land(moving.pop(i, None))
                landing = torch.empty_like(target) if step < self.n - 1 else target
                moving[i] = self.pass_on(out=out, into=landing), landing, target
        for piece in moving.values():
            self._land(piece)

    @staticmethod
    def _land(piece: tuple[list[dist.Work], torch.Tensor, torch.Tensor] | None) -> None:
        if piece:
            works, landing, target = piece
            for work in works:
                work.wait()
            if landing is not target:
                target += landing
