"""What a precheck looks at, and what it says. Pure values."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from rocstack.base.finding_texts import registering
from rocstack.cluster.service import ClusterService
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.read.facts import Gathered, NodeFacts
from rocstack.deploy.read.inventory import Inventory
from rocstack.deploy.read.journal import VerifiedLevel
from rocstack.stack.component import NicProfile

Values = dict[str, object]


@dataclass(frozen=True)
class Scope:
    """Args:
    images: role -> the image that its nodes are to run.
    nics: profiles of NICs, for images that lack what those say.
    gate: what is done where an image's fit is unknown: refuse, warn or off.
    memlock: whether the person set the limit of locked memory themselves.
    uids: name -> number of the users in the images.
    layer_bytes: diff id -> uncompressed bytes, as far as they are known.
    ports: node -> ports that it needs beside those of its roles, and what for.
    registries: nodes that run a registry from the control image.
    service: its settings, where the cluster has one.
    rehearsal: whether real nodes may get a rehearsal image.
    require: level of the acceptance suite that the images must have passed; `insist`: whatever runs already.
    proved: what is known to be proved of them.
    trust: fingerprints of the keys of the trust policy; `replaces`: of those that it takes the place of; `level`: what
        it requires of any image, whatever runs.
    cluster: its name.
    munge: SHA-256 of its MUNGE key, as nodes are to have it.
    """

    inventory: Inventory
    gathered: Gathered
    images: Mapping[str, Image]
    nics: tuple[NicProfile, ...]
    gate: str = "refuse"
    memlock: bool = False
    uids: Mapping[str, int] = field(default_factory=dict)
    layer_bytes: Mapping[str, int] = field(default_factory=dict)
    ports: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    registries: tuple[str, ...] = ()
    service: ClusterService | None = None
    rehearsal: bool = False
    require: int | None = None
    insist: bool = True
    proved: tuple[VerifiedLevel, ...] = ()
    trust: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    level: int | None = None
    cluster: str = ""
    munge: str = ""

    def roles(self, node: NodeFacts) -> tuple[str, ...]:
        return self.inventory.roles(node.name)

    def image_roles(self, node: NodeFacts) -> tuple[str, ...]:
        """Whose images it runs."""
        roles = self.roles(node)
        return (*roles, "service") if "control" in roles else roles

    def is_worker(self, node: NodeFacts) -> bool:
        return "worker" in self.roles(node)

    @property
    def nodes(self) -> tuple[NodeFacts, ...]:
        return self.gathered.nodes

    @property
    def control(self) -> NodeFacts | None:
        return self.gathered.node(self.inventory.control.name)

    def address(self, name: str) -> str:
        """By which the other nodes reach it."""
        return self.gathered.address(next(host for host in self.inventory.nodes if host.name == name))


# A rule has the name of its entry in images/findings and yields the values that the entry's sentences show. `level`
# among them takes the place of the entry's.
NodeRule = Callable[[NodeFacts, Scope], Iterator[Values]]
ClusterRule = Callable[[Scope], Iterator[Values]]
NODE_RULES: dict[str, NodeRule] = {}
CLUSTER_RULES: dict[str, ClusterRule] = {}
node_rule = registering(NODE_RULES)
cluster_rule = registering(CLUSTER_RULES)


def size(count: float) -> str:
    """Bytes as a person reads them."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count / 1024:.3g} KiB"
