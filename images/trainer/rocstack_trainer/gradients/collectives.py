"""Sums over ranks, written out.

A collective is called with a flat float32 tensor and leaves in it the sum over a team of ranks: the same bits on
each of them. A NaN or infinity of one rank reaches all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from rocstack_trainer.gradients import mpi, team
from rocstack_trainer.gradients.compress import CODECS, Codec
from rocstack_trainer.gradients.team import Team
from rocstack_trainer.gradients.topology import Plan
from rocstack_trainer.rank import Rank


class Collective(ABC):
    """`collective(flat)`: the sum, in place. One per tensor, since it may hold what rounding left over."""

    @abstractmethod
    def __call__(self, flat: torch.Tensor) -> None: ...

    def residuals(self) -> dict[str, torch.Tensor]:
        """The live error-feedback tensors of this rank by name: a restart needs them to go on bitwise."""
        return {}


class Flat(Collective):
    """The backend's own all-reduce."""

    def __init__(self, team: Team) -> None:
        self.start = team.all_reduce

    def __call__(self, flat: torch.Tensor) -> None:
        self.start(flat).wait()


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


class Bf16(Collective):
    """The sum of bfloat16 copies by an exact collective: half the bytes, at half the time of the one below."""

    def __init__(self, inner: Collective) -> None:
        self.inner = inner

    def __call__(self, flat: torch.Tensor) -> None:
        half = flat.bfloat16()
        self.inner(half)
        flat.copy_(half)


class Compressed(Collective):
    """Each member sums up one chunk: encoded chunks come in, are added up in float32, and go out encoded again.

    Encoded numbers themselves are never added: an int8 sum wraps around without a word. What an encoding loses goes
    into the next step's (error feedback), both before and after the sum. Two members simply swap
    everything: the same bytes in one round, rounded once.
    """

    def __init__(self, team: Team, codec: Codec, numel: int, device: torch.device | str) -> None:
        self.team, self.codec = team, codec
        n = len(team)
        self.sizes = [numel] if n == 2 else [numel // n + (i < numel % n) for i in range(n)]
        self.lost = {f"chunk{i}": torch.zeros(size, device=device) for i, size in enumerate(self.sizes)}
        self.total = torch.zeros(self.sizes[team.place % len(self.sizes)], device=device)
        self.owner = {} if n == 2 else {"owner": torch.zeros_like(self.total)}

    def residuals(self) -> dict[str, torch.Tensor]:
        return self.lost | self.owner

    def __call__(self, flat: torch.Tensor) -> None:
        chunks = flat.split(self.sizes)
        parts = [self.codec.encode(chunk, lost) for chunk, lost in zip(chunks, self.lost.values(), strict=True)]
        if not self.owner:
            self._sum(parts * 2, flat)
            return
        self._sum(parts, self.total)
        data = self.codec.encode(self.total, self.owner["owner"])
        for chunk, part in zip(chunks, self._exchange([data] * len(chunks), self.sizes), strict=True):
            self.codec.decode(part, chunk)

    def _sum(self, parts: list[torch.Tensor], out: torch.Tensor) -> None:
        """In rank order: the same bits whoever adds up."""
        first, *others = self._exchange(parts, [len(out)] * len(parts))
        self.codec.decode(first, out)
        for part in others:
            self.codec.add_to(part, out)

    def _exchange(self, parts: list[torch.Tensor], numels: list[int]) -> list[torch.Tensor]:
        return self.team.exchange(parts, [self.codec.size(n) for n in numels])


class Hierarchical(Collective):
    """Exact inside a node, where links are fast; between the nodes each rank sees to its own share of the tensor."""

    def __init__(self, inside: Team, between: Collective) -> None:
        self.inside, self.between, self.residuals = inside, between, between.residuals

    def __call__(self, flat: torch.Tensor) -> None:
        rest = -len(flat) % len(self.inside)
        whole = torch.nn.functional.pad(flat, (0, rest)) if rest else flat
        share = self.inside.reduce_scatter(whole)
        self.between(share)
        self.inside.all_gather(whole, share)
        if rest:
            flat.copy_(whole[: len(flat)])


class Mpi4py(Collective):
    """MPI_Allreduce by mpi4py, on the tensor itself or on a host copy of a GPU's."""

    def __init__(self, comm: Any, team: Team) -> None:
        self.comm, self.team = comm, team

    def __call__(self, flat: torch.Tensor) -> None:
        from mpi4py import MPI

        host = flat.cpu()  # of a CPU's tensor, itself
        self.comm.Allreduce(MPI.IN_PLACE, host.numpy())
        self.team.sent += 2 * (len(self.team) - 1) * flat.nbytes // len(self.team)
        flat.copy_(host)


class Maker:
    """Makes the plan's collective for each bucket; all of them share the process groups."""

    def __init__(self, plan: Plan, rank: Rank, timeout_s: float) -> None:
        self.plan, self.device = plan, rank.device
        self.inside, self.outer = None, team.everybody()
        self.order = [r for node in plan.order for r in plan.nodes[node]]
        if plan.algorithm == "hierarchical":
            self.inside = team.divide(plan.nodes, timeout_s)
            self.outer = team.divide(list(zip(*plan.nodes, strict=True)), timeout_s)
            self.order = [r for r in self.order if r in self.outer.ranks]
        self.mpi = mpi.communicator(rank) if plan.algorithm == "mpi4py" else None

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent to others so far."""
        return self.outer.sent + (self.inside.sent if self.inside else 0)

    def close(self) -> None:
        if self.mpi and self.outer.backend != "mpi":  # which ends it by itself
            mpi.finalize()

    def __call__(self, numel: int) -> Collective:
        if self.inside is None:
            return self._between(numel)
        return Hierarchical(self.inside, self._between(-(-numel // len(self.inside))))

    def _between(self, numel: int) -> Collective:
        if self.mpi:
            return Mpi4py(self.mpi, self.outer)
        exact = Ring(self.outer, self.order) if self.order else Flat(self.outer)
        if self.plan.codec == "none" or len(self.outer) == 1:
            return exact
        few = len(self.outer) <= 8  # each rounds a bfloat16 sum; with more, float32 sums are worth their time
        if self.plan.codec == "bf16" and few and (self.order or self.outer.backend != "mpi"):  # MPI has no such sum
            return Bf16(exact)
        return Compressed(self.outer, CODECS[self.plan.codec], numel, self.device)
