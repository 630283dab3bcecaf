"""Jobs that stand in the way of taking the controller away: a reason to refuse, or to be ended."""

from __future__ import annotations

from rocstack.base.errors import CheckFailed
from rocstack.deploy.plan import services
from rocstack.deploy.state import read_state
from rocstack.deploy.state.cluster_state import ABSENT
from rocstack.edge import ssh
from rocstack.edge.ssh import SshHost

# A worker's container that goes away takes its jobs along, and Slurm would take them for running half an hour longer.
CANCEL = ("docker", "exec", services.CONTROL, "scancel", "--state=RUNNING")


def end(ssh_host: SshHost, force: bool) -> None:
    """With `force` jobs that run are cancelled; those that wait stay in the queue.

    Raises:
        CheckFailed: jobs run, or whether any do can't be told; not with `force`, nor without a controller.
    """
    said = read_state.slurm(ssh_host)
    if said.nodes is None and (force or said.why == ABSENT):
        return
    if said.nodes is None:
        raise CheckFailed(
            f"whether jobs run can't be told: Slurm's controller doesn't answer: {said.why}",
            code="jobs-running",
            next_step="--force goes on without knowing: jobs that run end",
        )
    if said.jobs and not force:
        shown = ", ".join(map(str, said.jobs[:8])) + (" ..." if len(said.jobs) > 8 else "")
        raise CheckFailed(
            f"{'a job runs' if len(said.jobs) == 1 else f'{len(said.jobs)} jobs run'}: {shown}",
            code="jobs-running",
            next_step="wait, `scancel` them, or go on with --force: they end",
        )
    if said.jobs:
        ssh.run(ssh_host, CANCEL)
