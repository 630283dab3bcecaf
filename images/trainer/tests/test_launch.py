import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rocstack_trainer.errors import ConfigError, MissingError
from rocstack_trainer.rank import Rank, from_env
from rocstack_trainer.ranks import launch, secret
from rocstack_trainer.ranks.rendezvous import first_host, meeting_point
from rocstack_trainer.ranks.spawn import omp_threads, python

MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "prterun-n1-77@1",
}
BATCH = {
    "SLURM_JOB_ID": "9",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
SRUN = BATCH | {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
    "PMIX_RANK": "5",
}


def test_each_launcher_gives_the_same_kind_of_rank() -> None:
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert from_env(torchrun) == Rank(3, 1, 4, 2, "torchrun")
    assert from_env(MPIRUN) == Rank(3, 1, 4, 2, "mpirun")
    assert from_env(SRUN) == Rank(5, 0, 7, 3, "srun")
    assert from_env({}) == Rank(0, 0, 1, 1, "single process")


def test_the_innermost_launcher_counts() -> None:
    assert from_env(SRUN | MPIRUN).launcher == "mpirun"
    assert from_env(SRUN | MPIRUN | {"RANK": "0", "WORLD_SIZE": "1"}).launcher == "torchrun"
    names = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}
    told = {name: SRUN[other] for name, other in names.items()}  # by the TaskProlog of a worker image
    told["LOCAL_WORLD_SIZE"] = "3"
    assert from_env(SRUN | told) == from_env(SRUN)
    assert from_env(SRUN | told | MPIRUN).launcher == "mpirun", "which was started by such a task"


def test_ranks_that_a_task_of_srun_starts_are_not_srun_s() -> None:
    """Two nodes, a task on each, two ranks in each task: by chance the first has srun's rank, too."""
    task = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    task["SLURM_STEP_TASKS_PER_NODE"] = "1(x2)"
    inner = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert from_env(task | inner) == Rank(0, 0, 2, 2, "torchrun")


def test_a_batch_script_is_one_process_whatever_the_job_size() -> None:
    assert from_env(BATCH) == Rank()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x is not a number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not below WORLD_SIZE=2"),
        ({"PMIX_RANK": "0"}, "set RANK and WORLD_SIZE"),
    ],
)
def test_a_wrong_environment_is_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_env(env)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n1,n2", "n1"), ("gpu[03-05,9],x", "gpu03"), ("r[7]-ib,r8", "r7-ib"), ("", "")],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_all_ranks_guess_the_same_meeting_point() -> None:
    host, port = meeting_point(from_env(SRUN), SRUN)
    assert host == "gpu03"
    assert 15000 <= port < 31000
    other = SRUN | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    assert meeting_point(from_env(other), other) == (host, port)
    assert meeting_point(from_env(SRUN), SRUN | {"SLURM_STEP_ID": "1"})[1] != port
    assert meeting_point(from_env(SRUN), SRUN | {"MASTER_ADDR": "a", "MASTER_PORT": "1"}) == ("a", 1)


def test_mpirun_on_one_node_needs_no_address_and_on_several_does() -> None:
    alone = MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert meeting_point(from_env(alone), alone)[0] == "127.0.0.1"
    with pytest.raises(ConfigError, match="-x MASTER_ADDR=HOST"):
        meeting_point(from_env(MPIRUN), MPIRUN)


def test_threads_are_shared_out_but_never_a_few_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    assert [omp_threads(n) for n in (1, 8, 16, 17, 64, 100)] == [64, 8, 4, 1, 1, 1]


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="this machine has a GPU")
def test_without_a_gpu_auto_is_gloo_and_nccl_is_refused() -> None:
    assert launch.with_device(Rank(), "auto").backend == "gloo"
    with pytest.raises(MissingError):
        launch.with_device(Rank(), "nccl")


@pytest.mark.skipif(dist.is_mpi_available(), reason="this PyTorch has MPI")
def test_a_backend_that_pytorch_lacks_is_named() -> None:
    with pytest.raises(MissingError, match="without the mpi backend"):
        launch.with_device(Rank(), "mpi")


def test_rccl_is_chosen_where_rocm_sees_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(dist, "is_backend_available", lambda _: True)
    chosen = launch.with_device(Rank(11, 3, 16, 8), "auto")
    assert (chosen.backend, chosen.device) == ("nccl", "cuda:3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # srun --gpus-per-task=1
    assert launch.with_device(Rank(11, 3, 16, 8), "auto").device == "cuda:0"


def test_the_secret_of_a_slurm_job_is_for_ranks_that_meet_at_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they meet elsewhere, other jobs meet too, which have another one."""
    monkeypatch.delenv(secret.NAME, raising=False)
    monkeypatch.setenv(secret.OF_JOB, "j" * 32)
    assert secret.given() == ""
    assert secret.of_job() == "j" * 32
    monkeypatch.setenv(secret.NAME, "m" * 32)
    assert secret.of_job() == "m" * 32


def test_ranks_import_nothing_of_the_working_folder_unless_the_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a folder that others write to: a torch.py in it would run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    assert python() == [sys.executable, "-Pm"]
    monkeypatch.syspath_prepend(os.getcwd())
    assert python() == [sys.executable, "-Pm" if sys.flags.safe_path else "-m"]
