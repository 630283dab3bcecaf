"""Slurm's controller as a deploy works it: steps on the control node, and questions by ssh."""

import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from rocstack.base.errors import CheckFailed
from rocstack.base.text import last_line, listed
from rocstack.cluster import accounts, slurm_records
from rocstack.deploy.nodes.answers import Answer, DrainAnswer, SlurmAnswer, WaitDrainedAnswer, WaitReadyAnswer, parse
from rocstack.deploy.nodes.runs import NodeRuns
from rocstack.deploy.plan import services
from rocstack.deploy.plan.desired import DesiredCluster
from rocstack.deploy.state import cluster_state
from rocstack.edge import ssh
from rocstack.edge.locks import ClusterLock
from rocstack.edge.ssh import SshHost
from rocstack.node import slurm_state

A = TypeVar("A", bound=Answer)
PLAYBOOK, TASK = "slurm.yml", "Slurm"
TIMEOUT_S = 120.0  # seconds for a question
_MARK = "rocstack-answer"  # between answers
# sacctmgr ends with 1 where all is as asked already.
_NOTHING = '*"othing new added"*|*"othing modified"*|*"othing deleted"*'
# A worker's container that goes away takes its jobs along, and Slurm would take them for running half an hour longer.
CANCEL = ("docker", "exec", services.CONTROL, "scancel", "--state=RUNNING")


@dataclass(frozen=True)
class Controller:
    """`node` is the control node's name in the inventory."""

    node_runs: NodeRuns
    ssh_host: SshHost
    node: str

    def drain(self, reasons: Mapping[str, str]) -> None:
        """Drains each node for its own reason.

        Raises:
            CheckFailed: as `_work`.
        """
        if reasons:
            self._work(*({"do": "drain", "nodes": [name], "reason": text} for name, text in reasons.items()))

    def empty(
        self, nodes: Sequence[str], reason: str, seconds: float, *, requeue: bool
    ) -> tuple[DrainAnswer, WaitDrainedAnswer]:
        """Drains the nodes and waits for their jobs to end; with `requeue` those that are left then are requeued."""
        drained, waited = self._work(
            {"do": "drain", "nodes": list(nodes), "reason": reason},
            {"do": "wait_drained", "nodes": list(nodes), "seconds": seconds, "requeue": requeue},
        )
        return self._parsed(DrainAnswer, drained), self._parsed(WaitDrainedAnswer, waited)

    def is_ready(self, nodes: Sequence[str]) -> bool:
        """Whether jobs can start on all of them now; asks by ssh, in a third of the time that an Ansible run takes."""
        state = cluster_state.read_slurm(self.ssh_host).nodes
        return state is not None and not any(slurm_state.not_ready(state.get(name)) for name in nodes)

    def wait_ready(self, nodes: Sequence[str], seconds: float, since: float = 0) -> WaitReadyAnswer:
        """Waits until jobs can start there, and resumes what a deploy had drained. `since`: seconds since the epoch
        after which slurmd must have started."""
        (waited,) = self._work({"do": "wait_ready", "nodes": list(nodes), "seconds": seconds, "since": since})
        return self._parsed(WaitReadyAnswer, waited)

    def run(self, commands: Iterable[Sequence[str]]) -> None:
        """sacctmgr and scontrol lines, one after the other until one fails; what is so already is no failure. By ssh,
        in a third of the time that an Ansible run takes.

        Raises:
            CheckFailed: a line failed, the node doesn't answer, or the lock is lost.
        """
        lines, held = [shlex.join(command) for command in commands], self.node_runs.held
        command = ["docker", "exec", "--interactive", services.CONTROL, "bash", "-s"]
        if held:
            held.check()
            command = held.guarded(self.ssh_host.python, command, alone_within=TIMEOUT_S)
        done = self._asked(command, script(lines), 2 * TIMEOUT_S + len(lines))
        if done.returncode:
            number = "".join(done.stdout.split()[-1:])
            at = int(number) if re.fullmatch("[0-9]{1,6}", number) else len(lines)
            line = lines[at] if at < len(lines) else "the controller's container"
            raise self._error("failed", f"`{line}` failed: {last_line(done.stderr)}")

    def _work(self, *steps: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """One row a step; rocstack.node.slurm_control has them.

        Raises:
            CheckFailed: a step failed, or the node doesn't answer.
        """
        waits = sum(float(step.get("seconds", 0)) for step in steps)
        patience = int(waits + TIMEOUT_S * (1 + len(steps)))  # after which a node that hangs is given up
        variables = {"steps": list(steps), "timeout": patience}
        run = self.node_runs.send(PLAYBOOK, {self.node: {}}, variables)[self.node]
        answer = run.answer(TASK, SlurmAnswer)
        if run.state != "ok" or answer is None:
            raise self._error("failed", run.reason or "no answer")
        return answer.steps

    def _parsed(self, model: type[A], row: object) -> A:
        try:
            return parse(model, row)
        except ValueError as error:
            raise self._error("answered what can't be read", str(error)) from None

    def account_changes(self, desired: DesiredCluster) -> accounts.SlurmChanges:
        """What QoS, accounts, users and reservations lack; asks, and changes nothing.

        Raises:
            CheckFailed: the controller or its database doesn't answer.
            BadInput: as `accounts.changes`.
        """
        questions = {**slurm_records.QUESTIONS, "clock": ("date", "+%Y-%m-%dT%H:%M:%S")}
        script = f"; echo {_MARK}; ".join(shlex.join(each) for each in questions.values())
        command = ["docker", "exec", services.CONTROL, "bash", "-c", f"set -e; {script}"]
        done = self._asked(command)
        if done.returncode:
            raise self._error("doesn't answer", last_line(done.stderr.strip() or done.stdout))
        answers = dict(zip(questions, done.stdout.split(f"{_MARK}\n"), strict=True))
        now = datetime.fromisoformat(answers.pop("clock").strip())
        return accounts.changes(
            desired.cluster.with_suite(),
            slurm_records.read(answers),
            workers=desired.worker_names,
            groups=desired.inventory.worker_groups,
            now=now,
            absent=desired.absent,
        )

    def _asked(
        self, command: Sequence[str], text: str = "", seconds: float = TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """A command on the control node that reads `text`.

        Raises:
            CheckFailed: no answer in time.
        """
        try:
            return ssh.run(self.ssh_host, command, seconds, text)
        except CheckFailed as error:
            raise self._error("doesn't answer", error.what) from None

    def _error(self, what: str, why: str) -> CheckFailed:
        return CheckFailed.of("slurm-failed", node=self.node, what=what, why=why)


def script(lines: Iterable[str]) -> str:
    """For bash: the lines one after the other. If one fails, it prints that one's number, and complains as that did."""
    return "\n".join(
        f'out=$({line} 2>&1) || case $out in {_NOTHING}) ;; *) echo "$out" >&2; echo {number}; exit 1 ;; esac'
        for number, line in enumerate(lines)
    )


def end_jobs(ssh_host: SshHost, force: bool, held: ClusterLock | None) -> None:
    """With `force` jobs that run are cancelled, under the lock if there is one; those that wait stay in the queue.

    Raises:
        CheckFailed: jobs run, or whether any do can't be told; not with `force`, nor without a controller.
    """
    slurm = cluster_state.read_slurm(ssh_host)
    if slurm.nodes is None and (force or slurm.why == cluster_state.ABSENT):
        return
    if slurm.nodes is None:
        raise CheckFailed.of("jobs-unknown", why=slurm.why)
    if slurm.jobs and not force:
        count = "a job runs" if len(slurm.jobs) == 1 else f"{len(slurm.jobs)} jobs run"
        raise CheckFailed.of("jobs-running", count=count, jobs=listed(map(str, slurm.jobs), 8))
    if slurm.jobs:
        if held:
            held.check()
        ssh.run(ssh_host, held.guarded(ssh_host.python, CANCEL) if held else CANCEL)
