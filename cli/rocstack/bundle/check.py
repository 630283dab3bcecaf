"""Checks a bundle as a whole, before anything of it is used."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rocstack.base.errors import CheckFailed
from rocstack.bundle.file import BundleFile, Progress
from rocstack.bundle.format import BLOBS, BundleMember
from rocstack.bundle.kit import is_kit
from rocstack.bundle.layout import RELEASE_FILE, BundledRelease, BundleLayout, prove
from rocstack.registry.image_layout import INDEX_FILE, LAYOUT, VERSION
from rocstack.registry.oci import parse_manifest
from rocstack.release.record import ReleasedImage
from rocstack.trust.keys import PublicKey


@dataclass(frozen=True)
class CheckedBundle:
    """A bundle that is whole, and what is proved of its release. `absent` are the blobs that it leaves out."""

    file: BundleFile
    layout: BundleLayout
    proved: BundledRelease
    absent: Mapping[str, BundleMember]  # by digest

    def has(self, digest: str) -> bool:
        return blob_path(digest) in self.file


def blob_path(digest: str) -> str:
    return BLOBS + digest.removeprefix("sha256:")


def lock_path(image: ReleasedImage) -> str:
    return f"locks/{image.variant}.lock"


def check(
    bundle: BundleFile,
    keys: Sequence[PublicKey],
    progress: Progress = lambda done, whole: None,
    *,
    machine: Callable[[], str] = platform.machine,
) -> CheckedBundle:
    """Without keys no signature is looked at: whoever calls says so.

    Raises:
        CheckFailed: it is for other machines, a member has another content than is listed, or it isn't one whole
            release.
        Untrusted: as `prove`.
    """
    record, path = bundle.record, bundle.path
    if record.architecture != machine():
        raise CheckFailed.of("bundle-other-machine", file=path, fits=record.architecture, here=machine())
    bundle.check_contents(progress)
    if bundle.read(LAYOUT) != VERSION:
        raise CheckFailed.of("bundle-incoherent", file=path, why=f"{LAYOUT} names another version of the layout")
    layout = BundleLayout.parse(str(path), bundle.read(INDEX_FILE), bundle.blob)
    proved = prove(layout, keys, record.architecture)
    release = proved.release
    if (record.release, record.created) != (release.promoted or release.tag, release.created):
        raise CheckFailed.of("bundle-incoherent", file=path, why="bundle.json names another release than it has")
    _, (listed,) = parse_manifest(layout.read(proved.listing) or b"")
    if bundle.read(RELEASE_FILE) != layout.read(listed.digest):
        raise CheckFailed.of("bundle-incoherent", file=path, why=f"{RELEASE_FILE} isn't the release that is listed")
    for image in release.images:
        if hashlib.sha256(bundle.read(lock_path(image))).hexdigest() != image.lock:
            raise CheckFailed.of("bundle-incoherent", file=path, why=f"{lock_path(image)} isn't the lock of its images")
    _same_members(bundle, layout, proved)
    absent = {each.digest: each for each in record.absent if each.path.startswith(BLOBS)}
    return CheckedBundle(bundle, layout, proved, absent)


def _same_members(bundle: BundleFile, layout: BundleLayout, proved: BundledRelease) -> None:
    """Everything that the release needs, and nothing else."""
    sizes = {blob_path(blob.digest): blob.size for blob in layout.blobs(dict.fromkeys(layout.names.values()))}
    others = {LAYOUT, INDEX_FILE, RELEASE_FILE, *map(lock_path, proved.release.images)}
    there = {member.path: member for member in bundle.record.whole()}
    for name, member in there.items():
        if name not in sizes and name not in others and not is_kit(name):
            raise CheckFailed.of("bundle-unlisted", file=bundle.path, member=name)
        if sizes.get(name, member.size) != member.size:
            raise CheckFailed.of(
                "bundle-other-size", file=bundle.path, member=name, size=member.size, listed=sizes[name]
            )  # fmt: skip
    if lacking := sorted(set(sizes) - set(there)):
        raise CheckFailed.of("bundle-incoherent", file=bundle.path, why=f"it lacks {lacking[0][:120]}")
