"""`rocstack stacks` and `rocstack explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import escape, out, print_json, table


def register(app: typer.Typer) -> None:
    app.command("stacks", epilog="Example: rocstack stacks")(stacks)
    app.command("explain", epilog="Example: rocstack explain --stack rocm-7.2-ubuntu-24.04 --gfx gfx950")(explain)


def stacks(overlay: options.Overlay = None, json: options.Json = False) -> None:
    """List the stacks and NIC profiles."""
    from rocstack.stack import component, stack
    from rocstack.stack import overlay as overlays

    folder = options.settings(overlay=overlay).overlay_folder()
    overlays.load(folder)  # refuses a folder that is not there
    found = [stack.load(name, folder) for name in stack.names(folder)]
    nics = [
        component.validate_head(file, component.NicProfile) for file in component.library("nic", folder).files.values()
    ]
    if json:
        print_json({"stacks": [s.model_dump() for s in found], "nics": [n.model_dump() for n in nics]})
        return
    table(("STACK", "OS", "GFX", "ABOUT"), [(s.name, s.base.os, " ".join(s.gfx), s.about) for s in found])
    out.print()
    table(("NIC", "WAYS", "ABOUT"), [(n.name, " ".join(n.ways), n.about) for n in nics])


def explain(
    stack: options.Stack = None,
    nic: options.Nic = None,
    gfx: options.Gfx = None,
    driver: str = typer.Option("", help="amdgpu driver version of the nodes, such as 6.10.5 or 30.20.1."),
    methods: options.With = [],  # noqa: B006
    image: Annotated[str | None, typer.Option(help="An image: does it fit the nodes?")] = None,
    profiles: options.Profiles = None,
    inventory: options.Inventory = None,
    overlay: options.Overlay = None,
    json: options.Json = False,
) -> None:
    """Say why a combination is allowed or refused, rule by rule; or with --image, why it fits a node or doesn't."""
    from rocstack.base.errors import BadInput
    from rocstack.stack import rules

    if (profiles or inventory) and not image:
        raise BadInput("nodes are judged by an image", code="no-image", next_step="name it with --image")
    if image:
        _explain_image(image, profiles, inventory, json)
        return

    chosen = options.settings(stack=stack, nic=nic, overlay=overlay)
    value, _, _ = options.join(chosen, gfx=gfx, methods=methods)
    facts = value.facts() | ({"driver": driver} if driver else {})
    verdicts = rules.judge(rules.load(), facts)
    broken = [v for v in verdicts if v.state == "broken"]
    if json:
        print_json({"allowed": not broken, "facts": facts, "verdicts": [v.model_dump() for v in verdicts]})
    else:
        for verdict in verdicts:
            if verdict.state == "does not apply":
                continue
            colour = {"holds": "green", "broken": "red", "unknown": "yellow"}[verdict.state]
            out.print(f"[{colour}]{verdict.state:8}[/] {escape(verdict.rule.id)}: {escape(verdict.text)}")
            out.print(f"         why: {escape(verdict.rule.reason)}")
            out.print(f"         source: {escape(verdict.rule.source)}")
        idle = sum(v.state == "does not apply" for v in verdicts)
        for fact in value.stack.facts:
            out.print(f"fact     {escape(fact.says)}\n         source: {escape(fact.source)}")
        out.print(f"{'refused' if broken else 'allowed'}: {len(broken)} broken, {idle} rules do not apply")
    if broken:
        raise typer.Exit(1)


def _explain_image(reference: str, profiles: Path | None, inventory: Path | None, json: bool) -> None:
    """The gate's verdict for every node.

    Raises:
        Missing: no such image on this host.
    """
    from rocstack.base.errors import BadInput, Missing
    from rocstack.cli.nic_choice import nodes
    from rocstack.edge import engine
    from rocstack.node.gate import FITS, judge
    from rocstack.node.image import from_labels

    found = engine.find_image(engine.connect(), reference)
    if found is None:
        raise Missing(f"no image {reference} on this host", code="no-image", next_step="`rocstack build` makes it")
    image = from_labels(reference, found.labels or {})
    if image.role == "control":
        raise BadInput(f"{reference} is a control image: it needs no NIC", code="no-node", next_step="name the worker")
    verdicts = [judge(image, node) for node in nodes(profiles, inventory, image.modules, image.pci)]
    if json:
        rows = [{"node": v.node, "virtual": v.virtual, "result": v.result, "says": v.says} for v in verdicts]
        print_json({"image": reference, "fits": all(v.result == FITS for v in verdicts), "nodes": rows})
    else:
        for verdict in verdicts:
            colour = {"fits": "green", "doesn't fit": "red"}.get(verdict.result, "yellow")
            out.print(f"[{colour}]{escape(verdict.result)}[/]: {escape(verdict.says)}")
    if any(verdict.result != FITS for verdict in verdicts):
        raise typer.Exit(1)
