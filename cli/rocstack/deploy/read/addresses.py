"""Where the nodes of a cluster reach one another, and which rack registries they pull from. Pure.

A node's address for the others may differ from the one by which this machine reaches it. A rack registry whose address
is one of our nodes' is ours: that node runs it beside its worker. Any other belongs to the site.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rocstack.base.errors import BadInput, Where
from rocstack.deploy.read.inventory import Inventory
from rocstack.node.profile import NodeProfile

HTTPS = 443
VARIABLE = "rocstack_address"  # of the inventory: says it where nothing else does


def node_address(variables: Mapping[str, object], name: str, profile: NodeProfile) -> str:
    """The inventory's own word, else `ansible_host` if the node has that address itself (and not a gateway before
    it), else the node's address on the network of its default route."""
    configured = variables.get(VARIABLE)
    if configured:
        return str(configured)
    own = {each.address.partition("/")[0]: each.netdev for each in profile.addresses}
    reached = str(variables.get("ansible_host") or name)
    if reached in own:
        return reached
    defaults = sorted((route for route in profile.routes if route.to == "0.0.0.0/0"), key=lambda route: route.metric)
    on_default = [address for route in defaults for address, netdev in own.items() if netdev == route.netdev]
    others = [address for address in own if not address.startswith("127.")]
    return next(iter([*on_default, *others]), reached)


@dataclass(frozen=True)
class RackRegistry:
    """`registry` is host[:port] as the nodes write it; `node` runs it, None: it is the site's."""

    registry: str
    node: str | None
    serves: tuple[str, ...]

    @property
    def host(self) -> str:
        return self.registry.partition(":")[0]

    @property
    def port(self) -> int:
        return registry_port(self.registry)


def registry_port(registry: str) -> int:
    return int(registry.partition(":")[2] or HTTPS)


def rack_registries(inventory: Inventory, address: Callable[[str], str]) -> tuple[RackRegistry, ...]:
    """All but one on the control node, whose registry has the images anyway. `address` is where the others reach a
    node.

    Raises:
        BadInput: one node is to run two of them.
    """
    names = {name: host.name for host in inventory.nodes for name in (host.host, address(host.name), host.name)}
    result: dict[str, RackRegistry] = {}
    for registry, nodes in inventory.racks.items():
        mirror = RackRegistry(registry, None, tuple(node.name for node in nodes))
        node = names.get(mirror.host)
        if node == inventory.control.name:
            continue
        twin = next((each for each in result.values() if node and each.node == node), None)
        if twin:
            raise BadInput(
                f"{node} would run two registries, {twin.registry} and {registry}",
                code="bad-value",
                where=Where(str(inventory.path)),
                next_step="spell it the same way in rocstack_rack_registry for the nodes of both racks",
            )
        result[registry] = RackRegistry(registry, node, mirror.serves)
    return tuple(result.values())


def no_racks(inventory: Path) -> BadInput:
    return BadInput(
        "no rack has a registry",
        code="no-racks",
        where=Where(str(inventory)),
        next_step="set `rocstack_rack_registry: HOST:PORT` for the nodes of each rack; HOST may be one of them",
    )
