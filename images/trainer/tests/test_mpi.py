"""The collectives over MPI. mpirun starts this file as a program: then it is one of the ranks."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rocstack_trainer.errors import MissingError
from rocstack_trainer.gradients import mpi
from rocstack_trainer.gradients.collectives import Maker
from rocstack_trainer.gradients.topology import Plan
from rocstack_trainer.rank import Rank, from_env
from rocstack_trainer.ranks import launch

SIZE = 10_001
KINDS = [("flat", codec) for codec in ("none", "bf16", "int8", "int8+zstd")]
KINDS += [("ring", "none"), ("ring", "bf16"), ("hierarchical", "none"), ("hierarchical", "int8+zstd")]
TOLERANCE = {"none": 1e-6, "bf16": 0.006, "int8": 0.02, "int8+zstd": 0.02}

needs_mpirun = pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun here")
needs_mpi = pytest.mark.skipif(not dist.is_mpi_available(), reason="this PyTorch has no MPI")
needs_mpi4py = pytest.mark.skipif(not importlib.util.find_spec("mpi4py"), reason="no mpi4py here")


def values(rank: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(rank))


def one_rank(backend: str, kinds: list[list[str]]) -> None:
    """Prints, as JSON, [algorithm, codec, relative error, checksum, bytes sent] of each kind."""
    rank = launch.with_device(from_env(os.environ), backend)
    with launch.process_group(rank, 60):
        right, found = sum(values(r) for r in range(rank.world)), []
        for algorithm, codec in kinds:
            nodes = [[0, 1], [2, 3]] if algorithm == "hierarchical" else [[r] for r in range(rank.world)]
            order = list(range(rank.world)) if algorithm == "ring" else []
            maker, flat = Maker(Plan(algorithm, codec, nodes, order, "", ""), rank, 60), values(rank.rank)
            maker(SIZE)(flat)
            error = float((flat - right).norm() / right.norm())
            found.append([algorithm, codec, error, hash(tuple(flat.tolist())), maker.sent])
        dist.barrier()
        maker.close()
        print(json.dumps(found) + "\n", end="", flush=True)  # at once: mpirun mixes what ranks write
        if backend == "gloo":
            os._exit(0)


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


@needs_mpirun
@needs_mpi4py
def test_mpi4py_sums_for_a_pytorch_without_mpi() -> None:
    for (found,) in mpirun(2, "gloo", [("mpi4py", "none")]):
        _, _, error, _, sent = found
        assert error <= 1e-6
        assert sent == 4 * SIZE


@needs_mpi4py
def test_mpi4py_needs_ranks_that_mpirun_started() -> None:
    code = (
        "from rocstack_trainer.rank import Rank\n"
        "from rocstack_trainer.gradients import mpi\n"
        "from rocstack_trainer.errors import ConfigError\n"
        "try: mpi.communicator(Rank(1, 1, 2, 2, '--ranks'))\n"
        "except ConfigError as error: print(error)"
    )
    env = os.environ | {"PYTHONPATH": str(Path(launch.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert "MPI sees rank 0 of 1, --ranks says rank 1 of 2" in done.stdout
    assert "mpirun -n 2" in done.stdout


def test_without_mpi4py_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingError, match="install mpi4py"):
        mpi.communicator(Rank())


if __name__ == "__main__":
    one_rank(sys.argv[1], json.loads(sys.argv[2]))
