"""`rocstack local`: a cluster of virtual nodes on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.base.text import count
from rocstack.cli.command import Answer, command, commands
from rocstack.cli.ui import out, say, table
from rocstack.steps.options import Flag, Stack, settings

if TYPE_CHECKING:
    from rocstack.settings.settings import Settings
    from rocstack.virtual.local_cluster import LocalCluster
    from rocstack.virtual.node import NodeState

Node = Annotated[str, Flag("Name of a node: n1, n2, ...", argument=True)]
local = typer.Typer(
    help="Run a cluster of virtual nodes on this machine. Their GPUs and NICs are files that the real tools read.",
    no_args_is_help=True,
)
commands.add_typer(local, name="local", epilog="Example: rocstack local up --nodes 2")


@command("rocstack local up --nodes 2 --fault n2:port-down=bnxt_re3", local)
def up(
    nodes: Annotated[int, Flag("Number of nodes.", least=1, most=64)] = 2,
    model: Annotated[str, Flag("Node model: a name from `rocstack local models`, or a .yml file.")] = "mi300x-thor2",
    fault: Annotated[
        tuple[str, ...],
        Flag(
            "Break something (`rocstack local models` lists faults): n2:port-down=bnxt_re3; may be repeated.",
            metavar="[nK:]FAULT[=VALUE]",
        ),
    ] = (),
    stack: Stack = None,
) -> Answer:
    """Start virtual nodes (containers with sshd, a container engine and virtual hardware), or change them."""
    from rocstack.edge import engine
    from rocstack.stack import stack as stacks
    from rocstack.virtual import access, faults, node_image
    from rocstack.virtual import model as node_models
    from rocstack.virtual.cluster_layout import ClusterRequest

    chosen = settings(stack=stack)
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
    yield {**_document(states), "inventory": str(cluster.folder / access.INVENTORY)}
    _show(states, f"{len(states)} virtual nodes, model {wish.model.name}: {wish.model.about}")
    inventory, config = (_typed(cluster.folder / name) for name in (access.INVENTORY, access.CONFIG))
    out.say(f"inventory: {inventory}")
    out.say(f"next: rocstack probe {inventory}")
    out.say(f"      ssh -F {config} n1")
    out.say("      rocstack local down")


@command("rocstack local down", local)
def down(every: Annotated[bool, Flag("Also remove the image of virtual nodes.", ("--all",))] = False) -> Answer:
    """Remove this folder's virtual nodes with their disks, network, keys and inventory, and nothing else."""
    cluster = _local()
    gone = cluster.down()
    gone["images"] = cluster.remove_images() if every else 0
    yield {"virtual": True, "removed": gone}
    if any(gone.values()):
        out.print(
            "removed: "
            + ", ".join(count(number, what.removesuffix("s")) for what, number in gone.items() if number)
            + " (virtual)"
        )
    else:
        out.print("no virtual cluster here: nothing to remove")


@command("rocstack local status --json", local)
def status() -> Answer:
    """Show this folder's virtual nodes. Exit code 1: one of them, or its engine, does not answer."""
    cluster = _local()
    states = cluster.status()
    if not states:
        raise cluster.nothing()
    yield _document(states), all(state.well for state in states)
    _show(states, f"{len(states)} virtual nodes")


@command("rocstack local reboot n2", local)
def reboot(node: Node) -> Answer:
    """Restart a virtual node and wait until it answers. Its disk stays."""
    state = _local().reboot(node)
    yield state
    _show([state], "1 virtual node")


@command("rocstack local cut n2", local)
def cut(node: Node) -> Answer:
    """Disconnect a virtual node from the network, until `heal`, `reboot` or `up`."""
    _local().cut(node)
    yield {"virtual": True, "cut": node}
    out.print(f"{node} is cut off (virtual); `rocstack local heal {node}` brings it back")


@command("rocstack local heal n2", local)
def heal(node: Node) -> Answer:
    """Reconnect a virtual node to the network, and wait until it answers."""
    state = _local().heal(node)
    yield state
    _show([state], "1 virtual node")


@command("rocstack local models", local)
def models() -> Answer:
    """List the node models and faults."""
    from rocstack.virtual import faults
    from rocstack.virtual import model as node_models

    known = [node_models.load(name) for name in node_models.names()]
    kinds = [{"name": kind.name, "takes": kind.takes, "does": kind.does} for kind in faults.KINDS.values()]
    yield {"models": [model.model_dump() for model in known], "faults": kinds}
    table(("MODEL", "ABOUT"), [(model.name, model.about) for model in known])
    out.print()
    table(("FAULT", "TAKES", "WHAT IT DOES"), [kind.values() for kind in kinds])


def _local(chosen: Settings | None = None) -> LocalCluster:
    from rocstack.edge import engine
    from rocstack.virtual.local_cluster import LocalCluster

    chosen = chosen or settings()
    return LocalCluster(engine.connect(), Path(chosen.out) / "local", chosen.image_prefix, say)


def _document(states: list[NodeState]) -> dict[str, object]:
    return {"virtual": True, "nodes": [state.to_dict() for state in states]}


def _show(states: list[NodeState], title: str) -> None:
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


def _typed(path: Path) -> str:
    """The path as one types it here."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
