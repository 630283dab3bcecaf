"""`rocstack local`: a cluster of virtual nodes on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import escape, out, print_json, say, table
from rocstack.steps.options import Stack

if TYPE_CHECKING:
    from rocstack.settings.settings import Settings
    from rocstack.virtual.local_cluster import LocalCluster
    from rocstack.virtual.node import NodeState

Node = Annotated[str, typer.Argument(help="Name of a node: n1, n2, ...")]
Model = Annotated[str, typer.Option(help="Node model: a name from `rocstack local models`, or a .yml file.")]


def register(app: typer.Typer) -> None:
    local = typer.Typer(
        help="Run a cluster of virtual nodes on this machine. Their GPUs and NICs are files that the real tools read.",
        no_args_is_help=True,
    )
    options.add(local, "up", up, "rocstack local up --nodes 2 --fault n2:port-down=bnxt_re3")
    options.add(local, "down", down, "rocstack local down")
    options.add(local, "status", status, "rocstack local status --json")
    options.add(local, "reboot", reboot, "rocstack local reboot n2")
    options.add(local, "cut", cut, "rocstack local cut n2")
    options.add(local, "heal", heal, "rocstack local heal n2")
    options.add(local, "models", models, "rocstack local models")
    app.add_typer(local, name="local", epilog="Example: rocstack local up --nodes 2")


def up(
    nodes: Annotated[int, typer.Option(min=1, max=64, help="Number of nodes.")] = 2,
    model: Model = "mi300x-thor2",
    fault: Annotated[
        list[str],
        typer.Option(
            "--fault",
            metavar="[nK:]FAULT[=VALUE]",
            help="Break something (`rocstack local models` lists faults): n2:port-down=bnxt_re3; may be repeated.",
        ),
    ] = [],  # noqa: B006
    stack: Stack = None,
    json: options.Json = False,
) -> None:
    """Start virtual nodes (containers with sshd, a container engine and virtual hardware), or change them."""
    from rocstack.edge import engine
    from rocstack.stack import stack as stacks
    from rocstack.virtual import access, faults, node_image
    from rocstack.virtual import model as node_models
    from rocstack.virtual.cluster_layout import ClusterRequest

    chosen = options.settings(stack=stack)
    wish = ClusterRequest(node_models.load(model), nodes, tuple(map(faults.parse, fault)))
    wish.refuse()
    access.require_ssh()
    engine.require_buildx()
    cluster = _local(chosen)
    engine.require_version(cluster.client)
    image = node_image.ensure(
        cluster.client, stacks.load(chosen.stack, chosen.overlay_folder()), chosen, cluster.folder / "image", say
    )
    states = cluster.up(wish, image)
    inventory = _shown(cluster.folder / access.INVENTORY)
    if json:
        print_json({**_as_json(states), "inventory": str(cluster.folder / access.INVENTORY)})
        return
    _print(states, f"{len(states)} virtual nodes, model {wish.model.name}: {wish.model.about}")
    config = _shown(cluster.folder / access.CONFIG)
    out.print(f"inventory: {escape(inventory)}")
    out.print(f"next: rocstack probe {escape(inventory)}")
    out.print(f"      ssh -F {escape(config)} n1")
    out.print("      rocstack local down")


def down(
    every: Annotated[bool, typer.Option("--all", help="Also remove the image of virtual nodes.")] = False,
    json: options.Json = False,
) -> None:
    """Remove this folder's virtual nodes with their disks, network, keys and inventory, and nothing else."""
    cluster = _local(options.settings())
    gone = cluster.down()
    gone["images"] = cluster.remove_images() if every else 0
    if json:
        print_json({"virtual": True, "removed": gone})
    elif any(gone.values()):
        out.print("removed: " + ", ".join(f"{count} {what}" for what, count in gone.items() if count) + " (virtual)")
    else:
        out.print("no virtual cluster here: nothing to remove")


def status(json: options.Json = False) -> None:
    """Show this folder's virtual nodes. Exit code 1: one of them, or its engine, does not answer."""
    cluster = _local(options.settings())
    states = cluster.status()
    if not states:
        raise cluster.nothing()
    if json:
        print_json(_as_json(states))
    else:
        _print(states, f"{len(states)} virtual nodes")
    if not all(state.well for state in states):
        raise typer.Exit(1)


def reboot(node: Node, json: options.Json = False) -> None:
    """Restart a virtual node and wait until it answers. Its disk stays."""
    _report(_local(options.settings()).reboot(node), json)


def cut(node: Node, json: options.Json = False) -> None:
    """Disconnect a virtual node from the network, until `heal`, `reboot` or `up`."""
    _local(options.settings()).cut(node)
    if json:
        print_json({"virtual": True, "cut": node})
    else:
        out.print(f"{node} is cut off (virtual); `rocstack local heal {node}` brings it back")


def heal(node: Node, json: options.Json = False) -> None:
    """Reconnect a virtual node to the network, and wait until it answers."""
    _report(_local(options.settings()).heal(node), json)


def _report(state: NodeState, json: bool) -> None:
    if json:
        print_json(state.to_dict())
    else:
        _print([state], "1 virtual node")


def models(json: options.Json = False) -> None:
    """List the node models and faults."""
    from rocstack.virtual import faults
    from rocstack.virtual import model as node_models

    known = [node_models.load(name) for name in node_models.names()]
    if json:
        kinds = [{"name": kind.name, "takes": kind.takes, "does": kind.does} for kind in faults.KINDS.values()]
        print_json({"models": [model.model_dump() for model in known], "faults": kinds})
        return
    table(("MODEL", "ABOUT"), [(model.name, model.about) for model in known])
    out.print()
    table(("FAULT", "TAKES", "WHAT IT DOES"), [(kind.name, kind.takes, kind.does) for kind in faults.KINDS.values()])


def _local(chosen: Settings) -> LocalCluster:
    from rocstack.edge import engine
    from rocstack.virtual.local_cluster import LocalCluster

    return LocalCluster(engine.connect(), Path(chosen.out) / "local", chosen.image_prefix, say)


def _as_json(states: list[NodeState]) -> dict[str, object]:
    return {"virtual": True, "nodes": [state.to_dict() for state in states]}


def _print(states: list[NodeState], title: str) -> None:
    rows = [
        (
            s.name,
            s.address,
            f"{s.state}{'' if s.reachable else ', no ssh'}",
            s.engine or "-",
            str(s.gpus),
            str(s.nics),
            " ".join(s.faults),
        )
        for s in states
    ]
    table(("NODE", "ADDRESS", "STATE", "ENGINE", "GPUS", "NICS", "FAULTS"), rows, title=title, right=(4, 5))


def _shown(path: Path) -> str:
    """The path as one types it here."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
