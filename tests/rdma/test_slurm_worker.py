"""slurmd in its container, on a machine with a kernel of its own: jobs in cgroups of version 2, a clock that jumps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi import Pair
from slurm_worker import GPUS, Worker, worker

OWN = r"/rocstack\.slice/system\.slice/w1_slurmstepd\.scope/job_\d+"
# What holds this job: the limits of its cgroup, and which of the GPUs it can open.
LOOK = f"""
import json, os, re
own = open("/proc/self/cgroup").read().strip().removeprefix("0::")
job = "/sys/fs/cgroup" + re.sub("/step_.*", "", own)
read = lambda name: open(job + "/" + name).read().strip()
opened = []
for path in {GPUS}:
    try:
        open(path, "rb").close()
        opened.append(path)
    except PermissionError:
        pass
cpus = len(os.sched_getaffinity(0))
print(json.dumps([own, read("memory.max"), read("cpuset.cpus.effective"), cpus, opened]))
"""
FILL = "print(len(bytearray({} << 20)))"
WRITE = """
    for folder in /sys/fs/cgroup /sys/fs/cgroup/*/; do
        mkdir "$folder/mine" 2>/dev/null && rmdir "$folder/mine" && echo "writes $folder"
    done
    (echo $$ >/sys/fs/cgroup/other/cgroup.procs) 2>/dev/null && echo "enters another"
    mount -o remount,rw,bind /sys/fs/cgroup 2>/dev/null && echo "mounts again"
    mount -t cgroup2 none /tmp 2>/dev/null && echo "mounts cgroups"
    exit 0
"""


@pytest.fixture(scope="module")
def slurm(machines: Pair, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder: Path = tmp_path_factory.mktemp("overlay")
    with worker(machines[0], image, folder) as up:
        yield up


def held(slurm: Worker, asked: str) -> list[str]:
    """The GPUs that a job could open that asked for 100 MiB and a core beside `asked`."""
    done = slurm.job(f"--mem=100 --ntasks=1 --cpus-per-task=1 {asked}", "python3", "-c", LOOK)
    assert done.code == 0, done.said
    own, memory, cores, cpus, opened = json.loads(done.out)
    assert re.fullmatch(rf"{OWN}/step_0/user/task_0", own)
    assert (int(memory), cores in ("0", "1"), cpus) == (100 << 20, True, 1)
    assert isinstance(opened, list)
    return opened


def test_a_job_has_what_it_asked_for_and_no_more(slurm: Worker) -> None:
    assert held(slurm, "--gpus=1") == [GPUS[0]]
    assert held(slurm, "") == []


def test_memory_over_the_limit_ends_the_job(slurm: Worker) -> None:
    assert slurm.job("--mem=100", "python3", "-c", FILL.format(50)).out.strip() == str(50 << 20)
    done = slurm.job("--mem=100", "python3", "-c", FILL.format(150))
    assert done.code != 0
    assert "Out Of Memory" in done.said


def test_root_in_the_worker_writes_no_cgroups_but_its_branch(slurm: Worker) -> None:
    """With those of the whole node it could stop whatever runs there."""
    assert slurm.root(WRITE).splitlines() == ["writes /sys/fs/cgroup/rocstack.slice/"]


def test_a_worker_that_starts_again_holds_jobs_too(slurm: Worker) -> None:
    """The scope of its last life is still there."""
    slurm.restart()
    assert held(slurm, "--gpus=2") == list(GPUS)


def test_a_job_outlives_a_clock_that_jumps(slurm: Worker) -> None:
    """As when somebody sets it by hand. Set back, Slurm starts no job until its controller has started again."""
    job = slurm.batch("--mem=100", "until [ -e /tmp/jumped ]; do sleep 0.2; done; rm /tmp/jumped")
    slurm.jump(2)
    slurm.root("touch /tmp/jumped")
    slurm.ended(job)
    slurm.ready()
    assert held(slurm, "--gpus=1") == [GPUS[0]]

    job = slurm.batch("--mem=100", "until [ -e /tmp/jumped ]; do sleep 0.2; done; rm /tmp/jumped")
    slurm.jump(-2)
    slurm.root("touch /tmp/jumped")
    slurm.ended(job)
    slurm.restart_controller()
    slurm.ready()
    assert held(slurm, "--gpus=1") == [GPUS[0]]
