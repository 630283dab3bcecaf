"""Commands on one node by plain ssh, in its containers or beside them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rocstack.base.errors import BadInput, CheckFailed, did_you_mean
from rocstack.deploy.read import inventory as inventories
from rocstack.deploy.read.inventory import Inventory
from rocstack.deploy.state.cluster_state import CONTAINERS, SERVICES, WORDS
from rocstack.edge import ssh
from rocstack.edge.ssh import Reach

TIMEOUT_S = 60.0  # seconds for an answer
_SSH_FAILED = 255


@dataclass(frozen=True)
class Target:
    """A container on a node."""

    node: str
    reach: Reach
    container: str

    @property
    def service(self) -> str:
        return WORDS[self.container]


def target(path: Path, node: str, service: str | None = None) -> Target:
    """Of the node's services `service`, else the worker's, else the controller's; the container is there.

    Raises:
        BadInput: no such node, or not a service of its roles.
        CheckFailed: ssh doesn't get through, or the container isn't there.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:  # both take Ansible a second
        reaches = pool.submit(ssh.reaches, path, [node])
        name = container(inventories.load(path), node, service)
        reach = reaches.result()[node]
    done = run(reach, ["docker", "container", "inspect", "--format", "{{.State.Status}}", name])
    if done.returncode == _SSH_FAILED:
        raise reach.error("no way to", done.stderr)
    if done.returncode:
        raise CheckFailed(
            f"no container of {node}'s {WORDS[name]}: {_last(done.stderr)}",
            code="no-container",
            cause="it was never deployed there, or taken down",
            next_step=f"`rocstack status {path}` shows what is there; `rocstack deploy {path}` makes what is not",
        )
    return Target(node, reach, name)


def container(inventory: Inventory, node: str, service: str | None) -> str:
    """The name of the container.

    Raises:
        BadInput: as `target`.
    """
    roles = inventory.roles(node)
    if not roles:
        names = [host.name for host in inventory.nodes]
        hint = did_you_mean(node, names) or "no such control node or worker"
        raise BadInput(
            f"no node '{node}' in {inventory.path}: {hint}",
            code="unknown-node",
            next_step=f"`rocstack status {inventory.path}` lists them",
        )
    known = [WORDS[name] for role in ("worker", "control") if role in roles for name in reversed(CONTAINERS[role])]
    if service is None:
        return SERVICES[known[0]]
    if service not in known:
        where = "" if service not in SERVICES else f"; it runs on {inventory.control.name}"
        raise BadInput(
            f"{node} has no service '{service}'{where}",
            code="unknown-service",
            next_step=f"its services are {', '.join(known)}",
        )
    return SERVICES[service]


def run(reach: Reach, command: Sequence[str], seconds: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """As root there, without a terminal or input. How it ended is the caller's to judge; 255 is ssh's own failure.

    Raises:
        CheckFailed: no answer in time.
    """
    line = reach.argv(command, options=["-T"])
    try:
        return subprocess.run(
            line,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise reach.error("no answer from", f"nothing within {seconds:.0f} s") from None


def _last(text: str) -> str:
    return (text.strip() or "no reason given").splitlines()[-1].removeprefix("Error response from daemon: ")
