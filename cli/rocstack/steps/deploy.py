"""Deploy, rollback and status: the Slurm cluster on the nodes of an inventory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rocstack.base.errors import BadInput, Missing
from rocstack.steps.options import (
    Flag,
    Forks,
    Inventory,
    Note,
    Overlay,
    StackOptions,
    ignore,
    inventory_path,
    settings,
)

if TYPE_CHECKING:
    from rocstack.cluster.settings import ClusterSettings
    from rocstack.deploy.nodes.image import Image
    from rocstack.deploy.nodes.runs import DeployEvents
    from rocstack.deploy.plan.plan import Outcome, Plan
    from rocstack.deploy.plan.prepare import Choose, DeployRequest
    from rocstack.deploy.read.journal import Journal
    from rocstack.deploy.state.status import Status
    from rocstack.settings.settings import Settings

DrainTimeout = Annotated[
    str | None, Flag("How long jobs may take to end: 30m, 4h, infinite; default: the setting `cluster.rollout`.")
]
Requeue = Annotated[bool, Flag("Requeue running jobs instead of waiting for them.", ("--requeue",))]


@dataclass(frozen=True, kw_only=True)
class DeployOptions(StackOptions):
    """What is None comes from the settings; the rollout's from `cluster.rollout` there."""

    inventory: Inventory = None
    resume: Annotated[bool, Flag("Continue the deploy that was interrupted, with its images.", ("--resume",))] = False
    image: Annotated[str | None, Flag("Worker image to deploy; default: the one built here for --stack and --nic.")] = (
        None
    )
    control_image: Annotated[str | None, Flag("Control image that belongs to --image.")] = None
    canary: Annotated[int | None, Flag("Nodes to update before all others.", least=0)] = None
    wave: Annotated[str | None, Flag("Nodes to update at once: a number, or 25%.")] = None
    drain_timeout: DrainTimeout = None
    requeue: Requeue = False
    failures: Annotated[str | None, Flag("Nodes that may fail before the update stops: a number, or 10%.")] = None
    method: Annotated[str | None, Flag("How images get to the nodes: auto, registry, archive or rack.")] = None
    require: Annotated[
        int | None, Flag("Refuse images that `rocstack verify` hasn't proved to this level.", least=0, most=4)
    ] = None
    forks: Forks = None


@dataclass(frozen=True, kw_only=True)
class RollbackOptions:
    inventory: Inventory = None
    drain_timeout: DrainTimeout = None
    requeue: Requeue = False
    forks: Forks = None
    overlay: Overlay = None


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
    return _run(_deploy_request(options), events)


def plan_deploy(options: DeployOptions = DeployOptions(), events: DeployEvents | None = None) -> DeployPreview:
    """What `deploy` would change. Changes nothing.

    Raises:
        BadInput, Missing, CheckFailed: as `deploy`.
    """
    return _preview(_deploy_request(options), events)


def rollback(
    options: RollbackOptions = RollbackOptions(), events: DeployEvents | None = None, note: Note = ignore
) -> Outcome:
    """Returns to the last verified release before the current one, by digest.

    Raises:
        BadInput: there is no release to return to; otherwise as `deploy`.
    """
    return _run(_rollback_request(options, note), events)


def plan_rollback(
    options: RollbackOptions = RollbackOptions(), events: DeployEvents | None = None, note: Note = ignore
) -> DeployPreview:
    """What `rollback` would change. Changes nothing."""
    return _preview(_rollback_request(options, note), events)


def log_file() -> Path:
    """Where Ansible's output of the last deploy is."""
    return Path(settings().out) / "deploy/ansible.log"


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    inventory: Inventory = None
    overlay: Overlay = None


def status(options: StatusOptions = StatusOptions()) -> Status:
    """The release, and each node's image, Slurm state, GPUs, jobs and health. Changes nothing.

    Raises:
        BadInput, Missing, CheckFailed: the inventory is wrong; Ansible is missing, or could not run at all.
    """
    from rocstack.deploy.read import inventory as inventories
    from rocstack.deploy.state import status as deployed
    from rocstack.deploy.state.cluster_state import read_state

    chosen = settings(options)
    nodes = inventories.load(inventory_path(chosen, options.inventory))
    forks = chosen.cluster.ship.forks
    return deployed.status(read_state(nodes, chosen.cluster, overlay=chosen.overlay_folder(), forks=forks))


def _run(request: tuple[DeployRequest, Settings], events: DeployEvents | None) -> Outcome:
    from rocstack.deploy.nodes.runs import DeployEvents, NodeRuns
    from rocstack.deploy.ship.shipping import Shipping
    from rocstack.deploy.work import deploy as work

    asked, chosen = request
    events = events or DeployEvents()
    log = _fresh_log(chosen)
    events.begin([host.name for host in asked.inventory.nodes])
    return work.deploy(asked, Shipping(_client(), log.parent), NodeRuns(asked.inventory.path, log, events), events)


def _preview(request: tuple[DeployRequest, Settings], events: DeployEvents | None) -> DeployPreview:
    from rocstack.deploy.nodes.runs import DeployEvents
    from rocstack.deploy.plan.prepare import prepare
    from rocstack.deploy.work.deploy import refused

    asked, chosen = request
    _fresh_log(chosen)
    events = events or DeployEvents()
    events.begin([host.name for host in asked.inventory.nodes])
    prepared = prepare(asked, events)
    return DeployPreview(prepared.plan, refused(prepared))


def _fresh_log(chosen: Settings) -> Path:
    log = Path(chosen.out) / "deploy/ansible.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    return log


def _client() -> Any:
    """This machine's engine. A rollback works without it."""
    from rocstack.edge import engine

    try:
        return engine.connect()
    except Missing:
        return None


def _deploy_request(options: DeployOptions) -> tuple[DeployRequest, Settings]:
    if options.resume and (options.image or options.control_image or options.stack or options.nic):
        raise BadInput(
            "--resume continues the interrupted deploy with its own images",
            code="one-source",
            next_step="leave out --image, --control-image, --stack and --nic",
        )
    chosen = settings(options)
    inventory = inventory_path(chosen, options.inventory)
    rollout = {
        "canary": options.canary,
        "wave": _share(options.wave),
        "drain_timeout": options.drain_timeout,
        "requeue": options.requeue or None,
        "failures": _share(options.failures),
    }
    cluster = _cluster(chosen, rollout, options.method, options.forks)
    choose, layers = (_resumed, {}) if options.resume else _built(chosen, options)
    request = _request(inventory, chosen, cluster, choose, layers)
    own = {key: value for key, value in rollout.items() if value is not None}
    return replace(request, resume=options.resume, overrides=own, require=options.require), chosen


def _rollback_request(options: RollbackOptions, note: Note) -> tuple[DeployRequest, Settings]:
    chosen = settings(options)
    rollout = {"drain_timeout": options.drain_timeout, "requeue": options.requeue or None}
    cluster = _cluster(chosen, rollout, None, options.forks)
    inventory = inventory_path(chosen, options.inventory)
    return _request(inventory, chosen, cluster, lambda journal: _earlier(journal, note), {}), chosen


def _share(text: str | None) -> int | str | None:
    return int(text) if text and text.isdecimal() else text


def _cluster(chosen: Settings, rollout: Mapping[str, Any], method: str | None, forks: int | None) -> ClusterSettings:
    """The settings of the cluster, with the options in their place.

    Raises:
        BadInput: an option has a wrong value.
    """
    from pydantic import ValidationError

    from rocstack.cluster.operation import RolloutSettings, Ship

    cluster = chosen.cluster
    own = {key: value for key, value in rollout.items() if value is not None}
    ship = {key: value for key, value in (("method", method), ("forks", forks)) if value is not None}
    try:
        rollouts = RolloutSettings.model_validate({**cluster.rollout.model_dump(), **own})
        shipping = Ship.model_validate({**cluster.ship.model_dump(), **ship})
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        text = first["msg"].removeprefix("Value error, ")
        raise BadInput(f"{option} {first['input']}: {text}", code="bad-value", next_step="see --help") from None
    return cluster.model_copy(update={"rollout": rollouts, "ship": shipping})


def _built(chosen: Settings, options: DeployOptions) -> tuple[Choose, dict[str, int]]:
    """The images of this machine's engine, and the sizes of their layers."""
    from rocstack.deploy.nodes.image import local_image
    from rocstack.edge import engine
    from rocstack.registry.local_image import LocalImage

    client = engine.connect()
    names = {
        role: name or chosen.image_name(role)
        for role, name in (("worker", options.image), ("control", options.control_image))
    }
    images = {role: local_image(client, name, role) for role, name in names.items()}
    sources = [LocalImage.find(client, each.id) for each in images.values()]
    return (lambda journal: images), {layer: each.size(layer) for each in sources for layer in each.diff_ids}


def _resumed(journal: Journal) -> Mapping[str, Image]:

    images = journal.unfinished()
    if images is None:
        raise BadInput(
            "no deploy of this cluster was interrupted, and no node failed in the last one",
            code="nothing-to-resume",
            next_step="run `rocstack deploy INVENTORY --plan` to see what a new deploy would change",
        )
    return images.by_role()


def _earlier(journal: Journal, note: Note) -> Mapping[str, Image]:

    target = journal.rollback_target()
    if target is None:
        raise BadInput(
            "there is no release to go back to",
            code="nothing-to-resume",
            cause="this cluster has had one release only, or no earlier one was healthy",
            next_step="deploy another image: `rocstack deploy INVENTORY --image REFERENCE`",
        )
    note(f"back to the release of {target.when} by {target.who}: {target.basis}")
    return target.images.by_role()


def _request(
    inventory: Path, chosen: Settings, cluster: ClusterSettings, choose: Choose, layer_bytes: Mapping[str, int]
) -> DeployRequest:
    from rocstack.deploy.plan.prepare import DeployRequest
    from rocstack.deploy.read import inventory as inventories

    return DeployRequest(
        inventories.load(inventory),
        cluster,
        choose,
        chosen.run,
        chosen.overlay_folder(),
        cluster.ship.forks,
        layer_bytes=layer_bytes,
        runs=Path(chosen.out) / "verify",
    )
