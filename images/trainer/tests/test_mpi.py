"""The collectives over MPI. mpirun starts this file as a program: then it is one of the ranks."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rocstack_trainer.gradients.collectives import Maker
from rocstack_trainer.gradients.topology import Plan
from rocstack_trainer.rank import from_env
from rocstack_trainer.ranks import launch

SIZE = 10_001
KINDS = [("flat", codec) for codec in ("none", "bf16", "int8", "int8+zstd")]
KINDS += [("hierarchical", "none"), ("hierarchical", "int8+zstd"), ("uneven", "int8")]
NODES = {"hierarchical": [[0, 1], [2, 3]], "uneven": [[0, 1, 2], [3]]}
TOLERANCE = {"none": 1e-6, "bf16": 0.006, "int8": 0.02, "int8+zstd": 0.02}

needs_mpirun = pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun here")
needs_mpi = pytest.mark.skipif(not dist.is_mpi_available(), reason="this PyTorch has no MPI")


def values(rank: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(rank))


def one_rank(backend: str, kinds: list[list[str]]) -> None:
    """Prints, as JSON, [algorithm, codec, relative error, checksum, bytes sent] of each kind."""
    rank = launch.with_device(from_env(os.environ), backend)
    with launch.process_group(rank, 60):
        right, found = sum(values(r) for r in range(rank.world)), []
        for algorithm, codec in kinds:
            nodes = NODES.get(algorithm, [[r] for r in range(rank.world)])
            how = "hierarchical" if algorithm == "uneven" else algorithm
            maker, flat = Maker(Plan(how, codec, nodes, "", ""), rank, 60), values(rank.rank)
            maker(SIZE)(flat)
            error = float((flat - right).norm() / right.norm())
            found.append([algorithm, codec, error, hash(tuple(flat.tolist())), maker.sent])
        dist.barrier()
        print(json.dumps(found) + "\n", end="", flush=True)  # at once: mpirun mixes what ranks write


def mpirun(n: int, backend: str, kinds: list[tuple[str, str]]) -> list[list[list]]:
    """What each rank printed."""
    settings = {
        "OMP_NUM_THREADS": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # or a rank that waits takes a core
        "PYTHONPATH": str(Path(launch.__file__).parents[2]),
    }
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(n), sys.executable, __file__]
    command += [backend, json.dumps(kinds)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == n
    return found


@needs_mpirun
@needs_mpi
def test_every_algorithm_works_over_pytorchs_mpi() -> None:
    for kind, *same in zip(KINDS, *mpirun(4, "mpi", KINDS), strict=True):
        assert all(tuple(one[:2]) == kind and one[2:4] == same[0][2:4] for one in same), "ranks differ"
        assert same[0][2] <= TOLERANCE[kind[1]]


if __name__ == "__main__":
    one_rank(sys.argv[1], json.loads(sys.argv[2]))
