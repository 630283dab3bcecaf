"""Takes a cluster's containers off its nodes; data, keys and images only where they are asked for."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.deploy.nodes.runs import NodeRun, NodeRuns
from rocstack.deploy.plan import services
from rocstack.deploy.read import journal
from rocstack.deploy.read.inventory import Inventory
from rocstack.deploy.work import controller
from rocstack.edge import locks, ssh
from rocstack.edge.ssh import SshHost
from rocstack.node.pull import CERTS

PLAYBOOK, TASK = "down.yml", "Down"
# The lock's file stays: we have the lock.
STATE = ("/etc/rocstack", "/var/lib/rocstack/node.json", journal.PATH)


@dataclass(frozen=True)
class DownOptions:
    """What goes beside the containers: `data` are the volumes, keys and settings on the nodes. With `force` jobs end,
    and a control node that doesn't answer isn't asked."""

    data: bool = False
    images: bool = False
    force: bool = False


def down(inventory: Inventory, options: DownOptions, node_runs: NodeRuns) -> dict[str, NodeRun]:
    """What came of it, by node; rocstack.node.removal has the shape. Nodes that fail don't stop the others.

    Raises:
        CheckFailed: jobs run, or another deploy does; the control node doesn't answer.
        BadInput, Missing: as `ansible.run`.
    """
    ssh_host = ssh.ssh_hosts(inventory.path, [inventory.control.name])[inventory.control.name]
    with _locked(ssh_host, options.force) as text:
        controller.end_jobs(ssh_host, options.force)
        variables = {
            "rocstack_volumes": list(services.VOLUMES) if options.data else [],
            "rocstack_images": options.images,
            "rocstack_files": [*STATE, *_certificates(inventory, text)] if options.data else [],
        }
        return node_runs.send(PLAYBOOK, {host.name: {} for host in inventory.nodes}, variables)


@contextmanager
def _locked(ssh_host: SshHost, force: bool) -> Iterator[str]:
    """Takes the cluster's lock; gives the journal, which is empty where the control node isn't reached."""
    with ExitStack() as stack:
        try:
            text = stack.enter_context(locks.cluster_lock(ssh_host, journal.lock())).text
        except CheckFailed as error:
            if error.code != "ssh-failed" or not force:
                raise
            text = ""
        yield text


def _certificates(inventory: Inventory, text: str) -> list[str]:
    """Folders in which nodes have the CA of a registry that a deploy made."""
    try:
        known = journal.loads(text)
    except (BadInput, CheckFailed):
        known = journal.Journal()
    references = (release.images.worker_reference for release in known.releases)
    names = {reference.partition("/")[0] for reference in references if reference} | set(inventory.racks)
    return [f"{CERTS}/{name}" for name in sorted(names)]
