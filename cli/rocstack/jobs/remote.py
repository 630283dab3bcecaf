"""Slurm's commands on the control node, as the job's owner: by ssh, in the controller's container."""

import re
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rocstack.base.errors import BadInput, CheckFailed, RocstackError, hinted
from rocstack.base.text import last_line
from rocstack.cluster.settings import Person
from rocstack.deploy.read import inventory as inventories
from rocstack.deploy.read import inventory_text
from rocstack.deploy.read.inventory import Inventory
from rocstack.deploy.read.inventory_groups import CONTROL
from rocstack.edge import ssh
from rocstack.edge.ssh import SshHost
from rocstack.jobs import slurm
from rocstack.jobs.pools import Pool
from rocstack.jobs.slurm import Job, JobRecord
from rocstack.node.containers import CONTROLLER, WORKER
from rocstack.node.recording import MODEL_FILE

NUMBER = re.compile(r"\d{1,12}(_\d{1,10})?")
PIECE = 1 << 20  # bytes of a log that are read at a time
AT_ONCE = 32  # nodes that are asked side by side
LOG_END = 256 << 10  # bytes of the end of a log, in which srun says what failed


@dataclass(frozen=True)
class SlurmControl:
    """The way to Slurm: the control node of an inventory."""

    path: Path
    ssh_host: SshHost

    @cached_property
    def inventory(self) -> Inventory:
        """Read where a command needs more of it than the way to Slurm: that takes Ansible a second."""
        return inventories.load(self.path)

    def run(self, command: Sequence[str], user: str = "", text: str = "") -> tuple[int, str, str]:
        """In the controller's container; without a user as root. Gives the exit status and both outputs.

        Raises:
            BadInput: the cluster has no such user.
            CheckFailed: ssh doesn't get through, or the container isn't there.
        """
        return _inside(self.ssh_host, CONTROLLER, command, user, text)

    def pools(self) -> list[Pool]:
        """
        Raises:
            CheckFailed: Slurm doesn't answer.
        """
        code, out, err = self.run(["sinfo", "--noheader", "--format=%P\x1f%D\x1f%l\x1f%G"])
        if code:
            raise CheckFailed.of("slurm-silent", control=self.ssh_host.host, why=last_line(err or out))
        found: dict[str, Pool] = {}
        for line in out.splitlines():
            cells = line.split("\x1f")
            if len(cells) != 4 or not re.fullmatch("[0-9]{1,7}", cells[1]):
                continue
            name, gpus, kind = cells[0].removesuffix("*"), slurm.gpus(cells[3]), slurm.gpu_kind(cells[3])
            before = found.get(name)
            nodes = int(cells[1]) + (before.nodes if before else 0)
            most = max(gpus, (before.most if before else None) or 0)
            if before and (before.gpus, before.gpu) != (gpus, kind):
                gpus, kind = gpus if before.gpus == gpus else 0, ""
            found[name] = Pool(name, nodes, cells[2], gpus, cells[0].endswith("*"), kind, most)
        return list(found.values())

    def submit(self, script: str, user: str) -> str:
        """The job's number.

        Raises:
            CheckFailed: Slurm refuses it.
        """
        code, out, err = self.run(["sbatch"], user, script)
        if found := re.search(r"Submitted batch job (\d+)", out):
            return found[1]
        why = last_line(err or out).removeprefix("sbatch: error: ") or f"sbatch ended with {code}"
        raise CheckFailed.of("submission-refused", why=why, user=user)

    def token(self, user: str, seconds: int) -> str:
        """By which slurmrestd and the service know the user for so long.

        Raises:
            CheckFailed: Slurm makes none.
        """
        code, out, err = self.run(["scontrol", "token", f"username={user}", f"lifespan={seconds}"])
        found = re.search(r"^SLURM_JWT=([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+)$", out, re.MULTILINE)
        if code or not found:
            raise CheckFailed.of("no-token-made", user=user, why=last_line(err) or f"scontrol ended with {code}")
        return found[1]

    def queue(self, user: str = "") -> list[Job]:
        """
        Raises:
            CheckFailed: Slurm doesn't answer.
        """
        mark = f"{secrets.token_hex(8)} "
        line = ["squeue", "--noheader", "--states=all", f"--format={mark}{slurm.SQUEUE}"]
        code, out, err = self.run([*line, *([f"--user={user}"] if user else [])])
        if code:
            raise CheckFailed.of("slurm-silent", control=self.ssh_host.host, why=last_line(err or out))
        return slurm.queue(out, mark)

    def record(self, job: str) -> JobRecord:
        """
        Raises:
            BadInput: there is no such job.
            CheckFailed: Slurm's accounting doesn't answer.
        """
        if not NUMBER.fullmatch(job):
            raise BadInput.of("bad-job-number", job=job)
        code, out, err = self.run(["sacct", "--json", f"--jobs={job}", "--allocations"])
        try:
            found = None if code else slurm.record(out)
        except ValueError as error:
            raise CheckFailed.of("slurm-silent", control=self.ssh_host.host, why=str(error)) from None
        if code:
            raise CheckFailed.of("slurm-silent", control=self.ssh_host.host, why=last_line(err or out))
        if found is None:
            raise BadInput.of("no-such-job", job=job)
        if not slurm.USERS.fullmatch(found.user):  # commands run in this name
            raise CheckFailed.of("slurm-silent", control=self.ssh_host.host, why=f"no user's name: {found.user!r:.60}")
        return found

    def change(self, job: JobRecord, *command: str) -> None:
        """A command of Slurm, as the job's owner.

        Raises:
            CheckFailed: Slurm refuses it.
        """
        code, out, err = self.run([*command, job.id], job.user)
        if code:
            raise CheckFailed.of("job-unchanged", job=job.id, why=last_line(err or out))

    def places(self, nodes: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Of workers that answer: which machine each is (by its start), and the model of a virtual node."""
        known = [name for name in nodes if "worker" in self.inventory.roles(name)]
        hosts = ssh.ssh_hosts(self.path, known) if known else {}
        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            return {name: found for name, found in zip(hosts, pool.map(_place, hosts.values()), strict=True) if found}

    def file(self, path: str, user: str, most: int) -> bytes:
        """The beginning of a file on the first worker, read as this user.

        Raises:
            CheckFailed: it isn't there, or the node doesn't answer.
        """
        node = self.inventory.workers[0].name
        line = _line(WORKER, [*ssh.bounded(ssh.TIMEOUT_S), "head", f"--bytes={most}", "--", path], user)
        said = ssh.raw_output(ssh.ssh_hosts(self.path, [node])[node], line, most)[1]
        if not said:
            raise CheckFailed.of("no-file-there", path=path, node=node, user=user)
        return said

    def log(self, job: JobRecord) -> "Log":
        """
        Raises:
            CheckFailed: it has none yet, or its node is none of the inventory.
        """
        node = job.first_node
        if not node or not job.log.startswith("/"):
            raise CheckFailed.of("no-log-yet", job=job.id, state=job.state, why=job.why)
        if "worker" not in self.inventory.roles(node):
            raise CheckFailed.of("log-elsewhere", job=job.id, node=node, path=self.path)
        return Log(ssh.ssh_hosts(self.path, [node])[node], job)


@dataclass(frozen=True)
class Log:
    """The output of a job, on the first of its nodes. It is read as its owner, who may have put a link there."""

    ssh_host: SshHost
    job: JobRecord

    def read(self, offset: int = 0) -> bytes:
        """At most PIECE bytes from `offset` on; empty where the file ends, or isn't there yet."""
        return self._tail(f"--bytes=+{offset + 1}", PIECE)

    def end(self, size: int = LOG_END) -> str:
        return self._tail(f"--bytes={size}", size).decode(errors="replace")

    def _tail(self, option: str, most: int) -> bytes:
        # A file without an end, such as a pipe, is read no longer than we wait.
        tail = [*ssh.bounded(ssh.TIMEOUT_S), "tail", option, "--", self.job.log]
        line = _line(WORKER, tail, self.job.user)
        return ssh.raw_output(self.ssh_host, line, most)[1]


def controller(path: Path) -> SlurmControl:
    """
    Raises:
        BadInput, Missing, CheckFailed: as the inventory's reader and `ssh.ssh_hosts`.
    """
    inventory_text.refuse_lost(path)
    try:
        (ssh_host,) = ssh.ssh_hosts(path, [CONTROL]).values()
    except (RocstackError, ValueError):
        control = inventories.load(path).control.name  # says best what is wrong with the inventory
        ssh_host = ssh.ssh_hosts(path, [control])[control]
    return SlurmControl(path, ssh_host)


def owner(given: str | None, here: str, users: dict[str, Person]) -> str:
    """Whose job it is: who is named, or the person at this machine, or the cluster's only user.

    Raises:
        BadInput: nobody can be told, or the cluster has no such user.
    """
    if given:
        if given not in users:
            raise BadInput.of("unknown-user", user=given, hint=hinted(given, users))
        return given
    if here in users:
        return here
    if len(users) == 1:
        return next(iter(users))
    raise BadInput.of("whose-job", users=", ".join(users)) if users else BadInput.of("no-users")


def _place(ssh_host: SshHost) -> tuple[str, str] | None:
    try:
        said = ssh.run(
            ssh_host, ["sh", "-c", f"cat /proc/sys/kernel/random/boot_id; cat {MODEL_FILE} 2>/dev/null"]
        ).stdout
    except CheckFailed:
        return None
    found = re.fullmatch(r"([0-9a-f-]{36})\n([a-z0-9-]{0,63})\n?", said)
    return (found[1], found[2]) if found else None


def _inside(
    ssh_host: SshHost, container: str, command: Sequence[str], user: str, text: str = ""
) -> tuple[int, str, str]:
    done = ssh.run(ssh_host, _line(container, command, user), text=text)
    if done.returncode == ssh.FAILED:
        raise ssh_host.error("no way to", done.stderr)
    if "unable to find user" in done.stderr or "no matching entries in passwd" in done.stderr:
        raise BadInput.of("user-not-deployed", user=user)
    if done.returncode in (1, 126) and "No such container" in done.stderr:
        raise CheckFailed.of("no-controller", control=ssh_host.host)
    return done.returncode, done.stdout, done.stderr


def _line(container: str, command: Sequence[str], user: str) -> list[str]:
    """A job inherits the environment of sbatch, and the container's is nobody else's business."""
    start = ["docker", "exec", "--interactive"]
    if not user:
        return [*start, container, *command]
    own = [f"HOME=/home/{user}", f"USER={user}", f"LOGNAME={user}", "SHELL=/bin/bash", "LANG=C.UTF-8"]
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return [
        "docker",
        "exec",
        "--interactive",
        "--user",
        user,
        container,
        "env",
        "--ignore-environment",
        *own,
        path,
        *command,
    ]
