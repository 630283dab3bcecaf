"""A deploy at work: control node, registry, images, workers, Slurm."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rocstack.base.errors import CheckFailed
from rocstack.deploy.nodes.answers import ApplyAnswer, TrustAnswer
from rocstack.deploy.nodes.runs import DeployEvents, NodeRun, NodeRuns
from rocstack.deploy.plan import secrets, services
from rocstack.deploy.plan.plan import Outcome, Shipped
from rocstack.deploy.plan.prepare import DeployRequest, PreparedDeploy, prepare
from rocstack.deploy.read import journal
from rocstack.deploy.ship.shipping import Shipping
from rocstack.deploy.work.controller import Controller
from rocstack.deploy.work.journal_writer import JournalWriter
from rocstack.deploy.work.rolling import READY_WITHIN, REASON, Rolling
from rocstack.edge import locks
from rocstack.edge.locks import ClusterLock
from rocstack.edge.ssh import SshHost

CONTROL_SERVICES = ("registry", "db", "controller")
WORKERS_TASK = "Containers"  # of start.yml; it follows when the control node's own services run


def deploy(request: DeployRequest, shipping: Shipping, node_runs: NodeRuns, events: DeployEvents) -> Outcome:
    """Makes the cluster as `request` says. What can't be changed stays, is named, and is no reason for the others to
    wait.

    Raises:
        BadInput, Missing, CheckFailed: before anything was changed, or what stops all of it.
    """
    began = time.monotonic()
    prepared = prepare(request, events)
    if not refused(prepared):
        name = request.inventory.control.name
        control = prepared.gathered.ssh_hosts[name]
        fence = max((node.fence for node in prepared.gathered.nodes), default=0)
        with locks.cluster_lock(
            control, journal.lock(), least=fence, entry=_entry(prepared), sign=request.sign
        ) as cluster_lock:
            # A rotation of keys, for one, leaves the journal as it was.
            if (
                cluster_lock.before != prepared.facts(name).fence
                or journal.loads(cluster_lock.text) != prepared.journal
            ):
                events.say("somebody else has just changed the cluster; reading the nodes again")
                prepared = prepare(request, events)
            if not refused(prepared):
                secrets.save(secrets.beside(request.inventory.path), prepared.keys)
                node_runs = replace(node_runs, held=cluster_lock)
                outcome = _Work(prepared, shipping, node_runs, events, cluster_lock, control).run()
                cluster_lock.end |= _end(outcome)
                return replace(outcome, seconds=time.monotonic() - began)
    return Outcome(prepared.plan, {}, stopped=refused(prepared), seconds=time.monotonic() - began)


def _entry(prepared: PreparedDeploy) -> dict[str, Any]:
    """For the history, when it begins."""
    worker = prepared.images["worker"]
    return {
        "command": prepared.request.command,
        "image": worker.id,
        "digest": (worker.reference or "").partition("@")[2],
        "nodes": [node.name for node in prepared.plan.changed],
    }


def _end(outcome: Outcome) -> dict[str, Any]:
    """For the history, when it has ended."""
    failed = [*outcome.failed, *outcome.untouched]
    row: dict[str, Any] = {"nodes": [*outcome.changed, *outcome.failed], "failed": list(outcome.failed)}
    if digest := str(outcome.published.get("reference", "")).partition("@")[2]:
        row["digest"] = digest
    if failed or outcome.stopped:
        row |= {"outcome": "failed", "why": outcome.stopped or next(iter(outcome.failed.values()), "")}
    return row


def refused(prepared: PreparedDeploy) -> str:
    """Why nothing can be done at all; empty where something can."""
    plan, inventory = prepared.plan, prepared.request.inventory
    if between := [finding.what for finding in plan.findings if finding.level == "error"]:
        return "; ".join(between)
    stopped = {node.name for node in plan.stopped}
    if inventory.control.name in stopped:
        return f"the control node {inventory.control.name} is not fit for it"
    if stopped >= {worker.name for worker in inventory.workers}:
        return "no worker is fit for it"
    return ""


@dataclass
class _Work:
    """One deploy, under its lock."""

    prepared: PreparedDeploy
    shipping: Shipping
    node_runs: NodeRuns
    events: DeployEvents
    cluster_lock: ClusterLock
    ssh_host: SshHost
    shipped: tuple[Shipped, ...] = ()
    notes: list[str] = field(default_factory=list)
    published: Mapping[str, Any] = field(default_factory=dict)
    works: set[str] = field(default_factory=set)  # failed, but as a worker: the service alone did

    def __post_init__(self) -> None:
        self.request = self.prepared.request
        self.control = self.request.inventory.control.name
        self.slurm = Controller(self.node_runs, self.ssh_host, self.control)
        self.record = JournalWriter(self.prepared.journal, self.cluster_lock, self.events)
        self.rollout = self.request.rollout(self.prepared.journal)

    def run(self) -> Outcome:
        plan = self.prepared.plan
        changed = [node.name for node in plan.changed]
        rolling = [node.name for node in plan.changed if node.has("replace", services.WORKER)]
        lacking = self._lacking("worker")
        options = {"rollout": self.rollout.model_dump(mode="json")}
        self._judge(changed)
        self.record.begin(options, self.prepared.images, changed)
        if lacking:
            self._ship(lacking)
        else:
            self._load_control()
            if rolling:  # else it starts in one go with the workers
                self._control()
        self._load_service()
        self._start([name for name in changed if name not in rolling])
        stopped, untouched = self._roll(rolling) if rolling else ("", ())
        ready = self._ready()
        self._accounts()  # now: Slurm reserves no node that it doesn't know to be idle
        self.record.finish(name for name in (*ready, self.control) if name not in untouched)
        return Outcome(
            plan=plan,
            images={role: image.id for role, image in self.prepared.images.items()},
            changed=tuple(name for name in changed if name not in (*self.record.failed, *untouched)),
            failed=self.record.failed,
            untouched=untouched,
            stopped=stopped,
            ready=ready,
            shipped=self.shipped,
            published=self.published,
            notes=(*plan.notes, *dict.fromkeys(self.notes)),
        )

    def _judge(self, changed: Sequence[str]) -> None:
        """The control node checks the signatures again, by the keys that it remembers, before its registry is filled.

        Raises:
            CheckFailed: it takes one of the images from nobody. Nothing was changed.
        """
        order = self.prepared.trust_order
        if not order or not changed:
            return
        run = self.node_runs.send("trust.yml", {self.control: order})[self.control]
        answer = run.answer("Trust", TrustAnswer)
        if run.state != "ok" or answer is None:
            why = run.reason or "it said nothing of them"
            if run.kind == "no-openssl":
                raise CheckFailed.of("control-without-openssl", control=self.control, why=why)
            if run.kind == "trust-replaced":
                raise CheckFailed.of("control-knows-other-keys", control=self.control, why=why)
            raise CheckFailed.of("control-distrusts", control=self.control, why=why)
        if answer.signers.keys() != self.prepared.images.keys() or not all(answer.signers.values()):
            raise CheckFailed.of("control-distrusts", control=self.control, why="it didn't judge each of the images")

    def _lacking(self, role: str) -> list[str]:
        """Nodes without the image."""
        name = self.prepared.images[role].name_on_node
        return [node.name for node in self.prepared.plan.changed if node.has("ship", name)]

    def _load_control(self) -> None:
        """The control image to the control node, and to those that run a rack's registry."""
        names = self._lacking("control")
        failed = self.shipping.load_control(self.prepared, names, self.node_runs, self.events)
        for name, reason in failed.items():
            self.record.fail(name, f"the control image didn't arrive: {reason}")

    def _load_service(self) -> None:
        if "service" in self.prepared.images:
            names = self._lacking("service")
            self.shipping.load_service(self.prepared, names, self.node_runs, self.events)

    def _control(self) -> None:
        """The control node's services, before registry and controller are needed."""
        spec = self.prepared.node_specs[self.control].part(CONTROL_SERVICES)
        names = {container.name for container in spec.containers}
        node = self.prepared.plan.node(self.control)
        if any(change.kind == "file" or change.what in names for change in node.changes):
            run = self.node_runs.run("start.yml", {self.control: spec})[self.control]
            self._heard(self.control, run)
            self._require_control(run)

    def _require_control(self, run: NodeRun) -> None:
        """
        Raises:
            CheckFailed: without it nothing else is begun.
        """
        if run.state != "ok" and WORKERS_TASK not in run.answers:
            self.record.fail(self.control, run.reason)
            raise CheckFailed.of("control-failed", node=self.control, why=run.reason)

    def _ship(self, lacking: Sequence[str]) -> None:
        self.cluster_lock.check()

        def start_control() -> None:
            self._load_control()
            self._control()

        came = self.shipping.ship(self.prepared, lacking, self.node_runs, self.events, start_control)
        self.published, self.shipped = came.published, came.rows
        self.prepared = self.prepared.with_images({**self.prepared.images, "worker": came.image})
        self.record.shipped(self.prepared.images)
        for name, reason in came.failed.items():
            self.record.fail(name, f"the image didn't arrive: {reason}")
        self.record.note([name for name in lacking if name not in came.failed], "shipped")

    def _start(self, names: Sequence[str]) -> None:
        """All at once: no job runs on these nodes, or it isn't disturbed."""
        names = [name for name in names if name not in self.record.failed]
        self.cluster_lock.check()
        runs = self.node_runs.run("start.yml", {name: self.prepared.node_specs[name] for name in names})
        if self.control in runs:
            self._require_control(runs[self.control])
        for name, run in runs.items():
            self._heard(name, run)
            if run.state == "ok":
                self.record.note([name], "started")
            else:
                self.record.fail(name, run.reason)
                self.works |= {name} if _only_service(_failed(run)) else set()

    def _accounts(self) -> None:
        desired = self.prepared.desired
        assert desired is not None
        changes = self.slurm.account_changes(desired)
        self.notes += changes.notes
        if changes.commands:
            self.events.say(f"Slurm's QoS, accounts and users: {len(changes.commands)} changes")
            self.slurm.run(changes.commands)

    def _roll(self, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        racks = {node.name: registry for registry, nodes in self.request.inventory.racks.items() for node in nodes}
        specs, behind = self.prepared.node_specs, self.prepared.facts(self.control).behind
        rolling = Rolling(
            self.rollout, specs, self.slurm, self.node_runs, self.record, self.events, behind, self._heard
        )
        return rolling.roll(names, racks)

    def _ready(self) -> tuple[str, ...]:
        """The workers on which jobs can start; those that are in order are waited for, and resumed if an earlier
        deploy left them drained."""
        left_out = {node.name for node in self.prepared.plan.stopped} | set(self.record.failed) - self.works
        names = [worker.name for worker in self.request.inventory.workers if worker.name not in left_out]
        waiting = {} if self.slurm.is_ready(names) else self.slurm.wait_ready(names, READY_WITHIN).waiting
        for name, reason in waiting.items():
            if "drain" in reason:  # by a person, who knows why
                self.notes.append(f"{name} takes no jobs: it {reason}")
            else:
                self.record.fail(name, f"jobs can't start there: it {reason}")
        self._explain()
        return tuple(name for name in names if name not in waiting)

    def _explain(self) -> None:
        """Whoever looks at a node that takes no jobs reads why in Slurm. One that runs another image stays as it is."""
        unfit = {
            node.name: next(finding.what for finding in node.findings if finding.level == "error")
            for node in self.prepared.plan.nodes
            if node.result == "blocked" and not self.prepared.facts(node.name).container(services.WORKER)
        }
        known = self.prepared.desired.machines if self.prepared.desired else {}
        failed = {name: text for name, text in self.record.failed.items() if name not in self.works}
        reasons = {name: text for name, text in {**unfit, **failed}.items() if name in known}
        self.slurm.drain({name: f"{REASON} failed: {text}"[:180] for name, text in reasons.items()})

    def _heard(self, name: str, run: NodeRun) -> None:
        for task in ("Control", "Containers"):
            answer = run.answer(task, ApplyAnswer)
            for container in answer.containers.values() if answer else ():
                self.notes += [f"{name}: {note}" for note in container.notes]


def _only_service(failed: set[str]) -> bool:
    """Whether the cluster works all the same."""
    return bool(failed) and failed <= {services.API, services.TOKENS}


def _failed(run: NodeRun) -> set[str]:
    """The containers that did not come up: every other one has a health."""
    answer = run.answer(WORKERS_TASK, ApplyAnswer)
    return {name for name, each in answer.containers.items() if not each.health} if answer else set()
