"""A local image by its layers: read from the engine's own folder, or by `docker save` where that can't be."""

import threading
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from docker import DockerClient

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.edge.engine import find_image
from rocstack.registry.docker_save import SavedImage
from rocstack.registry.layers import GraphStore, UnreadableLayer, sha256


@dataclass
class LocalImage:
    """A local image, by whatever source gives its layers. Close it: a fallback may keep copies of them. `needed` limits
    what a fallback has to copy."""

    client: DockerClient
    reference: str
    diff_ids: tuple[str, ...]
    needed: Collection[str] | None = None
    _engine_id: str = ""
    _config_id: str | None = None
    _source: GraphStore | SavedImage | None = None
    _saved: SavedImage | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def find(cls, client: DockerClient, reference: str) -> Self:
        """
        Raises:
            BadInput: no such image.
        """
        image = find_image(client, reference)
        if image is None:
            raise BadInput.of("no-local-image", reference=reference)
        info = client.info()
        local = cls(client, reference, tuple(image.attrs["RootFS"].get("Layers") or ()), _engine_id=str(image.id))
        if info.get("Driver") == "overlay2":  # this store, not containerd's: an image's id is its configuration's
            local._config_id = local._engine_id
            local._source = GraphStore.find(Path(str(info.get("DockerRootDir"))), local._engine_id)
        return local

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        if self._saved:
            self._saved.close()

    @property
    def config(self) -> bytes:
        return self._ready().config

    @property
    def known_id(self) -> str | None:
        """The sha256 of its configuration, its id on every engine, where it can be told without copying anything."""
        return sha256(self._source.config) if self._source else self._config_id

    @property
    def id(self) -> str:
        """The same in any case: the engine is asked for the image, and its layers are left out, where it must be."""
        if self.known_id is None:
            with closing(SavedImage.make(self.client, self._engine_id, self.diff_ids, ())) as saved:
                self._config_id = sha256(saved.config)
        return str(self.known_id)

    def size(self, diff_id: str) -> int:
        """Bytes, uncompressed, or nearly; 0 if it is not known yet."""
        return self._source.size(diff_id) if self._source else 0

    def open(self, diff_id: str) -> Iterator[bytes | bytearray]:
        """The tar stream of one layer, in blocks. Raises UnreadableLayer at its end if it was another.

        After that the next call takes the fallback; when that can't be read either it is a CheckFailed.
        """
        source = self._ready()
        try:
            yield from source.open(diff_id)
        except (UnreadableLayer, OSError, ValueError) as error:
            if self._saved is not None:
                raise CheckFailed.of("damaged-layers", reference=self.reference, cause=error) from None
            with self._lock:
                if source is self._source:
                    self._source = None
            raise UnreadableLayer(str(error)) from None

    def _ready(self) -> GraphStore | SavedImage:
        with self._lock:
            if self._source is None:
                self._saved = SavedImage.make(self.client, self._engine_id, self.diff_ids, self.needed)
                self._source = self._saved
            return self._source
