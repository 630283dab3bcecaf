"""An image to nodes as one archive over ssh: the control image always, the worker image where no registry may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rocstack.deploy.nodes.image import DesiredImage
from rocstack.deploy.nodes.runs import DeployEvents
from rocstack.deploy.read.facts import NodeFacts
from rocstack.edge.ssh import SshHost
from rocstack.registry.image_archive import ImageArchive
from rocstack.registry.local_image import LocalImage
from rocstack.registry.send_archive import LoadedImage, LoadTarget, load

if TYPE_CHECKING:
    import docker


def send(
    client: docker.DockerClient,
    image: DesiredImage,
    nodes: Mapping[str, tuple[SshHost, NodeFacts]],
    events: DeployEvents,
) -> list[LoadedImage]:
    """Only layers that a node lacks travel to it; a node that fails is a result.

    Raises:
        CheckFailed, Missing: the engine here does not give the image.
    """

    def progress(node: str, done: int, total: int) -> None:
        events.step(node, f"receiving the {image.role} image, {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    there = {name: _layers(facts) for name, (_, facts) in nodes.items()}
    everywhere = frozenset.intersection(*there.values())
    targets = [
        LoadTarget(name, _shell(ssh_host), (*ssh_host.become, "docker"), there[name])
        for name, (ssh_host, _) in nodes.items()
    ]
    for name in nodes:
        events.step(name, f"waiting while the {image.role} image is packed")
    with (
        LocalImage.find(client, image.id) as source,
        ImageArchive.make(source, image.on_node.name, have=everywhere) as archive,
    ):
        rows = load(archive, targets, progress=progress)
    for row in rows:
        if not row.error:
            events.end(row.node, f"has the {image.role} image ({row.bytes / 1e6:.1f} MB sent, {row.seconds:.1f} s)")
    return rows


def _layers(facts: NodeFacts) -> frozenset[str]:
    """That the node's engine needs not be sent; containerd's store asks for all of them."""
    if facts.engine.store == "containerd":
        return frozenset()
    return frozenset(layer for image in facts.images for layer in image.layers)


def _shell(ssh_host: SshHost) -> list[str]:
    """To which a line for the shell there is added."""
    return [*ssh_host.program, "-T", ssh_host.address] if ssh_host.program else ["sh", "-c"]
