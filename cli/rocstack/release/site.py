"""A registry with releases in it: what is proved of them there, and how they are tagged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rocstack.base.errors import BadInput, CheckFailed, hinted
from rocstack.base.image_names import RegistryAddress
from rocstack.base.text import count
from rocstack.registry.layers import sha256
from rocstack.registry.oci import media_type
from rocstack.registry.registry_http import RegistryHttp
from rocstack.registry.repository import Repository
from rocstack.release import catalog
from rocstack.release.catalog import Listed
from rocstack.release.plan import LATEST
from rocstack.release.provenance import inputs_of
from rocstack.release.record import ReleasedImage, ReleaseRecord
from rocstack.trust import contents
from rocstack.trust.envelope import PROVENANCE, SBOM
from rocstack.trust.keys import PublicKey, SigningKey
from rocstack.trust.verification import SignedEvidence, Untrusted, verify

REQUIRED = (PROVENANCE, SBOM)


@dataclass(frozen=True)
class Verified:
    """One image of a release: what is proved of it, or why it is refused."""

    image: ReleasedImage
    evidence: SignedEvidence | None = None
    error: CheckFailed | None = None


@dataclass(frozen=True)
class ReleaseSite:
    """`trusted` are the keys whose signatures count here. All methods raise CheckFailed or Missing as `Repository`
    does."""

    target: RegistryAddress
    http: RegistryHttp
    trusted: tuple[PublicKey, ...]
    attempts: int
    note: Callable[[str], None]

    def repository(self, role: str) -> Repository:
        return Repository(self.http, self.target.path(role), attempts=self.attempts, on_retry=self.note)

    @property
    def catalog(self) -> Repository:
        return self.repository("release")

    def listed(self, tag: str) -> Listed:
        """The release of this tag, or the last one.

        Raises:
            BadInput: there is none.
            Untrusted: as `catalog.find`.
        """
        found = catalog.find(self.catalog, tag, self.trusted)
        if found is None:
            known = [name for name in self.catalog.tags() if not name.startswith("sha256-")]
            raise BadInput.of("no-such-release", tag=tag, registry=self.target, hint=hinted(tag, known))
        return found

    def proved(self, role: str, digest: str, inputs: str) -> SignedEvidence:
        """What is signed of an image, which was made of `inputs`, and whose layers are there.

        Raises:
            Untrusted: as `verify` and `contents.check`; or made-of-another.
        """
        repository = self.repository(role)
        found = verify(repository, digest, self.trusted, REQUIRED)
        if inputs not in {inputs_of(predicate) for predicate in found.predicates(PROVENANCE)}:
            raise Untrusted.of("made-of-another", reference=found.reference, inputs=inputs[:16])
        contents.check(repository, digest)
        return found

    def moved(self, image: ReleasedImage) -> Iterator[tuple[str, str]]:
        """Tags of an image that name something else, and what they name."""
        repository = self.repository(image.role)
        for tag in image.tags:
            data = repository.manifest(tag)
            found = sha256(data) if data else "nothing"
            if found != image.digest:
                yield f"{repository.reference}:{tag}", found

    def verified(self, release: ReleaseRecord, *, whole: bool = False) -> Iterator[Verified]:
        """Each image of a release, also those that are refused; with `whole` every byte of it is read."""
        for image in release.images:
            try:
                found = self.proved(image.role, image.digest, image.inputs)
                if whole:
                    contents.check(self.repository(image.role), image.digest, whole=True, say=self.note)
                for name, other in self.moved(image):
                    raise Untrusted.of("tag-moved", name=name, other=other, digest=image.digest)
                yield Verified(image, found)
            except CheckFailed as error:
                yield Verified(image, error=error)

    def refuse_others(self, tag: str) -> None:
        """Before anything is signed: the images of a release have the attestations of its keys.

        Raises:
            CheckFailed: other keys released under this tag.
        """
        try:
            catalog.find(self.catalog, tag, self.trusted, denied_is_absent=True)
        except Untrusted as error:
            raise CheckFailed.of("release-exists", taken=error.what, tag=tag) from None

    def publish(self, release: ReleaseRecord, keys: Sequence[SigningKey], *, move: bool) -> None:
        """Tags all images, after all tags were compared; then lists the release, which makes it one.

        Raises:
            CheckFailed: a tag names another image and may not move; nothing was tagged then.
        """
        name = release.promoted or release.tag
        wrong = [(image, place, other) for image in release.images for place, other in self.moved(image)]
        taken = [f"{place} is {other}" for _, place, other in wrong if other != "nothing"]
        listing = self.catalog.manifest(name)
        if listing is not None and (wrong or not self._lists(name, release)):
            taken.append(f"{self.catalog.reference}:{name} is {sha256(listing)}")
        if taken and not move:
            raise CheckFailed.of("release-exists", taken="; ".join(taken), tag=name)
        for text in taken:
            self.note(f"moving {text}")
        digest, data = catalog.publish(self.catalog, release, keys)
        for image, place, _ in wrong:
            repository = self.repository(image.role)
            manifest = repository.manifest(image.digest) or b""
            repository.put_manifest(place.rpartition(":")[2], manifest, media_type(manifest))
            self.note(f"{place} is {image.digest}")
        for tag in (name,) if release.promoted else (name, LATEST):
            self.catalog.put_manifest(tag, data, media_type(data))
        self.note(f"{self.catalog.reference}:{name} lists {count(len(release.images), 'image')}: {digest}")

    def _lists(self, name: str, release: ReleaseRecord) -> bool:
        """Does the release of this name list the same images?"""
        try:
            found = catalog.find(self.catalog, name, self.trusted)
        except Untrusted:
            return False
        return found is not None and {(i.called, i.digest) for i in found.release.images} == {
            (i.called, i.digest) for i in release.images
        }
