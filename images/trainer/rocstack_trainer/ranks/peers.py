"""The ranks of a group among themselves, for all that isn't gradients: what one of them can't do ends on all of them
with the same message, so nobody waits for a rank that gave up.

They tell each other JSON: c10d's functions for objects unpickle, and that would run what a stranger among them sent.
"""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from rocstack_trainer.errors import KINDS, TrainerError
from rocstack_trainer.rank import Rank

T = TypeVar("T")
BEAT_S = 2.0  # how often ranks hear of each other while some work and others wait


class Peers:
    """All methods are collective. One rank alone needs no process group."""

    def __init__(self, rank: Rank, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.group = rank, group

    @classmethod
    def aside(cls, rank: Rank) -> Peers:
        """With a gloo group of their own. In the default one, a thread beside the training would take the training's
        messages, and RCCL has none for CPU memory. MPI can't make another kind of group: there it is the default."""
        return cls(rank, None if rank.backend == "mpi" else dist.new_group(backend="gloo"))

    def agree(self, do: Callable[[], T], where: str = "", kind: type[TrainerError] = TrainerError) -> list[T]:
        """What `do()` gave on each rank, as JSON brings it: a tuple comes as a list.

        Raises:
            TrainerError: on all ranks alike, what the first rank that failed raised; `kind` if that was an OSError.
        """
        result, fault = None, None
        try:
            result = do()
        except OSError as error:
            fault = kind(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
        except TrainerError as error:
            fault = error
        everyone = self._gather([result, fault and [type(fault).__name__, str(fault)]])
        errors = [error for _, error in everyone]
        for number, error in enumerate(errors):
            if error:
                who = f"rank {number}: " if any(other != error for other in errors) else ""
                raise _everywhere(KINDS.get(error[0], TrainerError)(f"{where}{who}{error[1]}")) from fault
        return [result for result, _ in everyone]

    def first(self, do: Callable[[], T], where: str = "", kind: type[TrainerError] = TrainerError) -> T:
        """What `do()` gave on rank 0, the only one that does it. Raises as `agree`."""
        return self.agree(lambda: do() if self.rank.rank == 0 else None, where, kind)[0]

    def each(self, do: Callable[[], T]) -> T:
        """What `do()` gave on this rank, and no other gets to see. Raises as `agree`."""
        made: list[T] = []
        self.agree(lambda: made.append(do()))
        return made[0]

    def same(
        self, mine: str, what: str, kind: type[TrainerError] = TrainerError, hint: str = "", like: int = 0
    ) -> None:
        """Raises `kind` on all ranks if `mine` isn't equal on all that gave the same `like`: it names those that aren't
        as most are."""
        everyone = self.agree(lambda: (mine, socket.gethostname(), like))
        counts = Counter((likes, value) for value, _, likes in everyone)
        most = {likes: value for (likes, value), _ in reversed(counts.most_common())}
        usual = most[like]
        others = [f"rank {n} on {host} has {v}" for n, (v, host, likes) in enumerate(everyone) if v != most[likes]]
        if others:
            text = f"{what} differ between the ranks: {', '.join(others[:4])}, the others {usual}"
            raise _everywhere(kind(f"{text}\n  {hint}" if hint else text))

    def in_step(self, work: Iterator[tuple[int, ...]], told: Callable[[list[int]], None]) -> None:
        """Runs `work` on each rank until all are done, however long one takes: a collective never waits for more than
        one item. `told` gets the sums of all items of all ranks now and then. Raises as `agree`.
        """
        sums: list[int] = []
        running = anywhere = True

        def advance() -> tuple[bool, list[int]]:
            nonlocal running, sums
            until = time.monotonic() + BEAT_S
            while running and time.monotonic() < until:
                item = next(work, None)
                running = item is not None
                sums = [a + b for a, b in zip(sums or [0] * len(item), item, strict=True)] if item else sums
            return running, sums

        while anywhere:
            states = self.agree(advance)
            anywhere = any(going for going, _ in states)
            told([sum(column) for column in zip(*(counts for _, counts in states if counts), strict=True)])

    def _gather(self, mine: Any) -> list[Any]:
        """What each rank gave."""
        text = json.dumps(mine).encode()
        if self.rank.world == 1:
            return [json.loads(text)]
        device = self.rank.device if dist.get_backend(self.group) == "nccl" else "cpu"
        size = torch.tensor([len(text)], device=device)
        sizes = [torch.empty_like(size) for _ in range(self.rank.world)]
        dist.all_gather(sizes, size, group=self.group)
        most = max(int(one.item()) for one in sizes)  # all_gather wants as much from each
        padded = torch.frombuffer(bytearray(text.ljust(most)), dtype=torch.uint8).to(device)
        texts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(texts, padded, group=self.group)
        return [json.loads(bytes(one.cpu().numpy())) for one in texts]  # JSON doesn't mind blanks at the end

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        dist.broadcast(tensor.detach(), source, group=self.group if tensor.device.type == "cpu" else None)


def _everywhere(error: TrainerError) -> TrainerError:
    error.everywhere = True
    return error
