"""Which way an image takes to the nodes: the person's, or the quickest by the cost model. Pure."""

from __future__ import annotations

from rocstack.cluster.operation import Ship
from rocstack.deploy.plan.desired_image import WantedImage
from rocstack.node.profile import NodeProfile
from rocstack.registry import cost

PACKED = 0.4  # zstd's size of an image's, as far as nobody has packed it yet (measured: 0.37 to 0.44)
LINK = 10.0  # Gbit/s, where no network card says its speed


def choose(wish: Ship, image: WantedImage, nodes: int, mirrors: int, control: NodeProfile) -> cost.Choice:
    """
    Args:
        nodes: that lack the image.
        mirrors: racks' registries from which they may pull.
        control: of the node that sends it.
    """
    size = image.size or 1
    job = cost.Job(max(nodes, 1), PACKED * size, size, wish.link_gbps or link(control))
    found = cost.choose(job, cost.Options(registry=wish.method != "archive", mirrors=mirrors))
    if wish.method == "auto":
        return found
    return cost.Choice(wish.method, "cluster.ship.method says so", found.times)


def link(control: NodeProfile) -> float:
    """Gbit/s of its fastest card that is up."""
    speeds = [netdev.speed for netdev in control.netdevs if netdev.speed and netdev.state == "up"]
    return max(speeds, default=LINK * 1000) / 1000
