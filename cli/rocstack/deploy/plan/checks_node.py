"""What can be wrong with one node before a deploy: rules as scope.py says, texts in images/findings/deploy-node.yml."""

from collections.abc import Iterator
from functools import partial

from rocstack.base.text import listed
from rocstack.cluster.settings import SLURMD
from rocstack.deploy.plan import services
from rocstack.deploy.plan.scope import NODE_RULES, Scope, Values, node_rule, size
from rocstack.deploy.read.facts import OLDER_SLURMD, PORTS, NodeFacts
from rocstack.node.containers import OLD
from rocstack.node.gate import TCP
from rocstack.node.limits import UNLIMITED
from rocstack.stack.rules import upstream

ENGINE = "23.0"  # reads layers packed with zstd
PACKED = 0.45  # of the unpacked size, beside which they lie while they are unpacked
SPARE = 2 << 30  # bytes
CLOCK, DRIFT = 5.0, 1.0  # seconds


@node_rule
def not_root(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    if node.user.uid:
        yield {"user": node.user.name or node.user.uid}


def _engine(problem: str, node: NodeFacts, scope: Scope) -> Iterator[Values]:
    if node.engine.problem == problem:
        yield {"error": node.engine.error, "user": node.user.name or node.user.uid}


NODE_RULES |= {f"engine-{each}": partial(_engine, each) for each in ("absent", "denied", "silent", "failed")}


@node_rule
def engine_old(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    version, least = upstream(node.engine.version), upstream(ENGINE)
    if node.engine.name == "docker" and version and least and version < least:
        yield {"version": node.engine.version, "least": ENGINE}


@node_rule
def engine_rootless(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    if node.engine.rootless:
        yield {}


def missing(node: NodeFacts, scope: Scope) -> float:
    """Bytes that the images take on the node, unpacked. Layers that it has don't count; shared ones count once."""
    present = {image.id for image in node.images}
    layers = {layer for image in node.images for layer in image.layers}
    total = 0.0
    for role in scope.image_roles(node):
        image = scope.images.get(role)
        if image is None or image.id in present:
            continue
        lacking = [layer for layer in image.layers if layer not in layers]
        known = all(layer in scope.layer_bytes for layer in lacking)
        total += sum(scope.layer_bytes[layer] for layer in lacking) if known else image.size
        layers.update(image.layers)
    return total


@node_rule
def disk_low(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    lacking, free = missing(node, scope), node.engine.free_bytes
    needed = lacking * (1 + PACKED)
    if free is not None and free < needed:
        yield {"free": size(free), "needed": size(needed), "missing": size(lacking), "root": node.engine.root}


@node_rule
def disk_tight(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    needed, free = missing(node, scope), node.engine.free_bytes
    if free is not None and needed * (1 + PACKED) <= free < needed + SPARE:
        yield {"left": size(free - needed), "root": node.engine.root}


def _clock(over: float, up_to: float, node: NodeFacts, scope: Scope) -> Iterator[Values]:
    """Seconds by which its clock is surely ahead of the control node's (negative: behind). Both are known within
    bounds only, those of the way to the node and back."""
    if scope.control:
        least, most = node.behind - scope.control.ahead, node.ahead - scope.control.behind
        seconds = max(least, 0.0) or min(most, 0.0)
        if over < abs(seconds) <= up_to:
            yield {"seconds": f"{abs(seconds):.1f}", "way": "ahead of" if seconds > 0 else "behind"}


NODE_RULES |= {"clock-wrong": partial(_clock, CLOCK, float("inf")), "clock-off": partial(_clock, DRIFT, CLOCK)}


@node_rule
def port_taken(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    """In the worker's container jobs run, too: of what listens there, slurmd alone is ours."""
    purposes = dict(scope.ports.get(node.name, {}))
    for role in scope.roles(node):
        purposes |= PORTS[role]
    for port, purpose in purposes.items():
        listener = node.ports.get(str(port))
        if listener and (not listener.service or (listener.service == "worker" and port != SLURMD)):
            by = f" by {listener.program}" if listener.program else ""
            yield {"port": port, "purpose": purpose, "program": by}


@node_rule
def worker_older(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    """The controller that comes first would not find it: Slurm would give up the node, and its jobs."""
    listener = node.ports.get(str(OLDER_SLURMD))
    if listener and listener.service == "worker":
        yield {}


@node_rule
def ports_open(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    """Jobs run in the node's network: where the kernel lets users have Slurm's ports, one of them gets what others
    send to a daemon that is away."""
    mine = [port for role in scope.roles(node) for port in PORTS[role]]
    if node.unprivileged_ports <= max(mine, default=0):
        yield {"start": node.unprivileged_ports, "last": max(mine)}


@node_rule
def daemons_beside(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    names = [name.removesuffix("-wlm") for name in node.daemons]
    if names:
        units = ["munge" if name == "munged" else name for name in names]
        yield {"names": ", ".join(names), "units": units, "run": "run" if len(names) > 1 else "runs"}


@node_rule
def other_cluster(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    """Its MUNGE key alone doesn't tell: a node that was away while keys were rotated has an old one. Nor does a name
    alone: clusters and control nodes are renamed and moved."""
    there, key = node.state, node.files.get(services.MUNGE_KEY, scope.munge)
    names = [each.name for each in node.containers if each.name.removesuffix(OLD) in services.SERVICE_OF]
    if there is None or not names or key == scope.munge:
        return
    control = there.control or (node.name if there.keys else "")
    if there.cluster != scope.cluster or control not in ("", scope.inventory.control.name):
        of = f" of {control}" if control else ""
        yield {"names": listed(names), "cluster": there.cluster or "without a name", "of": of}


@node_rule
def uid_taken(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    for name, uid in scope.uids.items():
        owner = node.passwd.get(str(uid), name)
        if owner != name:
            yield {"uid": uid, "owner": owner, "name": name}


@node_rule
def memlock_low(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    image, limit = scope.images.get("worker"), node.engine.memlock
    uses_rdma = image is not None and image.facts.nic not in (None, TCP)
    if not scope.is_worker(node) or not uses_rdma or limit is None or limit == UNLIMITED or node.engine.raises_limits:
        return
    softer: Values = {"level": "warning"} if scope.memlock else {}
    if node.profile.virtual:  # it registers no memory, and the machine under it sets the limit
        softer = {"level": "note"}
    yield {"limit": size(limit), **softer}


@node_rule
def kfd_missing(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    if scope.is_worker(node) and node.profile.gpus and "/dev/kfd" not in node.recording.devices:
        yield {"count": len(node.profile.gpus)}


@node_rule
def gpus_absent(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    if scope.is_worker(node) and not node.profile.gpus:
        meant: Values = {"level": "note"}  # a cluster where no node has any
        yield {} if any(each.profile.gpus for each in scope.nodes) else meant


@node_rule
def cgroups_fixed(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    if scope.is_worker(node) and not node.engine.problem and not node.engine.cgroup_writable:
        yield {}


@node_rule
def things_unread(node: NodeFacts, scope: Scope) -> Iterator[Values]:
    if node.unread:
        yield {"which": listed(f"{path} ({why})" for path, why in node.unread.items())}
