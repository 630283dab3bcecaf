"""The address by which the nodes reach each other, which need not be the one by which they are reached from here."""

from __future__ import annotations

from collections.abc import Mapping

from rocstack.node.profile import NodeProfile

VARIABLE = "rocstack_address"  # of the inventory: says it where nothing else does


def of_node(variables: Mapping[str, object], name: str, profile: NodeProfile) -> str:
    """The inventory's own word, else `ansible_host` if the node has that address itself (and not a gateway before
    it), else the node's address on the network of its default route."""
    said = variables.get(VARIABLE)
    if said:
        return str(said)
    own = {each.address.partition("/")[0]: each.netdev for each in profile.addresses}
    reached = str(variables.get("ansible_host") or name)
    if reached in own:
        return reached
    defaults = sorted((route for route in profile.routes if route.to == "0.0.0.0/0"), key=lambda route: route.metric)
    on_default = [address for route in defaults for address, netdev in own.items() if netdev == route.netdev]
    others = [address for address in own if not address.startswith("127.")]
    return next(iter([*on_default, *others]), reached)
