"""A release of tiny images, signed as `rocstack release` signs one, in any registry."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

from rocstack.registry.layers import sha256
from rocstack.registry.oci import Blob, Packer, as_json, manifest
from rocstack.registry.registry_http import RegistryHttp
from rocstack.registry.repository import Repository
from rocstack.release import catalog
from rocstack.release.plan import LATEST
from rocstack.release.record import ReleasedImage, ReleaseRecord
from rocstack.stack.lock import Lock
from rocstack.trust.envelope import PROVENANCE, SBOM
from rocstack.trust.keys import SigningKey
from rocstack.trust.signing import sign_image

LOCK = Lock(stack="debian-13", definition="0" * 64)
CREATED = "2026-11-20T08:00:00Z"
INPUTS = "5" * 64
LAYERS: dict[str, tuple[str, ...]] = {"worker": ("base", "rocm", "trainer"), "control": ("base", "slurm")}


def layer(name: str, size: int = 50_000) -> bytes:
    """A tar with one file that no compressor makes smaller."""
    data, out = random.Random(name).randbytes(size), io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo(f"opt/{name}")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def packed(data: bytes) -> tuple[bytes, Blob]:
    packer = Packer(iter((data,)))
    content = b"".join(packer)
    return content, packer.blob


def image(layers: Sequence[bytes], created: str, architecture: str = "amd64") -> tuple[bytes, bytes, list[bytes]]:
    """Configuration, manifest, and packed layers."""
    diff_ids = [sha256(each) for each in layers]
    about: dict[str, Any] = {"architecture": architecture, "os": "linux", "created": created, "config": {}}
    config = as_json({**about, "rootfs": {"type": "layers", "diff_ids": diff_ids}})
    made = [packed(each) for each in layers]
    return config, manifest(config, [blob for _, blob in made]), [content for content, _ in made]


def publish(
    http: RegistryHttp, prefix: str, keys: Sequence[SigningKey], tag: str = "2026.47", created: str = CREATED,
    layers: Mapping[str, Sequence[str]] = LAYERS, size: int = 50_000, architecture: str = "amd64",
) -> ReleaseRecord:  # fmt: skip
    """Below `prefix` of the registry, with the names of the layers by role."""
    images = []
    for role, names in layers.items():
        repository = Repository(http, f"{prefix}/rocstack-{role}", attempts=2)
        config, data, contents = image([layer(name, size) for name in names], created, architecture)
        for blob in (config, *contents):
            repository.put_blob(blob)
        digest = sha256(data)
        tags = (f"debian-13-tcp-{tag}", tag)
        for name in (digest, *tags):
            repository.put_manifest(name, data)
        lock = json.loads(LOCK.to_text())
        provenance = {"buildDefinition": {"internalParameters": {"inputs": INPUTS, "lock": lock}}}
        sign_image(repository, digest, keys, {PROVENANCE: provenance, SBOM: {"components": []}})
        images.append(
            ReleasedImage.model_validate(
                {
                    "stack": "debian-13", "nic": "tcp", "way": "inbox", "role": role, "variant": "debian-13-tcp",
                    "repository": repository.reference, "digest": digest, "id": sha256(config), "inputs": INPUTS,
                    "lock": LOCK.digest(), "content": "6" * 64, "size": sum(len(layer(each, size)) for each in names),
                    "compressed": sum(map(len, contents)), "versions": {"slurm": "24.11"}, "packages": {}, "tags": tags,
                }
            )
        )  # fmt: skip
    release = ReleaseRecord(
        tag=tag, created=created, rocstack="0.1.0", registry=f"{http.host}/{prefix}", images=tuple(images)
    )
    listing = Repository(http, f"{prefix}/rocstack-release", attempts=2)
    _, data = catalog.publish(listing, release, keys)
    for name in (tag, LATEST):
        listing.put_manifest(name, data)
    return release
