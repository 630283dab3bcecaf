"""`rocstack release` and what belongs to it: verify, promote, keygen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocstack.base.text import count, listed
from rocstack.cli.command import Answer, ShortGroup, asked_password, command, commands
from rocstack.cli.ui import mb, out, print_error, say, table
from rocstack.steps.options import Flag
from rocstack.steps.release_options import (
    PasswordFile,
    PromoteOptions,
    RebuildOptions,
    ReleaseOptions,
    ReleaseVerifyOptions,
)

if TYPE_CHECKING:
    from rocstack.image.build_report import BuildReport
    from rocstack.release.record import ReleaseRecord
    from rocstack.steps.options import BuildOptions
    from rocstack.steps.rebuild import Rebuilt


class ReleaseGroup(ShortGroup):
    """`rocstack release [FILE]` is `rocstack release publish [FILE]`."""

    short = "publish"


release = typer.Typer(
    cls=ReleaseGroup,
    help="Build, sign, prove and tag the images that release.yml names; verify and promote releases. Without a command "
    "it is `publish`.",
)
commands.add_typer(release, name="release", epilog="Example: rocstack release release.yml")


@command("rocstack release publish release.yml --registry registry.example.com:5000/hpc", release)
def publish(choice: ReleaseOptions) -> Answer:
    """Build, push, sign and attest the images of release.yml, and tag them when all are proved.

    An unchanged release does nothing and says so; one that broke off goes on.
    """
    from rocstack.cli.build_display import BuildDisplay
    from rocstack.steps import build as builds
    from rocstack.steps import release as steps

    def build(options: BuildOptions, title: str) -> BuildReport:
        say(f"{title}:")
        with BuildDisplay() as events:
            return builds.build_images(options, events)

    result = steps.release(choice, steps.ReleaseWork(build, say, asked_password))
    yield result
    if isinstance(result, steps.BuiltEntries):
        built = sum(len(report.images) for report in result.reports)
        out.say(f"{count(built, 'image')} built and tested; nothing was published")
        return
    if not result.changed:
        made, images = result.release, count(len(result.release.images), "image")
        out.say(f"nothing changed since release {made.tag} of {made.created}: its {images} are there, signed and whole")
        return
    _show(result.release)
    for name, found in result.changes.items():
        out.say(f"{name}: {listed(found, 6) or 'the same image'}")
    out.say(f"release.json and notes: {result.folder}/")


@command("rocstack release verify 2026.47 --registry registry.example.com:5000/hpc --key release.pub", release)
def verify(choice: ReleaseVerifyOptions) -> Answer:
    """Check a release in its registry, by digest: tags, signatures, attestations and layers. Needs no engine."""
    from rocstack.steps import release_check as steps
    from rocstack.trust.envelope import TYPES

    result = steps.verify_release(choice, say)
    yield result
    for each in result.images:
        if each.error:
            print_error(each.error)
    rows = [
        (
            each.image.called,
            "refused" if each.error else "proved",
            "" if each.error else ", ".join(TYPES[own.predicate_type] for own in _attestations(each)),
            each.image.reference,
        )
        for each in result.images
    ]
    table(("IMAGE", "", "ATTESTED", "DIGEST"), rows)
    proved = sum(each.error is None for each in result.images)
    out.say(f"release {result.release.named}: {proved} of {count(len(rows), 'image')} proved")


def _attestations(each: Any) -> Any:
    return each.evidence.attestations if each.evidence else ()


@command("rocstack release promote 2026.47 --report .rocstack/verify/latest", release)
def promote(choice: PromoteOptions) -> Answer:
    """Verify a release again, and move the name `stable` and the tags `<name>-stable` to it.

    With --report, the report of a `rocstack verify` with its images is attested to them first.
    """
    from rocstack.steps import release_check as steps

    result = steps.promote(choice, asked_password, say)
    yield result
    name = result.release.promoted
    if not result.changed:
        out.say(f"{name} is release {result.release.tag} already: nothing to do")
        return
    _show(result.release)
    out.say(f"{name}: {result.before.tag if result.before else 'nothing'} -> {result.release.tag}")


@command("rocstack release keygen release.key", release)
def keygen(
    key: Annotated[
        Path, Flag("File of the private key; the public one is beside it.", metavar="FILE", argument=True)
    ] = Path("release.key"),
    password_file: PasswordFile = None,
) -> None:
    """Make a pair of keys that rocstack and cosign can use. The private one is encrypted by a password."""
    from rocstack.steps import release_access as steps

    public, made = steps.keygen(key, password_file, lambda: asked_password(again=True))
    out.say(f"{key}: the private key; keep it and its password where nobody else reads them, and a copy elsewhere")
    out.say(f"{public}: the public key, {made.public.fingerprint}; give it to everybody who deploys")


@command("rocstack rebuild registry.example.com:5000/hpc/rocstack-control@sha256:... --key release.pub")
def rebuild(choice: RebuildOptions) -> Answer:
    """Build a released image again from its own signed provenance, and show what differs, file by file and by cause."""
    from rocstack.cli.build_display import BuildDisplay
    from rocstack.steps import rebuild as steps

    with BuildDisplay() as events:
        result = steps.rebuild(choice, events)
    yield result
    recorded, image = result.original.recorded, result.image
    if image.failure:
        out.say(f"not built: {image.failure.error}")
        out.say(f"log: {image.log}")
    if not result.same_inputs:
        out.say(
            f"other inputs: the build context is not the release's: rocstack {recorded.rocstack} -> "
            f"{result.report.rocstack}, or another stack, overlay, profiles, NIC source"
        )
    if not (result.same_base or result.ok):
        out.say(f"other base: {recorded.base[:19]} -> {result.report.base_digest[:19]}")
    if image.failure:
        return
    _show_layers(result)


def _show_layers(result: Rebuilt) -> None:
    from rocstack.release import difference

    rows = [(str(each.layer), str(each.files), str(len(each.found)), str(each.times)) for each in result.layers]
    if rows:
        table(("LAYER", "FILES", "DIFFER", "IN TIMES ONLY"), rows, right=(0, 1, 2, 3))
    for cause, found in difference.by_cause(result.layers).items():
        shown = (f"{each.path} ({', '.join(each.differs) or each.how})" for each in found)
        out.say(f"{cause}: {count(len(found), 'file')}: {listed(shown, 6)}")
    layers, image = count(len(result.original.diff_ids), "layer"), f"{result.image.reference}: {result.image.image_id}"
    if result.ok:
        times = sum(each.times for each in result.layers)
        more = f"; {count(times, 'file')} differ in times, or are there again as below" if times else ", by every byte"
        out.say(f"{image} has the content of {result.original.reference}: {layers}{more}")
    else:
        differ = sum(bool(each.found) for each in result.layers)
        out.say(f"{image} differs from {result.original.reference} in {differ} of {layers}")


def _show(made: ReleaseRecord) -> None:
    rows = [(each.called, mb(each.compressed), ", ".join(each.tags), each.reference) for each in made.images]
    table(("IMAGE", "COMPRESSED", "TAGS", "DIGEST"), rows, right=(1,))
