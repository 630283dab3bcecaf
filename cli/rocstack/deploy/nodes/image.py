"""An image as deploy knows it: what it is, what it is called here and on nodes, and where nodes get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rocstack.base.errors import BadInput, Missing
from rocstack.base.image_names import name_on_node
from rocstack.node.image_facts import LABEL_PREFIX, ImageFacts, from_labels

if TYPE_CHECKING:
    import docker


@dataclass(frozen=True)
class Image:
    """`id` is the sha256 of its configuration, which shipping does not change. `name` is what this machine calls it,
    `reference` names it by digest in a registry that the nodes reach, once it is there. `size` is uncompressed bytes,
    `layers` are diff ids, the same in every engine's store. `signers` are fingerprints of the trusted keys that signed
    it: empty where nobody asked."""

    role: str
    id: str
    name: str
    labels: Mapping[str, str] = field(repr=False)
    size: int = 0
    layers: tuple[str, ...] = ()
    reference: str | None = None
    signers: tuple[str, ...] = ()

    @property
    def facts(self) -> ImageFacts:
        """What its labels say, as the gate judges it."""
        return from_labels(self.name, self.labels)

    def label(self, key: str) -> str:
        """Empty where the labels are not known."""
        return self.labels.get(LABEL_PREFIX + key, "")

    @property
    def slurm(self) -> str:
        """Its version."""
        return self.label("component.slurm")

    @property
    def name_on_node(self) -> str:
        return name_on_node(self.role, self.id)

    def at(self, reference: str) -> Image:
        return replace(self, reference=reference)

    def to_dict(self) -> dict[str, Any]:
        """As the modules on a node read it. An image without a reference comes by archive."""
        return {"id": self.id, "name": self.name_on_node, "reference": self.reference}


def local_image(client: docker.DockerClient, reference: str, role: str) -> Image:
    """The image `reference` of this machine's engine.

    Raises:
        Missing: no such image here.
        BadInput: an image of something else.
    """
    from rocstack.edge import engine

    image = engine.find_image(client, reference)
    if image is None:
        raise Missing.of("no-image-here", reference=reference)
    labels = {key: value for key, value in (image.labels or {}).items() if key.startswith(LABEL_PREFIX)}
    is_role = labels.get(f"{LABEL_PREFIX}role")
    if is_role != role:
        found = f"a {is_role}" if is_role else "not a rocstack"
        raise BadInput.of("wrong-image", reference=reference, found=found, role=role)
    layers = tuple(image.attrs.get("RootFS", {}).get("Layers") or ())
    return Image(role, str(image.id), reference, labels, int(image.attrs.get("Size", 0)), layers)
