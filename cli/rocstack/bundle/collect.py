"""What of a release goes into a bundle, out of its registry; all of it proved before a byte is written."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass

from rocstack.base.errors import CheckFailed
from rocstack.base.image_names import repository_name
from rocstack.bundle.check import blob_path, lock_path
from rocstack.bundle.format import BundleMember
from rocstack.bundle.layout import LISTING, RELEASE_FILE, BundledRelease, BundleLayout, prove
from rocstack.bundle.write import BundlePart
from rocstack.registry.image_layout import INDEX_FILE, LAYOUT, VERSION
from rocstack.registry.layers import sha256
from rocstack.registry.oci import Blob, parse_manifest
from rocstack.registry.repository import Repository
from rocstack.release.record import ReleasedImage, ReleaseRecord
from rocstack.release.site import ReleaseSite
from rocstack.trust import attached, contents
from rocstack.trust.envelope import PROVENANCE
from rocstack.trust.verification import SignedEvidence


@dataclass(frozen=True)
class BundleContent:
    """`parts` by path; `layers` are the paths of those that a delta may leave out."""

    proved: BundledRelease
    parts: dict[str, BundlePart]
    layers: frozenset[str]


def collect(site: ReleaseSite, tag: str) -> BundleContent:
    """
    Raises:
        BadInput: there is no such release.
        Untrusted: something of it isn't as a trusted key released it.
        CheckFailed, Missing: as `Repository`.
    """
    listed = site.listed(tag)
    release = listed.release
    for image in release.images:
        contents.check(site.repository(image.role), image.digest)
    work = _Collection(site)
    work.add(LISTING, listed.digest, (release.promoted or release.tag,))
    for image in release.images:
        work.add(image.role, image.digest, image.tags)
    layout = BundleLayout(str(site.target), work.names, work.small.get)
    proved = prove(layout, site.trusted, platform.machine())
    files = {LAYOUT: VERSION, INDEX_FILE: layout.index(), RELEASE_FILE: _listed(layout, proved)}
    files |= dict(_locks(proved.release, proved))
    files |= {blob_path(digest): data for digest, data in work.small.items()}
    parts = {path: BundlePart.of(path, data) for path, data in files.items()}
    layers = {blob_path(digest): part for digest, part in work.layers.items() if digest not in work.small}
    return BundleContent(proved, {**parts, **layers}, frozenset(layers))


class _Collection:
    """`small` are the contents of manifests, configurations, signatures and attestations, by digest."""

    def __init__(self, site: ReleaseSite) -> None:
        self.site = site
        self.names: dict[str, str] = {}
        self.small: dict[str, bytes] = {}
        self.layers: dict[str, BundlePart] = {}

    def add(self, role: str, digest: str, tags: tuple[str, ...]) -> None:
        """An image or the listing, with what is attached to it."""
        repository, name = self.site.repository(role), repository_name(role)
        layers = self._manifest(repository, digest)
        for blob in layers:
            if role == LISTING:
                self._small(repository, blob.digest)
            else:
                self.layers.setdefault(blob.digest, _layer(repository, blob))
        self.names |= {f"{name}:{tag}": digest for tag in tags}
        for kind in ("sig", "att"):
            where = attached.tag(digest, kind)
            data = repository.manifest(where)
            if data is not None:
                for blob in self._manifest(repository, sha256(data)):
                    self._small(repository, blob.digest)
                self.names[f"{name}:{where}"] = sha256(data)

    def _manifest(self, repository: Repository, digest: str) -> tuple[Blob, ...]:
        data = repository.manifest(digest)
        try:
            config, layers = parse_manifest(data or b"{}")
        except ValueError as error:
            raise CheckFailed.of("bundle-incoherent", file=f"{repository.reference}@{digest}", why=error) from None
        if data is not None:
            self.small[digest] = data
        if config:
            self._small(repository, config)
        return layers

    def _small(self, repository: Repository, digest: str) -> None:
        if digest not in self.small and (data := repository.blob(digest)) is not None:
            self.small[digest] = data


def _layer(repository: Repository, blob: Blob) -> BundlePart:
    digest = blob.digest
    member = BundleMember(path=blob_path(digest), size=blob.size, sha256=digest.removeprefix("sha256:"))
    return BundlePart(member, lambda: repository.pieces(digest))


def _listed(layout: BundleLayout, proved: BundledRelease) -> bytes:
    _, (layer,) = parse_manifest(layout.read(proved.listing) or b"")
    return layout.read(layer.digest) or b""


def _locks(release: ReleaseRecord, proved: BundledRelease) -> Iterator[tuple[str, bytes]]:
    """Of each variant, as its provenance has it."""
    for image, evidence in zip(release.images, proved.evidence[1:], strict=True):
        yield lock_path(image), _lock(image, evidence)


def _lock(image: ReleasedImage, evidence: SignedEvidence) -> bytes:
    for predicate in evidence.predicates(PROVENANCE):
        try:
            value = predicate["buildDefinition"]["internalParameters"]["lock"]
        except (KeyError, TypeError):
            continue
        data = (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
        if hashlib.sha256(data).hexdigest() == image.lock:
            return data
    raise CheckFailed.of("bundle-incoherent", file=evidence.reference, why="its provenance doesn't have its lock")
