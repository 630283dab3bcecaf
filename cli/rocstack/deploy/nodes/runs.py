"""The Ansible runs of a deploy: orders go to the nodes in a file for nobody else, results come back by node."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rocstack.deploy.nodes.node_spec import NodeSpec
from rocstack.edge import ansible
from rocstack.edge.ansible import HostRun

MEMORY = Path("/dev/shm")  # secrets of an order don't reach a disk where there is one
SAYS = {  # what people read for the name of a task
    "Pull": "pulling the image",
    "Warm": "filling the rack's registry",
    "Control": "starting the control plane",
    "Containers": "writing its files, starting its containers",
    "Slurm": "waiting for Slurm",
    "Down": "stopping its containers",
}


def _pulled(result: Mapping[str, Any]) -> str:
    images = [each for each in result["images"] if each["changed"]]
    count, seconds = sum(each["bytes"] or 0 for each in images), sum(each["seconds"] for each in images)
    attempts = max((each["attempts"] for each in images), default=1)
    again = f", {attempts} attempts" if attempts > 1 else ""
    return f"pulled {count / 1e6:.1f} MB in {seconds:.1f} s{again}" if images else ""


def _made(result: Mapping[str, Any]) -> str:
    acted = [
        f"{name.removeprefix('rocstack-')} {each['action']} ({each['seconds']:.1f} s)"
        for name, each in result["containers"].items()
        if each["action"] != "kept"
    ]
    return ", ".join(acted) or ("files written" if result["files"] else "")


TOLD = {"Pull": _pulled, "Control": _made, "Containers": _made}  # what came of a task, as soon as it ends on a node


class DeployEvents(Protocol):
    """Called from several threads."""

    def begin(self, nodes: Sequence[str]) -> None:
        """The nodes are known."""

    def say(self, text: str) -> None:
        """Of the cluster as a whole."""

    def step(self, node: str, text: str) -> None:
        """What a node is about to do or doing."""

    def end(self, node: str, text: str, *, ok: bool = True) -> None:
        """What came of it."""

    def rest(self) -> None:
        """No node does anything now; what comes next counts anew."""


class SilentEvents:
    """For those who want only the result."""

    def begin(self, nodes: Sequence[str]) -> None: ...

    def say(self, text: str) -> None: ...

    def step(self, node: str, text: str) -> None: ...

    def end(self, node: str, text: str, *, ok: bool = True) -> None: ...

    def rest(self) -> None: ...


@dataclass(frozen=True)
class NodeRuns:
    """`log` takes what Ansible prints."""

    inventory: Path
    log: Path
    events: DeployEvents
    forks: int = ansible.FORKS

    def run(
        self, playbook: str, node_specs: Mapping[str, NodeSpec], variables: Mapping[str, Any] | None = None
    ) -> dict[str, HostRun]:
        """Runs `playbook` on the nodes that have an order; what each said, by node. A node that said nothing is
        unreachable.

        Raises:
            BadInput, Missing, CheckFailed: as `remote.run`.
        """
        return self.send(playbook, {name: spec.as_dict() for name, spec in node_specs.items()}, variables)

    def send(
        self, playbook: str, node_specs: Mapping[str, Mapping[str, Any]], variables: Mapping[str, Any] | None = None
    ) -> dict[str, HostRun]:
        """The same for a playbook whose orders are of another kind."""
        return self._run(playbook, node_specs, variables or {})

    def ask(self, playbook: str, node: str, variables: Mapping[str, Any]) -> HostRun:
        """The same for one node, which needs no order: `variables` are no secrets."""
        return self._run(playbook, {node: {}}, variables)[node]

    def _run(self, playbook: str, node_specs: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, HostRun]:
        def on_task(host: str, task: str, state: ansible.State, result: Mapping[str, Any]) -> None:
            if state == "started" and task in SAYS:
                self.events.step(host, SAYS[task])
            elif state == "ok" and task in TOLD and (text := TOLD[task](result)):
                self.events.end(host, text)

        if not node_specs:
            return {}
        with _file({"orders": dict(node_specs)}) as file:
            runs = ansible.run(
                playbook,
                self.inventory,
                forks=self.forks,
                variables={"rocstack_order": str(file), **variables},
                limit=node_specs,
                log=self.log,
                on_task=on_task,
            )
        found = {run.host: run for run in runs}
        return {
            name: found.get(name, HostRun(name, "unreachable", "Ansible said nothing of it")) for name in node_specs
        }


def failure_reason(run: HostRun) -> str:
    """Why a node failed, with the likely cause where one is known."""
    causes = [str(result.get("cause") or "") for result in run.results.values()]
    cause = next(filter(None, reversed(causes)), "")
    return f"{run.reason} ({cause})" if cause and cause not in run.reason else run.reason


@contextmanager
def _file(data: Mapping[str, Any]) -> Iterator[Path]:
    """In a folder that only this user may enter."""
    place = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rocstack-", dir=place) as folder:
        file = Path(folder) / "orders.json"
        file.write_text(json.dumps(data))
        yield file
