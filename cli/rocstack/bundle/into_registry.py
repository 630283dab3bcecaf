"""Puts the images of a bundle into a registry, with signatures, attestations and the list of releases: then it is a
registry of releases like the one that the bundle comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rocstack.base.errors import CheckFailed
from rocstack.bundle.check import CheckedBundle
from rocstack.bundle.layout import LISTING
from rocstack.bundle.needed import BundleBlobs
from rocstack.registry.layers import sha256
from rocstack.registry.oci import Blob, Packer, media_type, parse_manifest
from rocstack.registry.repository import Repository
from rocstack.release import record
from rocstack.release.plan import LATEST
from rocstack.release.record import ReleaseRecord
from rocstack.release.site import REQUIRED, ReleaseSite
from rocstack.trust.verification import Untrusted, verify


class _Copy(Packer):
    """A layer that is packed already."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__(())
        self._pieces = pieces

    def _packed(self) -> Iterator[bytes]:
        yield from self._pieces


@dataclass(frozen=True)
class FilledRepository:
    """What a repository got. `bytes_sent` are those of blobs."""

    reference: str
    bytes_sent: int
    tags: tuple[str, ...]


def into_registry(
    site: ReleaseSite, bundle: CheckedBundle, blobs: BundleBlobs, *, downgrade: bool, note: Callable[[str], None]
) -> tuple[FilledRepository, ...]:
    """Blobs first, then manifests, then tags, the list of releases last. A second call does what is missing.

    Raises:
        CheckFailed: a later release is there; a tag names something else; layers that the bundle leaves out are
            nowhere; or as `Repository`.
        Missing: as `Repository`.
    """
    release, layout = bundle.proved.release, bundle.layout
    roles = [*dict.fromkeys(image.role for image in release.images), LISTING]
    if not downgrade:
        _refuse_older(site, bundle, release)
    tags = {role: _due(site, role, layout.of_role(role), release) for role in roles}
    for role in roles:
        site.repository(role).check_access()
    fills = [_Fill(site, site.repository(role), layout.of_role(role), bundle, blobs, note) for role in roles]
    due = [(fill, fill.missing()) for fill in fills]
    blobs.require({blob.digest for _, missing in due for blob in missing}, str(site.target))
    for fill, missing in due:
        fill.blobs_in(missing)
    for fill, _ in due:
        fill.manifests()
    return tuple(fill.tagged(tags[role]) for role, (fill, _) in zip(roles, due, strict=True))


def _refuse_older(site: ReleaseSite, bundle: CheckedBundle, release: ReleaseRecord) -> None:
    """By the time of the last release there; of a promoted one, by that of the one that has the name."""
    catalog = site.catalog
    data = catalog.manifest(release.promoted or LATEST, denied_is_absent=True)
    if data is None:
        return
    if site.trusted:
        verify(catalog, sha256(data), site.trusted)
    try:
        _, (layer,) = parse_manifest(data)
        there = record.loads(catalog.blob(layer.digest) or b"")
    except ValueError as error:
        raise Untrusted.of("unreadable-release", reference=f"{catalog.reference}@{sha256(data)}", why=error) from None
    if there.created > release.created:
        raise CheckFailed.of(
            "bundle-older", file=bundle.file.path, release=release.named, theirs=there.created, ours=release.created,
            there=f"{site.target} (release {there.named})",
        )  # fmt: skip


def _due(site: ReleaseSite, role: str, names: Mapping[str, str], release: ReleaseRecord) -> dict[str, str]:
    """Tags to set, and their digests.

    Raises:
        CheckFailed: one names something else and isn't a name that moves with promotions.
    """
    repository = site.repository(role)
    due = {}
    for name, digest in names.items():
        if name.startswith("sha256-"):
            continue
        data = repository.manifest(name, denied_is_absent=True)
        if data is not None and sha256(data) != digest and not release.promoted:
            raise CheckFailed.of(
                "bundle-tag-taken", name=f"{repository.reference}:{name}", other=sha256(data), digest=digest
            )  # fmt: skip
        if data is None or sha256(data) != digest:
            due[name] = digest
    if role == LISTING and not release.promoted:
        (digest,) = {digest for name, digest in names.items() if not name.startswith("sha256-")}
        data = repository.manifest(LATEST, denied_is_absent=True)
        due |= {LATEST: digest} if data is None or sha256(data) != digest else {}
    return due


@dataclass
class _Fill:
    """One repository that is filled."""

    site: ReleaseSite
    repository: Repository
    names: Mapping[str, str]
    bundle: CheckedBundle
    source: BundleBlobs
    note: Callable[[str], None]
    sent: int = 0

    def _blobs(self) -> Iterator[Blob]:
        """Everything but the manifests, each once."""
        manifests = set(self.names.values())
        for blob in self.bundle.layout.blobs(dict.fromkeys(self.names.values())):
            if blob.digest not in manifests:
                yield blob

    def missing(self) -> list[Blob]:
        return [blob for blob in self._blobs() if not self.repository.has(blob)]

    def blobs_in(self, missing: list[Blob]) -> None:
        large = [blob for blob in missing if blob.size > 1 << 20]
        if large:
            size = sum(blob.size for blob in large) / 1e6
            self.note(f"sending {len(large)} layers, {size:.0f} MB, to {self.repository.reference}")
        for blob in missing:
            made = self.repository.upload(lambda digest=blob.digest: _Copy(self.source.pieces(digest)))  # type: ignore[misc]
            if made.digest != blob.digest:
                raise CheckFailed.of("bundle-source-differs", member=blob.digest)
            self.sent += blob.size

    def manifests(self) -> None:
        """By digest: nobody sees them yet. Signatures that are there stay if they prove the image: the site may have
        added its own."""
        for name, digest in sorted(self.names.items()):
            data = self.bundle.layout.read(digest) or b""
            if not name.startswith("sha256-") and self.repository.manifest(digest) is None:
                self.repository.put_manifest(digest, data, media_type(data))
        # Attestations before the signatures that list them.
        signed = {name for name in self.names if name.startswith("sha256-")}
        for name in sorted(signed, key=lambda name: name.endswith(".sig")):
            data = self.bundle.layout.read(self.names[name]) or b""
            if self.repository.manifest(name) != data and not self._proved(name):
                self.repository.put_manifest(name, data, media_type(data))

    def _proved(self, name: str) -> bool:
        """Is the image proved by what is there?"""
        digest = "sha256:" + name.removeprefix("sha256-").partition(".")[0]
        required = () if self.repository.name == self.site.catalog.name else REQUIRED
        try:
            return bool(self.site.trusted and verify(self.repository, digest, self.site.trusted, required))
        except Untrusted:
            return False

    def tagged(self, due: Mapping[str, str]) -> FilledRepository:
        for name, digest in due.items():
            data = self.bundle.layout.read(digest) or b""
            self.repository.put_manifest(name, data, media_type(data))
            self.note(f"{self.repository.reference}:{name} is {digest}")
        return FilledRepository(self.repository.reference, self.sent, tuple(due))
