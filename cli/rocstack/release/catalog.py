"""The repository that lists the releases of a registry: each one's release.json as an artifact of its own, signed as
images are. What a tag of an image should name stands there, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rocstack.registry.layers import sha256
from rocstack.registry.oci import MANIFEST, Blob, as_json, parse_manifest
from rocstack.registry.repository import Repository
from rocstack.release.plan import LATEST
from rocstack.release.record import ReleaseRecord, loads
from rocstack.trust.keys import PublicKey, SigningKey
from rocstack.trust.signing import sign_image
from rocstack.trust.verification import Untrusted, verify

KIND = "application/vnd.rocstack.release.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"  # github.com/opencontainers/image-spec, manifest.md


@dataclass(frozen=True)
class Listed:
    """A release as its signer published it."""

    release: ReleaseRecord
    digest: str  # of the artifact
    signers: tuple[str, ...]


def publish(repository: Repository, release: ReleaseRecord, keys: Sequence[SigningKey]) -> tuple[str, bytes]:
    """Puts the release there under its digest alone, signed; returns the digest and the manifest. `name` it after."""
    data, empty = release.dumps().encode(), b"{}"
    for each in (data, empty):
        if repository.blob(sha256(each)) is None:
            repository.put_blob(each)
    layer = Blob(digest=sha256(data), size=len(data), media_type=KIND)
    config = Blob(digest=sha256(empty), size=len(empty), media_type=EMPTY)
    parts = {"config": config.descriptor, "layers": [layer.descriptor]}
    manifest = as_json({"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": KIND, **parts})
    digest = sha256(manifest)
    repository.put_manifest(digest, manifest)
    sign_image(repository, digest, keys, {})
    return digest, manifest


def find(
    repository: Repository, tag: str, keys: Sequence[PublicKey], *, denied_is_absent: bool = False
) -> Listed | None:
    """The release of this tag; None where there is none. `denied_is_absent` is `Repository.manifest`'s.

    Raises:
        Untrusted: it is there, and its signature or its content isn't what a trusted key released.
        CheckFailed, Missing: as `Repository`.
    """
    data = repository.manifest(tag, denied_is_absent=denied_is_absent)
    if data is None:
        return None
    digest = sha256(data)
    found = verify(repository, digest, keys)
    try:
        _, (layer,) = parse_manifest(data)
        release = loads(repository.blob(layer.digest) or b"")
    except ValueError as error:
        raise Untrusted.of("unreadable-release", reference=f"{repository.reference}@{digest}", why=error) from None
    if tag not in (release.promoted or release.tag, LATEST):
        raise Untrusted.of("release-of-another", reference=f"{repository.reference}:{tag}", tag=release.named)
    return Listed(release, digest, found.signers)
