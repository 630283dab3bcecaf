"""Layers that are packed while the registry that they are for doesn't run yet.

They lie in files of a temporary folder. Who sends one reads it while it is still written, and once more where an
upload broke off.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rocstack.registry.layers import UnreadableLayer
from rocstack.registry.local_image import LocalImage
from rocstack.registry.oci import CHUNK, Packer

PACKERS = 2
ROOM = 4  # nothing is packed ahead if the layers, uncompressed, take more than a fourth of what is free on the disk


class FilePacker(Packer):
    """One whose chunks lie in a file: `write` makes them, and whoever iterates waits for them."""

    def __init__(self, image: LocalImage, diff_id: str, path: Path) -> None:
        super().__init__(image.open(diff_id), threads=os.cpu_count() or 1)
        self.failed = False
        self._path, self._written, self._over = path, 0, False
        self._changed = threading.Condition()
        path.touch()

    def write(self, stopped: threading.Event) -> None:
        """All of it, unless `stopped`. What goes wrong is told to who reads."""
        whole = False
        try:
            with self._path.open("wb", buffering=0) as file:
                for chunk in super().__iter__():
                    if stopped.is_set():
                        return
                    file.write(chunk)
                    with self._changed:
                        self._written += len(chunk)
                        self._changed.notify_all()
            whole = True
        finally:
            with self._changed:
                self._over, self.failed = True, not whole
                self._changed.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        """
        Raises:
            UnreadableLayer: it has to be packed anew.
        """
        at, last = 0, False
        with self._path.open("rb") as file:
            while not last:
                with self._changed:
                    while not self._over and self._written <= at + CHUNK:
                        self._changed.wait()
                    last = self._written <= at + CHUNK
                if self.failed:
                    raise UnreadableLayer("it could not be packed ahead")
                chunk = file.read(CHUNK)
                at += len(chunk)
                yield chunk


@dataclass(frozen=True)
class PackedAhead:
    """By diff id."""

    packers: Mapping[str, FilePacker]

    @classmethod
    @contextmanager
    def start(cls, image: LocalImage) -> Iterator[Self]:
        """Packs the layers for the length of the block, the largest first; none where only `docker save` gives them, or
        there is too little room."""
        stopped, sizes = threading.Event(), {diff_id: image.size(diff_id) for diff_id in image.diff_ids}
        with tempfile.TemporaryDirectory(prefix="rocstack-layers-", ignore_cleanup_errors=True) as made:
            if not 0 < ROOM * sum(sizes.values()) < shutil.disk_usage(made).free:
                sizes = {}
            packers = {
                diff_id: FilePacker(image, diff_id, Path(made, diff_id.removeprefix("sha256:")))
                for diff_id in sorted(sizes, key=lambda diff_id: -sizes[diff_id])
            }
            with ThreadPoolExecutor(PACKERS) as pool:
                for packer in packers.values():
                    pool.submit(packer.write, stopped)
                try:
                    yield cls(packers)
                finally:
                    stopped.set()
                    pool.shutdown(wait=False, cancel_futures=True)

    def find(self, diff_id: str) -> Packer | None:
        """None where it has to be packed by whoever wants it."""
        packer = self.packers.get(diff_id)
        return packer if packer and not packer.failed else None
