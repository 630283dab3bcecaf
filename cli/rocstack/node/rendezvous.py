"""Where the ranks of a Slurm job meet: the variables that launchers and frameworks read. Standard library only.

Slurm gives every user's job number and nodes to everybody, so a port that follows from them is known to all. Here it
follows from a secret of the job, that every node of the cluster can make and that only the job's user can read.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from . import hostlist

MUNGE_KEY = Path("/etc/munge/munge.key")
# A file for each job. No epilog removes it: Slurm drains a node whose image is older and has none. It is worth nothing
# once its job is over.
SECRETS = Path("/run/rocstack/jobs")
KEPT = 1000  # the newest of each user, 4 kB of memory each
SECRET = "ROCSTACK_JOB_SECRET"
GIVEN = "ROCSTACK_RENDEZVOUS"  # what an outer step or the batch script was given, for the step that inherits it
PORTS = range(16384, 31384)  # above the daemons' ports, below those that Linux gives to outgoing connections
LOOPBACK = "127.0.0.1"


def write_secret(env: Mapping[str, str], folder: Path = SECRETS, key: Path = MUNGE_KEY) -> None:
    """As root, at the start of a job: the same secret on each of its nodes, readable by its user alone.

    Raises:
        OSError: the key can't be read, or the file can't be written.
        ValueError: Slurm doesn't say which job this is, and whose.
    """
    job, uid = int(env.get("SLURM_JOB_ID", "")), int(env.get("SLURM_JOB_UID", ""))
    secret = hmac.digest(key.read_bytes(), f"rocstack job {job} of {uid}".encode(), "sha256").hex()
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    file = folder / str(job)
    file.unlink(missing_ok=True)  # of a job that was requeued
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
    with os.fdopen(handle, "w") as stream:
        stream.write(secret)
        os.fchown(handle, uid, -1)
    for old in sorted(_of_user(folder, uid), reverse=True)[KEPT:]:  # nobody's jobs take away another's
        old[1].unlink(missing_ok=True)


def _of_user(folder: Path, uid: int) -> Iterator[tuple[int, Path]]:
    """When each was written, in ns, and the file."""
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # another job's prolog has removed it meanwhile
            about = file.lstat()
            if about.st_uid == uid:
                yield about.st_mtime_ns, file


def read_secret(env: Mapping[str, str], folder: Path = SECRETS) -> str:
    """Empty where the prolog wrote none."""
    try:
        return (folder / str(int(env.get("SLURM_JOB_ID", "")))).read_text()
    except (OSError, ValueError):
        return ""


def variables(env: Mapping[str, str], secret: str) -> dict[str, str]:
    """What a task of this environment is given. A batch script and mpirun's daemons have no rank: they get where the
    job's first node is, and a port; the tasks of an srun all of it, each step with a port of its own.

    Raises:
        ValueError: Slurm's variables are not what slurm.conf(5) and srun(1) say they are.
    """
    found = {SECRET: hmac.digest(secret.encode(), b"for programs", hashlib.sha256).hex()} if secret else {}
    step = "SLURM_STEP_NUM_TASKS" in env and "OMPI_TOOL_NAME" not in env
    of_step = "STEP_" if step else "JOB_"
    nodes = int(env[f"SLURM_{of_step}NUM_NODES"])
    host = hostlist.first(env[f"SLURM_{of_step}NODELIST"]) if nodes > 1 else LOOPBACK
    place = f"{env.get('SLURM_RESTART_COUNT', '0')} {env.get('SLURM_STEP_ID', '') if step else 'job'}"
    found.update(MASTER_ADDR=host, NNODES=str(nodes))
    if port := _port(secret, place):
        found["MASTER_PORT"] = port
    if not step:
        return found
    tasks, rank, node = env["SLURM_STEP_NUM_TASKS"], env["SLURM_PROCID"], env["SLURM_NODEID"]
    more = {
        "NODE_RANK": node,
        "WORLD_SIZE": tasks,
        "RANK": rank,
        "LOCAL_RANK": env["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(_tasks_per_node(env["SLURM_STEP_TASKS_PER_NODE"])[int(node)]),
        # JAX and MaxText: maxtext/max_utils.py, initialize_jax_for_cpu and initialize_jax_for_gpu
        "JAX_COORDINATOR_IP": host,
        "JAX_PROCESS_COUNT": tasks,
        "PROCESSES_IN_JOB": tasks,
        "JOB_INDEX": "0",
        "JOB_COMPLETION_INDEX": rank,
    }
    found.update(more)
    if port:
        found.update(JAX_COORDINATOR_PORT=port, JAX_COORDINATOR_ADDRESS=f"{host}:{port}")
    if int(tasks) == nodes:
        # torchrun's own arguments, as variables: torch/distributed/argparse_util.py
        found.update(PET_NNODES=str(nodes), PET_NODE_RANK=node, PET_MASTER_ADDR=host)
        if port:
            found["PET_MASTER_PORT"] = port
    return found


def lines(env: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """`found` as Slurm's TaskProlog prints it. What the job set itself stays; what an outer step or the batch script
    was given doesn't: an srun hands its own environment to its tasks."""
    outer = dict(each.split("=", 1) for each in env.get(GIVEN, "").split() if "=" in each)
    theirs = {name for name, value in outer.items() if env.get(name) == value}
    given = {name: value for name, value in found.items() if name not in env or name in theirs}
    said = [f"unset {name}" for name in sorted(theirs - set(given))]
    said += [f"export {name}={value}" for name, value in given.items()]
    return [*said, f"export {GIVEN}={' '.join(f'{name}={value}' for name, value in given.items())}"]


def taken(env: Mapping[str, str], found: Mapping[str, str]) -> str:
    """What Slurm's TaskProlog prints for the task that will listen, if the port is taken on its node; else empty. The
    other nodes make the port by themselves and hear nothing of this one, so it can't be exchanged for another."""
    port = found.get("MASTER_PORT", "")
    listens = all(env.get(name, "0") == "0" for name in ("SLURM_NODEID", "SLURM_LOCALID"))
    if not listens or "OMPI_TOOL_NAME" in env or f"export MASTER_PORT={port}" not in lines(env, found):
        return ""
    try:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was closed just now is free
            trial.bind(("", int(port)))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            where = f"MASTER_PORT {port} is taken on {found['MASTER_ADDR']}, so ranks may not meet"
            return f"print rocstack: {where}; start the step again, or requeue the job: that gives another port"
    return ""


def _port(secret: str, place: str) -> str:
    if not secret:
        return ""
    number = int.from_bytes(hmac.digest(secret.encode(), f"port {place}".encode(), "sha256")[:8], "big")
    return str(PORTS[number % len(PORTS)])


def _tasks_per_node(text: str) -> list[int]:
    """Slurm's short form: `2(x3),1` is [2, 2, 2, 1]."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in parts for _ in range(int(times or 1))]
