"""What was read of a deployed cluster. Pure; rocstack.deploy.state.read_state reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rocstack.deploy.plan import services
from rocstack.deploy.plan.plan import short
from rocstack.deploy.read.facts import Gathered, NodeFacts
from rocstack.deploy.read.inventory import Inventory
from rocstack.deploy.read.journal import Journal, Release
from rocstack.node.engine import Row

SERVICES = {"worker": services.WORKER, "controller": services.CONTROL, "db": services.DB, "registry": services.STORE}
WORDS = {name: service for service, name in SERVICES.items()}
CONTAINERS = {  # of a role
    "control": (services.DB, services.STORE, services.CONTROL),
    "worker": (services.WORKER,),
}
ABSENT = "its container is not there"


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
    """`own_registry`: whether the control node has one; `offers_gpus`: whether Slurm is to count the GPUs that are
    seen."""

    inventory: Inventory
    gathered: Gathered
    slurm: SlurmState = field(default_factory=SlurmState)
    journal: Journal = field(default_factory=Journal)
    own_registry: bool = True
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
        names = (each for role in self.inventory.roles(name) for each in CONTAINERS[role])
        return tuple(each for each in names if each != services.STORE or self.own_registry)


def wrong(facts: NodeFacts, name: str) -> str:
    """What is wrong with a container, in a word; "" where nothing is."""
    found = facts.container(name)
    if found is None:
        return "missing"
    if found.status != "running":
        return found.status
    return found.health if found.health in ("unhealthy", "starting") else ""


def is_image(facts: NodeFacts, ident: str, wanted: str) -> bool:
    """Whether the node's image `ident` is the one that a release calls `wanted`. containerd's store has other ids, but
    the name that a deploy gave it says so."""
    named = (name for image in facts.images if image.id == ident for name in image.names)
    return ident == wanted or any(name.endswith(f":{short(wanted)}") for name in named)
