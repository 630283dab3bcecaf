"""An update of workers on which jobs may run: a canary, then waves, within a budget of failures. In each wave: drain,
wait, replace, check, resume."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from rocstack.cluster.operation import RolloutSettings, how_many, seconds
from rocstack.deploy.nodes.node_spec import NodeSpec
from rocstack.deploy.nodes.runs import DeployEvents, NodeRun, NodeRuns
from rocstack.deploy.work.controller import Controller
from rocstack.deploy.work.journal_writer import JournalWriter

REASON = "rocstack: update"
READY_WITHIN = 60  # seconds for a started worker to be one on which jobs start
FOREVER_S = 365 * 86400.0


@dataclass(frozen=True)
class RolloutState:
    """Where an update stands. `budget` is how many nodes may fail before it stops."""

    waves: tuple[tuple[str, ...], ...]
    budget: int
    canary: bool = False  # the first wave is one: if any of it fails, nothing else is touched
    done: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()

    @classmethod
    def begin(cls, nodes: Iterable[str], settings: RolloutSettings, groups: Mapping[str, str]) -> Self:
        """The canary, then waves of at least one node; every node once.

        Of each group (rack, partition) a wave takes its part, so that none is gone at once; in a group the given order
        stays. Without canary (0) there are waves only.
        """
        order = _spread(tuple(nodes), groups)
        first, size = how_many(settings.canary, len(order)), max(1, how_many(settings.wave, len(order)))
        rest = order[first:]
        waves = [order[:first], *(rest[at : at + size] for at in range(0, len(rest), size))]
        budget = how_many(settings.failures, len(order))
        return cls(tuple(filter(None, waves)), budget, canary=bool(order) and first > 0)

    def note(self, *, done: Iterable[str] = (), failed: Iterable[str] = ()) -> Self:
        """With what became of nodes; who failed is not tried again in this rollout."""
        lost = self.failed | frozenset(failed)
        return replace(self, done=(self.done | frozenset(done)) - lost, failed=lost)

    def next(self) -> tuple[str, ...]:
        """The next nodes to replace; none when all are through or it has stopped."""
        if self.stopped:
            return ()
        through = self.done | self.failed
        rest = (tuple(node for node in wave if node not in through) for wave in self.waves)
        return next(filter(None, rest), ())

    @property
    def stopped(self) -> str:
        """Why it goes no further; empty while it may, and when there is nothing left to do."""
        if not self.untouched:
            return ""
        if self.canary and (lost := [node for node in self.waves[0] if node in self.failed]):
            return f"the canary failed: {', '.join(lost)}"
        if len(self.failed) > self.budget:
            return f"{len(self.failed)} nodes failed, {self.budget} may"
        return ""

    @property
    def untouched(self) -> tuple[str, ...]:
        """Nodes that stay as they were."""
        return tuple(node for wave in self.waves for node in wave if node not in self.done | self.failed)


def _spread(nodes: tuple[str, ...], groups: Mapping[str, str]) -> tuple[str, ...]:
    """By how far each node is through its own group: any run of neighbours holds about the same part of each."""
    sizes = Counter(groups.get(node, "") for node in nodes)
    seen: Counter[str] = Counter()
    position: dict[str, float] = {}
    for node in nodes:
        group = groups.get(node, "")
        position[node] = (seen[group] + 0.5) / sizes[group]
        seen[group] += 1
    return tuple(sorted(nodes, key=position.__getitem__))


@dataclass
class Rolling:
    """`node_specs` are those of the workers; `offset` is the control node's clock minus ours, in seconds."""

    settings: RolloutSettings
    node_specs: Mapping[str, NodeSpec]
    slurm: Controller
    node_runs: NodeRuns
    record: JournalWriter
    events: DeployEvents
    offset: float
    add_notes: Callable[[str, NodeRun], None]

    def roll(self, names: Sequence[str], groups: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
        """Why it stopped (empty: it didn't), and the nodes that it did not reach. `groups` is node -> rack.

        Raises:
            CheckFailed: the lock is lost, or Slurm's controller doesn't answer.
        """
        # Where the image didn't get, the update has nothing to do with it.
        names = [name for name in names if name not in self.record.failed]
        rollout = RolloutState.begin(names, self.settings, groups)
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
        timeout = 0.0 if self.settings.requeue else FOREVER_S if limit is None else float(limit)
        drained, waited = self.slurm.empty(wave, REASON, timeout, requeue=self.settings.requeue)
        for name, reason in drained.kept.items():
            self.events.say(f"{name} is drained by somebody else ({reason}) and stays so after the update")
        if waited.requeued:
            self.events.say(f"requeued: {', '.join(map(str, waited.requeued))}")
        for job, reason in waited.refused.items():
            self.events.say(f"job {job} can't be requeued: {reason}")
        busy = waited.busy
        asked = (
            "its jobs were asked to requeue" if self.settings.requeue else f"{self.settings.drain_timeout} of waiting"
        )
        for name, reason in busy.items():
            self.record.fail(name, f"{reason} still after {asked}; it stays draining, as it was")
        free = [name for name in wave if name not in busy]
        self.record.note(free, "drained")
        return {*busy, *self._replace(free, kept=drained.kept)}

    def _replace(self, names: Sequence[str], kept: Mapping[str, str]) -> dict[str, str]:
        """New containers on empty nodes; who failed, and why."""
        if not names:
            return {}
        since = int(time.time() + self.offset) - 1
        runs = self.node_runs.run("start.yml", {name: self.node_specs[name] for name in names})
        lost = {name: run.reason for name, run in runs.items() if run.state != "ok"}
        resumed = [name for name in names if name not in kept and name not in lost]
        ready = self.slurm.wait_ready(resumed, READY_WITHIN, since)
        lost |= {name: f"after the update it {reason}" for name, reason in ready.waiting.items()}
        for name in names:
            self.add_notes(name, runs[name])
            if name in lost:
                self.record.fail(name, lost[name])
            else:
                self.events.end(name, "updated" if name in kept else "updated, takes jobs again")
        self.record.note([name for name in names if name not in lost], "done")
        return lost
