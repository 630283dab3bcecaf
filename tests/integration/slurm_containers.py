"""A small Slurm cluster of the images: its nodes are containers on a network of their own."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workspace import Built, engine

from rocstack.container import privileges

# What a deploy gives the containers.
PRIVILEGES = {
    "control": (*privileges.LEAST, *privileges.SERVICE, *privileges.PORTS),
    "worker": (*privileges.LEAST, *privileges.WORKER),
}
# Without privileges there are no cgroups to put jobs in.
SLURM_CONF = """\
ClusterName=rocstack
SlurmctldHost=ctl
SlurmctldParameters=enable_configless
SlurmUser=slurm
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/var/lib/slurm/slurmctld.pid
MailProg=/bin/true
ReturnToService=2
MpiDefault=pmix
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
"""
CGROUP_CONF = "CgroupPlugin=disabled\n"


@dataclass(frozen=True)
class Node:
    name: str

    def run(self, *command: str, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        flags = [f"--env={key}={value}" for key, value in env.items()]
        return engine("exec", *flags, self.name, *command, check=check)

    def state(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(engine("inspect", "--format", "{{json .State}}", self.name).stdout)
        return found

    def health(self) -> str:
        health = self.state().get("Health")
        return str(health["Status"]) if isinstance(health, dict) else "none"

    def last_check(self) -> str:
        health = self.state()["Health"]
        assert isinstance(health, dict)
        return str(health["Log"][-1]["Output"])

    def remove(self) -> None:
        engine("rm", "--force", "--volumes", self.name, check=False)

    def log(self) -> str:
        done = engine("logs", self.name)
        return done.stdout + done.stderr


def until(said: Callable[[], str], wanted: str, node: Node, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while (now := said()) != wanted:
        assert time.monotonic() < deadline, f"{now!r} is not {wanted!r} after {seconds} s: {node.state()}\n{node.log()}"
        time.sleep(0.3)


class Cluster:
    def __init__(self, built: Built, folder: Path, settings: str) -> None:
        """`settings` are the last lines of slurm.conf: its nodes and partitions."""
        self.built, self.folder = built, folder
        self.network = f"{built.workspace.prefix}-net"
        self.made: list[Node] = []
        for name in ("right.key", "wrong.key"):
            (folder / name).write_bytes(secrets.token_bytes(1024))
            (folder / name).chmod(0o400)
        (folder / "etc").mkdir()
        (folder / "etc/slurm.conf").write_text(SLURM_CONF + settings)
        (folder / "etc/cgroup.conf").write_text(CGROUP_CONF)
        for path in (folder, folder / "etc"):
            path.chmod(0o755)
        engine("network", "create", self.network)

    def start(self, host: str, role: str, *flags: str, key: str = "right.key", look: str = "1s") -> Node:
        """Its health is looked at every second, not every 30, or this would take minutes; once it is well, as often as
        `look` says: it costs a third of a second of a processor."""
        node = Node(f"{self.built.workspace.prefix}-{host}")
        line = ["--detach", "--name", node.name, "--hostname", host, "--network", self.network, "--network-alias", host]
        line += ["--volume", f"{self.folder / key}:/run/secrets/munge.key:ro", "--shm-size=256m"]
        begin = "1s" if look == "1s" else "120s"
        line += [f"--health-interval={look}", "--health-start-interval=1s", f"--health-start-period={begin}"]
        line += ["--health-retries=1"]
        engine("run", *line, *PRIVILEGES[role], *flags, self.built.workspace.reference(role))
        self.made.append(node)
        return node

    def settings(self) -> str:
        return f"--volume={self.folder / 'etc'}:/etc/slurm:ro"

    def close(self) -> None:
        for node in self.made:
            node.remove()
        engine("network", "rm", self.network, check=False)
