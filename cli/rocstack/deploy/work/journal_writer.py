"""The journal of a deploy at work: each step is on the control node before the next one begins."""

import secrets as random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rocstack.deploy.nodes.image import Image
from rocstack.deploy.nodes.runs import DeployEvents
from rocstack.deploy.read import journal
from rocstack.deploy.read.journal import Journal, JournalImages, Step
from rocstack.edge import locks
from rocstack.edge.locks import ClusterLock


@dataclass
class JournalWriter:
    """`now` is the journal as it is; `failed` is node -> why, of this deploy."""

    now: Journal
    cluster_lock: ClusterLock
    events: DeployEvents
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster_lock.end["journal"] = self.now.digest()

    def begin(self, options: Mapping[str, Any], images: Mapping[str, Image], names: Sequence[str]) -> None:
        """`options` are what `--resume` needs. A deploy that changes nothing has no entry, unless it ends one that was
        interrupted, or the last one failed with other images."""
        before, wanted = self.now.current, JournalImages.of(images)
        failed = any(not last.healthy and not last.images.same(wanted) for last in self.now.releases[-1:])
        if not names and before is None and not failed:
            return
        if before and before.images.same(wanted):
            self.events.say(f"going on with the deploy that {before.who} began at {before.started}")
        deploy = journal.Deploy(
            id=random.token_hex(4),
            who=locks.operator(),
            started=journal.now(),
            images=wanted,
            options=options,
            nodes={name: journal.NodeStep() for name in names},
        )
        self._write(self.now.begin(deploy))

    def note(self, names: Iterable[str], step: Step, reason: str = "") -> None:
        if self.now.current is None:
            return
        now = self.now
        for name in names:
            now = now.note(name, step, reason=reason)
        self._write(now, wait=False)

    def fail(self, name: str, reason: str) -> None:
        self.failed[name] = reason
        self.events.end(name, reason, ok=False)
        self.note([name], "failed", reason)

    def shipped(self, images: Mapping[str, Image]) -> None:
        """Where the images can be pulled from now."""
        if self.now.current is None:
            return
        deploy = self.now.current.model_copy(update={"images": JournalImages.of(images)})
        self._write(self.now.model_copy(update={"current": deploy}), wait=False)

    def finish(self, ready: Iterable[str]) -> None:
        """`ready` are done, whatever they had come to."""
        if self.now.current is None:
            return
        known, open_still = set(ready), self.now.current.at("pending", "shipped", "drained", "started")
        self.note([name for name in open_still if name in known], "done")
        self._write(self.now.finish(journal.now()))

    def _write(self, now: Journal, *, wait: bool = True) -> None:
        self.now = now
        self.cluster_lock.end.pop("journal", None)  # of one that couldn't be written the history says nothing
        self.cluster_lock.write(now.dumps(), wait=wait)
        self.cluster_lock.end["journal"] = now.digest()
