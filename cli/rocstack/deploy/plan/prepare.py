"""What a deploy finds and would do: the nodes' facts, their orders, what is wrong, and the plan. Changes nothing."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from rocstack.base import finding_texts
from rocstack.base.errors import CheckFailed
from rocstack.base.findings import Finding, in_order
from rocstack.base.text import listed
from rocstack.cluster import service
from rocstack.cluster.operation import RolloutSettings
from rocstack.cluster.settings import ClusterSettings
from rocstack.container.run_line import RunProfile
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.nodes.node_spec import NodeSpec
from rocstack.deploy.nodes.runs import DeployEvents
from rocstack.deploy.plan import checks_cluster, checks_image, checks_node, issuer_files, plan, secrets
from rocstack.deploy.plan.desired import SLURM_UID, DesiredCluster
from rocstack.deploy.plan.plan import Plan
from rocstack.deploy.plan.scope import CLUSTER_RULES, NODE_RULES, Scope
from rocstack.deploy.plan.secrets import Secrets
from rocstack.deploy.read import facts, journal, verified
from rocstack.deploy.read.facts import Gathered, NodeFacts
from rocstack.deploy.read.inventory import Inventory
from rocstack.deploy.read.journal import Journal, JournalImages, VerifiedLevel
from rocstack.deploy.read.trusted import TrustCheck
from rocstack.doctor import fleet
from rocstack.edge.ansible import FORKS, State
from rocstack.edge.locks import Sign, unsigned
from rocstack.stack import component

UIDS = {"munge": 42430, "slurm": SLURM_UID}  # in the images
WARNING = "inventory-warning"
UNREAD = (facts.UNREACHED, facts.WRONG_VARIABLES, WARNING)
RULES = (checks_node, checks_image, checks_cluster)  # importing them fills the tables of scope.py
MIXED = ("nodes-differ", "abi-differs", "gpus-fewer", "rdma-fewer")  # of the doctor
Choose = Callable[[Journal], Mapping[str, Image]]


@dataclass(frozen=True)
class DeployRequest:
    """What the person asked for. `choose` gives the images by role, for which it may look into the journal."""

    inventory: Inventory
    cluster: ClusterSettings
    choose: Choose
    run: RunProfile = field(default_factory=RunProfile)
    overlay: Path | None = None
    forks: int = FORKS
    resume: bool = False  # as the deploy that was interrupted, but for what is `given` anew
    overrides: Mapping[str, Any] = field(default_factory=dict)  # of the rollout, on the command line
    layer_bytes: Mapping[str, int] = field(default_factory=dict)  # diff id -> uncompressed, as far as it is known
    require: int | None = None  # level that the images must have passed, even those that run; default: the setting
    rehearsal: bool = False  # real nodes may get a rehearsal image
    command: str = "deploy"  # that asked for it
    runs: Path | None = None  # folder of the acceptance suite's, with what they proved
    trust: TrustCheck | None = None  # what the site asks of images; None: nothing
    replaces: tuple[str, ...] = ()  # keys that the cluster trusted until now, without any in their place
    sign: Sign = unsigned  # the line that the cluster's history gets

    def rollout(self, known: Journal) -> RolloutSettings:
        """How an update goes through the nodes."""
        before = known.current if self.resume else None
        values = self.cluster.rollout.model_dump() | (before.options.get("rollout", {}) if before else {})
        return RolloutSettings.model_validate({**values, **self.overrides})

    @property
    def gate(self) -> str:
        return str(self.cluster.env.get("ROCSTACK_GATE", "refuse"))


@dataclass(frozen=True)
class PreparedDeploy:
    """A request, and what the nodes are like. `findings` are of all nodes at once."""

    request: DeployRequest
    images: Mapping[str, Image]
    gathered: Gathered
    journal: Journal
    keys: Secrets
    findings: tuple[Finding, ...]
    desired: DesiredCluster | None  # None: the control node could not be read
    trust_order: Mapping[str, Any] = field(default_factory=dict, repr=False)  # for the control node; empty: no policy

    @cached_property
    def node_specs(self) -> dict[str, NodeSpec]:
        """Of the nodes that may be changed."""
        node_specs = self.desired.node_specs() if self.desired else {}
        blocked = {finding.node for finding in self.findings if finding.level == "error"}
        return {name: spec for name, spec in node_specs.items() if name not in blocked}

    @cached_property
    def plan(self) -> Plan:
        inventory = self.request.inventory
        by_node = defaultdict(list)
        for finding in self.findings:
            by_node[finding.node].append(finding)
        nodes = []
        for host in inventory.nodes:
            name, found = host.name, tuple(by_node[host.name])
            spec, node_facts = self.node_specs.get(name), self.gathered.node(name)
            nodes.append(plan.of_node(name, inventory.roles(name), spec, node_facts, found))
        ship: dict[str, Any] = {}
        lacking = {node.name for node in nodes if node.has("ship", self.images["worker"].name_on_node)}
        if lacking and self.desired:
            method, why = self.desired.ship_method(lacking)
            ship = {"method": method, "why": why, "nodes": len(lacking)}
        return Plan(tuple(nodes), tuple(by_node[None]), ship, self.desired.plan_notes if self.desired else ())

    def with_images(self, images: Mapping[str, Image]) -> PreparedDeploy:
        """The same with a worker image that nodes can pull now."""
        if self.desired is None:
            return self
        there = {**self.desired.images, "worker": images["worker"]}
        return replace(self, images=images, desired=replace(self.desired, images=there))

    def facts(self, name: str) -> NodeFacts:
        """Of a node that could be read."""
        node = self.gathered.node(name)
        if node is None:
            raise LookupError(f"{name} has no facts")
        return node


def prepare(request: DeployRequest, events: DeployEvents) -> PreparedDeploy:
    """
    Raises:
        BadInput: secrets or settings that can't be used, or keys that are another cluster's.
        Missing, CheckFailed: as `facts.gather`.
    """

    def on_event(name: str, state: State) -> None:
        if state == "started":
            events.step(name, "reading the node")

    inventory, cluster, gate = request.inventory, request.cluster, request.gate
    path = secrets.beside(inventory.path)
    keys = secrets.read(path)
    issuer = issuer_files.read(cluster.service.oidc if cluster.service else None)
    ship = cluster.ship
    own_ports = [ship.port, facts.push_port(ship.port), *([cluster.rest.port] if cluster.rest.port else [])]
    own_ports += [cluster.service.port] if cluster.service else []
    uids = UIDS | service.own_users(cluster.service)
    gathered = facts.gather(
        inventory, on_event, uids=uids, own_ports=own_ports, overlay=request.overlay, forks=request.forks
    )
    events.rest()
    control = gathered.node(inventory.control.name)
    if control:
        secrets.refuse_others(path, keys, control.state.keys if control.state else {})
    if control is None and (request.resume or request.command == "rollback"):  # its journal says to what
        why = next((each.reason for each in gathered.failures if each.node == inventory.control.name), "no answer")
        raise CheckFailed.of("control-unread", node=inventory.control.name, why=why, command=request.command.split())
    known = journal.loads(control.journal) if control else Journal()
    images = request.choose(known)
    proved, trust, order = _proved(known, images, request.runs), request.trust, dict[str, Any]()
    if trust:
        events.say("checking the signatures of the images")
        found = trust(images, events.say)
        proved = found.proved  # by signed reports alone
        order = {**found.order, "virtual": all(node.profile.virtual for node in gathered.nodes)}
        images = {role: replace(image, signers=found.signers) for role, image in images.items()}
    desired = None
    if control:
        keep = known.kept_ids(cluster.keep_images)
        now, trusted = datetime.now(UTC), trust.fingerprints if trust else ()
        # By a digest an engine may know another image. Which one these have, the journal says, and so the control node:
        # no node hears of it before it was compared (`by_registry.bring`).
        told = {role: replace(image, reference=None) for role, image in images.items()}
        desired = DesiredCluster(
            inventory, cluster, request.run, keys, told, gathered, now, keep, gate, request.overlay, trusted, issuer
        )
    ids = {image.id for image in images.values()}
    scope = Scope(
        inventory,
        gathered,
        images,
        nics=component.nic_profiles(request.overlay),
        gate=gate,
        memlock=request.run.ulimits != "auto",
        uids=uids,
        layer_bytes=request.layer_bytes,
        ports=desired.ports if desired else {},
        registries=tuple(desired.registries) if desired else (),
        service=cluster.service,
        rehearsal=request.rehearsal,
        require=_required(request),
        insist=request.require is not None or not ids <= known.kept_ids(),
        proved=proved,
        trust=trust.fingerprints if trust else (),
        level=trust.level if trust else None,
        replaces=trust.replaces if trust else request.replaces,
        cluster=cluster.name,
        munge=hashlib.sha256(keys.munge_key).hexdigest(),
    )
    return PreparedDeploy(request, images, gathered, known, keys, precheck(scope), desired, order)


def _required(request: DeployRequest) -> int | None:
    """The level that the images must have passed: the trust policy's is the least."""
    asked = request.cluster.require if request.require is None else request.require
    levels = [each for each in (asked, request.trust.level if request.trust else None) if each is not None]
    return max(levels, default=None)


def _proved(known: Journal, images: Mapping[str, Image], runs: Path | None) -> tuple[VerifiedLevel, ...]:
    """By the cluster's journal, and by what this machine has."""
    mine = JournalImages.of(images)
    there = tuple(each.verified for each in known.releases if each.verified and each.images.same_cluster(mine))
    return (*there, *(verified.claims(runs, mine.worker_id, mine.control_id) if runs else ()))


def precheck(scope: Scope) -> tuple[Finding, ...]:
    """Errors first, then warnings and notes; in each the nodes as they come, what lies between them last."""
    table, inventory = finding_texts.table(), scope.inventory.path
    findings = [
        table[facts.code_of(each)].finding(
            {"reason": each.reason, "inventory": inventory, "node": each.node}, node=each.node
        )
        for each in scope.gathered.failures
    ]
    findings += [table[WARNING].finding({"warning": each, "inventory": inventory}) for each in scope.inventory.warnings]
    for node in scope.nodes:
        for code, rule in NODE_RULES.items():
            findings += [table[code].finding({"node": node.name, **v}, node=node.name) for v in rule(node, scope)]
    for code, of_all in CLUSTER_RULES.items():
        findings += [table[code].finding(values) for values in of_all(scope)]
    profiles = [node.profile for node in scope.nodes]
    for code in MIXED if len(profiles) > 1 else ():
        for values, names in fleet.RULES[code](profiles):
            mixed = table[code].finding({**values, "level": "warning"})  # a mixed fleet may be meant
            findings.append(replace(mixed, what=f"{listed(names)}: {mixed.what}") if names else mixed)
    return in_order(findings)
