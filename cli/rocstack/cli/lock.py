"""`rocstack lock`: pin versions, base digest and sha256."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import typer

from rocstack.cli import options
from rocstack.cli.ui import out, print_json, say


def register(app: typer.Typer) -> None:
    app.command("lock", epilog="Example: rocstack lock --stack debian-13")(lock)


def lock(
    stack: options.Stack = None,
    nic: options.Nic = None,
    methods: options.With = [],  # noqa: B006
    overlay: options.Overlay = None,
    to: Path = typer.Option(options.LOCK, help="Where the lock is written."),
    json: options.Json = False,
) -> None:
    """Resolve a stack and pin every package, wheel and source by version and sha256, and the base by digest."""
    from rocstack.base.errors import BadInput, Where
    from rocstack.edge import engine
    from rocstack.image import base_image as bases
    from rocstack.image import pinning
    from rocstack.settings import site
    from rocstack.stack.lock import Lock, drift, read

    if not to.parent.is_dir() or to.is_dir():
        raise BadInput("the lock can't be written there", code="no-folder", where=Where(str(to)))
    chosen = options.settings(stack=stack, nic=nic, overlay=overlay)
    value, _, _ = options.resolved(chosen, gfx=None, methods=methods)
    client = engine.connect()
    made = pinning.make(value, bases.ensure(client, value.stack, chosen, say), site.of(chosen))
    before: Lock | None = None
    with suppress(BadInput):  # a damaged lock is made anew
        before = read(to)
    fresh = to.with_name(to.name + ".new")
    fresh.write_text(made.to_text())
    os.replace(fresh, to)
    changes = (
        drift(before, {p.name: p.version for p in made.packages}, {w.name: w.version for w in made.wheels})
        if before
        else ()
    )
    if json:
        print_json({"file": str(to), "digest": made.digest(), "changes": [c.model_dump() for c in changes]})
        return
    for change in changes:
        out.print(f"{change.what}: {change.locked} -> {change.found}")
    out.print(
        f"{to}: {len(made.packages)} packages, {len(made.wheels)} wheels, {len(made.sources)} sources, "
        f"base {made.base.digest[:19] if made.base else 'none'}, hash {made.digest()[:12]}"
    )
