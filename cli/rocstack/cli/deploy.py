"""`rocstack deploy` and `rollback`: the images on the nodes, as a running Slurm cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import say
from rocstack.steps.deploy import DeployOptions, RollbackOptions

if TYPE_CHECKING:
    from rocstack.deploy.plan.plan import Outcome
    from rocstack.steps.deploy import DeployPreview

PlanOnly = Annotated[
    bool, typer.Option("--plan", help="Show what would change on each node, and why. Changes nothing.")
]


def register(app: typer.Typer) -> None:
    options.add(app, "deploy", deploy, "rocstack deploy inventory.yml --nic broadcom --plan")
    options.add(app, "rollback", rollback, "rocstack rollback inventory.yml")


def deploy(choice: DeployOptions, plan: PlanOnly = False, json: options.Json = False) -> None:
    """Start the Slurm cluster on an inventory's nodes, or update it node by node.

    Exit code 1: some nodes could not be changed; they are named, and the others are done.
    """
    from rocstack.cli.nodes_display import NodesDisplay
    from rocstack.steps import deploy as steps

    with NodesDisplay() as events:
        result = steps.plan_deploy(choice, events) if plan else steps.deploy(choice, events)
    _show(result, json)


def rollback(choice: RollbackOptions, plan: PlanOnly = False, json: options.Json = False) -> None:
    """Return to the last verified release before the current one, by digest. The nodes still have its images."""
    from rocstack.cli.nodes_display import NodesDisplay
    from rocstack.steps import deploy as steps

    with NodesDisplay() as events:
        result = steps.plan_rollback(choice, events, say) if plan else steps.rollback(choice, events, say)
    _show(result, json)


def _show(result: DeployPreview | Outcome, json: bool) -> None:
    from rocstack.cli.deploy_report import show_outcome, show_plan
    from rocstack.steps.deploy import DeployPreview, log_file

    if isinstance(result, DeployPreview):
        show_plan(result, json)
    else:
        show_outcome(result, log_file(), json)
    raise typer.Exit(0 if result.ok else 1)
