"""An update of workers on which jobs may run: drain, wait, replace, check, resume, wave by wave."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rocstack.cluster import operation
from rocstack.cluster.operation import how_many, seconds
from rocstack.deploy.nodes.node_spec import NodeSpec
from rocstack.deploy.nodes.runs import DeployEvents, NodeRuns, failure_reason
from rocstack.deploy.work.controller import Controller
from rocstack.deploy.work.journal_writer import JournalWriter
from rocstack.deploy.work.waves import RolloutState
from rocstack.edge.ansible import HostRun

REASON = "rocstack: update"
READY_WITHIN = 60  # seconds for a started worker to be one on which jobs start
FOR_EVER = 365 * 86400.0  # seconds


@dataclass
class Rolling:
    """`orders` are those of the workers; `offset` is the control node's clock minus ours, in seconds."""

    settings: operation.RolloutSettings
    node_specs: Mapping[str, NodeSpec]
    slurm: Controller
    node_runs: NodeRuns
    record: JournalWriter
    events: DeployEvents
    offset: float
    add_notes: Callable[[str, HostRun], None]

    def roll(self, names: Sequence[str], groups: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
        """Why it stopped (empty: it didn't), and the nodes that it did not come to. `groups` is node -> rack.

        Raises:
            CheckFailed: the lock is lost, or Slurm's controller doesn't answer.
        """
        # Where the image didn't get, the update has nothing to do with it.
        names = [name for name in names if name not in self.record.failed]
        budget = how_many(self.settings.failures, len(names))
        rollout = RolloutState.begin(
            names, canary=self.settings.canary, wave=self.settings.wave, budget=budget, groups=groups
        )
        while wave := rollout.next():
            self.record.cluster_lock.check()
            lost = self._wave(wave)
            rollout = rollout.note(done=[name for name in wave if name not in lost], failed=lost)
        return rollout.stopped, rollout.untouched

    def _wave(self, wave: Sequence[str]) -> set[str]:
        """The nodes that failed; they stay drained, with the reason."""
        for name in wave:
            self.events.step(name, "draining: no new job starts there, waiting for those that run")
        limit = seconds(self.settings.drain_timeout)
        patience = 0.0 if self.settings.requeue else FOR_EVER if limit is None else float(limit)
        drained, waited = self.slurm.work(
            {"do": "drain", "nodes": list(wave), "reason": REASON},
            {"do": "wait_drained", "nodes": list(wave), "seconds": patience, "requeue": self.settings.requeue},
        )
        for name, reason in drained["kept"].items():
            self.events.say(f"{name} is drained by somebody else ({reason}) and stays so after the update")
        if waited["requeued"]:
            self.events.say(f"requeued: {', '.join(map(str, waited['requeued']))}")
        for job, reason in waited["refused"].items():
            self.events.say(f"job {job} can't be requeued: {reason}")
        busy: dict[str, str] = waited["busy"]
        asked = (
            "its jobs were asked to requeue" if self.settings.requeue else f"{self.settings.drain_timeout} of waiting"
        )
        for name, reason in busy.items():
            self.record.fail(name, f"{reason} still after {asked}; it stays draining, as it was")
        free = [name for name in wave if name not in busy]
        self.record.note(free, "drained")
        return {*busy, *self._replace(free, kept=drained["kept"])}

    def _replace(self, names: Sequence[str], kept: Mapping[str, str]) -> dict[str, str]:
        """New containers on empty nodes; who failed, and why."""
        if not names:
            return {}
        since = int(time.time() + self.offset) - 1
        runs = self.node_runs.run("start.yml", {name: self.node_specs[name] for name in names})
        lost = {name: failure_reason(run) for name, run in runs.items() if run.state != "ok"}
        resumed = [name for name in names if name not in kept and name not in lost]
        (found,) = self.slurm.work({"do": "wait_ready", "nodes": resumed, "seconds": READY_WITHIN, "since": since})
        lost |= {name: f"after the update it {reason}" for name, reason in found["waiting"].items()}
        for name in names:
            self.add_notes(name, runs[name])
            if name in lost:
                self.record.fail(name, lost[name])
            else:
                self.events.end(name, "updated" if name in kept else "updated, takes jobs again")
        self.record.note([name for name in names if name not in lost], "done")
        return lost
