"""What one host is to be: files, images and containers, as the modules on the node make it so. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rocstack.deploy.nodes.image import Image


@dataclass(frozen=True)
class FileSpec:
    """A file on a host. The owner is a number: what must read it is a program in a container."""

    path: str
    content: bytes = field(repr=False)  # may be a key
    mode: int = 0o644
    uid: int = 0
    gid: int = 0

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "content": base64.b64encode(self.content).decode(), "mode": f"{self.mode:04o}"}


@dataclass(frozen=True)
class ContainerSpec:
    """`args` are the engine's own, but for name, labels and restart policy. `reads` are the files that it reads when it
    starts: one that has run since before they were written is replaced."""

    name: str
    service: str
    image: str  # its id
    args: tuple[str, ...]
    reads: tuple[str, ...] = ()
    healthy_within: int = 90  # seconds


@dataclass(frozen=True)
class RegistrySpec:
    """Where a node pulls from, and as whom; `ca` is PEM, empty where the node knows the registry's own."""

    address: str
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""


@dataclass(frozen=True)
class NodeSpec:
    """What one node is to be. `commands` run in their container when a file changed or a container was made."""

    files: tuple[FileSpec, ...] = ()
    images: tuple[Image, ...] = ()
    containers: tuple[ContainerSpec, ...] = ()
    registry: RegistrySpec | None = None
    commands: tuple[tuple[str, ...], ...] = ()
    remove: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()  # files that go
    keep: tuple[str, ...] | None = None  # ids of the images that stay
    state: Mapping[str, Any] = field(default_factory=dict)

    def part(self, services: Iterable[str]) -> NodeSpec:
        """What concerns these services; what is removed and pruned belongs to the whole."""
        chosen = set(services)
        containers = tuple(each for each in self.containers if each.service in chosen)
        names, images = {each.name for each in containers}, {each.image for each in containers}
        return replace(
            self,
            containers=containers,
            images=tuple(image for image in self.images if image.id in images),
            commands=tuple(command for command in self.commands if command[0] in names),
            remove=(),
            absent=(),
            keep=None,
            state={},
        )

    def digests(self) -> dict[str, str]:
        """Container name -> digest of all that it is made from. Not of what files hold: a key can change under a
        container that runs on."""
        texts = {each.name: json.dumps([each.image, each.args, each.reads]) for each in self.containers}
        return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}

    def to_dict(self) -> dict[str, Any]:
        """As the modules read it. Holds secrets: it goes into a file for nobody else."""
        digests = self.digests()
        return {
            "files": [file.to_dict() for file in self.files],
            "registry": asdict(self.registry) if self.registry else None,
            "images": [image.to_dict() for image in self.images],
            "containers": [{**asdict(each), "command": [], "spec": digests[each.name]} for each in self.containers],
            "remove": self.remove,
            "absent": self.absent,
            "exec": self.commands,
            "keep": self.keep,
            "state": self.state,
        }
