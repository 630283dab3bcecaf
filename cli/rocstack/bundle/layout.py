"""The images of a release in a bundle, as an OCI layout: which name is which manifest, and what is proved of them.

github.com/opencontainers/image-spec, image-layout.md. All repositories of the release share it, so a name there is
`rocstack-worker:2026.47`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocstack.base.errors import CheckFailed
from rocstack.base.image_names import repository_name
from rocstack.base.text import from_json, visible
from rocstack.registry.image_layout import NAME
from rocstack.registry.oci import CONFIG, INDEX, Blob, holds, media_type, parse_manifest
from rocstack.release import record
from rocstack.release.provenance import inputs_of
from rocstack.release.record import ReleasedImage, ReleaseRecord
from rocstack.release.site import REQUIRED
from rocstack.trust import attached
from rocstack.trust.envelope import PROVENANCE
from rocstack.trust.keys import PublicKey
from rocstack.trust.verification import SignedEvidence, Untrusted, verify

RELEASE_FILE = "release.json"
LISTING = "release"  # the repository that lists releases
MOST = 4096  # names
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # `uname -m` -> github.com/golang/go, GOARCH


@dataclass(frozen=True)
class LayoutRole:
    """The images of one role: what `trust` verifies."""

    layout: BundleLayout
    role: str

    @property
    def reference(self) -> str:
        return f"{self.layout.place}:{repository_name(self.role)}"

    def manifest(self, name: str) -> bytes | None:
        if name.startswith("sha256:"):
            return self.layout.read(name)
        digest = self.layout.names.get(f"{repository_name(self.role)}:{name}")
        return self.layout.read(digest) if digest else None

    def blob(self, digest: str) -> bytes | None:
        return self.layout.read(digest)


@dataclass(frozen=True)
class BundleLayout:
    """`names` -> digest of a manifest; `read` gives a small blob whose digest it compared, None where there is none."""

    place: str
    names: Mapping[str, str]
    read: Callable[[str], bytes | None]

    @classmethod
    def parse(cls, place: str, index: bytes, read: Callable[[str], bytes | None]) -> BundleLayout:
        """From index.json.

        Raises:
            CheckFailed: it isn't as `index` makes it.
        """
        names: dict[str, str] = {}
        try:
            for each in from_json(index)["manifests"][:MOST]:
                names[str(each["annotations"][NAME])] = str(each["digest"])
            layout = cls(place, names, read)
            if layout.index() != index:
                raise ValueError("it has more in it, or is in another order")
        except (ValueError, KeyError, TypeError) as error:
            why = f"index.json: {visible(str(error))[:120]}"
            raise CheckFailed.of("bundle-incoherent", file=place, why=why) from None
        return layout

    def index(self) -> bytes:
        """index.json.

        Raises:
            ValueError: a name is that of a manifest that isn't there.
        """
        about: dict[str, dict[str, Any]] = {}  # each is read once, under however many names
        for digest in sorted({*self.names.values()}):
            data = self.read(digest)
            if data is None:
                raise ValueError(f"there is no {digest[:80]}")
            about[digest] = {"mediaType": media_type(data), "digest": digest, "size": len(data)}
        listed = [{**about[digest], "annotations": {NAME: name}} for name, digest in sorted(self.names.items())]
        return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}, indent=1).encode() + b"\n"

    def role(self, role: str) -> LayoutRole:
        return LayoutRole(self, role)

    def of_role(self, role: str) -> dict[str, str]:
        """Name -> digest of what belongs into the repository of this role."""
        start = f"{repository_name(role)}:"
        return {name.removeprefix(start): digest for name, digest in self.names.items() if name.startswith(start)}

    def blobs(self, digests: Iterable[str]) -> Iterator[Blob]:
        """The manifests and what they name, each once.

        Raises:
            CheckFailed: one isn't there, or is no manifest.
        """
        seen: set[str] = set()
        for digest in digests:
            data = self.read(digest)
            try:
                if data is None:
                    raise ValueError("it isn't there")
                config, layers = parse_manifest(data)
                own = [Blob(digest=digest, size=len(data), media_type=media_type(data))]
                own.append(Blob(digest=config, size=from_json(data)["config"]["size"], media_type=CONFIG))
            except (ValueError, KeyError, TypeError) as error:
                why = f"the manifest {digest[:80]}: {visible(str(error))[:120]}"
                raise CheckFailed.of("bundle-incoherent", file=self.place, why=why) from None
            for blob in (*own, *layers):
                if blob.digest not in seen:
                    seen.add(blob.digest)
                    yield blob


@dataclass(frozen=True)
class BundledRelease:
    """A release in a layout, and what is proved of it; without keys nothing is."""

    release: ReleaseRecord
    listing: str  # digest of the manifest that lists it
    evidence: tuple[SignedEvidence, ...]

    @property
    def signers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for each in self.evidence for name in each.signers))


def prove(layout: BundleLayout, keys: Sequence[PublicKey], architecture: str) -> BundledRelease:
    """The release of a layout. Without keys its signatures and attestations are not looked at.

    Raises:
        Untrusted: as `verify`; or made-of-another.
        CheckFailed: it isn't one release, whole, of this architecture.
    """

    def fail(why: str) -> CheckFailed:
        return CheckFailed.of("bundle-incoherent", file=layout.place, why=why)

    listings = {name: digest for name, digest in layout.of_role(LISTING).items() if not name.startswith("sha256-")}
    if len(listings) != 1:
        raise fail(f"it lists {len(listings)} releases")
    (tag, digest), source = *listings.items(), layout.role(LISTING)
    evidence = [verify(source, digest, keys)] if keys else []
    try:
        _, (layer,) = parse_manifest(source.manifest(digest) or b"")
        release = record.loads(source.blob(layer.digest) or b"")
    except ValueError as error:
        raise Untrusted.of("unreadable-release", reference=f"{source.reference}@{digest}", why=error) from None
    if tag != (release.promoted or release.tag):
        raise Untrusted.of("release-of-another", reference=f"{source.reference}:{tag}", tag=release.named)
    expected = {f"{repository_name(LISTING)}:{tag}"}
    signed = {(LISTING, digest)}
    for image in release.images:
        evidence += [_proved(layout, image, keys)] if keys else []
        _whole(layout, image, architecture)
        signed.add((image.role, image.digest))
        for name in image.tags:
            expected.add(f"{repository_name(image.role)}:{name}")
            if layout.names.get(f"{repository_name(image.role)}:{name}") != image.digest:
                raise fail(f"{visible(name)} isn't {image.called}")
    may = {f"{repository_name(role)}:{attached.tag(of, kind)}" for role, of in signed for kind in ("sig", "att")}
    if other := sorted(set(layout.names) - expected - may):
        raise CheckFailed.of("bundle-unlisted", file=layout.place, member=f"the image {visible(other[0])[:200]}")
    return BundledRelease(release, digest, tuple(evidence))


def _proved(layout: BundleLayout, image: ReleasedImage, keys: Sequence[PublicKey]) -> SignedEvidence:
    found = verify(layout.role(image.role), image.digest, keys, REQUIRED)
    if image.inputs not in {inputs_of(predicate) for predicate in found.predicates(PROVENANCE)}:
        raise Untrusted.of("made-of-another", reference=found.reference, inputs=image.inputs[:16])
    return found


def _whole(layout: BundleLayout, image: ReleasedImage, architecture: str) -> None:
    """Is it an image as rocstack pushes it, with its configuration, for such machines?"""
    data = layout.read(image.digest)
    config = layout.read(image.id)
    if data is None or config is None:
        why = f"it lacks the manifest or configuration of {image.called}"
        raise CheckFailed.of("bundle-incoherent", file=layout.place, why=why)
    try:
        about = from_json(config)
        diff_ids, made_for = about["rootfs"].get("diff_ids") or [], str(about["architecture"])
        sound = holds(data, image.id, len(diff_ids))
    except (ValueError, LookupError, TypeError, AttributeError):
        sound, made_for = False, ""
    if not sound:
        raise CheckFailed.of("bundle-incoherent", file=layout.place, why=f"{image.called} is no image of rocstack's")
    if made_for != ARCHITECTURES.get(architecture, architecture):
        raise CheckFailed.of("bundle-other-machine", file=layout.place, fits=made_for, here=architecture)
