"""The deployed cluster as the suite's experiments reach it: its nodes by ssh, its containers, its Slurm."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from testinfra.backend.base import CommandResult
from testinfra.host import Host

from rocstack.cluster.settings import Cluster as Settings
from rocstack.deploy import inventory as inventories
from rocstack.deploy import look, services, status
from rocstack.deploy.looked import Looked
from rocstack.errors import CheckFailed
from rocstack.node import slurm_state
from rocstack.node.profile import NodeProfile
from rocstack.verify import hosts
from rocstack.verify.check import HARDWARE
from rocstack.verify.record import Node
from rocstack.verify.slurm import USER, Slurm

_PROFILE = TypeAdapter(NodeProfile)


@dataclass(frozen=True)
class Cluster:
    """`hosts` are the nodes that were reached, as root; `settings` what rocstack.yml says of the cluster."""

    looked: Looked
    settings: Settings
    hosts: Mapping[str, Host]
    slurm: Slurm
    level: int = 0  # up to which checks are run

    @property
    def control(self) -> str:
        return self.looked.inventory.control.name

    @property
    def workers(self) -> tuple[str, ...]:
        """Those that were reached."""
        return tuple(host.name for host in self.looked.inventory.workers if host.name in self.hosts)

    @property
    def ready(self) -> tuple[str, ...]:
        """Workers on which jobs can start, at once or when others end."""
        rows = self.looked.slurm.nodes or {}
        return tuple(name for name in self.workers if name in rows and not _no_jobs(rows[name]))

    def on(self, node: str, command: str, seconds: float = 60) -> CommandResult:
        """As root, beside the containers."""
        return self.hosts[node].run(command, seconds=seconds)

    def everywhere(self, command: str, names: Iterable[str] = (), seconds: float = 60) -> dict[str, CommandResult]:
        """On `names` (default: all nodes) at once."""
        return hosts.everywhere(self.hosts, names or self.hosts, command, seconds=seconds)

    def in_workers(self, command: str, names: Iterable[str] = (), seconds: float = 60) -> dict[str, CommandResult]:
        """A shell command as root in the workers' containers."""
        line = shlex.join(["docker", "exec", services.WORKER, "sh", "-c", command])
        return self.everywhere(line, names or self.workers, seconds)

    def python(self, program: Path, names: Iterable[str] = (), seconds: float = 60) -> dict[str, Any]:
        """A program of ours on the nodes themselves, which prints one JSON value: node -> that, or {"error": why}."""
        source = program.read_text(encoding="utf-8")
        return {node: _answer(done) for node, done in self.everywhere(_python(source), names, seconds).items()}

    def allocated(self) -> tuple[str, ...]:
        """The nodes on which steps can run.

        Raises:
            CheckFailed: no node is to be had.
        """
        if not self.ready:
            raise CheckFailed(
                "no worker takes jobs",
                code="no-allocation",
                next_step=f"`rocstack status {self.looked.inventory.path}` says what is wrong with them",
            )
        self.slurm.gpus = self._gpus() if self.level >= HARDWARE else 0
        return self.slurm.allocate(self.ready)

    def _gpus(self) -> int:
        """Real ones, that every node has which takes jobs: what is measured on them must have the nodes for itself."""
        nodes = [self.looked.gathered.node(name) for name in self.ready]
        return min((len(node.profile.gpus) if node and not node.profile.virtual else 0 for node in nodes), default=0)

    def described(self) -> dict[str, Any]:
        """The evidence "cluster": what the run is about, in JSON values."""
        found = status.status(self.looked)
        rows = {node.name: node for node in found.nodes}
        absent = {failure.node: failure.reason for failure in self.looked.gathered.failures}
        slurm = self.looked.slurm.nodes
        return {
            "cluster": found.cluster,
            "control": found.control,
            "release": found.release.model_dump(mode="json") if found.release else None,
            "images": [asdict(image) for image in found.images],
            "nodes": [
                {
                    "name": name,
                    "roles": list(row.roles),
                    "virtual": row.virtual,
                    "absent": absent.get(name, ""),
                    "image": row.image,
                    "digest": row.digest,
                    "health": row.health,
                    "slurm": row.slurm,
                    "reason": row.reason,
                    "no_jobs": _no_jobs((slurm or {}).get(name)) if "worker" in row.roles else "",
                    "behind": getattr(self.looked.gathered.node(name), "behind", None),
                    "ahead": getattr(self.looked.gathered.node(name), "ahead", None),
                    "profile": asdict(facts.profile) if (facts := self.looked.gathered.node(name)) else None,
                }
                for name, row in rows.items()
            ],
        }


def connect(path: Path, settings: Settings, *, level: int, user: str = USER, wait: float = 300) -> Cluster:
    """
    Raises:
        BadInput, Missing, CheckFailed: as `look`; the control node wasn't reached.
    """
    inventory = inventories.load(path)
    looked = look.look(inventory, settings, forks=settings.ship.forks)
    reached = {node.name: looked.gathered.reaches[node.name] for node in looked.gathered.nodes}
    if inventory.control.name not in reached:
        reason = next((f.reason for f in looked.gathered.failures if f.node == inventory.control.name), "not there")
        raise CheckFailed(
            f"the control node {inventory.control.name} can't be reached: {reason}",
            code="no-control",
            next_step=f"`rocstack status {path}`",
        )
    found = hosts.of_reaches(reached)
    return Cluster(looked, settings, found, Slurm(found[inventory.control.name], user, wait), level)


def nodes(described: Mapping[str, Any]) -> tuple[Node, ...]:
    """Of the evidence "cluster", those that were reached."""
    return tuple(
        Node(
            each["name"],
            tuple(each["roles"]),
            each["virtual"],
            _PROFILE.validate_json(json.dumps(each["profile"])) if each["profile"] else None,
            each["no_jobs"],
        )
        for each in described["nodes"]
        if not each["absent"]
    )


def _no_jobs(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "Slurm doesn't know it, or its controller doesn't answer"
    bad = {"DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "UNKNOWN", "FUTURE", "POWERED_DOWN"} & set(row["state"])
    return slurm_state.say(dict(row)) if bad else ""


def _python(source: str) -> str:
    return shlex.join(["python3", "-c", source])


def _answer(done: CommandResult) -> Any:
    try:
        return json.loads(done.stdout)
    except ValueError:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.rc}").splitlines()
        return {"error": lines[-1]}
