"""Who this process is among the ranks, and how it meets the others.

One `Rank` whichever program started the process: torchrun, srun, mpirun, our own `--ranks N`, or nobody.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from rocstack_trainer import errors
from rocstack_trainer.config import DiLoCo
from rocstack_trainer.errors import ConfigError, MissingError
from rocstack_trainer.ranks import rendezvous
from rocstack_trainer.ranks.rendezvous import number

if TYPE_CHECKING:
    from torch.distributed import Store

# launcher: rank, ranks, rank on this node, ranks on this node. The first that is set wins: mpirun inside a
# Slurm job sees both kinds. SLURM_NTASKS is not used: a batch script has it without being one of N.
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}


@dataclass(frozen=True)
class Rank:
    """`rank` of `world` in DiLoCo group `group` of `groups`; `local_world` of them are on this node.

    `local_rank` counts all ranks on the node, whichever group they are in. `backend` and `device` are empty until
    `with_device` has looked at this machine.
    """

    rank: int = 0
    local_rank: int = 0
    world: int = 1
    local_world: int = 1
    launcher: str = "single process"
    group: int = 0
    groups: int = 1
    backend: str = ""
    device: str = ""


def from_env(env: Mapping[str, str]) -> Rank:
    """Reads the launcher's variables; imports nothing heavy.

    Raises:
        ConfigError: a variable is not a number, the rank is not below the number of ranks, or that is unknown.
    """
    for launcher, (rank, world, local_rank, local_world) in LAUNCHERS.items():
        if rank not in env or world not in env:
            continue
        here = dict(enumerate(_tasks_per_node(env.get(local_world, "1"))))
        node = number(env, "SLURM_NODEID", 0) if launcher == "srun" else 0
        found = Rank(
            rank=number(env, rank, 0),
            local_rank=number(env, local_rank, 0),
            world=number(env, world, 1),
            local_world=here.get(node, 1),
            launcher="--ranks" if "ROCSTACK_TRAINER_PARENT" in env else launcher,
        )
        if not 0 <= found.rank < found.world:
            raise ConfigError(f"{rank}={found.rank} is not below {world}={found.world}")
        return found
    if "PMIX_RANK" in env:
        raise ConfigError(
            "PMIX_RANK is set, but PMIx doesn't put the number of ranks into the environment\n"
            "  start with srun, mpirun or torchrun, or set RANK and WORLD_SIZE"
        )
    return Rank()


def split(rank: Rank, diloco: DiLoCo) -> Rank:
    """The rank within its DiLoCo group: this launch is one of them, or is split into equal parts.

    Raises:
        ConfigError: the ranks can't be split evenly.
    """
    if diloco.groups == 1 or diloco.group >= 0:
        return replace(rank, group=max(diloco.group, 0), groups=diloco.groups)
    if rank.world % diloco.groups:
        fits = rank.world // diloco.groups * diloco.groups or diloco.groups
        raise ConfigError(
            f"diloco.groups={diloco.groups} can't share {rank.world} ranks evenly: start {fits}\n"
            "  or start each group by itself, with its number as diloco.group"
        )
    size = rank.world // diloco.groups
    group, inside = divmod(rank.rank, size)
    node = rank.rank - rank.local_rank  # launchers number the ranks node by node
    here = min(node + rank.local_world, (group + 1) * size) - max(node, group * size)
    return replace(rank, rank=inside, world=size, local_world=max(1, here), group=group, groups=diloco.groups)


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
def process_group(rank: Rank, timeout_s: float, store: str = "", lost_after_s: float = 15.0) -> Iterator[Store]:
    """The process group of all ranks of this group; gives the store in which they met.

    `store` is the HOST:PORT of `rocstack-train --store`; without it rank 0 has the store. Ranks are waited for
    2 x `lost_after_s`. Only MPI is shut down, and only after success. gloo's destructor in PyTorch 2.6 joins its
    threads while it holds the GIL, which a thread that drops a tensor waits for: neither goes on; and beside RCCL's
    group there may be one of gloo. So a process in which `is_open` is true has to end with os._exit.

    Raises:
        PeerLostError: a rank or the store can't be reached, or was lost.
    """
    import torch
    import torch.distributed as dist

    if rank.device != "cpu":
        torch.cuda.set_device(rank.device)
    try:
        if rank.backend == "mpi":  # mpirun or srun already connected the ranks
            dist.init_process_group("mpi")
            rendezvous.tell_host(rank)
        corner = rendezvous.join(rank, timeout_s, store, lost_after_s)
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


def _tasks_per_node(text: str) -> list[int]:
    """Slurm's short form: `2(x3),1` is [2, 2, 2, 1]."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in parts for _ in range(int(times or 1))]
