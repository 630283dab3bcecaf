"""The trainer on a Slurm cluster of two containers: four ranks over both, killed, sent to the queue's end, preempted.

However it was interrupted, it ends with the weights of the run that was not.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slurm_containers import Cluster, until
from workspace import Built, engine

pytestmark = pytest.mark.engine

# A requeued job waits for cred_expire seconds. Jobs of `urgent` take the nodes of those in `train`.
NODES = """\
AuthInfo=cred_expire=10
SlurmdTimeout=60
PrologFlags=Alloc
Prolog=/usr/local/bin/rocstack-prolog
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-2] CPUs=4 State=UNKNOWN
PartitionName=train Nodes=ALL Default=YES PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF
"""
STEPS = 48  # so many that a run lasts while a busy machine starts a command
LAYOUT = ["-N2", "--ntasks-per-node=2"]
SRUN = ["srun", *LAYOUT, "--mpi=pmix"]
TRAIN = ["rocstack-train", "--config", "tiny", f"--steps={STEPS}", "--parallel.algorithm=hierarchical"]


class Site:
    """Two workers and a controller that share /scratch."""

    def __init__(self, cluster: Cluster, scratch: Path) -> None:
        self.cluster, self.scratch = cluster, scratch
        shared = f"--volume={scratch}:/scratch"
        # They start first: the controller waits long for the name of a node that isn't there.
        self.workers = [
            cluster.start(
                host, "worker", "--env=ROCSTACK_CONTROLLER=ctl", "--env=OMP_NUM_THREADS=1", shared, look="30s"
            )
            for host in ("n1", "n2")
        ]
        self.control = cluster.start("ctl", "control", cluster.settings(), shared, look="30s")
        for node in (self.control, *self.workers):
            until(node.health, "healthy", node)
        until(lambda: self.said("sinfo", "--noheader", "--format=%D %T"), "2 idle", self.control)

    def said(self, *command: str) -> str:
        return self.control.run(*command).stdout.strip()

    def train(self, name: str, *settings: str) -> list[str]:
        """The command of a run that keeps everything in /scratch/NAME."""
        (self.scratch / name).mkdir(exist_ok=True)
        files = [f"--checkpoint.dir=/scratch/{name}/ck", f"--output.metrics=/scratch/{name}/run.jsonl"]
        return [*TRAIN, *files, "--checkpoint.every=4", *settings]

    def steps(self, name: str) -> list[int]:
        file = self.scratch / name / "run.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)["step"] for line in lines if line.endswith("}") and '"step"' in line]

    def submit(self, name: str, *settings: str) -> str:
        """A batch job, sent its USR1 by `--signal` two minutes before its limit; gives its number."""
        script = f"#!/bin/sh\nexec srun --mpi=pmix {' '.join(self.train(name, *settings))}\n"
        (self.scratch / name / "job.sh").write_text(script)
        line = ["sbatch", "--parsable", *LAYOUT, "--requeue", "--open-mode=append", "--signal=USR1@120"]
        return self.said(*line, f"--output=/scratch/{name}/log", f"/scratch/{name}/job.sh")

    def log(self, name: str) -> str:
        file = self.scratch / name / "log"
        return file.read_text() if file.exists() else ""

    def job(self, number: str, field: str) -> str:
        found = re.search(rf"\b{field}=(\S+)", self.said("scontrol", "show", "job", number))
        assert found
        return found[1]


@pytest.fixture(scope="module")
def site(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    cluster = Cluster(built, tmp_path_factory.mktemp("cluster"), NODES)
    try:
        yield Site(cluster, tmp_path_factory.mktemp("scratch"))
    finally:
        cluster.close()


def wait(
    ready: Callable[[], object], what: str | Callable[[], str], seconds: float = 180, pause_s: float = 0.2
) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(pause_s)


def weights(text: str) -> str:
    found = re.findall(r"^weights sha256 ([0-9a-f]{64})$", text, re.MULTILINE)
    assert found, text
    return str(found[-1])


@pytest.fixture(scope="module")
def uninterrupted(site: Site) -> subprocess.CompletedProcess[str]:
    return site.control.run(*SRUN, *site.train("whole"))


def test_four_ranks_on_two_nodes(site: Site, uninterrupted: subprocess.CompletedProcess[str]) -> None:
    said = uninterrupted.stdout
    assert "4 rank(s) by srun, gloo on cpu" in said
    assert f"done: step {STEPS}" in said
    assert site.steps("whole") == list(range(1, STEPS + 1))
    assert weights(said)


@pytest.mark.slow
def test_a_killed_rank_ends_the_step_and_the_same_command_goes_on(
    site: Site, uninterrupted: subprocess.CompletedProcess[str]
) -> None:
    """As the check training-restart does it in test_verify, on a deployed cluster; here with the words of srun."""
    command = ["docker", "exec", site.control.name, *SRUN, *site.train("killed")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        wait(lambda: 6 in site.steps("killed"), "six steps")
        rank_3 = "for p in /proc/[0-9]*; do grep -qz ^SLURM_PROCID=3 $p/environ && kill -9 ${p#/proc/}; done"
        site.workers[1].run("bash", "-c", rank_3, check=False)
        _, err = run.communicate(timeout=60)
    assert run.returncode != 0
    assert "srun: error: n2: task 3: Killed" in err
    assert re.search(r"error: rank \d: .*(rank 3|n2|(\d+\.){3}\d+)", err), err
    assert "Traceback" not in err
    again = site.control.run(*SRUN, *site.train("killed"))
    assert "resume: step 4 from" in again.stdout
    assert weights(again.stdout) == weights(uninterrupted.stdout)


def test_a_job_at_its_limit_and_a_preempted_one_save_first_and_go_on_later(
    site: Site, uninterrupted: subprocess.CompletedProcess[str]
) -> None:
    """USR1 is what `sbatch --signal` sends before the time limit: the run asks for its place in the queue itself. A
    preempted job gets SIGTERM, and its place from Slurm."""
    job = site.submit("batch", "--checkpoint.requeue=true")
    wait(lambda: 5 in site.steps("batch"), "five steps")
    site.said("scancel", "--signal=USR1", job)
    wait(lambda: site.job(job, "Restarts") == "1", lambda: f"requeued\n{site.log('batch')}", pause_s=1)
    wait(lambda: 10 in site.steps("batch"), lambda: f"ten steps\n{site.log('batch')}")
    site.said("srun", "--partition=urgent", "-N2", "-n2", "--exclusive", "true")
    wait(lambda: site.job(job, "JobState") == "COMPLETED", lambda: f"completed\n{site.log('batch')}", pause_s=2)
    log = site.log("batch")
    assert site.job(job, "Restarts") == "2"
    assert f"requeue: job {job} is in the queue again" in log
    assert re.findall(r"stopped by (SIG\w+) at step", log) == ["SIGUSR1", "SIGTERM"]
    assert site.steps("batch") == list(range(1, STEPS + 1)), "saved where they were stopped: no step was made twice"
    assert weights(log) == weights(uninterrupted.stdout)


@pytest.mark.slow
def test_a_job_goes_on_after_a_node_was_killed(site: Site, uninterrupted: subprocess.CompletedProcess[str]) -> None:
    """It waits for a second one. At the latest after a minute of silence a node is down."""
    job = site.submit("lost")
    wait(lambda: 6 in site.steps("lost"), "six steps")
    engine("kill", site.workers[1].name)
    try:
        wait(
            lambda: site.job(job, "JobState") == "PENDING", lambda: site.said("scontrol", "show", "job", job), pause_s=1
        )
    finally:
        engine("start", site.workers[1].name)
    state = lambda: f"{site.said('scontrol', 'show', 'job', job)}\n{site.said('scontrol', 'show', 'nodes')}"  # noqa: E731
    wait(lambda: site.job(job, "JobState") == "COMPLETED", lambda: f"completed\n{state()}\n{site.log('lost')}", 300, 2)
    assert site.job(job, "Restarts") == "1"
    assert "resume: step" in site.log("lost")
    assert weights(site.log("lost")) == weights(uninterrupted.stdout)


@pytest.mark.parametrize(
    "start",
    [
        ["srun", "-N1", "-n2", "--mpi=pmix"],
        # Without Slurm the trainer's own tests have it, in this image.
        pytest.param(["mpirun", "--allow-run-as-root", "-n", "2"], marks=pytest.mark.slow),
    ],
)
def test_mpi_carries_the_gradients(site: Site, start: list[str]) -> None:
    train = ["rocstack-train", "--config", "tiny", "--steps=3", "--parallel.backend=mpi"]
    done = engine("exec", site.workers[0].name, *start, *train)
    assert f"2 rank(s) by {start[0]}, mpi on cpu" in done.stdout
    assert "done: step 3" in done.stdout
