"""Jobs on two deployed nodes, as a person submits them: they are their owner's, meet, and say what failed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from deployed_cluster import DeployedCluster, until
from workspace import Outcome

pytestmark = pytest.mark.engine

SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print(f"sum {int(total)} of {dist.get_world_size()} local {os.environ['LOCAL_RANK']}", flush=True)
dist.barrier()
os._exit(0)
"""
RECORDER = """
import json, os, sys
names = "RANK LOCAL_RANK WORLD_SIZE NODE_RANK NNODES MASTER_ADDR MASTER_PORT JAX_COORDINATOR_IP GPUS_PER_NODE"
env = {name: os.environ[name] for name in (*names.split(), "GLOO_SOCKET_IFNAME", "SLURM_NODEID") if name in os.environ}
with open(f"seen-{env['NODE_RANK']}-{env['RANK']}", "w") as file:  # in the job's folder
    json.dump({"argv": sys.argv[1:], **env}, file)
"""
PLACE = "/tmp/test-recipes"  # of recorders, where the frameworks' own programs would be
RECORDERS = (
    "recorder.py", "torchtitan/train.py", "pretrain_gpt.py", "maxtext/trainers/pre_train/train.py"
)  # fmt: skip
PRIMUS = '#!/bin/sh\nexec python3 recorder.py "$@"\n'
TORCHRUN = [{"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4"} for rank in range(4)]
EACH_NODE = [{"NODE_RANK": str(node), "NNODES": "2", "WORLD_SIZE": "2"} for node in range(2)]
# recipe: its parameters, arguments; what each process is told, and some of the words that it gets
FRAMEWORKS: dict[str, tuple[dict[str, str], list[str], list[dict[str, str]], list[str]]] = {
    "torchtitan": (
        {"folder": PLACE, "config": "llama3_70b"},
        ["--training.steps=7"],
        TORCHRUN,
        ["--module", "llama3", "--config", "llama3_70b", "--training.steps=7"],
    ),
    "megatron-lm": (
        {"folder": PLACE, "tp": "2", "batch": "64"},
        ["--num-layers", "4"],
        TORCHRUN,
        ["--tensor-model-parallel-size", "2", "--global-batch-size", "64", "--num-layers"],
    ),
    "megatron-deepspeed": (
        {"folder": PLACE, "config": "/z.json", "tp": "2", "pp": "2"},
        ["--num-layers", "4"],
        TORCHRUN,
        ["--deepspeed_config", "/z.json", "--pipeline-model-parallel-size", "2", "--zero-stage", "1"],
    ),
    "maxtext": ({"output": "/tmp/out"}, ["ici_fsdp_parallelism=2"], EACH_NODE, ["hardware=gpu", "steps=100"]),
    "primus": ({"folder": PLACE, "config": "/x.yaml"}, [], EACH_NODE, ["direct", "--", "train", "pretrain"]),
}
MPI = "from mpi4py import MPI; w = MPI.COMM_WORLD; print('sum', w.allreduce(w.rank), 'of', w.size)"
NODES = ("n1", "n2")


def inside(deployed: DeployedCluster, node: str, command: str, check: bool = True) -> str:
    return deployed.ssh(node, f"docker exec --user alice rocstack-worker sh -c {shlex.quote(command)}", check)


@contextmanager
def program(deployed: DeployedCluster, text: str) -> Iterator[str]:
    """A file on both nodes."""
    with files(deployed, {f"{PLACE}/test.py": text}):
        yield f"{PLACE}/test.py"


@contextmanager
def files(deployed: DeployedCluster, texts: dict[str, str]) -> Iterator[None]:
    """Programs on both nodes, below PLACE."""
    parts = [
        f"mkdir -p $(dirname {path}) && printf %s {shlex.quote(text)} >{path} && chmod +x {path}"
        for path, text in texts.items()
    ]
    try:
        for node in NODES:
            inside(deployed, node, " && ".join(parts))
        yield
    finally:
        for node in NODES:
            inside(deployed, node, f"rm -rf {PLACE}")


def submit(deployed: DeployedCluster, *words: str, code: int = 0) -> Outcome:
    """Followed to its end."""
    return deployed.run("submit", "--gpus-per-node", "0", "--follow", *words, code=code)


def queued(deployed: DeployedCluster, *words: str) -> str:
    return str(json.loads(deployed.run("submit", "--json", "--gpus-per-node", "0", *words).out)["id"])


STARTED = "docker inspect --format '{{.State.StartedAt}}' rocstack-worker"


def show(deployed: DeployedCluster, job: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = deployed.json("job", "show", job, code=code)
    return found


def test_torchrun_finds_its_other_node_without_an_argument(deployed: DeployedCluster) -> None:
    with program(deployed, SUM) as path:
        said = submit(deployed, "torchrun", "--nodes", "2", "--set", f"script={path}", "--set", "processes=2").out
    assert said.count("sum 6 of 4 local 0") == said.count("sum 6 of 4 local 1") == 2


def test_srun_itself_starts_ranks_that_find_each_other(deployed: DeployedCluster) -> None:
    with program(deployed, SUM) as path:
        words = ("mine", "--nodes", "2", "--tasks-per-node", "2", "--", "python3", path)
        said = submit(deployed, *words).out
    assert sorted(line.split(":")[0] for line in said.splitlines() if "sum 6 of 4" in line) == ["0", "1", "2", "3"]


def test_each_framework_is_told_its_ranks_and_where_they_meet(deployed: DeployedCluster) -> None:
    """Its own program is a recorder: none of them is in the image, and none of them trains on CPUs."""
    texts = {f"{PLACE}/{recipe}/{each}": RECORDER for recipe in FRAMEWORKS for each in RECORDERS}
    with files(deployed, texts | {f"{PLACE}/primus/runner/primus-cli": PRIMUS}):
        jobs = {}
        for recipe, (values, arguments, _, _) in FRAMEWORKS.items():
            folder = f"{PLACE}/{recipe}"
            given = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
            asked = ["--nodes", "2", "--gpus-per-node", "2", "--folder", folder, "--json"]
            asked += [word.replace(f"={PLACE}", f"={folder}") for word in given]
            said = deployed.run("submit", recipe, *asked, *(["--", *arguments] if arguments else [])).json
            jobs[recipe] = said["id"]
        until(lambda: deployed.jobs().keys().isdisjoint(map(int, jobs.values())), 300, deployed.jobs, 5)
        for recipe, (_, _, told, words) in FRAMEWORKS.items():
            command = f"cat {PLACE}/{recipe}/seen-* | sed 's/}}{{/}}\\n{{/g'"
            lines = [line for node in NODES for line in inside(deployed, node, command).splitlines()]
            seen = [json.loads(line) for line in lines]
            rank = "LOCAL_RANK" if told is TORCHRUN else "NODE_RANK"
            seen.sort(key=lambda each: (each["SLURM_NODEID"], each[rank]))
            found = [{name: each.get(name) for name in told[0]} for each in seen]
            assert found == told, (recipe, deployed.run("job", "logs", jobs[recipe]).out)
            assert {each["MASTER_ADDR"] for each in seen} == {"n1"}, recipe
            assert len({each["MASTER_PORT"] for each in seen}) == 1, recipe
            assert all(set(words) <= set(each["argv"]) for each in seen), (recipe, seen[0]["argv"])
            assert all(each.get("GLOO_SOCKET_IFNAME") for each in seen), recipe
            if recipe == "maxtext":
                assert {each["JAX_COORDINATOR_IP"] for each in seen} == {"n1"}
            if recipe == "primus":
                assert {each["GPUS_PER_NODE"] for each in seen} == {"2"}


def test_groups_of_the_trainer_meet_in_a_store_beside_them(deployed: DeployedCluster) -> None:
    words = ("diloco", "--nodes", "2", "--set", "steps=4", "--set", "inner_steps=2")
    said = submit(deployed, *words).out
    assert said.count("done: step 4") == 2, said


def test_mpi_by_srun_and_by_mpirun(deployed: DeployedCluster) -> None:
    words = ("mine", "--nodes", "2", "--tasks-per-node", "2", "--", "python3", "-c", MPI)
    assert submit(deployed, *words).out.count("sum 6 of 4") == 4
    mpirun = f"OMPI_MCA_mpi_yield_when_idle=1 mpirun -n 4 python3 -c {shlex.quote(MPI)}"
    said = inside(deployed, "n1", f"salloc -N2 --ntasks-per-node=2 sh -c {shlex.quote(mpirun)} 2>&1")
    assert said.count("sum 6 of 4") == 4


def test_the_trainer_as_its_owner(deployed: DeployedCluster) -> None:
    done = submit(deployed, "trainer", "--nodes", "2", "--set", "steps=2")
    assert "2 rank(s) by srun" in done.out
    assert "done: step 2" in done.out
    job = done.err.split()[1]
    assert show(deployed, job)["user"] == "alice"
    assert submit(deployed, "mine", "--", "id", "-u").out.splitlines()[0] == "2000"


@pytest.mark.parametrize("asks", ["--export=NONE", "--get-user-env=10L"])
def test_a_job_that_brings_no_environment_gets_a_users_own_and_ends_no_slurmd(
    deployed: DeployedCluster, asks: str
) -> None:
    """Slurm's own way, by a namespace, ended slurmd and with it everybody's jobs on the node."""
    before = deployed.containers("n2")["rocstack-worker"], deployed.ssh("n2", STARTED)
    inside = "docker exec --user alice --workdir /home/alice rocstack-worker"
    wrap = shlex.quote("echo $HOME $USER $PATH")
    asked = f"{inside} sbatch --wait --nodelist=n2 {asks} --output=/home/alice/none.log --wrap {wrap}"
    deployed.ssh("n1", asked)
    said = deployed.ssh("n2", f"{inside} cat none.log")
    assert re.search(r"^/home/alice alice .*/usr/bin", said, re.MULTILINE)
    assert before == (deployed.containers("n2")["rocstack-worker"], deployed.ssh("n2", STARTED))


def test_a_job_that_takes_the_names_of_others_steps_stops_none(deployed: DeployedCluster) -> None:
    """Slurm's PMIx makes a folder for each step; /tmp is everybody's."""
    nodes = ("n1", "n2")
    last = int(queued(deployed, "mine", "--", "true"))
    names = " ".join(f"/tmp/spmix_appdir_2000_{job}.0" for job in range(last, last + 20))
    for node in nodes:
        deployed.ssh(node, f"docker exec --user 65534 rocstack-worker mkdir {names}")
    try:
        said = submit(deployed, "mine", "--nodes", "2", "--", "echo", "started").out
        assert said.count("started") >= 2
    finally:
        for node in nodes:
            deployed.ssh(node, f"docker exec rocstack-worker rmdir {names}")


def test_a_user_makes_no_token_that_lasts_for_years(deployed: DeployedCluster) -> None:
    def ask(seconds: int) -> str:
        word = f"scontrol token lifespan={seconds} 2>&1 || true"
        return deployed.ssh("n1", f"docker exec --user alice rocstack-worker {word}")

    assert ask(28800).startswith("SLURM_JWT=")
    assert "SLURM_JWT=" not in ask(1_000_000_000)


def test_a_job_goes_on_where_slurmd_is_ended(deployed: DeployedCluster) -> None:
    """As a damaged message does it."""
    before = deployed.ssh("n2", STARTED)
    job = queued(deployed, "mine", "--nodes", "2", "--", "sh", "-c", "until [ -e /tmp/goes-on ]; do sleep 0.2; done")
    until(lambda: deployed.state(job) == "RUNNING", 60)
    look = "docker exec rocstack-worker pgrep -x slurmd"
    slurmd = deployed.ssh("n2", look)
    deployed.ssh("n2", "docker exec rocstack-worker pkill -SEGV -x slurmd")
    until(lambda: deployed.ssh("n2", look, check=False) not in ("", slurmd), 60)
    for node in ("n1", "n2"):
        deployed.ssh(node, "docker exec rocstack-worker touch /tmp/goes-on")
    until(lambda: deployed.state(job) != "RUNNING", 90)
    for node in ("n1", "n2"):
        deployed.ssh(node, "docker exec rocstack-worker rm /tmp/goes-on")
    assert deployed.state(job) == "COMPLETED", deployed.workspace.run("job", "logs", job).out
    assert before == deployed.ssh("n2", STARTED)
    deployed.idle()


TAKE = """
import socket
for port in range(297, 301):
    try: socket.create_server(("", port), reuse_port=True)
    except PermissionError: print("refused", port)
"""


def test_no_job_listens_at_a_port_of_slurms(deployed: DeployedCluster) -> None:
    """Whoever has it while the daemon is away is believed."""
    with program(deployed, TAKE) as path:
        said = submit(deployed, "mine", "--nodes", "2", "--", "python3", path).out
    assert [said.count(f"refused {port}\n") for port in range(297, 301)] == [2, 2, 2, 2]


def test_a_job_that_fails_says_which_task_was_the_first(deployed: DeployedCluster) -> None:
    command = 'if [ "$RANK" = 1 ]; then echo the reason; exit 3; fi; sleep 60'
    done = submit(deployed, "mine", "--nodes", "2", "--", "sh", "-c", command, code=1)
    assert "task 1 on n2 first: Exited with exit code 3" in done.out
    job = done.err.split()[1]
    found = show(deployed, job, code=1)
    assert (found["state"], found["failed"]["node"]) == ("FAILED", "n2")
    assert found["failed"]["how"] == "Exited with exit code 3"
    assert found["failed"]["lines"][0] == "the reason"
    assert deployed.run("job", "logs", job, "--rank", "1").out.splitlines()[0] == "the reason"


def test_a_script_that_fails_at_once_says_so(deployed: DeployedCluster) -> None:
    given = ("--set", "folder=/tmp/not-there", "--set", "batch=8", "--nodes", "2", "--gpus-per-node", "1")
    job = str(json.loads(deployed.run("submit", "megatron-lm", "--json", *given, "--", "--lr", "1").out)["id"])
    until(lambda: deployed.state(job) == "FAILED", 60)
    shown = deployed.run("job", "show", job, code=1).out
    assert "the script, on n1: Exited with exit code 1; its last lines:" in shown
    assert "/tmp/not-there: No such file or directory" in shown


def test_the_queue_says_why_a_job_waits(deployed: DeployedCluster) -> None:
    long = queued(deployed, "trainer", "--nodes", "2", "--name", "long", "--time", "30m", "--set", "steps=100000")
    wide = queued(deployed, "mine", "--nodes", "2", "--", "true")
    try:
        until(lambda: deployed.state(long) == "RUNNING", 60)
        until(lambda: any(each["id"] == wide and each["why"] and each["start"] for each in queue(deployed)), 90)
        assert "no log yet" in deployed.run("job", "logs", wide, code=1).err
        deployed.run("job", "requeue", long)
        until(lambda: deployed.state(wide) in ("RUNNING", "COMPLETED"), 90)
        assert {each["id"]: each["why"] for each in queue(deployed)}[long]
    finally:
        for job in (long, wide):
            deployed.workspace.run("job", "cancel", job)
    until(lambda: deployed.state(long) == "CANCELLED", 60)
    deployed.idle()


def queue(deployed: DeployedCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deployed.json("jobs")["jobs"]
    return found


def test_the_secret_of_a_job_is_its_owners(deployed: DeployedCluster) -> None:
    names = "env | sed -n s/^ROCSTACK_JOB_SECRET=//p; env | sed -n s/^MASTER_PORT=//p"
    told = f"{names}; stat -c '%a %U' /run/rocstack/jobs/$SLURM_JOB_ID"
    said = submit(deployed, "mine", "--nodes", "2", "--", "sh", "-c", told).out
    lines = [line for line in said.splitlines() if "slurmstepd" not in line]  # of cgroup v1, in a container
    ranks = {rank: [line.partition(": ")[2] for line in lines if line.startswith(f"{rank}: ")] for rank in "01"}
    assert ranks["0"] == ranks["1"]
    assert len(ranks["0"][0]) == 64
    assert ranks["0"][1].isdigit()
    assert ranks["0"][2:] == ["400 alice"]


def test_what_the_cluster_cannot_do_is_refused(deployed: DeployedCluster) -> None:
    assert deployed.refused("submit", "trainer", "--nodes", "3") == (2, "too-many-nodes")
    assert deployed.refused("submit", "trainer", "--partition", "trian") == (2, "unknown-partition")
    assert deployed.refused("submit", "trainer", "--user", "bob") == (2, "unknown-user")
    assert deployed.refused("submit", "trainer", "--account", "nobodys") == (1, "submission-refused")
    assert deployed.refused("job", "show", "999999") == (2, "no-such-job")
    assert deployed.json("jobs", "--user", "nobody")["jobs"] == []


def test_a_model_gets_the_nodes_that_it_needs(deployed: DeployedCluster) -> None:
    """Of the GPUs that Slurm knows of."""
    asked = ("submit", "maxtext", "--set", "output=/out", "--set")
    assert deployed.refused(*asked, "model=llama3.1-405b") == (2, "job-too-big")
    printed = deployed.run(*asked, "model=llama3.1-8b", "--print")
    assert printed.err.startswith("1 GPU of one node, the fewest that fit: llama3.1-8b needs ")
    assert "#SBATCH --gpus-per-node=1\n" in printed.out
    assert "#SBATCH --exclusive" not in printed.out
    job = deployed.json(*asked, "model=llama3.1-8b")
    assert job["why"] + "\n" == printed.err
    until(lambda: deployed.state(job["id"]) == "FAILED", 60)  # there is no MaxText
    assert show(deployed, job["id"], 1)["nodes"] == 1
