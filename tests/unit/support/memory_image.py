"""An image in memory, sent to a registry in this process."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, cast

import zstandard
from docker import DockerClient
from fake_registry import Store

from rocstack.registry.layers import checked, sha256
from rocstack.registry.local_image import LocalImage
from rocstack.registry.publish import Published, publish
from rocstack.registry.registry_http import RegistryHttp
from rocstack.registry.repository import Repository

NAME = "rocstack-worker"


class Layers:
    """A source in memory; counts what is read."""

    def close(self) -> None:
        pass

    def __init__(self, *layers: bytes) -> None:
        self.data = {sha256(layer): layer for layer in layers}
        self.config = json.dumps({"rootfs": {"type": "layers", "diff_ids": [sha256(x) for x in layers]}}).encode()
        self.read: list[str] = []
        self.lies = 0

    def open(self, diff_id: str) -> Iterator[bytes | bytearray]:
        self.read.append(diff_id)
        data = self.data[diff_id]
        if self.lies:
            self.lies -= 1
            data = b"x" + data[1:]
        return checked((data[i : i + 50_000] for i in range(0, len(data), 50_000)), diff_id)

    def size(self, diff_id: str) -> int:
        return len(self.data[diff_id])

    def image(self) -> LocalImage:
        image = LocalImage(
            cast(DockerClient, None), "rocstack/worker:x", tuple(json.loads(self.config)["rootfs"]["diff_ids"])
        )
        image._source = cast(Any, self)
        return image


def layer(size: int, seed: int = 0) -> bytes:
    """Bytes that don't compress."""
    return random.Random(seed).randbytes(size)


BASE, MIDDLE, TOP = layer(300_000, 1), layer(70_000, 2), layer(2_000, 3)


def repository(store: Store, name: str = NAME, **options: Any) -> Repository:
    options.setdefault("sleep", lambda seconds: None)
    http = RegistryHttp(store.host, options.pop("login", None), plain=True, connect_to=options.pop("connect_to", None))
    return Repository(http, name, **options)


def send(store: Store, source: Layers, tag: str = "t", name: str = NAME, **options: Any) -> Published:
    more = {key: options.pop(key) for key in ("siblings", "packed_layers", "ahead", "progress") if key in options}
    return publish(source.image(), repository(store, name, **options), tag, **more)


def unpacked(store: Store, done: Published) -> list[bytes]:
    """What a node would get."""
    data = store.manifests[NAME, done.reference.partition("@")[2]][1]
    blobs = [store.blobs[NAME, found["digest"]] for found in json.loads(data)["layers"]]
    return [zstandard.ZstdDecompressor().decompressobj().decompress(blob) for blob in blobs]
