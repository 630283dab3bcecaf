"""Deploy, rollback and status: the Slurm cluster on the nodes of an inventory."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rocstack.base import image_names
from rocstack.base.errors import BadInput, Missing, RocstackError
from rocstack.cluster import checks
from rocstack.cluster.operation import RolloutSettings, Ship
from rocstack.cluster.settings import ClusterSettings
from rocstack.deploy.nodes.image import Image, local_image
from rocstack.deploy.nodes.runs import DeployEvents, NodeRuns
from rocstack.deploy.plan.plan import Outcome, Plan
from rocstack.deploy.plan.prepare import Choose, DeployRequest, prepare
from rocstack.deploy.read import inventory as inventories
from rocstack.deploy.read.journal import Journal
from rocstack.deploy.read.trusted import TrustCheck
from rocstack.deploy.ship.shipping import Shipping
from rocstack.deploy.state import history as histories
from rocstack.deploy.state import status as deployed
from rocstack.deploy.state.cluster_state import read_state
from rocstack.deploy.state.history import DeployHistory
from rocstack.deploy.state.status import Status
from rocstack.deploy.work import deploy as work
from rocstack.edge import engine, ssh
from rocstack.image.build_report import with_built_stack
from rocstack.registry.local_image import LocalImage
from rocstack.registry.registry_http import RegistryHttp, as_own_engine
from rocstack.registry.repository import Repository
from rocstack.settings.settings import Settings, placed
from rocstack.steps.options import DeployOptions, Note, RollbackOptions, StatusOptions, ignore, inventory_path, settings
from rocstack.steps.trust_policy import history_keys, history_signer, policy_keys

ROLLOUT = ("canary", "wave", "drain_timeout", "requeue", "failures")  # options that stand in `cluster.rollout`


@dataclass(frozen=True)
class DeployPreview:
    """What a deploy would change on each node, and why. `refused`: why nothing can be done at all."""

    plan: Plan
    refused: str = ""

    @property
    def ok(self) -> bool:
        return not (self.refused or self.plan.stopped)

    def to_dict(self) -> dict[str, Any]:
        return {"refused": self.refused, **self.plan.to_dict()}


def deploy(options: DeployOptions = DeployOptions(), events: DeployEvents | None = None) -> Outcome:
    """Puts the images on the nodes and starts the cluster, or updates it node by node. A node that fails is named in
    the outcome and doesn't stop the others.

    Raises:
        BadInput, Missing, CheckFailed: before anything was changed, or what stops all of it.
    """
    return _run(*_request(options), events)


def plan_deploy(options: DeployOptions = DeployOptions(), events: DeployEvents | None = None) -> DeployPreview:
    """What `deploy` would change. Changes nothing.

    Raises:
        BadInput, Missing, CheckFailed: as `deploy`.
    """
    return _preview(_request(options)[0], events)


def rollback(
    options: RollbackOptions = RollbackOptions(), events: DeployEvents | None = None, note: Note = ignore
) -> Outcome:
    """Returns to the last verified release before the current one, by digest.

    Raises:
        BadInput: there is no release to return to; otherwise as `deploy`.
    """
    return _run(*_request(options, note), events)


def plan_rollback(
    options: RollbackOptions = RollbackOptions(), events: DeployEvents | None = None, note: Note = ignore
) -> DeployPreview:
    """What `rollback` would change. Changes nothing."""
    return _preview(_request(options, note)[0], events)


def status(options: StatusOptions = StatusOptions()) -> Status:
    """The release, and each node's image, Slurm state, GPUs, jobs and health. Changes nothing.

    Raises:
        BadInput, Missing, CheckFailed: the inventory is wrong; Ansible is missing, or could not run at all.
    """
    chosen = settings(options)
    nodes = inventories.load(inventory_path(chosen, options.inventory))
    forks = chosen.cluster.ship.forks
    return deployed.status(read_state(nodes, chosen.cluster, overlay=chosen.overlay_folder(), forks=forks))


def history(options: StatusOptions = StatusOptions()) -> DeployHistory:
    """Who deployed, rolled back, took down or restored the cluster, when and with what outcome, and which
    key of the trust policy signed that. Changes nothing.

    Raises:
        BadInput, Missing, CheckFailed: the inventory is wrong; the control node isn't reached.
    """
    chosen = settings(options)
    keys = history_keys(chosen)
    nodes = inventories.load(inventory_path(chosen, options.inventory))
    control = nodes.control.name
    return histories.read(ssh.ssh_hosts(nodes.path, [control])[control], keys)


def log_file(chosen: Settings | None = None) -> Path:
    """Where Ansible's output of the last deploy is."""
    return Path((chosen or settings()).out) / "deploy/ansible.log"


def fresh_log(chosen: Settings) -> Path:
    log = log_file(chosen)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    return log


def _run(request: DeployRequest, chosen: Settings, events: DeployEvents | None) -> Outcome:
    events = events or DeployEvents()
    log = fresh_log(chosen)
    events.begin([host.name for host in request.inventory.nodes])
    try:
        client = engine.connect()
    except Missing:  # a rollback works without it
        client = None
    node_runs = NodeRuns(request.inventory.path, log, events, request.forks)
    return work.deploy(request, Shipping(client, log.parent), node_runs, events)


def _preview(request: DeployRequest, events: DeployEvents | None) -> DeployPreview:
    events = events or DeployEvents()
    events.begin([host.name for host in request.inventory.nodes])
    prepared = prepare(request, events)
    return DeployPreview(prepared.plan, work.refused(prepared))


def _request(options: DeployOptions | RollbackOptions, note: Note = ignore) -> tuple[DeployRequest, Settings]:
    resume, method, require = (getattr(options, name, None) for name in ("resume", "method", "require"))
    images = ("image", "control_image", "service_image", "stack", "nic")
    if resume and any(getattr(options, name) for name in images):
        raise BadInput.of("resume-with-images")
    chosen = settings(options)
    inventory = inventories.load(
        inventory_path(chosen, options.inventory)
    )  # before it is asked for images or an engine
    given: dict[str, Any] = {name: getattr(options, name, None) for name in ROLLOUT}
    given |= {name: int(given[name]) for name in ("wave", "failures") if (given[name] or "").isdecimal()}
    rollout = {name: value for name, value in given.items() if value is not None and value is not False}
    cluster = _cluster(chosen.cluster, rollout, {"method": method, "forks": options.forks})
    inventory.refuse_no_racks(cluster.ship.method)
    with placed(Path.cwd()):
        workers = [host.name for host in inventory.workers]
        checks.check(cluster, workers=workers, groups=inventory.worker_groups, overlay=chosen.overlay_folder())
    served = cluster.service is not None
    earlier = partial(_earlier, note, served) if isinstance(options, RollbackOptions) else partial(_resumed, served)
    choose: Choose = earlier
    sizes: dict[str, int] = {}
    if isinstance(options, DeployOptions) and not resume:
        try:
            choose, sizes = _built(chosen, options)
        except RocstackError:  # what is wrong with the inventory comes first; with images it is that host's finding
            inventories.refuse_doubtful(inventory)
            raise
    request = DeployRequest(
        inventory,
        cluster,
        choose,
        chosen.run,
        chosen.overlay_folder(),
        cluster.ship.forks,
        resume=bool(resume),
        overrides=rollout,
        layer_bytes=sizes,
        require=require,
        rehearsal=chosen.rehearsal,
        command="rollback" if isinstance(options, RollbackOptions) else "deploy --resume" if resume else "deploy",
        runs=Path(chosen.out) / "verify",
        trust=_trust_check(chosen),
        replaces=chosen.trust.replaces,
        sign=history_signer(chosen),
    )
    return request, chosen


def _cluster(cluster: ClusterSettings, rollout: Mapping[str, Any], ship: Mapping[str, Any]) -> ClusterSettings:
    """With the options in place of its own.

    Raises:
        BadInput: an option has a wrong value.
    """
    shipping = {name: value for name, value in ship.items() if value is not None}
    try:
        rollouts = RolloutSettings.model_validate({**cluster.rollout.model_dump(), **rollout})
        ships = Ship.model_validate({**cluster.ship.model_dump(), **shipping})
    except ValidationError as error:
        first = error.errors()[0]
        option, why = str(first["loc"][0]).replace("_", "-"), first["msg"].removeprefix("Value error, ")
        raise BadInput.of("bad-option", option=option, value=first["input"], why=why) from None
    return cluster.model_copy(update={"rollout": rollouts, "ship": ships})


def _trust_check(chosen: Settings) -> TrustCheck | None:
    """The trust policy of rocstack.yml; None where it names no key.

    Raises:
        BadInput: a key can't be used.
    """
    policy, where = chosen.trust, chosen.trust.registry or chosen.push
    if not policy.keys:
        return None
    keys, folder = policy_keys(chosen), Path(chosen.out) / "trust"
    if not where:  # a site without a registry has what a bundle brought
        return TrustCheck(keys, policy.require, policy.level, policy.replaces, None, folder)

    @cache
    def http() -> RegistryHttp:
        return as_own_engine(target.host)

    def repository(role: str) -> Repository:
        return Repository(http(), target.path(role), attempts=chosen.cluster.ship.attempts)

    target = image_names.parse_registry(where)
    return TrustCheck(keys, policy.require, policy.level, policy.replaces, repository, folder)


def _built(chosen: Settings, options: DeployOptions) -> tuple[Choose, dict[str, int]]:
    """The images of this machine's engine, and the sizes of their layers."""
    client, chosen = engine.connect(), with_built_stack(chosen)
    names = {"worker": options.image, "control": options.control_image}
    if chosen.cluster.service:
        names["service"] = options.service_image
    elif options.service_image:
        raise BadInput.of("no-combination", why="--service-image is of a service, and `cluster.service` is off")
    images = {role: local_image(client, name or chosen.image_name(role), role) for role, name in names.items()}
    sources = [LocalImage.find(client, each.id) for each in images.values()]
    return (lambda journal: images), {layer: each.size(layer) for each in sources for layer in each.diff_ids}


def _resumed(served: bool, journal: Journal) -> Mapping[str, Image]:
    images = journal.unfinished()
    if images is None:
        raise BadInput.of("nothing-to-resume")
    return _served(images.by_role(), served, journal)


def _earlier(note: Note, served: bool, journal: Journal) -> Mapping[str, Image]:
    target = journal.rollback_target(service=served)
    if target is None:
        raise BadInput.of("no-earlier-release")
    note(f"back to the release of {target.when} by {target.who}: {target.basis}")
    return _served(target.images.by_role(), served, journal)


def _served(images: Mapping[str, Image], served: bool, journal: Journal) -> Mapping[str, Image]:
    """The settings say whether there is a service. A release from before it had any keeps the one of now."""
    if not served:
        return {role: image for role, image in images.items() if role != "service"}
    own = images.get("service") or journal.service_image()
    if own is None:
        raise BadInput.of("no-service-image")
    return {**images, "service": own}
