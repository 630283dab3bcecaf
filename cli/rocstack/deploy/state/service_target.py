"""Commands on one node by plain ssh, in its containers or beside them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rocstack.base.errors import BadInput, CheckFailed, did_you_mean
from rocstack.base.text import last_line
from rocstack.deploy.plan.services import CONTAINERS, SERVICE_OF, SERVICES
from rocstack.deploy.read import inventory as inventories
from rocstack.deploy.read.inventory import Inventory
from rocstack.edge import ssh
from rocstack.edge.ssh import SshHost
from rocstack.node import engine_errors


@dataclass(frozen=True)
class Target:
    """A container, and the way to its node."""

    ssh_host: SshHost
    container: str


def target(path: Path, node: str, service: str | None = None) -> Target:
    """Of the node's services `service`, else the worker's, else the controller's; the container is there.

    Raises:
        BadInput: no such node, or not a service of its roles.
        CheckFailed: ssh doesn't get through, or the container isn't there.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:  # both take Ansible a second
        ssh_hosts = pool.submit(ssh.ssh_hosts, path, [node])
        name = container(inventories.load(path), node, service)
        ssh_host = ssh_hosts.result()[node]
    done = ssh.run(ssh_host, ["docker", "container", "inspect", "--format", "{{.State.Status}}", name])
    if done.returncode == ssh.FAILED:
        raise ssh_host.error("no way to", done.stderr)
    if done.returncode:
        why = engine_errors.without_noise(last_line(done.stderr))
        raise CheckFailed.of("no-container", node=node, service=SERVICE_OF[name], why=why, path=path)
    return Target(ssh_host, name)


def container(inventory: Inventory, node: str, service: str | None) -> str:
    """The name of the container.

    Raises:
        BadInput: as `target`.
    """
    roles = inventory.roles(node)
    if not roles:
        names = [host.name for host in inventory.nodes]
        hint = did_you_mean(node, names) or "no such control node or worker"
        raise BadInput.of("node-not-in-inventory", node=node, path=inventory.path, hint=hint)
    known = [SERVICE_OF[name] for role in ("worker", "control") if role in roles for name in reversed(CONTAINERS[role])]
    if service is None:
        return SERVICES[known[0]]
    if service not in known:
        elsewhere = f"; it runs on {inventory.control.name}" if service in SERVICES else ""
        raise BadInput.of("unknown-service", node=node, service=service, elsewhere=elsewhere, known=", ".join(known))
    return SERVICES[service]
