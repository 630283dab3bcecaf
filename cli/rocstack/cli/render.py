"""`rocstack render`: the context, without building it."""

import sys

import typer

from rocstack.cli import options
from rocstack.cli.ui import out, print_json, say
from rocstack.steps.build import RenderOptions


def register(app: typer.Typer) -> None:
    options.add(app, "render", render, "rocstack render --nic broadcom --to ./context")


def render(choice: RenderOptions, json: options.Json = False) -> None:
    """Print the Dockerfile, or write the whole build context. Builds nothing and needs no engine."""
    from rocstack.steps.build import render as step

    result = step(choice, say)
    if json:
        print_json(result.to_dict())
    elif result.changes is not None:
        sys.stdout.write(result.changes or "nothing changed since the last build\n")
    elif result.folder:
        out.print(f"{len(result.context.files)} files in {result.folder}", markup=False)
        say(f"build it by hand: docker buildx build --target worker {result.folder}")
    else:
        sys.stdout.write(result.dockerfile)
