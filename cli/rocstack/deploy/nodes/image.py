"""An image as deploy wants it on nodes: what it is called here, what it is, and where nodes get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rocstack.base.errors import BadInput, Missing
from rocstack.base.image_names import name_on_node
from rocstack.deploy.nodes.node_spec import ImageSpec
from rocstack.node.image_facts import LABEL_PREFIX, from_labels
from rocstack.node.image_facts import ImageFacts as Judged

if TYPE_CHECKING:
    import docker

    from rocstack.deploy.read.journal import ReleaseImages


@dataclass(frozen=True)
class DesiredImage:
    """`id` is the sha256 of its configuration, which shipping does not change; `size` is uncompressed bytes;
    `reference` names it by digest in a registry that the nodes reach, once it is there."""

    role: str
    id: str
    name: str
    labels: Mapping[str, str] = field(repr=False)
    size: int = 0
    layers: tuple[str, ...] = ()  # diff ids
    reference: str | None = None

    @property
    def judged(self) -> Judged:
        """As the gate sees it."""
        return from_labels(self.name, self.labels)

    @property
    def slurm(self) -> str:
        """Its version; empty where the labels are not known."""
        return self.labels.get(f"{LABEL_PREFIX}component.slurm", "")

    @property
    def on_node(self) -> ImageSpec:
        return ImageSpec(self.id, name_on_node(self.role, self.id), self.reference, self.layers)

    def at(self, reference: str) -> DesiredImage:
        return replace(self, reference=reference)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DesiredImage:
        return cls(**{**data, "layers": tuple(data.get("layers", ()))})


def of_release(images: ReleaseImages) -> dict[str, DesiredImage]:
    """Images that were deployed before, by role; what they are called here doesn't count."""
    worker, control = images.worker_id, images.control_id
    return {
        "worker": DesiredImage(
            "worker", worker, worker[7:19], images.labels, reference=images.worker_reference or None
        ),
        "control": DesiredImage(
            "control",
            control,
            control[7:19],
            {f"{LABEL_PREFIX}role": "control", **images.control_labels},
            reference=images.control_reference or None,
        ),
    }


def local_image(client: docker.DockerClient, reference: str, role: str) -> DesiredImage:
    """The image `reference` of this machine's engine.

    Raises:
        Missing: no such image here.
        BadInput: an image of something else.
    """
    from rocstack.edge import engine

    found = engine.find_image(client, reference)
    if found is None:
        raise Missing(
            f"no image {reference} on this machine",
            code="no-image",
            next_step="`rocstack build` makes it; or name another: --image REFERENCE",
        )
    labels = {key: value for key, value in (found.labels or {}).items() if key.startswith(LABEL_PREFIX)}
    is_role = labels.get(f"{LABEL_PREFIX}role")
    if is_role != role:
        raise BadInput(
            f"{reference} is {'a ' + is_role + ' image' if is_role else 'no image of rocstack'}, not a {role} image",
            code="wrong-image",
            next_step="`rocstack build` makes a worker and a control image that fit together",
        )
    layers = tuple(found.attrs.get("RootFS", {}).get("Layers") or ())
    return DesiredImage(role, str(found.id), reference, labels, int(found.attrs.get("Size", 0)), layers)
