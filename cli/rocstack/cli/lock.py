"""`rocstack lock`: pin versions, base digest and sha256."""

import typer

from rocstack.cli import options
from rocstack.cli.ui import out, print_json, say
from rocstack.steps.build import LockOptions


def register(app: typer.Typer) -> None:
    options.add(app, "lock", lock, "rocstack lock --stack debian-13")


def lock(choice: LockOptions, json: options.Json = False) -> None:
    """Pin every package, wheel and source of a stack by version and sha256, and the base by digest."""
    from rocstack.steps.build import lock as step

    result = step(choice, say)
    if json:
        print_json(result.to_dict())
        return
    for change in result.changes:
        out.print(f"{change.what}: {change.locked} -> {change.found}")
    made = result.lock
    out.print(
        f"{result.file}: {len(made.packages)} packages, {len(made.wheels)} wheels, {len(made.sources)} sources, "
        f"base {made.base.digest[:19] if made.base else 'none'}, hash {made.digest()[:12]}"
    )
