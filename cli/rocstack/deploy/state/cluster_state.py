"""What a deployed cluster is like now, read without changing anything: one Ansible run over all nodes, and one question
to the control node."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rocstack.base.errors import CheckFailed
from rocstack.base.text import from_json, last_line
from rocstack.cluster.settings import ClusterSettings
from rocstack.deploy.plan import services
from rocstack.deploy.plan.plan import short
from rocstack.deploy.read import facts, journal
from rocstack.deploy.read.facts import Gathered, NodeFacts
from rocstack.deploy.read.inventory import Inventory
from rocstack.deploy.read.journal import Journal, Release
from rocstack.edge import ansible, locks, ssh
from rocstack.edge.ssh import SshHost
from rocstack.node import slurm_control, slurm_state
from rocstack.node.engine import Row

ABSENT = "its container is not there"
_MARK = "rocstack-answer"  # a login shell may say things of its own
# Who holds $lock is read from the kernel's table of locks: to try the lock would be to take it for a moment.
HOLDER = 'inode=$(stat -c %i $lock 2>/dev/null) && grep -q "FLOCK .*:$inode 0 EOF" /proc/locks && cat $lock'
_SCRIPT = f"""
lock={journal.lock().path}
echo {_MARK}
{HOLDER}
echo {_MARK}
said=$(docker container inspect {services.CONTROL} 2>&1 >/dev/null) || case "$said" in
  *[Nn]"o such container"*) exit 0 ;;
  *) echo "$said" >&2; exit 1 ;;
esac
exec docker exec {services.CONTROL} bash -c "$0"
"""


@dataclass(frozen=True)
class SlurmState:
    """What the control node said. `nodes` as slurm_state.table has it, None where the controller doesn't answer, and
    then `why`; `deploying` is who holds the cluster's lock at this moment."""

    nodes: Mapping[str, Row] | None = None
    why: str = ABSENT
    deploying: str = ""

    @property
    def jobs(self) -> tuple[int, ...]:
        """Those that run."""
        return tuple(sorted({job for node in (self.nodes or {}).values() for job in node["jobs"]}))


@dataclass(frozen=True)
class ClusterState:
    """`own_registry`: whether the control node has one; `serves`: whether it has the service, `signs_in`: and
    an issuer; `offers_gpus`: whether Slurm is to count the GPUs that are seen."""

    inventory: Inventory
    gathered: Gathered
    slurm: SlurmState = field(default_factory=SlurmState)
    journal: Journal = field(default_factory=Journal)
    own_registry: bool = True
    serves: bool = False
    signs_in: bool = False
    offers_gpus: bool = True

    @property
    def release(self) -> Release | None:
        return self.journal.releases[-1] if self.journal.releases else None

    @property
    def control(self) -> NodeFacts | None:
        return self.gathered.node(self.inventory.control.name)

    @property
    def empty(self) -> bool:
        """Whether no node that was read has a container of ours."""
        return not any(facts.containers for facts in self.gathered.nodes)

    def containers(self, name: str) -> tuple[str, ...]:
        """Those that the node is to have."""
        names = (each for role in self.inventory.roles(name) for each in services.CONTAINERS[role])
        there = {services.STORE: self.own_registry, services.API: self.serves, services.TOKENS: self.signs_in}
        return tuple(each for each in names if there.get(each, True))


def wrong(facts: NodeFacts, name: str) -> str:
    """What is wrong with a container, in a word; "" where nothing is."""
    container = facts.container(name)
    if container is None:
        return "missing"
    if container.status != "running":
        return container.status
    return container.health if container.health in ("unhealthy", "starting") else ""


def is_image(facts: NodeFacts, ident: str, wanted: str) -> bool:
    """Whether the node's image `ident` is the one that a release calls `wanted`. containerd's store has other ids, but
    the name that a deploy gave it says so."""
    named = (name for image in facts.images if image.id == ident for name in image.names)
    return ident == wanted or any(name.endswith(f":{short(wanted)}") for name in named)


def read_state(
    inventory: Inventory, cluster: ClusterSettings, *, overlay: Path | None = None, forks: int = ansible.FORKS
) -> ClusterState:
    """
    Raises:
        BadInput, Missing, CheckFailed: as `facts.gather`; the control node's journal can't be read.
    """
    gathered = facts.gather(inventory, overlay=overlay, forks=forks)
    control = gathered.node(inventory.control.name)
    return ClusterState(
        inventory,
        gathered,
        read_slurm(gathered.ssh_hosts[inventory.control.name])
        if control
        else SlurmState(why="the control node wasn't reached"),
        journal.loads(control.journal) if control else journal.Journal(),
        own_registry=not cluster.ship.registry,
        serves=cluster.service is not None,
        signs_in=bool(cluster.service and cluster.service.oidc),
        offers_gpus=cluster.gres == "auto",
    )


def read_slurm(ssh_host: SshHost) -> SlurmState:
    """What Slurm says of its nodes and jobs, and who is deploying. That it says nothing is an answer."""
    try:
        done = ssh.run(ssh_host, ["sh", "-c", _SCRIPT, slurm_control.STATE])
    except CheckFailed as error:
        return SlurmState(why=error.what)
    _, holder, answer = (*done.stdout.split(f"{_MARK}\n"), "", "", "")[:3]
    deploying = locks.holder(holder) if holder.strip() else ""
    if done.returncode:
        why = re.sub("[0-9a-f]{64}", services.CONTROL, last_line(done.stderr))
        return SlurmState(why=why, deploying=deploying)
    if not answer:
        return SlurmState(deploying=deploying)
    nodes, _, queue = answer.partition("\x1e")
    try:
        return SlurmState(slurm_state.slurm_nodes(from_json(nodes), queue), "", deploying)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return SlurmState(why=f"its answer can't be read: {error}", deploying=deploying)
