"""What a deploy came to, and the parts of an order that are made at different times. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rocstack.deploy.nodes.node_spec import NodeSpec
from rocstack.deploy.plan.plan import Plan


@dataclass(frozen=True)
class Shipped:
    """How an image came to a node. `bytes` went over the wire; None where nobody counted."""

    node: str
    seconds: float
    bytes: int | None
    attempts: int = 1


@dataclass(frozen=True)
class Outcome:
    """`failed` is node -> why; `untouched` are nodes that were to change and were not come to, and `stopped` why."""

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

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "images": dict(self.images),
            "changed": list(self.changed),
            "failed": dict(self.failed),
            "untouched": list(self.untouched),
            "stopped": self.stopped,
            "ready": list(self.ready),
            "shipped": [asdict(each) for each in self.shipped],
            "published": dict(self.published),
            "notes": list(self.notes),
            "seconds": round(self.seconds, 2),
            "plan": self.plan.as_dict(),
        }


def of_services(spec: NodeSpec, services: Iterable[str]) -> NodeSpec:
    """The part of an order that is about these services; what is removed and pruned belongs to the last part."""
    chosen = set(services)
    containers = tuple(each for each in spec.containers if each.service in chosen)
    images = {each.image for each in containers}
    return replace(
        spec,
        containers=containers,
        images=tuple(image for image in spec.images if image.id in images),
        commands=tuple(each for each in spec.commands if each[0] in {container.name for container in containers}),
        remove=(),
        keep=None,
        state={},
    )
