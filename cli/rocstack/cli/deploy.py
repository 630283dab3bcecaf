"""`rocstack deploy` and `rollback`: the images on the nodes, as a running Slurm cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocstack.cli import options
from rocstack.cli.ui import err, escape
from rocstack.steps.options import Inventory as Nodes
from rocstack.steps.options import Nic, Overlay, Stack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocstack.cluster.settings import ClusterSettings
    from rocstack.deploy.nodes.image import DesiredImage
    from rocstack.deploy.plan.prepare import Choose, Request
    from rocstack.deploy.read.journal import Journal
    from rocstack.settings.settings import Settings

PlanOnly = Annotated[bool, typer.Option("--plan", help="Show what would change on each node, and why; change nothing.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the deploy that was interrupted, as it was begun.")]
Image = Annotated[str | None, typer.Option(help="Worker image instead of the one built here for --stack and --nic.")]
ControlImage = Annotated[str | None, typer.Option(help="Control image that goes with --image.")]
Canary = Annotated[int | None, typer.Option(min=0, help="Nodes that are updated before all others.")]
Wave = Annotated[str | None, typer.Option(help="Nodes that are updated at once: a number, or 25%.")]
Drain = Annotated[str | None, typer.Option(help="How long running jobs may take to end: 30m, 4h, infinite.")]
Requeue = Annotated[bool, typer.Option("--requeue", help="Requeue running jobs instead of waiting for them.")]
Failures = Annotated[str | None, typer.Option(help="Nodes that may fail before the update stops: a number, or 10%.")]
Method = Annotated[str | None, typer.Option(help="How images get to the nodes: auto, registry, archive or rack.")]
Require = Annotated[
    int | None, typer.Option(min=0, max=4, help="Refuse images that `rocstack verify` hasn't proved to this level.")
]
Forks = Annotated[int | None, typer.Option(min=1, max=1024, help="Nodes at a time.")]


def register(app: typer.Typer) -> None:
    options.add(app, "deploy", deploy, "rocstack deploy inventory.yml --nic broadcom --plan")
    options.add(app, "rollback", rollback, "rocstack rollback inventory.yml")


def deploy(
    inventory: Nodes = None,
    plan: PlanOnly = False,
    resume: Resume = False,
    stack: Stack = None,
    nic: Nic = None,
    image: Image = None,
    control_image: ControlImage = None,
    canary: Canary = None,
    wave: Wave = None,
    drain_timeout: Drain = None,
    requeue: Requeue = False,
    failures: Failures = None,
    method: Method = None,
    require: Require = None,
    forks: Forks = None,
    overlay: Overlay = None,
    json: options.Json = False,
) -> None:
    """Put the images on the nodes of an inventory and start the Slurm cluster, or update it node by node.

    Exit code 1: some nodes could not be changed; they are named, and the others are done.
    """
    from rocstack.base.errors import BadInput

    if resume and (image or control_image or stack or nic):
        raise BadInput(
            "--resume goes on with the images of the deploy that was interrupted",
            code="one-source",
            next_step="leave out --image, --control-image, --stack and --nic",
        )
    chosen = options.settings(stack=stack, nic=nic, overlay=overlay)
    nodes = options.inventory(chosen, inventory)
    rollout = {
        "canary": canary,
        "wave": _share(wave),
        "drain_timeout": drain_timeout,
        "requeue": requeue or None,
        "failures": _share(failures),
    }
    cluster = _cluster(chosen, rollout, method, forks)
    choose, sizes = (_resumed, None) if resume else _built(chosen, image, control_image)
    request = _request(nodes, chosen, cluster, choose, sizes)
    overrides = {key: value for key, value in rollout.items() if value is not None}
    _go(replace(request, resume=resume, overrides=overrides, require=require), chosen, plan, json)


def rollback(
    inventory: Nodes = None,
    plan: PlanOnly = False,
    drain_timeout: Drain = None,
    requeue: Requeue = False,
    forks: Forks = None,
    overlay: Overlay = None,
    json: options.Json = False,
) -> None:
    """Go back to the last verified release before the present one, by digest; the nodes still have its images."""
    chosen = options.settings(overlay=overlay)
    cluster = _cluster(chosen, {"drain_timeout": drain_timeout, "requeue": requeue or None}, None, forks)
    _go(_request(options.inventory(chosen, inventory), chosen, cluster, _earlier), chosen, plan, json)


def _share(text: str | None) -> int | str | None:
    return int(text) if text and text.isdecimal() else text


def _cluster(
    chosen: Settings, rollout_options: Mapping[str, Any], method: str | None, forks: int | None
) -> ClusterSettings:
    """`cluster:` with what the command line says over it.

    Raises:
        BadInput: a value that can't be.
    """
    from pydantic import ValidationError

    from rocstack.base.errors import BadInput
    from rocstack.cluster.operation import RolloutSettings, Ship

    cluster = chosen.cluster
    overrides = {key: value for key, value in rollout_options.items() if value is not None}
    ship = {key: value for key, value in (("method", method), ("forks", forks)) if value is not None}
    try:
        rollout = RolloutSettings.model_validate({**cluster.rollout.model_dump(), **overrides})
        shipping = Ship.model_validate({**cluster.ship.model_dump(), **ship})
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        text = first["msg"].removeprefix("Value error, ")
        raise BadInput(f"{option} {first['input']}: {text}", code="bad-value", next_step="see --help") from None
    return cluster.model_copy(update={"rollout": rollout, "ship": shipping})


def _built(chosen: Settings, image: str | None, control_image: str | None) -> tuple[Choose, dict[str, int]]:
    """The images of this machine's engine, and the sizes of their layers."""
    from rocstack.deploy.nodes.image import local_image
    from rocstack.edge import engine
    from rocstack.registry.local_image import LocalImage as Source

    client = engine.connect()
    names = {role: given or chosen.image_name(role) for role, given in (("worker", image), ("control", control_image))}
    images = {role: local_image(client, name, role) for role, name in names.items()}
    sources = [Source.find(client, each.id) for each in images.values()]
    return (lambda journal: images), {layer: each.size(layer) for each in sources for layer in each.diff_ids}


def _resumed(journal: Journal) -> Mapping[str, DesiredImage]:
    from rocstack.base.errors import BadInput
    from rocstack.deploy.nodes.image import of_release

    images = journal.unfinished()
    if images is None:
        raise BadInput(
            "no deploy of this cluster was interrupted, and no node failed in the last one",
            code="nothing-to-resume",
            next_step="`rocstack deploy INVENTORY --plan` shows what a new one would change",
        )
    return of_release(images)


def _earlier(journal: Journal) -> Mapping[str, DesiredImage]:
    from rocstack.base.errors import BadInput
    from rocstack.deploy.nodes.image import of_release

    target = journal.rollback_target()
    if target is None:
        raise BadInput(
            "there is no release to go back to",
            code="nothing-to-resume",
            cause="this cluster has had one release only, or no earlier one was healthy",
            next_step="deploy another image: `rocstack deploy INVENTORY --image REFERENCE`",
        )
    err.print(escape(f"back to the release of {target.when} by {target.who}: {target.basis}"))
    return of_release(target.images)


def _request(
    inventory: Path,
    chosen: Settings,
    cluster: ClusterSettings,
    choose: Choose,
    layer_bytes: Mapping[str, int] | None = None,
) -> Request:
    from rocstack.deploy.plan.prepare import Request
    from rocstack.deploy.read import inventory as inventories

    return Request(
        inventories.load(inventory),
        cluster,
        choose,
        chosen.run,
        chosen.overlay_folder(),
        cluster.ship.forks,
        layer_bytes=layer_bytes or {},
        runs=Path(chosen.out) / "verify",
    )


def _go(request: Request, chosen: Settings, plan_only: bool, json: bool) -> None:
    from rocstack.cli.deploy_report import show_outcome, show_plan
    from rocstack.cli.nodes_display import display
    from rocstack.deploy.nodes.runs import NodeRuns
    from rocstack.deploy.plan.prepare import prepare
    from rocstack.deploy.ship.shipping import Shipping
    from rocstack.deploy.work import deploy as work

    folder = Path(chosen.out) / "deploy"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "ansible.log"
    log.write_text("")
    names = [host.name for host in request.inventory.nodes]
    if plan_only:
        with display(names) as events:
            prepared = prepare(request, events)
        show_plan(prepared, json)
        raise typer.Exit(1 if work.refused(prepared) or prepared.plan.stopped else 0)
    with display(names) as events:
        node_runs = NodeRuns(request.inventory.path, log, events)
        outcome = work.deploy(request, Shipping(_client(), folder), node_runs, events)
    show_outcome(outcome, log, json)
    raise typer.Exit(0 if outcome.ok else 1)


def _client() -> Any:
    """This machine's engine, which a rollback doesn't need."""
    from rocstack.base.errors import Missing
    from rocstack.edge import engine

    try:
        return engine.connect()
    except Missing:
        return None
