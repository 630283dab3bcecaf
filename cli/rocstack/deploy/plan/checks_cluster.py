"""What is wrong when nodes stand side by side, and with the network between them: rules as scope.py says, texts in
images/findings/deploy-cluster.yml. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator

from rocstack.deploy.plan.scope import Scope, Values, cluster_rule, node_rule
from rocstack.deploy.read.facts import SLURMCTLD, SLURMD, NodeFacts
from rocstack.deploy.read.inventory import is_address


def _alike(scope: Scope, of: Callable[[NodeFacts], str]) -> dict[str, str]:
    """What several nodes have in common -> their names."""
    groups: dict[str, list[str]] = defaultdict(list)
    for node in scope.nodes:
        groups[of(node)].append(node.name)
    return {value: ", ".join(names) for value, names in groups.items() if len(names) > 1 and value.strip()}


@cluster_rule
def same_machine(scope: Scope) -> Iterator[Values]:
    for names in _alike(scope, lambda node: node.machine).values():
        yield {"names": names}


@cluster_rule
def same_address(scope: Scope) -> Iterator[Values]:
    twins = _alike(scope, lambda node: node.machine).values()
    for address, names in _alike(scope, lambda node: scope.address(node.name)).items():
        if names not in twins:
            yield {"names": names, "address": address}


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
    """Peers, their addresses, and why one isn't reached (None: not tried). Only addresses that will be used: the
    controller's for a worker, the workers' for the controller."""
    peers = {}
    if scope.is_worker(node):
        peers[scope.inventory.control.name] = SLURMCTLD
    if node.name == scope.inventory.control.name:
        peers.update({worker.name: SLURMD for worker in scope.inventory.workers})
    for peer, port in peers.items():
        if peer != node.name and scope.gathered.node(peer):
            host = scope.address(peer)
            address = f"{host}:{port}"
            yield {"peer": peer, "address": address, "host": host, "why": node.reach.get(address)}


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
