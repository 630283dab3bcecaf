"""Where cosign keeps what belongs to an image: manifests beside it, named by its digest, whose layers are signatures
(`sha256-<hex>.sig`) and attestations (`sha256-<hex>.att`)."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rocstack.base.text import from_json
from rocstack.base.words import ImageId
from rocstack.registry.layers import sha256
from rocstack.registry.oci import CONFIG, MANIFEST, as_json
from rocstack.registry.repository import Repository

SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
DSSE = "application/vnd.dsse.envelope.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
SIGNER = "io.rocstack.signer"  # the fingerprint of the key: a hint, which nothing is proved by
PREDICATE_TYPE = "predicateType"
MOST = 64  # files of one image
Kind = Literal["sig", "att"]
LARGEST: dict[Kind, int] = {"sig": 64 << 10, "att": 16 << 20}  # bytes of one file
ALL = 48 << 20  # bytes of all files of one kind


class Source(Protocol):
    """What holds images: a repository of a registry, or an OCI layout. Both compare what they give with its digest, and
    both bound it."""

    @property
    def reference(self) -> str: ...

    def manifest(self, name: str) -> bytes | None:
        """Of a tag or digest."""

    def blob(self, digest: str) -> bytes | None:
        """A small one."""


class _Descriptor(BaseModel):
    model_config = ConfigDict(strict=True)
    mediaType: str
    digest: ImageId
    size: int = Field(ge=0)
    annotations: dict[str, str] = {}


class _Manifest(BaseModel):
    model_config = ConfigDict(strict=True)
    schemaVersion: Literal[2]
    config: _Descriptor
    layers: list[_Descriptor] = Field(max_length=MOST)


@dataclass(frozen=True)
class Attached:
    """One file that belongs to an image. `data` is None where the manifest names a file that is not there."""

    media_type: str
    digest: str
    data: bytes | None = field(repr=False)
    annotations: Mapping[str, str]

    @classmethod
    def make(cls, media_type: str, data: bytes, annotations: Mapping[str, str]) -> Attached:
        return cls(media_type, sha256(data), data, annotations)

    @property
    def signature(self) -> bytes:
        """Of a simple-signing payload; empty where there is none."""
        try:
            return base64.b64decode(self.annotations.get(SIGNATURE, ""), validate=True)
        except ValueError:  # not base64, or not ASCII
            return b""


def tag(digest: str, kind: Kind) -> str:
    """Where the signatures or attestations of the image lie."""
    return f"{digest.replace(':', '-')}.{kind}"


def read(source: Source, digest: str, kind: Kind) -> tuple[Attached, ...] | None:
    """All files of one kind; None where there are none at all.

    Raises:
        ValueError: what lies there is none of cosign's manifests.
        CheckFailed, Missing: the source fails, or gives other bytes than a digest says.
    """
    data = source.manifest(tag(digest, kind))
    if data is None:
        return None
    try:
        layers = _Manifest.model_validate(from_json(data)).layers
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg'][:120]}".removeprefix(": ")) from None
    if large := [each.digest for each in layers if each.size > LARGEST[kind]]:
        raise ValueError(f"{large[0]} has more than {LARGEST[kind] >> 10} kB")
    if sum(each.size for each in layers) > ALL:
        raise ValueError(f"they have more than {ALL >> 20} MB")
    found = []
    for each in layers:
        data = source.blob(each.digest)
        if data is not None and len(data) != each.size:
            raise ValueError(f"{each.digest} has {len(data)} bytes, the manifest says {each.size}")
        found.append(Attached(each.mediaType, each.digest, data, each.annotations))
    return tuple(found)


def write(repository: Repository, digest: str, kind: Kind, attached: Sequence[Attached]) -> str:
    """Replaces all files of one kind; returns the manifest's digest.

    Raises:
        CheckFailed, Missing: as `Repository`.
    """
    layers: list[dict[str, Any]] = []
    for each in attached:
        assert each.data is not None
        if repository.blob(each.digest) is None:
            repository.put_blob(each.data)
        what = {"mediaType": each.media_type, "size": len(each.data), "digest": each.digest}
        layers.append({**what, "annotations": dict(each.annotations)})
    # As cosign's: registries that look into configurations take it for an image's.
    empty = {"architecture": "", "created": "0001-01-01T00:00:00Z", "os": "", "config": {}}
    rootfs = {"type": "layers", "diff_ids": [each.digest for each in attached]}
    config = as_json({**empty, "rootfs": rootfs})
    if repository.blob(sha256(config)) is None:
        repository.put_blob(config)
    described = {"mediaType": CONFIG, "size": len(config), "digest": sha256(config)}
    data = as_json({"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": layers})
    name = tag(digest, kind)
    if repository.manifest(name) == data:
        return sha256(data)
    return repository.put_manifest(name, data)
