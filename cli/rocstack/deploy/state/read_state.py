"""Looks at a deployed cluster and changes nothing: one Ansible run over all nodes, one question to the control node."""

from __future__ import annotations

import json
import re
from pathlib import Path

from rocstack.base.errors import CheckFailed
from rocstack.cluster.settings import ClusterSettings
from rocstack.deploy.plan import services
from rocstack.deploy.read import cluster_lock as lock
from rocstack.deploy.read import facts, journal
from rocstack.deploy.read.inventory import Inventory
from rocstack.deploy.state.cluster_state import ClusterState, SlurmState
from rocstack.edge import ansible, ssh
from rocstack.edge.ssh import SshHost
from rocstack.node import slurm_control, slurm_state

_MARK = "rocstack-answer"  # a login shell may say things of its own
# Who is deploying is read from the kernel's table of locks: to try the lock would be to take it for a moment.
_SCRIPT = f"""
lock={Path(journal.PATH).parent}/deploy.lock
echo {_MARK}
inode=$(stat -c %i $lock 2>/dev/null) && grep -q "FLOCK .*:$inode 0 EOF" /proc/locks && cat $lock
echo {_MARK}
said=$(docker container inspect {services.CONTROL} 2>&1 >/dev/null) || case "$said" in
  *[Nn]"o such container"*) exit 0 ;;
  *) echo "$said" >&2; exit 1 ;;
esac
exec docker exec {services.CONTROL} bash -c "$0"
"""


def read_state(
    inventory: Inventory, cluster: ClusterSettings, *, overlay: Path | None = None, forks: int = ansible.FORKS
) -> ClusterState:
    """
    Raises:
        BadInput, Missing, CheckFailed: as `facts.gather`; the control node's journal can't be read.
    """
    gathered = facts.gather(inventory, overlay=overlay, forks=forks)
    control = gathered.node(inventory.control.name)
    return ClusterState(
        inventory,
        gathered,
        slurm(gathered.ssh_hosts[inventory.control.name])
        if control
        else SlurmState(why="the control node wasn't reached"),
        journal.loads_dict(control.journal) if control else journal.Journal(),
        own_registry=not cluster.ship.registry,
        offers_gpus=cluster.gres == "auto",
    )


def slurm(ssh_host: SshHost) -> SlurmState:
    """What Slurm says of its nodes and jobs, and who is deploying. That it says nothing is an answer."""
    try:
        done = ssh.run(ssh_host, ["sh", "-c", _SCRIPT, slurm_control.STATE])
    except CheckFailed as error:
        return SlurmState(why=error.what)
    _, holder, answer = (*done.stdout.split(f"{_MARK}\n"), "", "", "")[:3]
    deploying = lock.holder(holder) if holder.strip() else ""
    if done.returncode:
        why = (done.stderr.strip() or "no reason given").splitlines()[-1]
        return SlurmState(why=re.sub("[0-9a-f]{64}", services.CONTROL, why), deploying=deploying)
    if not answer:
        return SlurmState(deploying=deploying)
    nodes, _, queue = answer.partition("\x1e")
    try:
        return SlurmState(slurm_state.slurm_nodes(json.loads(nodes), json.loads(queue)), "", deploying)
    except ValueError as error:
        return SlurmState(why=f"its answer can't be read: {error}", deploying=deploying)
