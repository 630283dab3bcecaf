"""Loads the images of a bundle into the engine of this machine, under the names that `rocstack deploy` looks for."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import docker
import requests.exceptions
from docker.errors import APIError, DockerException, ImageNotFound

from rocstack.base.errors import CheckFailed, Missing
from rocstack.base.image_names import local_name
from rocstack.base.text import last_line, visible
from rocstack.bundle.check import CheckedBundle
from rocstack.bundle.layout import ARCHITECTURES
from rocstack.bundle.needed import BundleBlobs, BundledImage
from rocstack.edge import engine
from rocstack.registry.image_archive import ImageArchive
from rocstack.registry.layers import in_place

_FULL = re.compile(r"no space left|disk quota", re.IGNORECASE)


@dataclass(frozen=True)
class InstalledImage:
    """`before` is what the name was; None where it is new, or the same."""

    called: str
    name: str
    id: str
    loaded: bool
    before: str | None = None


def into_engine(
    client: docker.DockerClient, bundle: CheckedBundle, blobs: BundleBlobs, prefix: str, *, downgrade: bool,
    note: Callable[[str], None],
) -> tuple[InstalledImage, ...]:  # fmt: skip
    """All images are loaded under names of the release; then all get their own names. A second call does what is
    missing.

    Raises:
        CheckFailed: the engine is of other machines; it has a newer image under one of the names; layers that the
            bundle leaves out are nowhere; or the engine loaded something else.
        Missing: the engine fails, or has no room.
    """
    info = client.info()
    machine = str(info.get("Architecture"))
    if ARCHITECTURES.get(machine, machine) != ARCHITECTURES.get(bundle.file.record.architecture):
        raise CheckFailed.of(
            "bundle-other-machine", file=bundle.file.path, fits=bundle.file.record.architecture, here=machine
        )  # fmt: skip
    old_store = not any("io.containerd.snapshotter" in str(row) for row in info.get("DriverStatus") or ())
    release = bundle.proved.release
    tag = release.promoted or release.tag
    images = [BundledImage.of(bundle, image) for image in release.images]
    names = {each.image.called: local_name(prefix, each.image.role, each.image.variant) for each in images}
    if not downgrade:
        _refuse_older(client, bundle, images, names, tag)
    due = [each for each in images if engine.find_image(client, _engine_id(each, old_store)) is None]
    there = _layers(client) if old_store and due else []
    have = {each.image.called: in_place(each.diff_ids, there) for each in due}
    needed = {
        blob.digest: blob.size * (each.image.size / max(1, each.image.compressed))
        for each in due
        for diff_id, blob in each.layers.items()
        if diff_id not in have[each.image.called]
    }
    blobs.require(needed, "this machine's engine")
    root, need = Path(str(info.get("DockerRootDir"))), sum(needed.values())
    if due and root.is_dir() and shutil.disk_usage(root).free < need:
        raise _full(root, need)
    for each in due:
        note(f"loading {each.image.called}: {each.image.compressed / 1e6:.0f} MB compressed")
        archive = ImageArchive(
            blobs.pieces, local_name(prefix, each.image.role, f"{each.image.variant}-{tag}"), each.diff_ids,
            each.config, dict(each.layers),
        )  # fmt: skip
        try:
            _load(client, archive, in_place(each.diff_ids, there), _engine_id(each, old_store))
        except _NoRoom:
            raise _full(root, need) from None
        there += [each.diff_ids] if old_store else []
    return tuple(_named(client, each, names[each.image.called], tag, old_store, each in due, note) for each in images)


def _engine_id(each: BundledImage, old_store: bool) -> str:
    return each.image.id if old_store else each.image.digest


def _layers(client: docker.DockerClient) -> list[Sequence[str]]:
    """The diff ids of each of the engine's images."""
    found: list[Sequence[str]] = []
    for row in client.api.images(quiet=True, all=True):
        try:
            about = client.api.inspect_image(row)  # type: ignore[no-untyped-call]
            found.append(about["RootFS"].get("Layers") or ())
        except ImageNotFound:  # removed meanwhile
            continue
    return found


def _refuse_older(
    client: docker.DockerClient, bundle: CheckedBundle, images: Sequence[BundledImage], names: Mapping[str, str],
    tag: str,
) -> None:  # fmt: skip
    for each in images:
        name = names[each.image.called]
        present = engine.find_image(client, name)
        if present is None or present.id in (each.image.id, each.image.digest):
            continue
        theirs, ours = _moment(str(present.attrs.get("Created"))), _moment(each.created)
        if theirs and ours and ours < theirs:
            raise CheckFailed.of(
                "bundle-older", file=bundle.file.path, release=tag, there=name, theirs=f"{theirs:%Y-%m-%d %H:%M}",
                ours=f"{ours:%Y-%m-%d %H:%M}",
            )  # fmt: skip


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo and found.year > 1970 else None


class _NoRoom(Exception):
    """The engine's disk is full."""


def _full(root: Path, need: float) -> Missing:
    """`root` may be on another machine than this."""
    free = f"{shutil.disk_usage(root).free / 1e6:.0f} MB are free" if root.is_dir() else "less is free"
    return Missing.of("bundle-engine-full", root=root, need=need / 1e6, free=free)


def _load(client: docker.DockerClient, archive: ImageArchive, have: frozenset[str], expected: str) -> None:
    """
    Raises:
        _NoRoom: as said.
        Missing, CheckFailed: the engine fails, or has something else then.
    """
    try:
        rows = client.api.load_image(archive.stream(have), quiet=True)  # type: ignore[no-untyped-call]
        said = [row for row in rows if isinstance(row, dict)]
        wrong = next((str(row["error"]) for row in said if row.get("error")), "")
    except ImageNotFound as error:
        wrong = last_line(str(error))
    except (APIError, DockerException, requests.exceptions.RequestException) as error:
        wrong = last_line(str(getattr(error, "explanation", None) or error))
    if _FULL.search(wrong):
        raise _NoRoom
    if wrong:
        raise Missing.of("bundle-load-failed", name=archive.name, why=visible(wrong)[:300])
    found = engine.find_image(client, archive.name)
    if found is None or found.id != expected:
        raise CheckFailed.of("bundle-loaded-another", name=archive.name, found=found and found.id, expected=expected)


def _named(
    client: docker.DockerClient, each: BundledImage, name: str, tag: str, old_store: bool, loaded: bool,
    note: Callable[[str], None],
) -> InstalledImage:  # fmt: skip
    own = _engine_id(each, old_store)
    present = engine.find_image(client, name)
    before = str(present.id) if present is not None and present.id != own else None
    for wanted in (f"{name}-{tag}", name):
        there = engine.find_image(client, wanted)
        if there is None or there.id != own:
            repository, _, last = wanted.rpartition(":")
            client.api.tag(own, repository, last)
    if before:
        note(f"{name} moves from {before[:19]} to {own[:19]}")
    return InstalledImage(each.image.called, name, own, loaded, before)
