"""`rocstack bundle` and `rocstack bundle install`."""

from __future__ import annotations

from typing import Any

import typer

from rocstack.base.text import count, listed
from rocstack.cli.command import Answer, ShortGroup, asked_password, command, commands
from rocstack.cli.ui import err, mb, out, say, table
from rocstack.steps.release_options import BundleInstallOptions, BundleOptions


class BundleGroup(ShortGroup):
    """`rocstack bundle -o FILE` is `rocstack bundle create -o FILE`."""

    short = "create"


bundle = typer.Typer(
    cls=BundleGroup,
    help="Pack a release, and rocstack with its Python, into one file for a site without a network; install one there. "
    "Without a command it is `create`.",
)
commands.add_typer(
    bundle, name="bundle", epilog="Example: rocstack bundle --registry registry.example:5000/hpc --key release.pub"
)


class BytesDisplay:
    """How far the reading or writing of a file is, on a terminal only."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> BytesDisplay:
        if err.is_terminal:
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=err.console, transient=True)
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, done: int, whole: int) -> None:
        if self._bar and self._task is None:
            self._task = self._bar.add_task(self.what, total=whole)
        if self._bar:
            self._bar.update(self._task, completed=done, total=whole)


@command(
    "rocstack bundle --release 2026.47 --registry registry.example:5000/hpc --key release.pub -o site.bundle", bundle
)
def create(choice: BundleOptions) -> Answer:
    """Write a release, after it was verified in its registry, into one file: images, signatures, locks, and rocstack
    with its Python. With --since, only what an earlier bundle doesn't have."""
    from rocstack.steps import bundle as steps

    with BytesDisplay("writing") as progress:
        made = steps.bundle(choice, asked_password, say, progress)
    yield made
    record = made.record
    out.say(f"{made.file}: release {record.release}, {mb(made.size)}")
    rest = made.size - made.layers - made.kit
    out.say(f"layers {mb(made.layers)}, rocstack with its Python {mb(made.kit)}, all else {rest / 1e6:.1f} MB")
    if record.since:
        out.say(f"left out: {mb(made.left_out)} that the bundle of release {record.since} has")
    out.say(f"fits: {record.architecture} with glibc {record.glibc} or newer")
    out.say(f"sha256 {made.sha256}")
    if made.signature:
        out.say(f"{made.signature}: its signature")


@command("rocstack bundle install site.bundle --key release.pub", bundle)
def install(choice: BundleInstallOptions) -> Answer:
    """Check a bundle, then load its images into this machine's engine, or fill a registry with them.

    Needs no network. The keys must not come from where the bundle comes from.
    """
    from rocstack.steps import bundle as steps

    with BytesDisplay("checking") as progress:
        done = steps.install(choice, say, progress)
    yield done
    if done.signers is None:
        out.say("signatures: not checked")
    else:
        out.say(f"signed by {listed(done.signers)}; every image and attestation is as it was signed")
    if done.images:
        rows = [(each.called, each.name, each.id[:19], "loaded" if each.loaded else "was here") for each in done.images]
        table(("IMAGE", "NAME", "ID", ""), rows)
    for each in done.repositories:
        out.say(f"{each.reference}: {mb(each.bytes_sent)} sent, {count(len(each.tags), 'tag')} set")
    if not done.changed:
        out.say(f"release {done.release.named} was here already: nothing to do")
