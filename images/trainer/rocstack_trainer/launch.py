"""Who this process is among the ranks, and how it meets the others.

One `Rank` whichever program started the process: torchrun, srun, mpirun, our own `--ranks N`, or nobody.
"""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from rocstack_trainer.errors import ConfigError, MissingError, PeerLostError

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
    """`rank` of `world` in DiLoCo group `group` of `groups`. `backend` and `device` are empty until `with_device` has looked at this machine."""

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
        node = _number(env, "SLURM_NODEID", 0) if launcher == "srun" else 0
        found = Rank(
            rank=_number(env, rank, 0),
            local_rank=_number(env, local_rank, 0),
            world=_number(env, world, 1),
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
def process_group(rank: Rank, timeout_s: float) -> Iterator[None]:
    """The process group of all ranks.

    Only MPI and RCCL are shut down, and only after success. gloo's destructor in PyTorch 2.6 joins its threads
    while it holds the GIL, which a thread that drops a tensor waits for: neither goes on. So a process in which
    `is_open` is true has to end with os._exit.
    """
    import torch
    import torch.distributed as dist

    if rank.device != "cpu":
        torch.cuda.set_device(rank.device)
    if rank.world == rank.local_world:
        # gloo looks up the host's own name, which may not resolve in a container.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        if rank.backend == "mpi":
            dist.init_process_group("mpi")  # mpirun or srun already connected the ranks
        else:
            timeout = timedelta(seconds=timeout_s)
            numbers = {"rank": rank.rank, "world_size": rank.world}
            dist.init_process_group(rank.backend, store=_store(rank, timeout), timeout=timeout, **numbers)
        if dist.get_world_size() != rank.world:
            raise ConfigError(f"{rank.launcher} says {rank.world} ranks, {rank.backend} {dist.get_world_size()}")
        yield
        dist.barrier()  # nobody leaves while another still needs it
        if rank.backend != "gloo":
            dist.destroy_process_group()
    except RuntimeError as error:
        if explained := _explained(error):
            raise explained from error
        raise


def is_open() -> bool:
    """Is there still a process group in this process? Doesn't import torch."""
    dist = sys.modules.get("torch.distributed")
    return bool(dist and dist.is_available() and dist.is_initialized())


def _store(rank: Rank, timeout: timedelta) -> Any:
    import torch.distributed as dist

    if rank.world == 1:
        return dist.HashStore()
    host, port = meeting_point(rank, os.environ)
    listening = os.environ.get("ROCSTACK_TRAINER_STORE_FD") if rank.rank == 0 else None
    store = dist.TCPStore(
        host,
        port,
        rank.world,
        is_master=rank.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        timeout=timeout,
        master_listen_fd=int(listening) if listening else None,
        use_libuv=False,  # Debian's PyTorch is built without it
    )
    # A restart by torchrun finds the same store again, with the addresses of the dead ranks in it.
    return dist.PrefixStore(f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def meeting_point(rank: Rank, env: Mapping[str, str]) -> tuple[str, int]:
    """Host and port where rank 0 listens: MASTER_ADDR and MASTER_PORT, else the same guess on every rank."""
    nodes = env.get("SLURM_STEP_NODELIST", "")
    host = env.get("MASTER_ADDR") or ("127.0.0.1" if rank.world == rank.local_world else first_host(nodes))
    if not host:
        raise ConfigError(
            f"{rank.launcher} over several nodes doesn't say where rank 0 is\n"
            "  set MASTER_ADDR to its host (mpirun: -x MASTER_ADDR=HOST)"
        )
    job = " ".join(env.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE"))
    derived = 15000 + zlib.crc32(job.encode()) % 16000  # below Linux' ephemeral ports
    return host, _number(env, "MASTER_PORT", derived)


def first_host(nodelist: str) -> str:
    """The first name of a Slurm host list: `n[03-05,9],login` gives n03."""
    match = re.match(r"([^,\[]*)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodelist)
    return "".join(part or "" for part in match.groups()) if match else ""


def _tasks_per_node(text: str) -> list[int]:
    """Slurm's short form: `2(x3),1` is [2, 2, 2, 1]."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in parts for _ in range(int(times or 1))]


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(env.get(name, default))
    except ValueError:
        raise ConfigError(f"{name}={env[name]} is not a number") from None


def _explained(error: RuntimeError) -> PeerLostError | None:
    text = str(error)
    if re.search(r"(?i)connection (closed|reset|refused)|broken pipe|timed? ?out", text):
        return PeerLostError(f"another rank ended or can't be reached\n  {text.splitlines()[0]}")
    if re.search(r"(?i)address already in use", text):
        return PeerLostError("rank 0's port is taken: set MASTER_PORT to a free one")
    return None
