"""An image with its signatures and attestations in memory, to be changed as who can write to a registry could."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rocstack.registry.layers import sha256
from rocstack.registry.oci import MANIFEST, as_json
from rocstack.trust import attached
from rocstack.trust.attached import Attached
from rocstack.trust.keys import SigningKey
from rocstack.trust.signing import attest, sign

REFERENCE = "registry.example/hpc/rocstack-worker"
IMAGE = as_json({"schemaVersion": 2, "mediaType": MANIFEST, "config": {}, "layers": []})
DIGEST = sha256(IMAGE)


@dataclass
class Shelf:
    """A source of images: what a registry has, in two maps."""

    manifests: dict[str, bytes] = field(default_factory=lambda: {DIGEST: IMAGE})
    blobs: dict[str, bytes] = field(default_factory=dict)
    reference: str = REFERENCE

    def manifest(self, name: str) -> bytes | None:
        return self.manifests.get(name)

    def blob(self, digest: str) -> bytes | None:
        return self.blobs.get(digest)

    def put(self, kind: attached.Kind, files: Sequence[Attached], digest: str = DIGEST) -> None:
        layers = []
        for each in files:
            data = each.data or b""
            if each.data is not None:
                self.blobs[each.digest] = data
            what = {"mediaType": each.media_type, "digest": each.digest, "size": len(data)}
            layers.append({**what, "annotations": dict(each.annotations)})
        config = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sha256(b"{}"), "size": 2}
        self.manifests[attached.tag(digest, kind)] = as_json(
            {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
        )

    def edit(self, kind: attached.Kind, change: Callable[[dict[str, Any]], None], digest: str = DIGEST) -> None:
        """Changes a manifest of signatures or attestations."""
        name = attached.tag(digest, kind)
        parsed = json.loads(self.manifests[name])
        change(parsed)
        self.manifests[name] = as_json(parsed)


def released(keys: Sequence[SigningKey], predicates: dict[str, dict[str, Any]], digest: str = DIGEST) -> Shelf:
    """As `sign_image` leaves it."""
    shelf = Shelf()
    files = [attest(digest, REFERENCE, kind, value, keys) for kind, value in predicates.items()]
    if files:
        shelf.put("att", files, digest)
    shelf.put("sig", [sign(digest, REFERENCE, key, files) for key in keys], digest)
    return shelf
