"""The ranks of a group among themselves, for all that isn't gradients: trouble of one is trouble of all."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from rocstack_trainer.errors import CheckpointError, ConfigError, TrainerError
from rocstack_trainer.ranks.launch import Rank

T = TypeVar("T")
SEEN_WITHIN_S = 1.0  # how long a new file on a shared file system may take to show on another node


class Peers:
    """Has a gloo group of its own. In the default one, a thread beside the training would take the training's
    messages, and RCCL has none for CPU memory. MPI can't make another kind of group: there it is the default one."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.world = rank.rank, rank.world
        self.kind = None if rank.backend == "mpi" else "gloo"
        self.group = dist.new_group(backend="gloo") if self.kind else None

    def agree(self, do: Callable[[], T], where: str = "", kind: type[TrainerError] = CheckpointError) -> list[T]:
        """What `do()` gave on each rank.

        Raises:
            kind: on all ranks alike, if on one of them it raised this or an OSError.
        """
        mine: tuple = (None, "")
        try:
            mine = (do(), "")
        except OSError as error:
            mine = (None, ": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
        except kind as error:
            mine = (None, str(error))
        everyone: list = [None] * self.world
        dist.all_gather_object(everyone, mine, group=self.group)
        for rank, (_, fault) in enumerate(everyone):
            if fault:
                error = kind(f"{where}rank {rank}: {fault}" if self.world > 1 else f"{where}{fault}")
                error.everywhere = True
                raise error
        return [result for result, _ in everyone]

    def first(self, do: Callable[[], T], where: str = "", kind: type[TrainerError] = CheckpointError) -> T:
        """What `do()` gave on rank 0, the only one that does it. Raises as `agree`."""
        return self.agree(lambda: do() if self.rank == 0 else None, where, kind)[0]

    def share(self, folder: Path, where: str) -> bool:
        """Is the folder, which is made if it isn't there, the same one for all? A file that rank 0 makes tells.

        Raises:
            ConfigError: it can't be written to.
        """

        def make() -> Path:
            with suppress(FileExistsError):  # a file by that name is said below, and better
                folder.mkdir(parents=True, exist_ok=True)
            (file := folder / f".seen-{uuid.uuid4().hex}").touch()
            return file

        def seen() -> bool:
            deadline = time.monotonic() + SEEN_WITHIN_S
            while not os.path.exists(file) and time.monotonic() < deadline:
                time.sleep(0.05)
            return os.path.exists(file)

        file = self.first(make, where, ConfigError)
        all_see = all(self.agree(seen))
        self.first(file.unlink)
        return all_see

    def only_first(self) -> dist.ProcessGroup | None:
        """A group of rank 0 alone."""
        return dist.new_group([0], backend=self.kind)

    def broadcast(self, tensors: Iterable[tuple[torch.Tensor, int]]) -> None:
        """Each from the rank that comes with it."""
        for tensor, source in tensors:
            dist.broadcast(tensor.detach(), source, group=self.group if tensor.device.type == "cpu" else None)
