"""One archive for nodes that reach no registry: `docker load` of either store takes it, with zstd layers.

It is an OCI layout (containerd's store reads `index.json`) that is also docker's own format (the older store reads
`manifest.json`). The older store doesn't open layers that it has, so these may be left out; containerd's needs all.
"""

import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rocstack.registry.layers import BLOCK, UnreadableLayer, sha256
from rocstack.registry.local_image import LocalImage
from rocstack.registry.oci import MANIFEST, Blob, Packer, as_json, config_blob, manifest

PACKERS = 2


@dataclass(frozen=True)
class ImageArchive:
    """An image and its packed layers; `pieces` gives the content of a blob."""

    pieces: Callable[[str], Iterator[bytes]]
    name: str  # what the image is called on the nodes
    diff_ids: tuple[str, ...]
    config: bytes
    blobs: dict[str, Blob]  # by diff id

    @classmethod
    @contextmanager
    def make(
        cls, image: LocalImage, name: str, have: Collection[str] = (), folder: Path | None = None
    ) -> Iterator[Self]:
        """Packs the layers that are not in `have` (diff ids) into a temporary folder under `folder`.

        Raises:
            CheckFailed, Missing: the engine does not give them; see Image.
        """
        needed = [diff_id for diff_id in dict.fromkeys(image.diff_ids) if diff_id not in have]
        image.needed = needed
        with tempfile.TemporaryDirectory(prefix="rocstack-archive-", dir=folder, ignore_cleanup_errors=True) as made:
            with ThreadPoolExecutor(PACKERS) as pool:
                blobs = dict(
                    zip(needed, pool.map(lambda diff_id: _pack(image, diff_id, Path(made)), needed), strict=True)
                )
            yield cls(lambda digest: _read(Path(made), digest), name, image.diff_ids, image.config, blobs)

    @property
    def id(self) -> str:
        return sha256(self.config)

    @property
    def digest(self) -> str | None:
        """The manifest's, which is the id on engines with containerd's store; None if layers are left out."""
        whole = self._manifest()
        return sha256(whole) if whole else None

    def stream(self, have: Collection[str] = ()) -> Iterator[bytes]:
        """The archive, without the layers of `have`: bytes of a tar, in blocks of at most BLOCK."""
        whole = None if have else self._manifest()
        if whole:
            listed = {
                "mediaType": MANIFEST,
                "digest": sha256(whole),
                "size": len(whole),
                "annotations": {
                    "io.containerd.image.name": _full(self.name),
                    "org.opencontainers.image.ref.name": self.name.rpartition(":")[2],
                },
            }
            yield from _member("oci-layout", as_json({"imageLayoutVersion": "1.0.0"}))
            yield from _member("index.json", as_json({"schemaVersion": 2, "manifests": [listed]}))
            yield from _member(_path(sha256(whole)), whole)
        # A path that isn't there stands for a layer that the node has.
        paths = [_path(self.blobs[d].digest if d in self.blobs else d) for d in self.diff_ids]
        legacy = [{"Config": _path(self.id), "RepoTags": [self.name], "Layers": paths}]
        yield from _member("manifest.json", as_json(legacy))
        yield from _member(_path(config_blob(self.config).digest), self.config)
        for digest, blob in {b.digest: b for d, b in self.blobs.items() if d not in have}.items():
            yield _header(_path(digest), blob.size)
            yield from self.pieces(digest)
            yield bytes(-blob.size % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)

    def size(self, have: Collection[str] = ()) -> int:
        """Bytes of the layers in it: nearly all of its stream."""
        return sum(blob.size for diff_id, blob in self.blobs.items() if diff_id not in have)

    def _manifest(self) -> bytes | None:
        if any(diff_id not in self.blobs for diff_id in self.diff_ids):
            return None
        return manifest(self.config, [self.blobs[diff_id] for diff_id in self.diff_ids])


def _read(folder: Path, digest: str) -> Iterator[bytes]:
    with (folder / digest.removeprefix("sha256:")).open("rb") as file:
        while data := file.read(BLOCK):
            yield data


def _pack(image: LocalImage, diff_id: str, to: Path) -> Blob:
    while True:
        packer = Packer(image.open(diff_id))
        part = to / f"{diff_id.removeprefix('sha256:')}.part"
        try:
            with part.open("wb") as file:
                file.writelines(packer)
        except UnreadableLayer:  # the next time it comes from the fallback, which ends with a CheckFailed
            continue
        part.rename(to / packer.blob.digest.removeprefix("sha256:"))
        return packer.blob


def _path(digest: str) -> str:
    return "blobs/sha256/" + digest.removeprefix("sha256:")


def _full(name: str) -> str:
    """As containerd writes names: with the host and folder that docker leaves out."""
    first = name.partition("/")[0]
    if "/" in name and ("." in first or ":" in first or first == "localhost"):
        return name
    return "docker.io/" + (name if "/" in name else f"library/{name}")


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def _member(name: str, data: bytes) -> Iterator[bytes]:
    yield _header(name, len(data)) + data + bytes(-len(data) % tarfile.BLOCKSIZE)
