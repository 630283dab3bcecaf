"""`rocstack down`: remove a cluster from its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.base.text import count
from rocstack.cli import options
from rocstack.cli.ui import escape, out, print_json
from rocstack.steps.options import Inventory as Nodes

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = {"containers": "container", "volumes": "volume", "images": "image", "files": "path"}
Data = Annotated[bool, typer.Option("--data", help="Also remove the cluster's data, keys and settings from the nodes.")]
Images = Annotated[bool, typer.Option("--images", help="Also remove the images that deploys brought to the nodes.")]


def register(app: typer.Typer) -> None:
    options.add(app, "down", down, "rocstack down inventory.yml")


def down(
    inventory: Nodes = None,
    data: Data = False,
    images: Images = False,
    force: options.Force = False,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Stop and remove the cluster's containers. Data, keys and images stay unless you ask.

    Exit code 1: jobs run, another deploy runs, or a node could not be changed; the others are done.
    """
    from rocstack.cli.nodes_display import NodesDisplay
    from rocstack.deploy.nodes.answers import DownAnswer
    from rocstack.deploy.nodes.runs import NodeRuns
    from rocstack.deploy.read import inventory as inventories
    from rocstack.deploy.work.teardown import TASK
    from rocstack.deploy.work.teardown import down as take_down

    chosen = options.settings()
    nodes = inventories.load(options.inventory(chosen, inventory))
    names = [host.name for host in nodes.nodes]
    if data:
        question = f"The accounting, the queue, the registry and the keys on {', '.join(names)} will be gone for ever."
        options.confirmed(question, yes)
    folder = Path(chosen.out) / "deploy"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "ansible.log"
    log.write_text("")
    with NodesDisplay() as events:
        events.begin(names)
        node_runs = NodeRuns(nodes.path, log, events, chosen.cluster.ship.forks)
        runs = take_down(nodes, node_runs, data=data, images=images, force=force)
    answers = {name: run.answer(TASK, DownAnswer) for name, run in runs.items()}
    done = {name: {kind: list(getattr(each, kind, ())) for kind in KINDS} for name, each in answers.items()}
    failed = {name: run.reason for name, run in runs.items() if run.state != "ok"}
    if json:
        print_json({"removed": done, "failed": failed})
    else:
        _show(done, failed, data)
    raise typer.Exit(1 if failed else 0)


def _show(done: Mapping[str, Mapping[str, list[str]]], failed: Mapping[str, str], data: bool) -> None:
    width = max(map(len, done))
    for name, gone in done.items():
        removed = [count(len(gone[kind]), word) for kind, word in KINDS.items() if gone[kind]]
        names = ", ".join(each.removeprefix("rocstack-") for each in gone["containers"])
        text = f"removed {', '.join(removed)}{f' ({names})' if names else ''}" if removed else "nothing to remove"
        if name not in failed or removed:
            out.print(escape(f"{name.ljust(width)}  {text}"))
    for name, reason in failed.items():
        out.print(f"[bold red]failed[/] {escape(f'{name}: {reason}')}")
    if data:
        out.print(
            "kept: rocstack-secrets.yml beside the inventory; the next deploy makes the cluster anew with its keys"
        )
    else:
        out.print("kept: data and keys; `rocstack deploy` starts the cluster as it was")
