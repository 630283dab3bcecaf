"""New keys for a whole cluster, while its jobs run on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.deploy.nodes.answers import SwapAnswer
from rocstack.deploy.nodes.node_spec import FileSpec
from rocstack.deploy.nodes.runs import NodeRun, NodeRuns
from rocstack.deploy.plan import key_rotation, secrets, services
from rocstack.deploy.plan.desired import registry_files, service_database, tokens_key
from rocstack.deploy.plan.key_rotation import ROTATED
from rocstack.deploy.plan.secrets import Secrets
from rocstack.deploy.read import facts, journal
from rocstack.deploy.read.facts import Gathered, NodeFacts
from rocstack.deploy.read.inventory import Inventory
from rocstack.edge import locks
from rocstack.edge.locks import Sign, unsigned

PLAYBOOK = "rotate-keys.yml"


@dataclass(frozen=True)
class RotationOutcome:
    """`failed` is node -> why; while there are any, old and new keys are kept. `resumed`: an earlier one went on."""

    nodes: tuple[str, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    resumed: bool = False

    @property
    def ok(self) -> bool:
        return not self.failed

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "rotated": ROTATED, **asdict(self)}


def rotate(inventory: Inventory, node_runs: NodeRuns, sign: Sign = unsigned) -> RotationOutcome:
    """Replaces MUNGE and JWT key and the passwords of database and registry. Jobs run on; the controller is away for
    some seconds. One that was interrupted goes on with the keys that it had made.

    Raises:
        BadInput: secrets that can't be changed, or another cluster's; there is no cluster.
        CheckFailed: a node can't be read (nothing was changed), somebody else is at work, or the control node is lost.
    """
    path = secrets.beside(inventory.path)
    rotation = key_rotation.load(path)
    gathered = facts.gather(inventory, forks=node_runs.forks)
    control = gathered.node(inventory.control.name)
    unread = {each.node: each.reason for each in gathered.failures}
    unread |= {each.name: each.engine.error for each in gathered.nodes if each.engine.problem}
    if unread and (inventory.control.name in unread or not rotation.begun):
        names = ", ".join(f"{name} ({why})" for name, why in unread.items())
        raise CheckFailed.of("rotation-unreached", nodes=names)
    state = control.state if control else None
    # One that has begun ends without a cluster, too: a deploy waits for its end.
    if not rotation.begun and (control is None or state is None or control.container(services.CONTROL) is None):
        raise BadInput.of("rotation-undeployed", node=inventory.control.name)
    rotation.check(state.keys if state else {})
    registries = {} if rotation.begun else _registries(inventory, gathered)
    # One that an older rocstack deployed has its file elsewhere until a deploy has replaced it: its old passwords would
    # go on opening it.
    if older := [name for name, node in registries.items() if _is_older(node)]:
        raise CheckFailed.of("rotation-registry-older", nodes=", ".join(older))
    entry = {"command": "rotate-keys", "nodes": [host.name for host in inventory.nodes]}
    fence = max(node.fence for node in gathered.nodes)
    ssh_host, lock = gathered.ssh_hosts[inventory.control.name], journal.lock(resume="rocstack rotate-keys")
    with locks.cluster_lock(ssh_host, lock, least=fence, entry=entry, sign=sign) as held:
        rotation = key_rotation.load(path)
        rotation.begin()
        rows = {name: row for name, row in orders(inventory, gathered, rotation.new).items() if name not in unread}
        runs = replace(node_runs, held=held).send(PLAYBOOK, rows)
        failed = unread | {name: why for name, run in runs.items() if (why := _failure(run))}
        if failed:
            held.end |= {"outcome": "failed", "failed": list(failed), "why": next(iter(failed.values()))}
        else:
            rotation.finish()
    return RotationOutcome(tuple(rows), failed, rotation.begun)


def _is_older(registry: NodeFacts) -> bool:
    return services.OLDER_PULL in registry.files or services.REGISTRY_PULL not in registry.files


def _registries(inventory: Inventory, gathered: Gathered) -> dict[str, NodeFacts]:
    """The nodes that run one: only the inventory gives a node a registry, whatever it says of itself."""
    racks = {str(each.node) for each in inventory.rack_registries(gathered.address) if each.node}
    nodes = {name: gathered.node(name) for name in sorted({inventory.control.name} | racks)}
    return {name: node for name, node in nodes.items() if node is not None and node.container(services.STORE)}


def orders(inventory: Inventory, gathered: Gathered, keys: Secrets) -> dict[str, dict[str, Any]]:
    """What each node gets: no node a key that it has no use for, whatever it says of itself."""
    control = [
        FileSpec(services.JWT_KEY, keys.jwt_key, 0o400),
        FileSpec(services.DATABASE, keys.database_password.encode(), 0o400),
    ]
    racks = [each for each in inventory.rack_registries(gathered.address) if each.node]
    rows, registries = {}, _registries(inventory, gathered)
    for host in inventory.nodes:
        node, controls, serves = gathered.node(host.name), host == inventory.control, host.name in registries
        files = [*(control if controls else []), *(registry_files(keys, host.name, inventory, racks) if serves else [])]
        if controls and node is not None and node.container(services.API) is not None:
            files.append(service_database(keys))
        if controls and node is not None and node.container(services.TOKENS) is not None:
            files.append(tokens_key(keys))
        rows[host.name] = {
            "munge": FileSpec(services.MUNGE_KEY, keys.munge_key, 0o400).to_dict(),
            "files": [file.to_dict() for file in files],
            "database": keys.database_password if controls else "",
            "keys": keys.fingerprints() if controls else {},
            "services": controls or serves,
        }
    return rows


def _failure(run: NodeRun) -> str:
    if run.state != "ok":
        return run.reason
    swapped = run.answer("Swap", SwapAnswer)
    return "" if swapped and swapped.swapped else "it did not get the new keys: see Ansible's log"
