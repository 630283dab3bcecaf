"""What is wrong when nodes stand side by side, and with the network between them: rules as scope.py says, texts in
images/findings/deploy-cluster.yml. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator

from rocstack.deploy.plan.desired import known_machines
from rocstack.deploy.plan.scope import Scope, Values, cluster_rule, node_rule
from rocstack.deploy.read.facts import SLURMCTLD, SLURMD, NodeFacts
from rocstack.deploy.read.inventory import is_address


def _alike(scope: Scope, of: Callable[[NodeFacts], str]) -> Iterator[tuple[str, str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for node in scope.nodes:
        groups[of(node)].append(node.name)
    yield from ((value, ", ".join(names)) for value, names in groups.items() if len(names) > 1 and value.strip())


@cluster_rule
def same_machine(scope: Scope) -> Iterator[Values]:
    for _, names in _alike(scope, lambda node: node.machine):
        yield {"names": names}


@cluster_rule
def same_address(scope: Scope) -> Iterator[Values]:
    twins = {names for _, names in _alike(scope, lambda node: node.machine)}
    for address, names in _alike(scope, lambda node: scope.address(node.name)):
        if names not in twins:
            yield {"names": names, "address": address}


@cluster_rule
def node_left(scope: Scope) -> Iterator[Values]:
    before = known_machines(scope.control)
    for name in before:
        if all(name != worker.name for worker in scope.inventory.workers):
            yield {"name": name}


@node_rule
def address_unreached(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    for peer, address, why in _tried(node, scope):
        if why:
            yield {"node": node.name, "peer": peer, "address": address, "host": scope.address(peer), "why": why}


@node_rule
def address_untried(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    """The question went to the address that the inventory says; which one counts was only known with the answers."""
    for peer, address, why in _tried(node, scope):
        if why is None:
            yield {"node": node.name, "peer": peer, "address": address, "host": scope.address(peer)}


def _tried(node: NodeFacts, scope: Scope) -> Iterator[tuple[str, str, str | None]]:
    """Peers, their addresses, and why one isn't reached (None: not tried). Only addresses that will be used: the
    controller's for a worker, the workers' for the controller."""
    peers = {}
    if scope.is_worker(node):
        peers[scope.inventory.control.name] = SLURMCTLD
    if node.name == scope.inventory.control.name:
        peers.update({worker.name: SLURMD for worker in scope.inventory.workers})
    for peer, port in peers.items():
        address = f"{scope.address(peer)}:{port}"
        if peer != node.name and any(other.name == peer for other in scope.nodes):
            yield peer, address, node.reach.get(address)


def _control_is(node: NodeFacts, scope: Scope) -> tuple[str, ...] | None:
    """The addresses that a worker has for the control node's name; None where it wasn't asked."""
    name = scope.inventory.control.name
    return None if node.name == name else node.resolve.get(name)


@node_rule
def name_unknown(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    if _control_is(node, scope) == ():
        yield {"name": scope.inventory.control.name}


@node_rule
def name_elsewhere(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    resolved, address = _control_is(node, scope), scope.address(scope.inventory.control.name)
    own = {each.address.partition("/")[0] for each in scope.control.profile.addresses} if scope.control else set()
    if resolved and own and not {*resolved} & {address, *own} and is_address(address):
        yield {"name": scope.inventory.control.name, "resolved": ", ".join(resolved), "address": address}
