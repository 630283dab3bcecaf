"""Sums over ranks, written out.

A collective is called with a flat float32 tensor and leaves in it the sum over a team of ranks: the same bits on
each of them. A NaN or infinity of one rank reaches all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain

import torch

from rocstack_trainer.gradients.compress import CODECS, Codec
from rocstack_trainer.gradients.team import Team, divide, everybody
from rocstack_trainer.gradients.topology import Plan
from rocstack_trainer.precision import require_bf16_between_ranks
from rocstack_trainer.rank import Rank


class Collective(ABC):
    """`collective(flat)`: the sum, in place. One per tensor, since it may hold what rounding left over."""

    @abstractmethod
    def __call__(self, flat: torch.Tensor) -> None: ...

    def prepare(self, flat: torch.Tensor) -> None:
        """What the call needs no other rank for: it may be done before, while another collective has the wire."""
        return

    def residuals(self) -> dict[str, torch.Tensor]:
        """The live error-feedback tensors of this rank by name: a restart needs them to go on bitwise."""
        return {}


class Flat(Collective):
    """The backend's own all-reduce."""

    def __init__(self, team: Team) -> None:
        self.start = team.all_reduce

    def __call__(self, flat: torch.Tensor) -> None:
        self.start(flat).wait()


class Bf16(Collective):
    """The backend's own sum of bfloat16 copies: half the bytes, and nothing makes up for what rounding loses."""

    def __init__(self, team: Team) -> None:
        require_bf16_between_ranks(team.backend, "parallel.compress=bf16")
        self.inner = Flat(team)

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
        self.parts: list[torch.Tensor] = []

    def residuals(self) -> dict[str, torch.Tensor]:
        return self.lost | self.owner

    def prepare(self, flat: torch.Tensor) -> None:
        chunks = zip(flat.split(self.sizes), self.lost.values(), strict=True)
        self.parts = [self.codec.encode(chunk, lost) for chunk, lost in chunks]

    def __call__(self, flat: torch.Tensor) -> None:
        if not self.parts:
            self.prepare(flat)
        parts, self.parts, chunks = self.parts, [], flat.split(self.sizes)
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


class Shares(Collective):
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


class Leaders(Collective):
    """The same for nodes with different numbers of ranks: one of each node sees to all of the tensor."""

    def __init__(self, inside: Team, between: Collective | None) -> None:
        self.inside, self.between = inside, between

    def residuals(self) -> dict[str, torch.Tensor]:
        return self.between.residuals() if self.between else {}

    def __call__(self, flat: torch.Tensor) -> None:
        self.inside.reduce(flat)
        if self.between:
            self.between(flat)
        self.inside.broadcast(flat)


class Maker:
    """Makes the plan's collective for each tensor; all of them share the process groups.

    `shard` consecutive ranks have one copy of the model: the sum is over the ranks with the same place in theirs.
    """

    def __init__(self, plan: Plan, rank: Rank, timeout_s: float, shard: int = 1) -> None:
        self.codec, self.device = plan.codec, rank.device
        sides = [[[r for r in node if r % shard == place] for node in plan.nodes] for place in range(shard)]
        sides = [[node for node in side if node] for side in sides]
        mine = sides[rank.rank % shard]
        self.inside: Team | None = None
        if plan.algorithm == "flat" or len(mine) == 1:
            self.between = divide([[*chain(*side)] for side in sides], timeout_s) if shard > 1 else everybody()
            return
        self.even = len({len(node) for side in sides for node in side}) == 1
        self.inside = divide([node for side in sides for node in side], timeout_s)
        across = [zip(*side, strict=True) if self.even else [[node[0] for node in side]] for side in sides]
        self.between = divide([list(ranks) for ranks in chain(*across)], timeout_s)

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent to others so far."""
        return sum(team.sent for team in (self.inside, self.between) if team)

    def __call__(self, numel: int) -> Collective:
        if not self.inside:
            return self._between(numel)
        if self.even:
            return Shares(self.inside, self._between(-(-numel // len(self.inside))))
        return Leaders(self.inside, self.between and self._between(numel))

    def _between(self, numel: int) -> Collective:
        team, codec = self.between, self.codec
        if codec == "none" or len(team) == 1:
            return Flat(team)
        if codec == "bf16" and team.backend != "mpi":  # which has no such sum
            return Bf16(team)
        return Compressed(team, CODECS[codec], numel, self.device)
