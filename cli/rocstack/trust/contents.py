"""Whether a registry still has what an image's digest promises: its configuration and layers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rocstack.registry.oci import CONFIG, Blob, parse_manifest
from rocstack.registry.repository import Repository
from rocstack.trust.verification import Untrusted

AT_ONCE = 4
LARGEST_CONFIG = 16 << 20  # bytes
Say = Callable[[str], None]


def check(repository: Repository, digest: str, *, whole: bool = False, say: Say = lambda text: None) -> int:
    """Asks for the size of each blob; with `whole` reads each and compares its sha256. Bytes of the layers, compressed.

    Raises:
        Untrusted: image-absent, layer-absent, or layer-differs.
        CheckFailed, Missing: as `Repository`.
    """
    at = f"{repository.reference}@{digest}"
    data = repository.manifest(digest)
    if data is None:
        raise Untrusted.of("image-absent", reference=at)
    try:
        config, layers = parse_manifest(data)
    except ValueError as error:
        raise Untrusted.of("layer-differs", reference=at, layer=digest, why=error) from None
    blobs = dict.fromkeys([*layers, *([Blob(digest=config, size=-1, media_type=CONFIG)] if config else [])])

    def one(blob: Blob) -> None:
        size = repository.size(blob.digest)
        if size is None:
            raise Untrusted.of("layer-absent", reference=at, layer=blob.digest)
        if blob.size >= 0 and size not in (-1, blob.size):
            why = f"it has {size} bytes, the manifest says {blob.size}"
            raise Untrusted.of("layer-differs", reference=at, layer=blob.digest, why=why)
        if whole:
            say(f"reading {blob.digest[:19]}: {max(blob.size, 0) / 1e6:.0f} MB")
            for _ in _compared(repository, blob, at):
                pass

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for job in [pool.submit(one, blob) for blob in blobs]:
            job.result()
    return sum(layer.size for layer in layers)


def fetch(repository: Repository, digest: str, blob: Blob, to: Path) -> None:
    """A layer of the image with this digest as a file, compressed as it lies there. Nothing reads it before it was
    compared with its digest.

    Raises:
        Untrusted: layer-differs.
        CheckFailed, Missing: as `Repository`.
    """
    at = f"{repository.reference}@{digest}"
    with to.open("wb") as file:
        for piece in _compared(repository, blob, at):
            file.write(piece)


def _compared(repository: Repository, blob: Blob, at: str) -> Iterator[bytes]:
    most = blob.size if blob.size >= 0 else LARGEST_CONFIG
    summed, seen = hashlib.sha256(), 0
    for piece in repository.pieces(blob.digest):
        summed.update(piece)
        seen += len(piece)
        if seen > most:  # it may never end
            why = f"it has more bytes than the {most} that the manifest says"
            raise Untrusted.of("layer-differs", reference=at, layer=blob.digest, why=why)
        yield piece
    if f"sha256:{summed.hexdigest()}" != blob.digest:
        why = f"its content is sha256:{summed.hexdigest()}"
        raise Untrusted.of("layer-differs", reference=at, layer=blob.digest, why=why)
