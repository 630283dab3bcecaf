"""`rocstack demo`: versions read in the image that was built, and a short training run."""

import subprocess
from typing import Annotated

import typer

from rocstack.cli import options
from rocstack.cli.ui import err, out, print_json, table
from rocstack.steps.options import Nic, Stack


def register(app: typer.Typer) -> None:
    options.add(app, "demo", demo, "rocstack demo --nic tcp")


def demo(
    stack: Stack = None,
    nic: Nic = None,
    steps: Annotated[int, typer.Option(help="Training steps to run.")] = 8,
    json: options.Json = False,
) -> None:
    """Run the built image: print its versions and train a tiny model on 2 ranks."""
    from rocstack.base.errors import CheckFailed, Missing
    from rocstack.edge import engine

    chosen = options.settings(stack=stack, nic=nic)
    reference = chosen.image_name("worker")
    if engine.find_image(engine.connect(), reference) is None:
        raise Missing(f"no image {reference} on this host", code="no-image", next_step="build it with `rocstack build`")
    command = ["docker", "run", "--rm", "--no-healthcheck", "--ipc=host", reference]
    listed = subprocess.run([*command, "rocstack-versions"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise CheckFailed(f"{reference} does not run: {listed.stderr.strip()[-300:]}", code="demo-failed")
    versions = dict(line.split("\t", 1) for line in listed.stdout.splitlines())
    if not json:
        table(("COMPONENT", "VERSION"), versions.items(), title=f"{reference}, as read inside the container")
        out.print()
    train = [*command, "rocstack-train", "--config", "tiny", "--steps", str(steps), "--ranks", "2"]
    err.print("training a tiny Llama on 2 ranks (CPU, gloo)")
    ran = subprocess.run(train, capture_output=json, text=True, check=False)
    if json:
        print_json(
            {
                "image": reference,
                "versions": versions,
                "training": ran.stdout.splitlines(),
                "ok": ran.returncode == 0,
            }
        )
    if ran.returncode != 0:
        raise CheckFailed("the trainer did not finish", code="demo-failed", next_step="read its output above")
