"""Slurm's controller as a deploy works it: steps on the control node, and questions by ssh."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rocstack.base.errors import CheckFailed
from rocstack.cluster import accounts, slurm_records
from rocstack.cluster.settings import ClusterSettings
from rocstack.deploy.nodes.runs import NodeRuns
from rocstack.deploy.plan import services
from rocstack.edge.ssh import SshHost

PLAYBOOK, TASK = "slurm.yml", "Slurm"
TIMEOUT_S = 120.0  # seconds for a question
_MARK = "rocstack-answer"  # between answers


def timed(*steps: Mapping[str, Any]) -> dict[str, Any]:
    """A playbook's variables for these steps, with the time after which a node that hangs is given up."""
    waits = sum(float(step.get("seconds", 0)) for step in steps)
    return {"rocstack_slurm_steps": list(steps), "rocstack_slurm_timeout": int(waits + TIMEOUT_S * (1 + len(steps)))}


@dataclass(frozen=True)
class Controller:
    """`node` is the control node's name in the inventory."""

    node_runs: NodeRuns
    ssh_host: SshHost
    node: str

    def work(self, *steps: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One result a step; rocstack.node.slurm_control has them.

        Raises:
            CheckFailed: a step failed, or the node doesn't answer.
        """
        run = self.node_runs.ask(PLAYBOOK, self.node, timed(*steps))
        if run.state != "ok":
            raise CheckFailed(
                f"Slurm's controller on {self.node}: {run.reason}",
                code="slurm-failed",
                next_step=f"`rocstack logs {self.node} --service controller` shows its log",
            )
        results: list[dict[str, Any]] = run.results[TASK]["steps"]
        return results

    def account_changes(
        self,
        cluster: ClusterSettings,
        workers: Sequence[str],
        groups: Mapping[str, Sequence[str]],
        absent: Sequence[str] = (),
    ) -> accounts.Changes:
        """What QoS, accounts, users and reservations lack; asks, and changes nothing. `absent` are workers that Slurm
        doesn't know yet.

        Raises:
            CheckFailed: the controller or its database doesn't answer.
            BadInput: as `accounts.changes`.
        """
        questions = {**slurm_records.QUESTIONS, "clock": ("date", "+%Y-%m-%dT%H:%M:%S")}
        script = f"; echo {_MARK}; ".join(shlex.join(each) for each in questions.values())
        said = self.ask("bash", "-c", f"set -e; {script}")
        answers = dict(zip(questions, said.split(f"{_MARK}\n"), strict=True))
        now = datetime.fromisoformat(answers.pop("clock").strip())
        known = slurm_records.read(answers)
        return accounts.changes(cluster.with_suite(), known, workers=workers, groups=groups, now=now, absent=absent)

    def ask(self, *command: str, service: str = services.CONTROL) -> str:
        """What a command in the controller's container says.

        Raises:
            CheckFailed: it failed, or ssh did.
        """
        line = self.ssh_host.argv(["docker", "exec", service, *command], options=["-T"])
        try:
            done = subprocess.run(
                line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise self._failed(f"no answer within {TIMEOUT_S:.0f} s") from None
        if done.returncode:
            raise self._failed((done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1])
        return done.stdout

    def _failed(self, why: str) -> CheckFailed:
        return CheckFailed(
            f"Slurm's controller on {self.node} doesn't answer: {why}",
            code="slurm-failed",
            next_step=f"`rocstack logs {self.node} --service controller` shows its log",
        )
