"""How a rank meets the others: its device and backend, and the process group."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from rocstack_trainer import errors
from rocstack_trainer.errors import ConfigError, MissingError
from rocstack_trainer.rank import Rank, from_env  # noqa: F401  (verify calls launch.from_env in images of any age)
from rocstack_trainer.ranks import rendezvous

if TYPE_CHECKING:
    from torch.distributed import Store

MESH = 512  # ranks up to which gloo connects each to each, as it does by itself: a socket for each pair


def with_device(rank: Rank, backend: str) -> Rank:
    """The rank with its c10d backend and torch device; `auto` is RCCL where ROCm sees a GPU, else gloo.

    Raises:
        MissingError: this PyTorch has no such backend, or there is no GPU for it.
    """
    import torch
    import torch.distributed as dist

    gpus = torch.cuda.device_count()  # ROCm's devices too: torch.cuda is HIP there, and "nccl" is RCCL
    if backend == "auto":
        backend = "nccl" if torch.version.hip and gpus else "gloo"
    if not dist.is_backend_available(backend):
        raise MissingError(f"PyTorch {torch.__version__} was built without the {backend} backend")
    if backend != "nccl":
        return replace(rank, backend=backend, device="cpu")
    if not gpus:
        raise MissingError("backend nccl needs a GPU, PyTorch sees none\n  look at rocminfo and /dev/kfd")
    # srun --gpus-per-task shows each rank one device only, which is then number 0 for all of them.
    return replace(rank, backend=backend, device=f"cuda:{rank.local_rank % gpus}")


@contextmanager
def process_group(rank: Rank, timeout_s: float, store: str = "", start_s: float = 600.0) -> Iterator[Store]:
    """The process group of all ranks of this group; gives the store in which they met.

    `store` is the HOST:PORT of `rocstack-train --store`; without it rank 0 has the store. Ranks are waited for
    `start_s`. Only MPI is shut down, and only after success. gloo's destructor in PyTorch 2.6 joins its
    threads while it holds the GIL, which a thread that drops a tensor waits for: neither goes on; and beside RCCL's
    group there may be one of gloo. So a process in which `is_open` is true has to end with os._exit.

    Raises:
        PeerLostError: a rank or the store can't be reached, or was lost.
    """
    import torch
    import torch.distributed as dist

    if rank.device != "cpu":
        torch.cuda.set_device(rank.device)
    if rank.world > MESH:  # it connects when it talks; that the other is gone by then, the watch alone tells
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    try:
        if rank.backend == "mpi":  # mpirun or srun already connected the ranks
            dist.init_process_group("mpi")
            rendezvous.tell_host(rank, store)
        corner = rendezvous.join(rank, timeout_s, store, start_s)
        if rank.backend != "mpi":
            timeout, numbers = timedelta(seconds=timeout_s), {"rank": rank.rank, "world_size": rank.world}
            dist.init_process_group(rank.backend, store=corner, timeout=timeout, **numbers)
        if dist.get_world_size() != rank.world:
            raise ConfigError(f"{rank.launcher} says {rank.world} ranks, {rank.backend} {dist.get_world_size()}")
        yield corner
        dist.barrier()  # nobody leaves while another still needs it
        if rank.backend == "mpi":
            dist.destroy_process_group()
    except RuntimeError as error:
        if explained := errors.explain(error):
            raise explained from error
        raise


def is_open() -> bool:
    """Is there still a process group in this process? Doesn't import torch."""
    dist = sys.modules.get("torch.distributed")
    return bool(dist and dist.is_available() and dist.is_initialized())
