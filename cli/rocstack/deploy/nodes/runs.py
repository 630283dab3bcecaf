"""The Ansible runs of a deploy: what each node is to be goes there, and the answers come back by node."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rocstack.deploy.nodes.answers import TASKS, Answer, parse
from rocstack.deploy.nodes.node_spec import NodeSpec
from rocstack.edge import ansible
from rocstack.edge.ansible import HostRun, State, Watch
from rocstack.edge.locks import ClusterLock

A = TypeVar("A", bound=Answer)


class DeployEvents:
    """What a deploy tells while it works. Override what you need; methods are called from several threads."""

    def begin(self, nodes: Sequence[str]) -> None:
        """The nodes are known."""

    def say(self, text: str) -> None:
        """About the cluster as a whole."""

    def step(self, node: str, text: str) -> None:
        """A node begins this."""

    def end(self, node: str, text: str, *, ok: bool = True) -> None:
        """A node has done this, or failed."""

    def rest(self) -> None:
        """No node works now; times are counted anew from here."""


@dataclass(frozen=True)
class NodeRun:
    """How a playbook ended on one node. `reason` says why it failed, with the likely cause; `answers` has every task of
    ours that ended there. `kind` is the failure in one word, where the module has one."""

    node: str
    state: State
    reason: str = ""
    answers: Mapping[str, Answer] = field(default_factory=dict)
    kind: str = ""

    def answer(self, task: str, model: type[A]) -> A | None:
        """The task's answer; None where it didn't run there, or failed before it had one."""
        answer = self.answers.get(task)
        return answer if isinstance(answer, model) else None


@dataclass(frozen=True)
class NodeRuns:
    """`log` takes what Ansible prints. `held` is the lock under which nodes are changed: a run ends when it is lost,
    and nodes refuse an older one's. None: the control node is not there, and nobody can have the lock. What `watch`
    raises ends a run, too."""

    inventory: Path
    log: Path
    events: DeployEvents
    forks: int = ansible.FORKS
    held: ClusterLock | None = None
    watch: Watch = lambda: None

    def run(self, playbook: str, node_specs: Mapping[str, NodeSpec]) -> dict[str, NodeRun]:
        """Runs `playbook` on the nodes that have a spec; how it ended, by node. A node that didn't answer is
        unreachable.

        Raises:
            BadInput, Missing, CheckFailed: as `ansible.run`; the lock is lost.
        """
        return self.send(playbook, {name: spec.to_dict() for name, spec in node_specs.items()})

    def send(
        self, playbook: str, rows: Mapping[str, Mapping[str, Any]], variables: Mapping[str, Any] | None = None
    ) -> dict[str, NodeRun]:
        """The same for a playbook that takes something else than a spec. `variables` must hold no secrets."""

        def on_task(host: str, task: str, state: State, result: Mapping[str, Any]) -> None:
            if state == "started" and task in TASKS:
                self.events.step(host, TASKS[task][0])
            elif state == "ok" and task in TASKS:
                with suppress(ValueError):  # the node fails for it when the run has ended
                    if text := str(parse(TASKS[task][1], result)):
                        self.events.end(host, text)

        def watch() -> None:
            if self.held:
                self.held.check()
            self.watch()

        if not rows:
            return {}
        runs = ansible.run(
            playbook,
            self.inventory,
            forks=self.forks,
            variables={**(variables or {}), "fence": self.held.fence if self.held else {}},
            node_specs=rows,
            limit=rows,
            log=self.log,
            on_task=on_task,
            watch=watch,
        )
        result = {name: NodeRun(name, "unreachable", "Ansible reported nothing for it") for name in rows}
        return result | {run.host: _node_run(run) for run in runs if run.host in rows}


def _node_run(run: HostRun) -> NodeRun:
    """A node that ended well and whose answer can't be read has failed."""
    answers: dict[str, Answer] = {}
    for task in run.results.keys() & TASKS.keys():
        try:
            answers[task] = parse(TASKS[task][1], run.results[task])
        except ValueError as error:
            if run.state == "ok":
                return NodeRun(run.host, "failed", f"its answer can't be read: {task}: {error}")
            answers[task] = Answer()  # it failed before it had one
    causes = [str(result["cause"]) for result in run.results.values() if result.get("cause")]
    cause = causes[-1] if causes else ""
    reason = f"{run.reason} ({cause})" if cause and cause not in run.reason else run.reason
    kind = next((str(result["kind"]) for result in run.results.values() if result.get("kind")), "")
    return NodeRun(run.host, run.state, reason, answers, kind)
