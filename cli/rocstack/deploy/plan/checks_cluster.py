"""What is wrong when nodes stand side by side, and with the network between them: rules as scope.py says, texts in
images/findings/deploy-cluster.yml. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator

from rocstack.cluster.settings import SLURMCTLD, SLURMD
from rocstack.deploy.plan.scope import Scope, Values, cluster_rule, node_rule
from rocstack.deploy.read.facts import NodeFacts
from rocstack.deploy.read.inventory_values import is_address


def _alike(scope: Scope, of: Callable[[NodeFacts], str]) -> dict[str, list[str]]:
    """What several nodes have in common -> their names."""
    groups: dict[str, list[str]] = defaultdict(list)
    for node in scope.nodes:
        groups[of(node)].append(node.name)
    return {value: names for value, names in groups.items() if len(names) > 1 and value.strip()}


@node_rule
def same_machine(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    """Not the control node's fault: a worker that claims to be it would stop every deploy."""
    if node is not scope.control:
        for names in _alike(scope, lambda node: node.machine).values():
            if node.name in names:
                yield {"names": ", ".join(names)}


@node_rule
def same_address(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    twins = _alike(scope, lambda node: node.machine).values()
    if node is not scope.control:
        for address, names in _alike(scope, lambda node: scope.address(node.name)).items():
            if node.name in names and names not in twins:
                yield {"names": ", ".join(names), "address": address}


@cluster_rule
def node_left(scope: Scope) -> Iterator[Values]:
    for name in scope.control.machines if scope.control else ():
        if "worker" not in scope.inventory.roles(name):
            yield {"name": name}


@node_rule
def address_unreached(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    yield from (tried for tried in _tried(node, scope) if tried["why"])


@node_rule
def address_untried(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    """The question went to the address that the inventory says; which one counts was only known with the answers."""
    yield from (tried for tried in _tried(node, scope) if tried["why"] is None)


def _tried(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    """Who tried to reach whom, by which address, and why it didn't work (None: not tried). Only addresses that will be
    used: the controller's for a worker, the workers' for the controller. Both are the worker's to be mended, which can
    refuse what the controller sends."""
    control = scope.control
    if control is None or node is control or not scope.is_worker(node):
        return
    for asker, peer, port in ((node, control, SLURMCTLD), (control, node, SLURMD)):
        host = scope.address(peer.name)
        address = f"{host}:{port}"
        why = asker.reach.get(address)
        yield {"asker": asker.name, "peer": peer.name, "address": address, "host": host, "why": why}


@node_rule
def name_unknown(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    name = scope.inventory.control.name
    if node.name != name and node.resolve.get(name) == ():
        yield {"name": name}


@node_rule
def name_elsewhere(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    name = scope.inventory.control.name
    resolved, address = node.resolve.get(name), scope.address(name)
    own = {each.address.partition("/")[0] for each in scope.control.profile.addresses} if scope.control else set()
    if node.name != name and resolved and own and not {*resolved} & {address, *own} and is_address(address):
        yield {"name": name, "resolved": ", ".join(resolved), "address": address}
