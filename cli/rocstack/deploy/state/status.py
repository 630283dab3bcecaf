"""How a deployed cluster is: its release, its images, its nodes. Pure."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_jsonable_python

from rocstack.base.findings import Finding
from rocstack.deploy.plan import services
from rocstack.deploy.plan.plan import as_rows
from rocstack.deploy.plan.services import SERVICE_OF
from rocstack.deploy.read.facts import NodeFacts
from rocstack.deploy.read.journal import Deploy, Release
from rocstack.deploy.state import problems
from rocstack.deploy.state.cluster_state import ClusterState, is_image, wrong
from rocstack.node import slurm_state


@dataclass(frozen=True)
class ImageStatus:
    """An image that containers are made of, and on how many nodes. `digest` is the registry's."""

    role: str
    id: str
    digest: str
    stack: str
    nic: str
    content: str
    nodes: int


@dataclass(frozen=True)
class NodeStatus:
    """`gpus` were seen on the node, `gres` is what Slurm counts on; None where nobody could say. `health` is of all its
    containers; `verified` is what its release passed."""

    name: str
    roles: tuple[str, ...]
    virtual: str | None = None
    image: str = ""
    digest: str = ""
    slurm: str = ""
    reason: str = ""
    jobs: tuple[int, ...] = ()
    gpus: int | None = None
    gres: int | None = None
    health: str = ""
    restarts: int = 0
    verified: str | None = None


@dataclass(frozen=True)
class Status:
    """`interrupted` is a deploy that began and has not ended, `deploying` who is at it."""

    cluster: str
    control: str
    release: Release | None
    interrupted: Deploy | None
    deploying: str
    images: tuple[ImageStatus, ...]
    nodes: tuple[NodeStatus, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.level == "note" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **to_jsonable_python(self), "findings": as_rows(self.findings)}


def status(state: ClusterState) -> Status:
    control = state.control
    return Status(
        cluster=control.state.cluster if control and control.state else "",
        control=state.inventory.control.name,
        release=state.release,
        interrupted=state.journal.current,
        deploying=state.slurm.deploying,
        images=_images(state),
        nodes=tuple(_node(state, host.name) for host in state.inventory.nodes),
        findings=tuple(problems.findings(state)),
    )


def _images(state: ClusterState) -> tuple[ImageStatus, ...]:
    nodes = state.gathered.nodes
    counts = Counter(ident for facts in nodes for ident in {each.image for each in facts.containers})
    images = []
    for ident in counts:
        # One node doesn't answer for all; the control node's word is the first of the equally common.
        claims = [
            (image, _digest(facts, ident))
            for facts in sorted(nodes, key=lambda facts: facts is not state.control)
            for image in facts.images
            if image.id == ident
        ]
        rows = [
            (each.role, ident, digest, each.stack, each.nic, each.content, counts[ident]) for each, digest in claims
        ]
        if rows:
            images.append(ImageStatus(*max(rows, key=rows.count)))
    return tuple(sorted(images, key=lambda image: (image.role != "worker", -image.nodes, image.id)))


def _node(state: ClusterState, name: str) -> NodeStatus:
    roles, facts = state.inventory.roles(name), state.gathered.node(name)
    row = (state.slurm.nodes or {}).get(name)
    said: dict[str, Any] = {}
    if row:
        gres = slurm_state.gres_gpus(row["gres"])
        words = "+".join(row["state"]).lower()
        said = {"slurm": words, "reason": row["reason"], "jobs": tuple(row["jobs"]), "gres": gres}
    if facts is None:
        return NodeStatus(name, roles, health="not read", **said)
    container = facts.container(services.WORKER if "worker" in roles else services.CONTROL)
    image = container.image if container else ""
    release = state.release
    level = release.verified if release and is_image(facts, image, release.images.worker_id) else None
    return NodeStatus(
        name,
        roles,
        virtual=facts.profile.virtual,
        image=image,
        digest=_digest(facts, image),
        gpus=len(facts.profile.gpus),
        health=_health(state, facts),
        restarts=sum(each.restarts for each in facts.containers),
        verified=level.text if level else None,
        **said,
    )


def _health(state: ClusterState, facts: NodeFacts) -> str:
    if facts.engine.problem:
        return f"engine {facts.engine.problem}"
    names = state.containers(facts.name)
    words = {name: word for name in names if (word := wrong(facts, name))}
    if len(words) == len(names) and set(words.values()) == {"missing"}:
        return "not deployed"
    return ", ".join(f"{SERVICE_OF[name]} {word}" for name, word in words.items()) or "healthy"


def _digest(facts: NodeFacts, ident: str) -> str:
    digests = [digest for image in facts.images if image.id == ident for digest in image.digests]
    return digests[0].partition("@")[2] if digests else ""
