"""A local image as an OCI layout: a folder that podman, skopeo, umoci and Apptainer read, and packed as a tar, every
engine.

github.com/opencontainers/image-spec, image-layout.md. Layers are plain tars, which every one of them takes, and which
have the digests that the image's id promises.
"""

import json
from collections.abc import Callable
from pathlib import Path

from rocstack.registry.layers import UnreadableLayer, sha256
from rocstack.registry.local_image import LocalImage
from rocstack.registry.oci import INDEX, Blob, manifest

PLAIN_LAYER = "application/vnd.oci.image.layer.v1.tar"
LAYOUT, INDEX_FILE = "oci-layout", "index.json"
VERSION = b'{"imageLayoutVersion":"1.0.0"}'
NAME = "org.opencontainers.image.ref.name"


def write_layout(image: LocalImage, folder: Path, tag: str | None, note: Callable[[str], None]) -> int:
    """Fills the new folder; `tag` is the image's whole name, where it has one. Returns the bytes of all layers.

    Raises:
        CheckFailed: the engine's layers are damaged. OSError: there is no room.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layers = [_layer(image, diff_id, blobs, note) for diff_id in image.diff_ids]
    own = manifest(image.config, layers)
    for data in (image.config, own):
        (blobs / sha256(data).removeprefix("sha256:")).write_bytes(data)
    name = tag.rpartition(":")[2] if tag else "latest"
    listed = Blob(digest=sha256(own), size=len(own), media_type=json.loads(own)["mediaType"]).descriptor
    # What an engine with the older store reads (github.com/moby/moby, image/spec/v1.2.md).
    names = {"Config": _place(sha256(image.config)), "RepoTags": [tag] if tag else None}
    packed = [{**names, "Layers": [_place(layer.digest) for layer in layers]}]
    (folder / "manifest.json").write_text(json.dumps(packed, indent=1) + "\n")
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [{**listed, "annotations": {NAME: name}}]}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n")
    (folder / LAYOUT).write_bytes(VERSION)
    return sum(layer.size for layer in layers)


def _place(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _layer(image: LocalImage, diff_id: str, blobs: Path, note: Callable[[str], None]) -> Blob:
    file = blobs / diff_id.removeprefix("sha256:")
    try:
        return _copied(image, diff_id, file)
    except UnreadableLayer as error:
        note(f"{error}: asking the engine for it")
        return _copied(image, diff_id, file)


def _copied(image: LocalImage, diff_id: str, file: Path) -> Blob:
    size = 0
    with file.open("wb") as target:
        for block in image.open(diff_id):
            size += target.write(block)
    return Blob(digest=diff_id, size=size, media_type=PLAIN_LAYER)
