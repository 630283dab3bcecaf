"""A deploy at work: control node, registry, images, workers, Slurm. Each step is noted before the next one begins."""

from __future__ import annotations

import secrets as random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rocstack.cluster.settings import how_many, seconds
from rocstack.deploy import journal, lock, secrets, services
from rocstack.deploy.controller import Controller
from rocstack.deploy.hands import Hands
from rocstack.deploy.journal import Images, Journal, Step
from rocstack.deploy.lock import Held
from rocstack.deploy.order import Order
from rocstack.deploy.outcome import Outcome, Shipped, of_services
from rocstack.deploy.prepare import Prepared, Request, prepare
from rocstack.deploy.shipping import Shipping
from rocstack.deploy.ssh import Reach
from rocstack.deploy.wanted_image import WantedImage
from rocstack.deploy.watch import Watch
from rocstack.deploy.waves import Rollout
from rocstack.errors import CheckFailed
from rocstack.remote import HostRun

CONTROL_SERVICES = ("registry", "db", "controller")
READY_WITHIN = 60  # seconds for a started worker to be one on which jobs start
NEVER = 365 * 86400  # seconds; a drain that waits for ever


def deploy(request: Request, shipping: Shipping, hands: Hands, watch: Watch) -> Outcome:
    """Makes the cluster as `request` says. What can't be changed stays, is named, and is no reason for the others to
    wait.

    Raises:
        BadInput, Missing, CheckFailed: before anything was changed, or what stops all of it.
    """
    began = time.monotonic()
    prepared = prepare(request, watch)
    if refused(prepared):
        return Outcome(prepared.plan, {}, stopped=refused(prepared))
    control = prepared.gathered.reaches[request.inventory.control.name]
    with lock.hold(control) as held:
        if journal.loads(held.journal) != prepared.journal:
            watch.say("another deploy has just ended; reading the nodes again")
            prepared = prepare(request, watch)
            if refused(prepared):
                return Outcome(prepared.plan, {}, stopped=refused(prepared))
        secrets.save(secrets.beside(request.inventory.path), prepared.keys)
        outcome = _Work(prepared, shipping, hands, watch, held, control).run()
    return replace(outcome, seconds=time.monotonic() - began)


def refused(prepared: Prepared) -> str:
    """Why nothing can be done at all; empty where something can."""
    plan, inventory = prepared.plan, prepared.request.inventory
    if any(finding.level == "error" for finding in plan.findings):
        return "the cluster as a whole is not fit for it"
    stopped = {node.name for node in plan.stopped}
    if inventory.control.name in stopped:
        return f"the control node {inventory.control.name} is not fit for it"
    if stopped >= {worker.name for worker in inventory.workers}:
        return "no worker is fit for it"
    return ""


@dataclass
class _Work:
    """One deploy. `log` is the journal as it is now."""

    prepared: Prepared
    shipping: Shipping
    hands: Hands
    watch: Watch
    held: Held
    reach: Reach
    log: Journal = field(init=False)
    failed: dict[str, str] = field(default_factory=dict)
    shipped: list[Shipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    published: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = self.prepared.journal
        self.request = self.prepared.request
        self.control = self.request.inventory.control.name
        self.slurm = Controller(self.hands, self.reach, self.control)
        self.orders = dict(self.prepared.orders)

    def run(self) -> Outcome:
        plan = self.prepared.plan
        changed = [node.name for node in plan.changed]
        if changed or self.log.resumable():
            self._begin(changed)
        update = any(node.has("replace", services.WORKER) for node in plan.nodes)
        stopped, untouched = "", tuple[str, ...]()
        self._control(update)
        lacking = self._lacking()
        if lacking:
            self._ship(lacking)
        rolling = [node.name for node in plan.changed if node.has("replace", services.WORKER)]
        others = [name for name in changed if name not in rolling]
        self._start(others)
        self._accounts()
        if rolling:
            stopped, untouched = self._roll(rolling)
        ready = self._settle()
        if self.log.current:
            self.log = self.log.finish(journal.now())
            self.held.write(self.log.dumps())
        return Outcome(
            plan,
            {role: image.id for role, image in self.prepared.images.items()},
            tuple(name for name in changed if name not in (*self.failed, *untouched)),
            self.failed,
            untouched,
            stopped,
            ready,
            tuple(self.shipped),
            self.published,
            (*plan.notes, *self.notes),
        )

    # -- the journal

    def _begin(self, changed: Sequence[str]) -> None:
        images = release(self.prepared.images)
        before = self.log.resumable()
        if before and before.images.same(images):
            self.watch.say(f"going on with the deploy that {before.who} began at {before.started}")
        nodes = {name: journal.NodeStep() for name in changed}
        self.log = self.log.begin(
            journal.Deploy(
                id=random.token_hex(4),
                who=lock.me(),
                started=journal.now(),
                images=images,
                options=self.request.options,
                nodes=nodes,
            )
        )
        self.held.write(self.log.dumps())

    def _note(self, names: Iterable[str], step: Step, reason: str = "") -> None:
        if self.log.current is None:
            return
        for name in names:
            self.log = self.log.note(name, step, reason=reason)
        self.held.write(self.log.dumps(), wait=False)

    def _fail(self, name: str, reason: str) -> None:
        self.failed[name] = reason
        self.watch.end(name, reason, ok=False)
        self._note([name], "failed", reason)

    # -- the control node

    def _control(self, update: bool) -> None:
        """Its services, before the workers need them.

        Raises:
            CheckFailed: they don't come up; the workers are as they were.
        """
        node = self.prepared.plan.node(self.control)
        if self.prepared.images["control"].on_node.id not in {i.id for i in self.prepared.control.images}:
            image = self.prepared.images["control"]
            self.shipping.load_control(image, self.control, self.reach, self.prepared.control, self.watch)
        if not node.changes:
            return
        order = of_services(self.orders[self.control], CONTROL_SERVICES)
        run = self.hands.run("start.yml", {self.control: order})[self.control]
        self._say_notes(self.control, run)
        if run.state != "ok":
            self._fail(self.control, why(run))
            raise CheckFailed(
                f"the control node {self.control}: {why(run)}",
                code="control-failed",
                cause=str(run.results.get("Containers", {}).get("cause") or "") or None,
                next_step="nothing was changed on the workers; `rocstack deploy --resume` goes on from here",
            )
        self.watch.end(self.control, "the control plane runs")

    # -- images

    def _lacking(self) -> list[str]:
        """Workers without the worker image."""
        name = self.prepared.images["worker"].on_node.name
        return [node.name for node in self.prepared.plan.changed if node.has("ship", name)]

    def _ship(self, lacking: Sequence[str]) -> None:
        self.held.check()
        came = self.shipping.ship(self.prepared, lacking, self.hands, self.watch)
        self.published, self.shipped = came.published, [*self.shipped, *came.rows]
        self._renew({**self.prepared.images, "worker": came.image})
        for name, reason in came.failed.items():
            self._fail(name, reason)
        self._note([name for name in lacking if name not in came.failed], "shipped")

    def _renew(self, images: Mapping[str, WantedImage]) -> None:
        """Orders that name what nodes can pull now."""
        self.prepared = self.prepared.with_images(images)
        self.orders = dict(self.prepared.orders)
        if self.log.current:
            deploy = self.log.current.model_copy(update={"images": release(images)})
            self.log = self.log.model_copy(update={"current": deploy})
            self.held.write(self.log.dumps(), wait=False)

    # -- workers

    def _start(self, names: Sequence[str]) -> None:
        """All at once: nobody works on these nodes."""
        names = [name for name in names if name not in self.failed]
        if not names:
            return
        self.held.check()
        runs = self.hands.run("start.yml", {name: self.orders[name] for name in names})
        for name, run in runs.items():
            self._say_notes(name, run)
            if run.state == "ok":
                self._note([name], "started")
            else:
                self._fail(name, why(run))

    def _roll(self, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        """Wave by wave; why it stopped, and which nodes it did not come to."""
        wish = self.request.cluster.rollout
        budget = how_many(wish.failures, len(names))
        rollout = Rollout.begin(names, canary=wish.canary, wave=wish.wave, budget=budget)
        rollout = rollout.note(failed=[name for name in names if name in self.failed])
        while wave := rollout.next():
            self.held.check()
            lost = self._wave(wave)
            rollout = rollout.note(done=[name for name in wave if name not in lost], failed=lost)
        return rollout.stopped, rollout.untouched

    def _wave(self, wave: Sequence[str]) -> set[str]:
        """Drain, wait, replace, check, resume; the nodes that failed, which stay drained."""
        wish = self.request.cluster.rollout
        for name in wave:
            self.watch.step(name, "draining: no new job starts there")
        limit = seconds(wish.drain_timeout)
        drained, waited = self.slurm.work(
            {"do": "drain", "nodes": list(wave), "reason": "rocstack: update"},
            {
                "do": "wait_drained",
                "nodes": list(wave),
                "seconds": 0 if wish.requeue else NEVER if limit is None else limit,
                "requeue": wish.requeue,
            },
        )
        for name, reason in drained["kept"].items():
            self.watch.say(f"{name} is drained by somebody else ({reason}) and stays so after the update")
        busy: dict[str, str] = waited["busy"]
        for name, reason in busy.items():
            self._fail(name, f"not empty after {wish.drain_timeout}: {reason}; left draining")
        free = [name for name in wave if name not in busy]
        self._note(free, "drained")
        lost = self._replace(free)
        self._keep_drained(lost)
        return {*busy, *lost}

    def _replace(self, names: Sequence[str]) -> dict[str, str]:
        """The containers of drained nodes; who failed, and why."""
        if not names:
            return {}
        began = int(time.time() + self.prepared.control.behind) - 1  # by the control node's clock
        orders: dict[str, Order] = {self.control: Order(), **{name: self.orders[name] for name in names}}
        steps = [{"do": "wait_ready", "nodes": list(names), "seconds": READY_WITHIN, "since": began}]
        runs = self.hands.run("start.yml", orders, {"rocstack_slurm_steps": steps})
        lost = {}
        for name in names:
            self._say_notes(name, runs[name])
            if runs[name].state != "ok":
                lost[name] = why(runs[name])
        asked = runs[self.control].results.get("Slurm", {})
        waiting = asked.get("steps", [{}])[0].get("waiting", {}) if runs[self.control].state == "ok" else {}
        lost |= {name: f"after the update {said}" for name, said in waiting.items() if name not in lost}
        for name, reason in lost.items():
            self._fail(name, reason)
        for name in names:
            if name not in lost:
                self.watch.end(name, "updated, takes jobs again")
        self._note([name for name in names if name not in lost], "done")
        return lost

    def _keep_drained(self, lost: Mapping[str, str]) -> None:
        steps = [
            {"do": "drain", "nodes": [name], "reason": f"rocstack: update failed: {reason}"[:180]}
            for name, reason in lost.items()
        ]
        if steps:
            self.slurm.work(*steps)

    # -- Slurm

    def _accounts(self) -> None:
        wanted = self.prepared.wanted
        assert wanted is not None
        found = self.slurm.account_changes(self.request.cluster, list(wanted.machines), wanted.groups)
        self.notes += found.notes
        if found.commands:
            self.watch.say(f"Slurm's accounts: {len(found.commands)} changes")
            self.slurm.work({"do": "run", "commands": [list(command) for command in found.commands]})

    def _settle(self) -> tuple[str, ...]:
        """Waits for the workers that are in order; those on which jobs can start."""
        stopped = {node.name for node in self.prepared.plan.stopped}
        names = [
            worker.name
            for worker in self.request.inventory.workers
            if worker.name not in stopped and worker.name not in self.failed
        ]
        (found,) = self.slurm.work({"do": "wait_ready", "nodes": names, "seconds": READY_WITHIN})
        current = self.log.current
        for name, reason in found["waiting"].items():
            if current and name in current.nodes and current.nodes[name].step in ("started", "shipped"):
                self._fail(name, f"jobs can't start there: {reason}")
            else:
                self.notes.append(f"{name} takes no jobs: {reason}")
        ready = [name for name in names if name not in found["waiting"]]
        if current:
            pending = [n for n, node in current.nodes.items() if node.step not in ("done", "failed")]
            self._note([n for n in pending if n in ready or n == self.control], "done")
        return tuple(ready)

    def _say_notes(self, name: str, run: HostRun) -> None:
        for container in run.results.get("Containers", {}).get("containers", {}).values():
            for note in container.get("notes", ()):
                self.notes.append(f"{name}: {note}")


def why(run: HostRun) -> str:
    """Why a node failed, with the likely cause where one is known."""
    causes = [str(result.get("cause") or "") for result in run.results.values()]
    cause = next(filter(None, reversed(causes)), "")
    return f"{run.reason} ({cause})" if cause and cause not in run.reason else run.reason


def release(images: Mapping[str, WantedImage]) -> Images:
    worker, control = images["worker"], images["control"]
    return Images(
        worker_id=worker.id,
        control_id=control.id,
        worker_reference=worker.reference or "",
        control_reference=control.reference or "",
        labels=dict(worker.labels),
    )
