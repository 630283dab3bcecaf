"""`rocstack deploy`, `rollback` and `down`: the images on the nodes, as a running Slurm cluster; and off them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from rocstack.base.text import count
from rocstack.cli.command import Answer, Force, Yes, command, confirmed
from rocstack.cli.ui import escape, out, say
from rocstack.steps.options import DeployOptions, Flag, Inventory, RollbackOptions, inventory_path, settings

KINDS = {"containers": "container", "volumes": "volume", "images": "image", "files": "path"}
PlanOnly = Annotated[bool, Flag("Show what would change on each node, and why. Changes nothing.")]


@command("rocstack deploy inventory.yml --nic broadcom --plan")
def deploy(choice: DeployOptions, plan: PlanOnly = False) -> Answer:
    """Start the Slurm cluster on an inventory's nodes, or update it node by node.

    Exit code 1: some nodes could not be changed; they are named, and the others are done.
    """
    yield from _shown("plan_deploy" if plan else "deploy", choice)


@command("rocstack rollback inventory.yml")
def rollback(choice: RollbackOptions, plan: PlanOnly = False) -> Answer:
    """Return to the last verified release before the current one, by digest. The nodes still have its images."""
    yield from _shown("plan_rollback" if plan else "rollback", choice, say)


def _shown(step: str, choice: DeployOptions | RollbackOptions, *note: Callable[[str], None]) -> Answer:
    from rocstack.deploy.read.inventory import asked_ahead

    # The import of a deploy takes as long as Ansible takes to read the inventory.
    with asked_ahead(choice.inventory or Path(settings(choice).inventory).expanduser()):
        from rocstack.cli.nodes_display import NodesDisplay, show_outcome, show_plan
        from rocstack.steps import deploy as steps

        with NodesDisplay() as events:
            result = getattr(steps, step)(choice, events, *note)
    yield result
    show_plan(result) if isinstance(result, steps.DeployPreview) else show_outcome(result, steps.log_file())


@command("rocstack down inventory.yml")
def down(
    inventory: Inventory = None,
    data: Annotated[bool, Flag("Also remove the cluster's data, keys and settings from the nodes.")] = False,
    images: Annotated[bool, Flag("Also remove the images that deploys brought to the nodes.")] = False,
    force: Force = False,
    yes: Yes = False,
) -> Answer:
    """Stop and remove the cluster's containers. Data, keys and images stay unless you ask.

    Exit code 1: jobs run, another deploy runs, or a node could not be changed; the others are done.
    """
    from rocstack.cli.nodes_display import NodesDisplay
    from rocstack.deploy.nodes.answers import DownAnswer
    from rocstack.deploy.nodes.runs import NodeRuns
    from rocstack.deploy.read import inventory as inventories
    from rocstack.deploy.work import teardown
    from rocstack.steps.deploy import fresh_log
    from rocstack.steps.trust_policy import history_signer

    chosen = settings()
    sign = history_signer(chosen)
    nodes = inventories.load(inventory_path(chosen, inventory))
    names = [host.name for host in nodes.nodes]
    if data:
        question = f"The accounting, the queue, the registry and the keys on {', '.join(names)} will be gone for ever."
        confirmed(question, yes)
    log = fresh_log(chosen)
    with NodesDisplay() as events:
        events.begin(names)
        node_runs = NodeRuns(nodes.path, log, events, chosen.cluster.ship.forks)
        runs = teardown.down(nodes, node_runs, data=data, images=images, force=force, sign=sign)
    answers = {name: run.answer(teardown.TASK, DownAnswer) for name, run in runs.items()}
    done = {name: {kind: list(getattr(each, kind, ())) for kind in KINDS} for name, each in answers.items()}
    failed = {name: run.reason for name, run in runs.items() if run.state != "ok"}
    yield {"removed": done, "failed": failed}, not failed
    width = max(map(len, done))
    for name, gone in done.items():
        removed = [count(len(gone[kind]), word) for kind, word in KINDS.items() if gone[kind]]
        containers = ", ".join(each.removeprefix("rocstack-") for each in gone["containers"])
        what = f"removed {', '.join(removed)}{f' ({containers})' if containers else ''}"
        if name not in failed or removed:
            out.say(f"{name.ljust(width)}  {what if removed else 'nothing to remove'}")
    for name, reason in failed.items():
        out.print(f"[bold red]failed[/] {escape(f'{name}: {reason}')}")
    if data:
        kept = "rocstack-secrets.yml beside the inventory; the next deploy makes the cluster anew with its keys"
    else:
        kept = "data and keys; `rocstack deploy` starts the cluster as it was"
    out.print(f"kept: {kept}")
