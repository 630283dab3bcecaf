"""Publishes a local image in a registry with zstd layers: only what the registry lacks is read, packed and sent."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, TypeVar

from pydantic import Field

from rocstack.base.text import from_json
from rocstack.base.words import Value
from rocstack.registry.layers import UnreadableLayer, sha256
from rocstack.registry.local_image import LocalImage
from rocstack.registry.oci import ZSTD_LAYER, Blob, Packer, config_blob, holds, manifest, parse_manifest, require_zstd
from rocstack.registry.pack_ahead import PackedAhead
from rocstack.registry.repository import Repository

LAYERS_AT_ONCE = 3
NEWEST = 8  # manifests of a repository that are searched for layers
Result = TypeVar("Result")
Progress = Callable[[str, int, int], None]  # diff id, bytes done and bytes in all, uncompressed


class Published(Value):
    """An image in a registry. Sizes are bytes, compressed, as they lie there and go over the wire."""

    reference: str  # by digest: what a node pulls
    id: str  # the image's id on a node
    manifest: bytes = Field(exclude=True, repr=False)
    layers: tuple[Blob, ...]
    bytes_sent: int  # what was sent twice counts twice
    bytes_total: int
    seconds: float

    @classmethod
    def of(cls, repository: Repository, data: bytes, bytes_sent: int = 0, seconds: float = 0.0) -> Self:
        """By its manifest.

        Raises:
            CheckFailed: layers are not zstd.
        """
        reference = f"{repository.reference}@{sha256(data)}"
        require_zstd(data, reference)
        image_id, layers = parse_manifest(data)
        return cls(
            reference=reference,
            id=image_id,
            manifest=data,
            layers=layers,
            bytes_sent=bytes_sent,
            bytes_total=sum(layer.size for layer in layers),
            seconds=round(seconds, 3),
        )


@dataclass
class PackedLayers:
    """What each layer became when it was packed: a file, so that a publish that was cut off goes on. Where `publish`
    believes the registry, it also has what that said."""

    file: Path | None
    known: dict[str, Blob] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.file is None or not self.file.is_file():
            return
        for line in self.file.read_text().splitlines():
            try:
                diff_id, digest, size = line.split()
                self.known[diff_id] = Blob(digest=digest, size=int(size))
            except ValueError:  # cut off in the middle
                continue

    def note(self, diff_id: str, blob: Blob) -> None:
        with self._lock:
            if self.known.get(diff_id) == blob:
                return
            self.known[diff_id] = blob
            if self.file is not None:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                with self.file.open("a") as file:
                    file.write(f"{diff_id} {blob.digest} {blob.size}\n")


def publish(
    image: LocalImage,
    repository: Repository,
    tag: str,
    *,
    siblings: Sequence[str] = (),
    packed_layers: PackedLayers | None = None,
    ahead: PackedAhead | None = None,
    believed: bool = True,
    progress: Progress = lambda layer, done, total: None,
) -> Published:
    """Brings `image` into `repository` and names it `tag` there.

    Layers that it has are found by its manifests and by `packed_layers`; those that a repository of `siblings` has are
    taken over from there; what `ahead` has need not be packed. Which blob is which layer only manifests say, and
    whoever may write there wrote them: they are believed for nodes, which compare every layer with the image's id.
    Without `believed` each is packed here and compared, but for those of `packed_layers`. A failure, or Ctrl-C, leaves
    nothing but complete blobs, and the next call goes on with them.

    Raises:
        CheckFailed: the registry fails for longer than the attempts last, holds other bytes than were sent, or
            layers that are not zstd; or the engine gives other layers than the image's id promises.
        Missing: no login, no registry, or no room for a copy of the image where one is needed.
    """
    started = time.monotonic()
    packed_layers, ahead = packed_layers or PackedLayers(None), ahead or PackedAhead({})
    work = _Publication(image, repository, packed_layers, ahead, progress)
    present = repository.manifest(tag, denied_is_absent=True) or b""
    if holds(present, image.known_id or "", len(image.diff_ids)) and (
        believed or made_here(present, image, packed_layers)
    ):
        data = present
    else:
        manifests = _manifests(repository, siblings)
        if not believed:
            own = _packed_here(image, {diff_id for _, blobs in manifests for diff_id in blobs}, packed_layers)
            manifests = [(name, dict(blobs.items() & own.items())) for name, blobs in manifests]
        data = work.manifest(manifests)
        repository.put_manifest(tag, data)
    return Published.of(repository, data, work.sent, time.monotonic() - started)


def made_here(data: bytes, image: LocalImage, packed_layers: PackedLayers) -> bool:
    """Does this manifest name the image, and its layers as this machine packs them?"""
    if not holds(data, image.id, len(image.diff_ids)):
        return False
    own = _packed_here(image, image.diff_ids, packed_layers)
    return [own[diff_id] for diff_id in image.diff_ids] == list(parse_manifest(data)[1])


def _packed_here(image: LocalImage, diff_ids: Iterable[str], packed_layers: PackedLayers) -> dict[str, Blob]:
    """Those of the image's layers, as this machine packs them: the same bytes each time."""
    wanted = {*diff_ids} & {*image.diff_ids}
    for diff_id in wanted - packed_layers.known.keys():
        packed_layers.note(diff_id, _pack(image, diff_id))
    return {diff_id: packed_layers.known[diff_id] for diff_id in wanted}


def _pack(image: LocalImage, diff_id: str) -> Blob:
    while True:
        packer = Packer(image.open(diff_id), threads=os.cpu_count() or 1)
        with suppress(UnreadableLayer):  # the image goes over to a copy, and fails where that can't be read
            for _ in packer:
                pass
            return packer.blob


def _manifests(repository: Repository, siblings: Sequence[str]) -> list[tuple[str, dict[str, Blob]]]:
    """Repository and zstd layers (by diff id) of the manifests that are there, this repository's last."""

    def layers(where: Repository, name: str) -> tuple[str, dict[str, Blob]]:
        try:
            config, blobs = parse_manifest(where.manifest(name) or b"{}")
            if not blobs or any(blob.media_type != ZSTD_LAYER for blob in blobs):
                return where.name, {}
            diff_ids = from_json(where.blob(config) or b"{}").get("rootfs", {}).get("diff_ids", ())
            return where.name, dict(zip(diff_ids, blobs, strict=False))
        except (ValueError, TypeError, AttributeError):  # no image's
            return where.name, {}

    places = [*(replace(repository, name=name) for name in siblings), repository]
    with ThreadPoolExecutor(LAYERS_AT_ONCE) as pool:
        asked = [(where, name) for where in places for name in sorted(where.tags(), reverse=True)[:NEWEST]]
        return list(pool.map(lambda pair: layers(*pair), asked))


@dataclass
class _Publication:
    """What one publish does, and counts."""

    image: LocalImage
    repository: Repository
    memory: PackedLayers
    ahead: PackedAhead
    progress: Progress
    sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def manifest(self, manifests: Sequence[tuple[str, dict[str, Blob]]]) -> bytes:
        """Brings what is missing; returns the manifest of what is there then."""
        home = self.repository.name
        elsewhere = {diff_id: (name, blob) for name, blobs in manifests for diff_id, blob in blobs.items()}
        known = {diff_id: blob for name, blobs in manifests if name == home for diff_id, blob in blobs.items()}
        unknown = [diff_id for diff_id in dict.fromkeys(self.image.diff_ids) if diff_id not in known]
        found_blobs = self._each(lambda diff_id: self._find(diff_id, elsewhere.get(diff_id)), unknown)
        known.update({diff_id: blob for diff_id, blob in found_blobs.items() if blob})
        missing = [diff_id for diff_id in unknown if diff_id not in known]
        if missing:
            self.image.needed = missing
            config = self.image.config  # before the threads: it may have to copy the image
            missing.sort(key=self.image.size, reverse=True)
            known.update(self._each(self._upload, missing))
        config = self.image.config
        if not self.repository.has(config_blob(config)):
            self.repository.put_blob(config, self._count)
        for diff_id in self.image.diff_ids:
            self.memory.note(diff_id, known[diff_id])
        return manifest(config, [known[diff_id] for diff_id in self.image.diff_ids])

    def _find(self, diff_id: str, elsewhere: tuple[str, Blob] | None) -> Blob | None:
        """The layer's blob if this repository has it, or can take it over."""
        blob = self.memory.known.get(diff_id)
        if blob and self.repository.has(blob):
            return blob
        if elsewhere and self.repository.mount(elsewhere[1], elsewhere[0]):
            return elsewhere[1]
        return None

    def _upload(self, diff_id: str) -> Blob:
        total, packer, sent, shown = self.image.size(diff_id), None, 0, 0

        def make() -> Packer:
            nonlocal packer, sent
            packer = self.ahead.find(diff_id) or Packer(self.image.open(diff_id), threads=os.cpu_count() or 1)
            sent = 0
            return packer

        def count(size: int) -> None:
            nonlocal sent, shown
            sent += size
            self._count(size)
            done = packer.read * sent // max(packer.packed, sent) if packer else 0
            shown = max(shown, min(done, total))  # a guess from the ratio so far, and a display never goes back
            self.progress(diff_id, shown, total)

        blob = self.repository.upload(make, count)
        self.memory.note(diff_id, blob)
        self.progress(diff_id, total, total)
        return blob

    def _count(self, size: int) -> None:
        with self._lock:
            self.sent += size

    def _each(self, work: Callable[[str], Result], items: Sequence[str]) -> dict[str, Result]:
        """In parallel. A failure or Ctrl-C ends the others, too, and is raised when they have ended."""
        with ThreadPoolExecutor(LAYERS_AT_ONCE) as pool:
            jobs = {item: pool.submit(work, item) for item in items}
            try:
                for job in as_completed(jobs.values()):
                    job.result()
            except BaseException:
                self.repository.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            return {item: job.result() for item, job in jobs.items()}
