"""The plan: what a deploy would change on each node, and why. Pure: specs against facts. Also what came of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rocstack.base.findings import Finding
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.nodes.node_spec import ContainerSpec, NodeSpec
from rocstack.deploy.read.facts import NodeFacts, NodeImage

Kind = Literal["ship", "file", "start", "replace", "restart", "remove"]
Result = Literal["unchanged", "change", "blocked", "unreachable"]


@dataclass(frozen=True)
class Change:
    """One thing that becomes different: `what` is an image, a path or a container."""

    kind: Kind
    what: str
    why: str


@dataclass(frozen=True)
class NodePlan:
    """One node's part. `now` is what it runs, in a few words."""

    name: str
    roles: tuple[str, ...]
    result: Result
    now: str = ""
    virtual: str | None = None
    changes: tuple[Change, ...] = ()
    findings: tuple[Finding, ...] = ()

    def has(self, kind: Kind, what: str | None = None) -> bool:
        return any(change.kind == kind and what in (None, change.what) for change in self.changes)


@dataclass(frozen=True)
class Plan:
    """`findings` are those of no single node; `notes` are said whatever happens."""

    nodes: tuple[NodePlan, ...]
    findings: tuple[Finding, ...] = ()
    ship: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[NodePlan, ...]:
        return tuple(node for node in self.nodes if node.result == "change")

    @property
    def stopped(self) -> tuple[NodePlan, ...]:
        """Nodes on which nothing can be done."""
        return tuple(node for node in self.nodes if node.result in ("blocked", "unreachable"))

    def node(self, name: str) -> NodePlan:
        return next(node for node in self.nodes if node.name == name)

    def to_dict(self) -> dict[str, Any]:
        return {
            "nodes": [{**asdict(node), "findings": as_rows(node.findings)} for node in self.nodes],
            "findings": as_rows(self.findings),
            "ship": dict(self.ship),
            "notes": list(self.notes),
            "changes": sum(len(node.changes) for node in self.nodes),
        }


def as_rows(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """As `--json` prints them; `next_step` is the older name of `next`."""
    return [{**finding.to_dict(), "next_step": finding.next} for finding in findings]


@dataclass(frozen=True)
class Shipped:
    """How an image came to a node. `bytes` went over the wire; None where nobody counted."""

    node: str
    seconds: float
    bytes: int | None
    attempts: int = 1


@dataclass(frozen=True)
class Outcome:
    """`failed` is node -> why; `untouched` are nodes that were to change and were not reached, and `stopped` why."""

    plan: Plan
    images: Mapping[str, str]  # role -> image id
    changed: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    untouched: tuple[str, ...] = ()
    stopped: str = ""
    ready: tuple[str, ...] = ()  # workers on which jobs can start
    shipped: tuple[Shipped, ...] = ()
    published: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not (self.failed or self.untouched or self.stopped or self.plan.stopped)

    def to_dict(self) -> dict[str, Any]:
        known = asdict(self)
        del known["plan"]
        return {"ok": self.ok, **known, "seconds": round(self.seconds, 2), "plan": self.plan.to_dict()}


def changes(spec: NodeSpec, facts: NodeFacts) -> tuple[Change, ...]:
    """What makes `facts` into `spec`, in the order in which it happens."""
    running = any(each.status == "running" for each in facts.containers)
    out = [
        Change("ship", image.name_on_node, "another image runs there" if running else "not on the node")
        for image in spec.images
        if not any(_same(image, current, facts.engine.store) for current in facts.images)
    ]
    shas = {file.path: file.sha256 for file in spec.files}
    for path, sha in shas.items():
        current = facts.files.get(path)
        if current != sha:
            out.append(Change("file", path, "differs" if current else "not there"))
    digests = spec.digests()
    for container in spec.containers:
        read = [path for path in container.reads if facts.files.get(path) != shas.get(path)]
        out += _of_container(container, digests[container.name], read, facts)
    if facts.unfinished and not out:
        out.append(Change("file", "those of the last deploy", "it was cut off before the services took them"))
    gone = [name for name in spec.remove if facts.container(name)]
    out += [Change("remove", name, "not part of this node's roles") for name in gone]
    return (*out, *(Change("file", path, "nothing uses it any more") for path in spec.absent))


def _same(image: Image, current: NodeImage, store: str) -> bool:
    """containerd's store has the manifest's digest for an id, so there the layers count, or the name that a deploy gave
    it. In the other one the same layers under another id are an image with another configuration."""
    if store != "containerd":
        return image.id == current.id
    by_layers = bool(image.layers) and image.layers == current.layers
    return image.id == current.id or by_layers or image.name_on_node in current.names


def _of_container(container: ContainerSpec, digest: str, changed: Sequence[str], facts: NodeFacts) -> Iterator[Change]:
    """`changed` are files that it reads, and which are others on the node."""
    current = facts.container(container.name)
    if current is None:
        yield Change("start", container.name, "not there")
    elif current.spec == digest and not changed:
        if current.status != "running":
            yield Change("restart", container.name, f"it is {current.status}")
    elif current.image != container.image:
        yield Change("replace", container.name, f"image {short(current.image)} -> {short(container.image)}")
    else:
        why = "other flags" if current.spec else "a file that it reads is newer than its start"
        why = f"{', '.join(changed)} changed" if changed else why
        yield Change("replace", container.name, why)


def short(image: str) -> str:
    """The first 12 digits of an image's id, as the engine shows it."""
    return image.removeprefix("sha256:")[:12]


def running(facts: NodeFacts) -> str:
    """Which images a node runs, in a few words."""
    up = {each.image: each.service for each in facts.containers if each.status == "running"}
    words = (
        f"{service if service in ('worker', 'service') else 'control'} {short(image)}" for image, service in up.items()
    )
    return ", ".join(sorted(words)) or "nothing"


def of_node(
    name: str, roles: tuple[str, ...], spec: NodeSpec | None, facts: NodeFacts | None, findings: tuple[Finding, ...]
) -> NodePlan:
    """A node without facts could not be reached; one with an error among its findings stays as it is."""
    if facts is None:
        return NodePlan(name, roles, "unreachable", findings=findings)
    now, virtual = running(facts), facts.profile.virtual
    if spec is None or any(finding.level == "error" for finding in findings):
        return NodePlan(name, roles, "blocked", now, virtual, findings=findings)
    made = changes(spec, facts)
    return NodePlan(name, roles, "change" if made else "unchanged", now, virtual, made, findings)
