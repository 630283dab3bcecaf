"""Gradients through MPI for a PyTorch that was built without it: mpi4py sums, gloo or RCCL does the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocstack_trainer.errors import ConfigError, MissingError

if TYPE_CHECKING:
    from rocstack_trainer.rank import Rank


def communicator(rank: Rank) -> Any:
    """An mpi4py communicator of the ranks of this group, in rank order.

    Raises:
        MissingError: there is no mpi4py.
        ConfigError: MPI doesn't have the same ranks.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # a RuntimeError where libmpi can't be loaded
        raise MissingError(
            f"parallel.algorithm=mpi4py: {error}\n  install mpi4py and an MPI library, or choose another algorithm"
        ) from None
    comm = MPI.COMM_WORLD.Split(rank.group, rank.rank)
    if (comm.rank, comm.size) != (rank.rank, rank.world):
        raise ConfigError(
            f"parallel.algorithm=mpi4py: MPI sees rank {comm.rank} of {comm.size}, {rank.launcher} says rank"
            f" {rank.rank} of {rank.world}\n  start the ranks with mpirun -n {rank.world} or srun --mpi=pmix"
        )
    return comm


def finalize() -> None:
    """Before os._exit: mpirun takes a rank that ends without it for a crashed one."""
    from mpi4py import MPI

    if not MPI.Is_finalized():
        MPI.Finalize()
