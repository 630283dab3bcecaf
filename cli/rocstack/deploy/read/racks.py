"""The racks' registries: which there are, who runs each, and who pulls from it. Pure.

A registry whose address is one of our nodes' is ours: that node runs it beside its worker. Any other is the site's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rocstack.base.errors import BadInput, Where
from rocstack.deploy.read.inventory import Inventory

HTTPS = 443


@dataclass(frozen=True)
class Mirror:
    """`registry` is host[:port] as the nodes write it; `node` runs it, None: it is the site's."""

    registry: str
    node: str | None
    serves: tuple[str, ...]

    @property
    def host(self) -> str:
        return self.registry.partition(":")[0]

    @property
    def port(self) -> int:
        return port(self.registry)


def port(registry: str) -> int:
    return int(registry.partition(":")[2] or HTTPS)


def mirrors(inventory: Inventory, address: Callable[[str], str]) -> tuple[Mirror, ...]:
    """All but one on the control node, whose registry has the images anyway. `address` is where the others reach a
    node.

    Raises:
        BadInput: one node is to run two of them.
    """
    names = {name: host.name for host in inventory.nodes for name in (host.host, address(host.name), host.name)}
    found: dict[str, Mirror] = {}
    for registry, nodes in inventory.racks.items():
        mirror = Mirror(registry, None, tuple(node.name for node in nodes))
        node = names.get(mirror.host)
        if node == inventory.control.name:
            continue
        twin = next((each for each in found.values() if node and each.node == node), None)
        if twin:
            raise BadInput(
                f"{node} would run two registries, {twin.registry} and {registry}",
                code="bad-value",
                where=Where(str(inventory.path)),
                next_step="let the nodes of both racks write it in the same way in rocstack_rack_registry",
            )
        found[registry] = Mirror(registry, node, mirror.serves)
    return tuple(found.values())


def none(inventory: Path) -> BadInput:
    return BadInput(
        "no rack has a registry",
        code="no-racks",
        where=Where(str(inventory)),
        next_step="write `rocstack_rack_registry: HOST:PORT` at the nodes of each rack; HOST may be one of them",
    )
