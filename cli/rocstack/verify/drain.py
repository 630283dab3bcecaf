"""Nodes that fail are drained in Slurm, with the reason; never so many that little is left to work with."""

import shlex
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstack.base.errors import CheckFailed
from rocstack.deploy.plan import services
from rocstack.deploy.state import cluster_state
from rocstack.edge import ssh
from rocstack.node import slurm_state
from rocstack.verify import verdict
from rocstack.verify.result import Run

OURS = "rocstack-verify:"  # begins our reasons; a deploy takes back only those that begin with "rocstack:"
LENGTH = 180  # characters of a reason
AT_ONCE = 50  # lines of scontrol in one command
_SHUT = frozenset({"DRAIN", "FAIL"})
_AWAY = _SHUT | {"DOWN", "NOT_RESPONDING", "POWERED_DOWN", "FUTURE"}


@dataclass(frozen=True)
class Drained:
    """`drained`: node -> reason; `kept`: those that fail and are left as they are -> why; `passing`: those that an
    earlier run drained and that pass now."""

    drained: Mapping[str, str]
    kept: Mapping[str, str]
    passing: tuple[str, ...]


def decide(
    failing: Mapping[str, str], passing: Collection[str], rows: Mapping[str, Mapping[str, Any]], force: bool = False
) -> Drained:
    """What is to be drained. Pure.

    Args:
        failing: worker -> why.
        rows: Slurm's nodes, as slurm_state.table has them.
        force: also where more than half of them would be out of service then.

    Raises:
        CheckFailed: that many would be, without `force`.
    """
    states = {name: set(row["state"]) for name, row in rows.items()}
    kept = {
        name: f"it is {slurm_state.state_text(dict(rows[name]))}" if name in rows else "Slurm doesn't know it"
        for name in failing
        if name not in rows or states[name] & _SHUT
    }
    drained = {name: f"{OURS} {' '.join(why.split())}"[:LENGTH] for name, why in failing.items() if name not in kept}
    out = {name for name, words in states.items() if words & _AWAY} | set(drained)
    if drained and not force and 2 * len(out) > len(rows):
        gone = sorted(out - set(drained))
        more = f"; {', '.join(gone)} already out of service" if gone else ""
        names = ", ".join(sorted(drained))
        raise CheckFailed.of("drain-refused", nodes=names, out=len(out), workers=len(rows), gone=more)
    again = (name for name in passing if name in rows and states[name] & _SHUT)
    return Drained(drained, kept, tuple(name for name in again if rows[name]["reason"].startswith(OURS)))


def drain(run: Run, inventory: Path, force: bool = False) -> Drained:
    """
    Raises:
        CheckFailed: as `decide`; the controller doesn't answer.
        BadInput, Missing: as `ssh.ssh_hosts`.
    """
    judged = verdict.judge(run)
    failing = {
        each.node.name: f"{each.reasons[0].check}: {each.reasons[0].why}"
        for each in judged.nodes
        if each.state == "failing" and "worker" in each.node.roles
    }
    ssh_host = ssh.ssh_hosts(inventory, [run.control])[run.control]
    table = cluster_state.read_slurm(ssh_host)
    if table.nodes is None:
        raise CheckFailed.of("drain-failed", control=run.control, why=table.why)
    decided = decide(failing, judged.names("passing", "worker"), table.nodes, force)
    nodes: dict[str, list[str]] = defaultdict(list)
    for name, reason in decided.drained.items():
        nodes[reason].append(name)
    lines = [
        shlex.join(["scontrol", "update", f"NodeName={','.join(names)}", "State=drain", f"Reason={reason}"])
        for reason, names in nodes.items()
    ]
    for first in range(0, len(lines), AT_ONCE):
        script = " && ".join(lines[first : first + AT_ONCE])
        done = ssh.run(ssh_host, ["docker", "exec", services.CONTROL, "sh", "-c", script])
        if done.returncode:
            why = (done.stderr.strip() or done.stdout.strip() or "no reason").splitlines()[-1]
            raise CheckFailed.of("drain-failed", control=run.control, why=why)
    return decided


def resume_line(control: str, names: Collection[str]) -> str:
    """By which a person gives nodes back."""
    return f"rocstack shell {control} --service controller -- scontrol update nodename={','.join(names)} state=resume"
