"""An image as a registry and an archive hold it: the unchanged configuration, zstd layers, a manifest.

The configuration's sha256 is the image's id on an engine, so the nodes' image has the id of the one built here.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rocstack.base.errors import CheckFailed
from rocstack.base.text import from_json
from rocstack.base.words import Value
from rocstack.registry.layers import sha256

# github.com/opencontainers/image-spec, media-types.md
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
ZSTD_LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"
LEVEL = 3  # measured on ROCm's files: smaller than gzip -6 at nine times its speed; 9 gains 3 % and costs fourfold
CHUNK = 16 << 20  # bytes


class Blob(Value):
    """One file of an image, by content."""

    digest: str
    size: int  # bytes
    media_type: str = ZSTD_LAYER

    @property
    def descriptor(self) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def config_blob(config: bytes) -> Blob:
    return Blob(digest=sha256(config), size=len(config), media_type=CONFIG)


def manifest(config: bytes, layers: Sequence[Blob]) -> bytes:
    """The manifest, the same bytes for the same layers."""
    return _manifest(config_blob(config), layers)


def _manifest(config: Blob, layers: Sequence[Blob]) -> bytes:
    parts = {"config": config.descriptor, "layers": [layer.descriptor for layer in layers]}
    return as_json({"schemaVersion": 2, "mediaType": MANIFEST, **parts})


def parse_manifest(data: bytes) -> tuple[str, tuple[Blob, ...]]:
    """The configuration's digest and the layers of a manifest of any kind; no layers where it is an index.

    Raises:
        ValueError: it is no manifest, or an index to one reader and an image to another.
    """
    parsed = from_json(data)
    if not isinstance(parsed, dict) or "config" not in parsed:
        return "", ()
    if {"manifests", "fsLayers"} & {*parsed}:
        raise ValueError("it is an image and something else at once")
    try:
        layers = [Blob(digest=x["digest"], size=x["size"], media_type=x["mediaType"]) for x in parsed["layers"]]
        return str(parsed["config"]["digest"]), tuple(layers)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no manifest: {error}") from None


def is_of(data: bytes | None, image_id: str) -> bool:
    """Does the manifest name this image's configuration, and so each of its layers?"""
    try:
        return parse_manifest(data or b"")[0] == image_id
    except ValueError:
        return False


def holds(data: bytes, image_id: str, layers: int) -> bool:
    """Is this a manifest that `manifest` made, of the image with this id, with zstd layers? By every byte: one with
    more in it may be another image, or an index, to another parser. That its blobs are the image's layers is not seen
    here: engines compare them with the id."""
    try:
        _, found = parse_manifest(data)
        config = Blob(digest=image_id, size=from_json(data)["config"]["size"], media_type=CONFIG)
    except (ValueError, KeyError, TypeError):
        return False
    blobs = [Blob(digest=blob.digest, size=blob.size) for blob in found]
    return len(blobs) == layers and data == _manifest(config, blobs)


def media_type(data: bytes) -> str:
    """Of a manifest or index; OCI's own may leave it out.

    Raises:
        ValueError: it is neither.
    """
    parsed = from_json(data)
    if not isinstance(parsed, dict):
        raise ValueError("it is no manifest")
    return str(parsed.get("mediaType") or (INDEX if "manifests" in parsed else MANIFEST))


def require_zstd(data: bytes, where: str) -> None:
    """Two well-known tools push gzip when they are asked for zstd, and say nothing; so it is looked at.

    Raises:
        CheckFailed: a layer of this manifest is not zstd.
    """
    other = [blob for blob in parse_manifest(data)[1] if blob.media_type != ZSTD_LAYER]
    if other:
        media_type = other[0].media_type
        raise CheckFailed.of("wrong-media-type", where=where, count=len(other), media_type=media_type)


class Packer:
    """Compresses one layer on its way; `blob` is there when the stream has ended."""

    def __init__(self, stream: Iterable[bytes | bytearray], threads: int = 1) -> None:
        """`threads` (at least 1) changes the speed only: libzstd's output is the same for any number but 0."""
        import zstandard

        parameters = zstandard.ZstdCompressionParameters.from_level(LEVEL, threads=max(1, threads), write_checksum=True)
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        self._stream = stream
        self._summed = hashlib.sha256()
        self.read = 0  # bytes of the uncompressed layer so far
        self.packed = 0  # and what became of them

    def __iter__(self) -> Iterator[bytes]:
        """Chunks of CHUNK bytes, the last one shorter; never none."""
        buffer = bytearray()
        for packed in self._packed():
            buffer += packed
            while len(buffer) > CHUNK:
                yield self._out(buffer[:CHUNK])
                del buffer[:CHUNK]
        yield self._out(buffer)

    def _packed(self) -> Iterator[bytes]:
        for block in self._stream:
            self.read += len(block)
            yield self._compressor.compress(block)
        yield self._compressor.flush()  # with several threads it may be many chunks

    def _out(self, data: bytearray) -> bytes:
        self._summed.update(data)
        self.packed += len(data)
        return bytes(data)

    @property
    def blob(self) -> Blob:
        return Blob(digest=f"sha256:{self._summed.hexdigest()}", size=self.packed)
