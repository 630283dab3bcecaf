"""The Ansible runs of a deploy: orders go to the nodes in a file for nobody else, results come back by node."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstack import remote
from rocstack.deploy.order import Order
from rocstack.deploy.watch import Watch
from rocstack.remote import HostRun

MEMORY = Path("/dev/shm")  # secrets of an order don't reach a disk where there is one
SAYS = {  # what people read for the name of a task
    "Pull": "pulling the image",
    "Containers": "writing its files, starting its containers",
    "Slurm": "waiting for Slurm",
    "Down": "stopping its containers",
}


@dataclass(frozen=True)
class Hands:
    """`log` takes what Ansible prints."""

    inventory: Path
    log: Path
    watch: Watch
    forks: int = remote.FORKS

    def run(
        self, playbook: str, orders: Mapping[str, Order], variables: Mapping[str, Any] | None = None
    ) -> dict[str, HostRun]:
        """Runs `playbook` on the nodes that have an order; what each said, by node. A node that said nothing is
        unreachable.

        Raises:
            BadInput, Missing, CheckFailed: as `remote.run`.
        """
        return self._run(playbook, {name: order.as_dict() for name, order in orders.items()}, variables or {})

    def ask(self, playbook: str, node: str, variables: Mapping[str, Any]) -> HostRun:
        """The same for one node, which needs no order: `variables` are no secrets."""
        return self._run(playbook, {node: {}}, variables)[node]

    def _run(self, playbook: str, orders: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, HostRun]:
        def on_task(host: str, task: str, state: remote.State) -> None:
            if state == "started" and task in SAYS:
                self.watch.step(host, SAYS[task])

        if not orders:
            return {}
        with _file({"orders": dict(orders)}) as file:
            runs = remote.run(
                playbook,
                self.inventory,
                forks=self.forks,
                variables={"rocstack_order": str(file), **variables},
                limit=orders,
                log=self.log,
                on_task=on_task,
            )
        found = {run.host: run for run in runs}
        return {name: found.get(name, HostRun(name, "unreachable", "Ansible said nothing of it")) for name in orders}


@contextmanager
def _file(data: Mapping[str, Any]) -> Iterator[Path]:
    """In a folder that only this user may enter."""
    place = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rocstack-", dir=place) as folder:
        file = Path(folder) / "orders.json"
        file.write_text(json.dumps(data))
        yield file
