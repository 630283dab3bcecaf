"""Ranks that work together, and what they can do on the wire: the few operations that gloo, MPI and RCCL all have."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import chain

import torch
import torch.distributed as dist

# PyTorch 2.13 renamed them.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Team:
    """Ranks of the default process group in ascending order. All operations are collective: every member calls them
    in the same order. `sent` counts the bytes that this rank gave to other members."""

    def __init__(self, ranks: Sequence[int], group: dist.ProcessGroup | None = None) -> None:
        self.ranks, self.group, self.sent = list(ranks), group, 0
        self.place = self.ranks.index(dist.get_rank())  # which member this rank is
        self.backend = dist.get_backend(group)

    def __len__(self) -> int:
        return len(self.ranks)

    def all_reduce(self, flat: torch.Tensor) -> dist.Work:
        """The sum is in `flat` after `.wait()`. Counted as gloo's and RCCL's rings send it."""
        self.sent += 2 * (len(self) - 1) * flat.nbytes // len(self)
        return dist.all_reduce(flat, group=self.group, async_op=True)

    def pass_on(self, out: torch.Tensor, right: int, into: torch.Tensor, left: int) -> list[dist.Work]:
        """Starts to send to one member and to receive from another."""
        # As bytes, since MPI knows no bfloat16. The receive first, and both at once: RCCL would wait for itself.
        ends = ((dist.irecv, into, left), (dist.isend, out, right))
        moves = [dist.P2POp(op, t.view(torch.uint8), self.ranks[peer], self.group) for op, t, peer in ends if len(t)]
        self.sent += out.nbytes
        return dist.batch_isend_irecv(moves) if moves else []

    def exchange(self, parts: Sequence[torch.Tensor], sizes: Sequence[int | None]) -> list[torch.Tensor]:
        """parts[i], 1-D, goes to member i; returns what came from each. `sizes` are the lengths of what comes; where
        they are None, members tell each other first."""
        if len(self) == 1:
            return list(parts)
        n = len(self)
        if None in sizes:
            told = torch.tensor([len(part) for part in parts], device=parts[0].device)
            asked = torch.empty_like(told)
            dist.all_to_all_single(asked, told, group=self.group)
            self.sent += (n - 1) * told.itemsize
            sizes = asked.tolist()
        received = [part.new_empty(size) for part, size in zip(parts, sizes, strict=True)]
        received[self.place] = parts[self.place]
        # Not all_to_all: between two ranks gloo's takes up to twice as long, one direction after the other.
        pairs = [((self.place + k) % n, (self.place - k) % n) for k in range(1, n)]
        for work in [w for right, left in pairs for w in self.pass_on(parts[right], right, received[left], left)]:
            work.wait()
        return received

    def reduce_scatter(self, flat: torch.Tensor) -> torch.Tensor:
        """This member's share, a new tensor, of the sum. The members share evenly."""
        shares = flat.tensor_split(len(self))
        if self.backend == "nccl":
            share = torch.empty_like(shares[0])
            _reduce_scatter(share, flat, group=self.group)
            self.sent += flat.nbytes - share.nbytes
            return share
        # gloo makes an all-reduce of it, twice the bytes, and MPI doesn't have it.
        share, *others = self.exchange(shares, [len(shares[0])] * len(self))
        return sum(others, share.clone())

    def all_gather(self, flat: torch.Tensor, share: torch.Tensor) -> None:
        """Every member's share, one after the other, into `flat`."""
        if self.backend == "nccl":
            _all_gather(flat, share, group=self.group)
        else:
            dist.all_gather(list(flat.tensor_split(len(self))), share, group=self.group)
        self.sent += flat.nbytes - share.nbytes

    def reduce(self, flat: torch.Tensor) -> None:
        """The sum is in the first member's `flat`; in the others' may be anything."""
        dist.reduce(flat, self.ranks[0], group=self.group)
        self.sent += flat.nbytes if self.place else 0

    def broadcast(self, flat: torch.Tensor) -> None:
        """The first member's `flat` into everybody's."""
        dist.broadcast(flat, self.ranks[0], group=self.group)
        self.sent += 0 if self.place else (len(self) - 1) * flat.nbytes


def everybody() -> Team:
    return Team(range(dist.get_world_size()))


def divide(sides: Sequence[Sequence[int]], timeout_s: float) -> Team | None:
    """The one of these disjoint teams that this rank is in, if it is in one. All ranks call it."""
    # MPI makes groups in a call of all ranks, which PyTorch spares those that are in none: they get one of their own.
    rest = sorted({*range(dist.get_world_size())} - {*chain(*sides)}) if dist.get_backend() == "mpi" else []
    made = [*sides, rest] if rest else sides
    # Without a timeout of its own, a new group has the backend's half hour.
    groups = [dist.new_group(sorted(ranks), timeout=timedelta(seconds=timeout_s)) for ranks in made]
    mine = [Team(sorted(ranks), group) for ranks, group in zip(sides, groups, strict=False) if dist.get_rank() in ranks]
    return mine[0] if mine else None
