"""The layers of a local image: the exact tar streams that its id promises.

They are read from the engine's own folder where that is possible: overlay2 keeps the files, and beside them what is
needed to put the tar together again (github.com/vbatts/tar-split). `docker save` copies everything first and takes
three times as long; it is the fallback. Whatever the source, every stream is hashed on its way and compared.
"""

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

BLOCK = 1 << 20  # bytes: large enough that hashing and compressing leave Python's lock alone


class UnreadableLayer(Exception):
    """A source that gives no layer, or another one than the image's id promises."""


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def chain_ids(diff_ids: Sequence[str]) -> list[str]:
    """The name of each layer on top of those below it (OCI image specification, config, "Layer ChainID")."""
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(sha256(f"{chain[-1]} {diff_id}".encode()) if chain else diff_id)
    return chain


def in_place(diff_ids: Sequence[str], images: Iterable[Sequence[str]]) -> frozenset[str]:
    """Those layers that an engine with these images (each as its diff ids) has on top of the same ones: of an archive
    it opens no others, since its older store knows a layer by its chain id."""
    known = {chain for image in images for chain in chain_ids(image)}
    places = list(zip(diff_ids, chain_ids(diff_ids), strict=True))
    return frozenset(diff_ids) - {diff_id for diff_id, chain in places if chain not in known}


def checked(stream: Iterable[bytes | bytearray], diff_id: str) -> Iterator[bytes | bytearray]:
    """The stream; at its end it raises UnreadableLayer if it was not `diff_id`."""
    summed = hashlib.sha256()
    for block in stream:
        summed.update(block)
        yield block
    if f"sha256:{summed.hexdigest()}" != diff_id:
        raise UnreadableLayer(f"layer {diff_id[:19]} reads as sha256:{summed.hexdigest()[:12]}")


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytearray]:
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        if len(buffer) >= BLOCK:
            yield buffer
            buffer = bytearray()
    if buffer:
        yield buffer


@dataclass(frozen=True)
class GraphStore:
    """The overlay2 folder of an engine on this machine."""

    root: Path  # the engine's DockerRootDir
    config: bytes
    chains: Mapping[str, str]  # diff id -> chain id

    @classmethod
    def find(cls, root: Path, image_id: str) -> Self | None:
        """None where this is no such folder, it may not be read, or it holds another image under that id."""
        try:
            config = (root / "image/overlay2/imagedb/content/sha256" / image_id.removeprefix("sha256:")).read_bytes()
            if sha256(config) != image_id:
                return None
            diff_ids = json.loads(config)["rootfs"].get("diff_ids") or []
            store = cls(root, config, dict(zip(diff_ids, chain_ids(diff_ids), strict=True)))
            for diff_id in diff_ids:
                store._files(diff_id)
            return store
        except (OSError, ValueError, KeyError):
            return None

    def size(self, diff_id: str) -> int:
        """Bytes of its files; the tar around them is a little larger."""
        return int((self._layer(diff_id) / "size").read_text())

    def open(self, diff_id: str) -> Iterator[bytes | bytearray]:
        return checked(_blocks(self._pieces(diff_id)), diff_id)

    def _layer(self, diff_id: str) -> Path:
        return self.root / "image/overlay2/layerdb/sha256" / self.chains[diff_id].removeprefix("sha256:")

    def _files(self, diff_id: str) -> str:
        files = self.root / "overlay2" / (self._layer(diff_id) / "cache-id").read_text().strip() / "diff"
        next(files.iterdir(), None)
        return str(files)

    def _pieces(self, diff_id: str) -> Iterator[bytes]:
        root, inside = os.path.realpath(os.fsencode(self._files(diff_id))), set[bytes]()
        with gzip.open(self._layer(diff_id) / "tar-split.json.gz") as recipe:
            for line in recipe:
                entry = json.loads(line)
                if entry["type"] == 2:  # a header, or the padding between files
                    yield base64.b64decode(entry["payload"])
                elif entry.get("size"):
                    name = entry.get("name") or base64.b64decode(entry["name_raw"])
                    path = os.path.normpath(root + b"/" + (name if isinstance(name, bytes) else name.encode()))
                    folder = os.path.dirname(path)
                    # A link in an image must not lead to a file of this machine: most of a layer is sent before its
                    # sum is known.
                    if folder not in inside:
                        if os.path.realpath(folder) != folder or not (folder + b"/").startswith(root + b"/"):
                            raise UnreadableLayer(f"layer {diff_id[:19]} has a file behind a link")
                        inside.add(folder)
                    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0) as file:
                        while data := file.read(BLOCK):
                            yield data
