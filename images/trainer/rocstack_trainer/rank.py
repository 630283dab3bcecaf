"""Which of the ranks this process is. One `Rank` whichever program started it: torchrun, srun, mpirun, our own
`--ranks N`, or nobody."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rocstack_trainer.config import DiLoCo
from rocstack_trainer.errors import ConfigError

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
    found = [_said_by(name, env) for name, (rank, world, *_) in LAUNCHERS.items() if rank in env and world in env]
    # rocstack's TaskProlog gives torchrun's names to the tasks of srun, too.
    first = [rank for rank in found if rank.launcher != "torchrun" or replace(rank, launcher="srun") not in found]
    if first:
        return replace(first[0], launcher="--ranks") if "ROCSTACK_TRAINER_PARENT" in env else first[0]
    if "PMIX_RANK" in env:
        raise ConfigError(
            "PMIX_RANK is set, but PMIx doesn't put the number of ranks into the environment\n"
            "  start with srun, mpirun or torchrun, or set RANK and WORLD_SIZE"
        )
    return Rank()


def _said_by(launcher: str, env: Mapping[str, str]) -> Rank:
    rank, world, local_rank, local_world = LAUNCHERS[launcher]
    here = dict(enumerate(_tasks_per_node(env.get(local_world, "1"))))
    node = number(env, "SLURM_NODEID", 0) if launcher == "srun" else 0
    found = Rank(
        rank=number(env, rank, 0),
        local_rank=number(env, local_rank, 0),
        world=number(env, world, 1),
        local_world=here.get(node, 1),
        launcher=launcher,
    )
    if not 0 <= found.rank < found.world:
        raise ConfigError(f"{rank}={found.rank} is not below {world}={found.world}")
    return found


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


def _tasks_per_node(text: str) -> list[int]:
    """Slurm's short form: `2(x3),1` is [2, 2, 2, 1]."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in parts for _ in range(int(times or 1))]


def number(env: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(env.get(name, default))
    except ValueError:
        raise ConfigError(f"{name}={env[name]} is not a number") from None
