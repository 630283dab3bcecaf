"""Options that several commands share, and how a command's flags become settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rocstack.nic.ways import ProviderPlan
    from rocstack.settings.settings import Settings
    from rocstack.stack.component import NicProfile as NicHead
    from rocstack.stack.resolve import Resolved
    from rocstack.stack.stack import Stack as StackValue

    Decide = Callable[[NicHead, StackValue], ProviderPlan]

Stack = Annotated[str | None, typer.Option(help="Stack to use; `rocstack stacks` lists them.", show_default=False)]
Nic = Annotated[str | None, typer.Option(help="NIC profile: tcp, mellanox, broadcom, ...", show_default=False)]
Overlay = Annotated[
    str | None, typer.Option(help="Folder with your own changes (overlay.yml, components/, nic/, stacks/).")
]
Gfx = Annotated[str | None, typer.Option(help="gfx targets instead of the stack's own, comma-separated.")]
Way = Annotated[
    str | None, typer.Option(help="How the NIC's provider gets in: inbox, source, ...; default: by the nodes.")
]
Profiles = Annotated[
    Path | None, typer.Option(help="Node profiles (of `rocstack probe --out`) that the image must fit.")
]
Inventory = Annotated[Path | None, typer.Option(help="Inventory to probe: its nodes are what the image must fit.")]
Nodes = Annotated[
    Path | None,
    typer.Argument(help="Ansible inventory with the groups control and workers; default: the setting `inventory`."),
]
Cluster = Annotated[
    Path | None,
    typer.Option("--inventory", metavar="FILE", help="The cluster's inventory; default: the setting `inventory`."),
]
Service = Annotated[
    str | None, typer.Option(help="worker, controller, db or registry; default: the worker, else the controller.")
]
Force = Annotated[bool, typer.Option("--force", help="Also where jobs run: they end.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask.")]
NicSource = Annotated[
    str | None,
    typer.Option(
        help="The vendor's bundle or library source (folder, .zip, .tar.gz), or rdma-core's for `--way newer`."
    ),
]
NicAccept = Annotated[
    str | None, typer.Option(help="Take this release, though it is not the one of the host's driver.")
]
NicPlugin = Annotated[
    str | None,
    typer.Option(help="Source of RCCL's plugin (aws-ofi-nccl-VERSION.tar.gz), compiled in the image."),
]
NicVariants = Annotated[
    bool, typer.Option("--nic-variants", help="One provider for each kernel ABI of the nodes, in one image.")
]
With = Annotated[
    list[str], typer.Option("--with", metavar="COMPONENT=METHOD", help="Another of the stack's ways to a component.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
LockFile = Annotated[Path, typer.Option("--lock", help="Lock file.", show_default=True)]
LOCK = Path("rocstack.stack.lock")


def settings(**flags: Any) -> Settings:
    from rocstack.settings.settings import load

    return load(flags, os.environ, Path.cwd())[0]


def inventory(chosen: Settings, given: Path | None) -> Path:
    """The cluster's inventory.

    Raises:
        BadInput: it isn't there.
    """
    from rocstack.base.errors import BadInput

    path = given or Path(chosen.inventory).expanduser()
    if path.exists():
        return path
    virtual = Path(chosen.out) / "local/inventory.yml"
    raise BadInput(
        f"no inventory {path}",
        code="no-inventory",
        next_step=f"give the one of this folder's virtual nodes, {virtual}, or set `inventory: {virtual}`"
        if virtual.exists() and not given
        else "`rocstack init` writes one to start from",
    )


def confirmed(question: str, yes: bool) -> None:
    """
    Raises:
        BadInput: nobody is there to be asked.
        Abort: the answer is no.
    """
    from rocstack.base.errors import BadInput

    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(question, code="unconfirmed", cause="there is no terminal to ask at", next_step="add --yes")
    typer.confirm(f"{question} Go on?", abort=True, err=True)


def resolved(
    chosen: Settings,
    *,
    gfx: str | None,
    methods: Sequence[str] = (),
    base: str | None = None,
    decide: Decide | None = None,
) -> tuple[Resolved, Any, Any]:
    """Stack + NIC + overlay, and the two template libraries. `decide` says how the NIC's provider gets in.

    Raises:
        BadInput: whatever is wrong with them; a rule that the combination breaks.
    """
    from rocstack.stack import rules

    joined = join(chosen, gfx=gfx, methods=methods, base=base, decide=decide)
    rules.refuse_broken(rules.judge(rules.load(), joined[0].facts()))
    return joined


def join(
    chosen: Settings,
    *,
    gfx: str | None,
    methods: Sequence[str] = (),
    base: str | None = None,
    decide: Decide | None = None,
) -> tuple[Resolved, Any, Any]:
    """As `resolved`, whatever the rules say."""
    from rocstack.base.errors import BadInput, did_you_mean
    from rocstack.stack import component, overlay, resolve, stack

    folder = chosen.overlay_folder()
    layer = overlay.load(folder)
    components, nics = component.library("components", folder), component.library("nic", folder)
    doc = stack.read(chosen.stack, folder)
    choice = stack.from_document(doc, name=stack.name_of(chosen.stack))
    wanted = [text.partition("=") for text in methods]
    for name, equals, method in wanted:
        if not (name and equals and method):
            raise BadInput(
                f"--with {name}{equals}{method}: the form is COMPONENT=METHOD",
                code="bad-with",
                next_step="such as --with openmpi=source",
            )
    choice = choice.with_methods({name: method for name, _, method in wanted})
    if gfx:
        choice = choice.with_gfx(tuple(part.strip() for part in gfx.split(",")))
    if chosen.nic not in nics.files:
        hint = did_you_mean(chosen.nic, nics.files)
        raise BadInput(f"no NIC profile '{chosen.nic}'" + (f": {hint}" if hint else ""), code="unknown-nic")
    plan: ProviderPlan | None = None
    if decide:
        plan = decide(component.validate_head(nics.get(chosen.nic), component.NicProfile), choice)
    value = resolve.resolve(
        choice,
        chosen.nic,
        components,
        nics,
        layer,
        base=base,
        providers=plan.providers if plan else (),
        plugin=plan.plugin if plan else None,
        where=doc.where,
    )
    if chosen.nic_repository and any(provider.way == "package" for provider in value.providers):
        value = value.model_copy(update={"nic_repository": chosen.nic_repository})
    return value, components, nics
