"""Takes a cluster's containers off its nodes; data, keys and images only where they are asked for."""

from contextlib import ExitStack
from dataclasses import replace

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.deploy.nodes.runs import NodeRun, NodeRuns
from rocstack.deploy.plan import services
from rocstack.deploy.read import journal
from rocstack.deploy.read.inventory import Inventory
from rocstack.deploy.read.inventory_values import REGISTRY
from rocstack.deploy.work import controller
from rocstack.edge import locks, ssh
from rocstack.edge.locks import ClusterLock, Sign, unsigned
from rocstack.node.pull import CERTS

PLAYBOOK, TASK = "down.yml", "Down"
# The lock's file stays: we have the lock. So do the history, and what nodes know of who has the lock.
STATE = ("/etc/rocstack", "/var/lib/rocstack/node.json", journal.PATH)


def down(
    inventory: Inventory,
    node_runs: NodeRuns,
    *,
    data: bool = False,
    images: bool = False,
    force: bool = False,
    sign: Sign = unsigned,
) -> dict[str, NodeRun]:
    """What came of it, by node; rocstack.node.removal has the shape. Nodes that fail don't stop the others.

    Args:
        sign: adds to the history's line.
        data: also the volumes, keys and settings on the nodes.
        force: jobs end, and a control node that doesn't answer isn't asked.

    Raises:
        CheckFailed: jobs run, or another deploy does; the control node doesn't answer.
        BadInput, Missing: as `ansible.run`.
    """
    ssh_host = ssh.ssh_hosts(inventory.path, [inventory.control.name])[inventory.control.name]
    held: ClusterLock | None = None
    with ExitStack() as stack:
        try:
            entry = {"command": "down --data" if data else "down", "nodes": [host.name for host in inventory.nodes]}
            lock = locks.cluster_lock(ssh_host, journal.lock(resume="rocstack down"), entry=entry, sign=sign)
            held = stack.enter_context(lock)
        except CheckFailed as error:
            if error.code != "ssh-failed" or not force:
                raise
        controller.end_jobs(ssh_host, force, held)
        variables = {
            "volumes": list(services.VOLUMES) if data else [],
            "images": images,
            "files": [*STATE, *_certificates(inventory, held.text if held else "")] if data else [],
        }
        runs = replace(node_runs, held=held).send(PLAYBOOK, {host.name: {} for host in inventory.nodes}, variables)
        if held and data and runs[inventory.control.name].state == "ok":
            held.end["journal"] = journal.Journal().digest()
        if held and (failed := {name: run.reason for name, run in runs.items() if run.state != "ok"}):
            held.end |= {"outcome": "failed", "failed": list(failed), "why": next(iter(failed.values()))}
        return runs


def _certificates(inventory: Inventory, text: str) -> list[str]:
    """Folders in which nodes have the CA of a registry that a deploy made; `text` is the journal's, and what is no
    registry in it is left alone."""
    try:
        known = journal.loads(text)
    except (BadInput, CheckFailed):
        known = journal.Journal()
    references = (release.images.worker_reference for release in known.releases)
    names = {reference.partition("/")[0] for reference in references} | set(inventory.racks)
    return [f"{CERTS}/{name}" for name in sorted(names) if REGISTRY.fullmatch(name)]
