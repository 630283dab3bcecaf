"""`rocstack render`: the context, without building it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import out, print_json, say


def register(app: typer.Typer) -> None:
    app.command("render", epilog="Example: rocstack render --nic broadcom --to ./context")(render)


def render(
    nic: options.Nic = None,
    stack: options.Stack = None,
    to: Annotated[Path | None, typer.Option(help="Write the whole context to this folder.")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show what changed since the last build of this pair.")] = False,
    gfx: options.Gfx = None,
    way: options.Way = None,
    methods: options.With = [],  # noqa: B006
    profiles: options.Profiles = None,
    inventory: options.Inventory = None,
    nic_source: options.NicSource = None,
    nic_accept: options.NicAccept = None,
    nic_plugin: options.NicPlugin = None,
    nic_variants: options.NicVariants = False,
    overlay: options.Overlay = None,
    base_image: Annotated[str | None, typer.Option(help="Base image instead of the stack's own.")] = None,
    lock: options.LockFile = options.LOCK,
    json: options.Json = False,
) -> None:
    """Print the Dockerfile, or write its whole context; builds nothing, needs no engine."""
    from rocstack.base.errors import BadInput, Where
    from rocstack.cli.nic_choice import NicDecision
    from rocstack.image import context
    from rocstack.image import render as renderer
    from rocstack.stack.lock import for_stack

    chosen = options.settings(
        nic=nic,
        stack=stack,
        overlay=overlay,
        base_image=base_image,
        nic_source=nic_source,
        nic_accept=nic_accept,
        nic_plugin=nic_plugin,
    )
    folder = Path(chosen.out) / f"{chosen.stack_name()}-{chosen.nic}"
    base = chosen.base_image or None
    if diff and not base:
        from rocstack.image.build_report import last_base

        base = last_base(folder)
    decision = NicDecision(chosen, way, nic_variants, profiles, inventory)
    value, components, nics = options.resolved(
        chosen,
        gfx=gfx,
        methods=methods,
        base=base,
        decide=decision,
    )
    result = renderer.render(
        value, for_stack(value.stack, lock), components, nics, decision.plan.archives if decision.plan else {}
    )
    if diff:
        last = context.read(folder / "context")
        if not last.files:
            raise BadInput(
                "there is no last build to compare with",
                code="no-build",
                where=Where(str(folder)),
                next_step="`rocstack build` first, or drop --diff",
            )
        text = context.diff(last, result)
        if json:
            print_json({"changed": bool(text), "diff": text})
        else:
            sys.stdout.write(text or "nothing changed since the last build\n")
        return
    if to:
        if to.exists() and not (to.is_dir() and (not any(to.iterdir()) or context.is_ours(to))):
            raise BadInput(
                f"{to} holds something else",
                code="not-empty",
                where=Where(str(to)),
                next_step="name an empty folder, or one written by `rocstack render`",
            )
        result.write(to)
        if json:
            print_json({"folder": str(to), "digest": result.digest(), "files": sorted(result.files)})
        else:
            out.print(f"{len(result.files)} files in {to}", markup=False)
            say(f"build it by hand: docker buildx build --target worker {to}")
        return
    if json:
        print_json(
            {
                "digest": result.digest(),
                "files": {n: f.data.decode("utf-8", "replace") for n, f in result.files.items()},
            }
        )
        return
    sys.stdout.write(result.files["Dockerfile"].data.decode())
