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
        result, fault = _tried(do, kind)
        everyone = self._gather([result, _told(fault)])
        _raise_first([error for _, error in everyone], where, fault)
        return [result for result, _ in everyone]

    def first(self, do: Callable[[], T], where: str = "", kind: type[TrainerError] = TrainerError) -> T:
        """What `do()` gave on rank 0, the only one that does it. Raises as `agree`."""
        result, fault = _tried(do, kind) if self.rank.rank == 0 else (None, None)
        result, error = self._broadcast([result, _told(fault)])
        _raise_first([error, *[None] * (self.rank.world > 1)], where, fault)
        return result

    def each(self, do: Callable[[], T], where: str = "") -> T:
        """What `do()` gave on this rank, and no other gets to see. Raises as `agree`."""
        result, fault = _tried(do)
        if self._most(fault is not None):
            _raise_first(self._gather(_told(fault)), where, fault)
        return result

    def collect(self, do: Callable[[], T]) -> list[T]:
        """What `do()` gave on each rank, as JSON brings it, on rank 0; nothing on the others. Raises as `agree`."""
        return self._gather(self.each(do), all_get_it=False)

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

    def _gather(self, mine: Any, all_get_it: bool = True) -> list[Any]:
        """What each rank gave, on all of them or on rank 0."""
        text = json.dumps(mine).encode()
        if self.rank.world == 1:
            return [json.loads(text)]
        padded = self._bytes(text.ljust(self._most(len(text))))  # as much is wanted from each
        texts = [torch.empty_like(padded) for _ in range(self.rank.world if all_get_it or not self.rank.rank else 0)]
        if all_get_it:
            dist.all_gather(texts, padded, group=self.group)
        else:
            dist.gather(padded, texts or None, group=self.group)
        return [json.loads(bytes(one.cpu().numpy())) for one in texts]  # JSON doesn't mind blanks at the end

    def _broadcast(self, mine: Any) -> Any:
        """What rank 0 gave."""
        text = json.dumps(mine).encode()
        if self.rank.world > 1:
            size = torch.tensor([len(text)], device=self._device)
            dist.broadcast(size, 0, group=self.group)
            data = self._bytes(text if self.rank.rank == 0 else bytes(int(size.item())))
            dist.broadcast(data, 0, group=self.group)
            text = bytes(data.cpu().numpy())
        return json.loads(text)

    def _most(self, mine: int) -> int:
        """The largest of what all ranks gave."""
        most = torch.tensor(int(mine), device=self._device)
        if self.rank.world > 1:
            dist.all_reduce(most, dist.ReduceOp.MAX, group=self.group)
        return int(most.item())

    def _bytes(self, text: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self._device)

    @property
    def _device(self) -> str:
        on_gpu = self.rank.world > 1 and dist.get_backend(self.group) == "nccl"
        return self.rank.device if on_gpu else "cpu"

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        dist.broadcast(tensor.detach(), source, group=self.group if tensor.device.type == "cpu" else None)


def _tried(do: Callable[[], T], kind: type[TrainerError] = TrainerError) -> tuple[T | None, TrainerError | None]:
    try:
        return do(), None
    except OSError as error:
        return None, kind(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
    except TrainerError as error:
        return None, error


def _told(fault: TrainerError | None) -> list[str] | None:
    return [type(fault).__name__, str(fault), socket.gethostname()] if fault else None


def _raise_first(errors: list[Any], where: str, cause: TrainerError | None) -> None:
    for number, error in enumerate(errors):
        if error:
            name, text, host = error
            alone = any(other is None or other[:2] != [name, text] for other in errors)
            who = f"rank {number} on {host}: " if alone else ""
            raise _everywhere(KINDS.get(name, TrainerError)(f"{where}{who}{text}")) from cause


def _everywhere(error: TrainerError) -> TrainerError:
    error.everywhere = True
    return error
