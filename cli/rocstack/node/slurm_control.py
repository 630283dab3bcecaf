"""Slurm as a deploy works it, from the control node through the controller's container. Standard library only.

A job is never taken away unless asked for, and what somebody else drained stays drained.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable

from .containers import CONTROLLER
from .engine import NodeError, Row, docker
from .node_lock import caller_left
from .slurm_state import OURS, drained_by_deploy, not_back, not_empty, not_ready, slurm_nodes, state_text

PAUSE = 5.0  # seconds between two looks: each costs the controller a listing of all jobs
SOON, QUICK = 0.5, 30.0  # seconds between two looks, for so long, at what takes seconds
REQUEUED = 60.0  # seconds for requeued jobs to be gone
# What slurm_state.table reads, in the controller's container: of jobs, nothing that their users write. With it, some
# thousands of them would be more than an answer may hold.
STATE = "scontrol show nodes --json && echo '\x1e' && squeue --all --noheader --format='%A|%T|%N'"


class SlurmController:
    """`container` holds the controller; `may_change` raises where whoever asked may change nothing any more."""

    def __init__(self, container: str = CONTROLLER, may_change: Callable[[], None] = lambda: None) -> None:
        self.container = container
        self._may_change = may_change
        self._parent = os.getppid()

    def state(self) -> dict[str, Row]:
        """Every node, as slurm_state.table has it.

        Raises:
            NodeError: the controller doesn't answer.
        """
        nodes, _, queue = self._ask("bash", "-c", STATE).partition("\x1e")
        try:
            return slurm_nodes(json.loads(nodes), queue)
        except ValueError as error:
            raise NodeError(f"Slurm's answer can't be read: {error}", kind="slurm") from None

    def drain(self, nodes: list[str], reason: str) -> Row:
        """No new job starts there. {"drained": names, "kept": {name: reason} of those that somebody else drained}."""
        now = self.state()
        kept = {name: now[name]["reason"] for name in nodes if name in now and _others(now[name])}
        names = [name for name in nodes if name in now and name not in kept]
        if names:
            self._update(names, "drain", reason if reason.startswith(OURS) else f"{OURS} {reason}")
        return {"drained": names, "kept": kept}

    def wait_drained(self, nodes: list[str], seconds: float, requeue: bool = False) -> Row:
        """Waits until no job runs there. With `requeue` the jobs that are left then go back to the queue.

        {"free": names, "busy": {name: why}, "requeued": jobs, "refused": {job: why}}
        """
        busy = self._wait(nodes, seconds, not_empty)
        requeued: list[int] = []
        refused: dict[str, str] = {}
        if busy and requeue:
            now = self.state()
            for job in sorted({job for name in busy for job in now.get(name, {}).get("jobs", [])}):
                self._may_change()
                output = docker("exec", self.container, "scontrol", "requeue", str(job), check=False)
                if output.code:
                    refused[str(job)] = output.why
                else:
                    requeued.append(job)
            busy = self._wait(nodes, REQUEUED if requeued else 0, not_empty, quick=QUICK)
        free = [name for name in nodes if name not in busy]
        return {"free": free, "busy": busy, "requeued": requeued, "refused": refused}

    def wait_ready(self, nodes: list[str], seconds: float, since: float = 0) -> Row:
        """Waits until jobs can start there; what a deploy had drained or set down is taken back as soon as its slurmd
        answers. `since`: epoch seconds after which the slurmd must have started.

        {"ready": names, "waiting": {name: why}, "resumed": names}
        """
        resumed: list[str] = []
        shut: dict[str, str] = {}  # by somebody else: no use to wait for them

        def look(now: dict[str, Row]) -> None:
            shut.clear()
            shut.update({name: f"is {state_text(now[name])}" for name in nodes if name in now and _others(now[name])})
            ours = [name for name in nodes if name in now and name not in resumed and drained_by_deploy(now[name])]
            names = [name for name in ours if _closed(now[name], since)]
            if names:
                self._update(names, "resume")
                resumed.extend(names)

        def why(node: Row | None) -> str:
            return "" if node and _others(node) else not_ready(node, since)

        waiting = {**self._wait(nodes, seconds, why, look, quick=QUICK), **shut}
        ready = [name for name in nodes if name not in waiting]
        return {"ready": ready, "waiting": waiting, "resumed": resumed}

    def _wait(
        self,
        nodes: Iterable[str],
        seconds: float,
        why: Callable[[Row | None], str],
        on_state: Callable[[dict[str, Row]], None] = lambda now: None,
        quick: float = 0.0,
    ) -> dict[str, str]:
        """Until `why` has nothing to say of any; what it says of those that are left.

        Raises:
            NodeError: whoever asked has left.
        """
        began = time.monotonic()
        deadline = began + seconds
        while True:
            try:
                now = self.state()
                on_state(now)
                left = {name: reason for name in nodes if (reason := why(now.get(name)))}
            except NodeError as failed:  # a controller that starts
                left = dict.fromkeys(nodes, failed.what)
            self._may_change()
            passed = time.monotonic()
            if not left or passed >= deadline:
                return left
            if caller_left(self._parent):
                raise NodeError("the caller has disconnected", kind="abandoned")
            time.sleep(min(SOON if passed - began < quick else PAUSE, deadline - passed))

    def _update(self, nodes: list[str], state: str, reason: str = "") -> None:
        self._may_change()
        line = ["scontrol", "update", f"NodeName={','.join(nodes)}", f"State={state}"]
        self._ask(*line, *([f"Reason={reason}"] if reason else []))

    def _ask(self, *words: str) -> str:
        output = docker("exec", self.container, *words, check=False)
        if output.code:
            why = re.sub("[0-9a-f]{64}", self.container, output.why)
            raise NodeError(f"the controller doesn't answer: {why}", kind="slurm")
        return output.out


STEPS = ("drain", "wait_drained", "wait_ready")


def run_steps(
    steps: list[Row], container: str = CONTROLLER, may_change: Callable[[], None] = lambda: None
) -> list[Row]:
    """Steps {"do": one of STEPS; its arguments}, one result each.

    Raises:
        NodeError: a step that nobody knows, or one that failed; those after it are not done; as `may_change`.
    """
    for step in steps:
        if step.get("do") not in STEPS:
            raise NodeError(f"no step '{step.get('do')}' with Slurm", kind="slurm")
    slurm = SlurmController(container, may_change)
    return [getattr(slurm, step["do"])(**{key: value for key, value in step.items() if key != "do"}) for step in steps]


def _others(node: Row) -> bool:
    return bool(set(node["state"]) & {"DRAIN", "FAIL"} and node["reason"] and not drained_by_deploy(node))


def _closed(node: Row, since: float) -> bool:
    """Drained or down by a deploy, and its slurmd is back (one that is down can only be asked to come)."""
    state = set(node["state"])
    return "DOWN" in state or (bool(state & {"DRAIN", "FAIL"}) and not not_back(node, since))
