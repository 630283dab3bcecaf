"""Where the blobs of a bundle's images are: in it, at the place that it is installed to, or in an earlier bundle."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rocstack.base.errors import CheckFailed
from rocstack.base.text import from_json
from rocstack.bundle.check import CheckedBundle, blob_path
from rocstack.bundle.file import BundleFile
from rocstack.registry.oci import Blob, parse_manifest
from rocstack.release.record import ReleasedImage


@dataclass(frozen=True)
class BundleBlobs:
    """`earlier` are bundles that are named beside it: of them blobs are taken, each by its digest."""

    bundle: CheckedBundle
    earlier: Sequence[BundleFile] = ()

    def has(self, digest: str) -> bool:
        return self._file(digest) is not None

    def pieces(self, digest: str) -> Iterator[bytes]:
        file = self._file(digest)
        assert file is not None
        return file.pieces(blob_path(digest))

    def require(self, digests: Collection[str], where: str) -> None:
        """
        Raises:
            CheckFailed: one is neither here nor in an earlier bundle.
        """
        if lacking := [digest for digest in digests if not self.has(digest)]:
            absent = self.bundle.absent
            size = sum(absent[digest].size for digest in lacking if digest in absent)
            raise CheckFailed.of(
                "bundle-needs", file=self.bundle.file.path, since=self.bundle.file.record.since, where=where,
                count=len(lacking), size=size / 1e6,
            )  # fmt: skip

    def _file(self, digest: str) -> BundleFile | None:
        path = blob_path(digest)
        return next((file for file in (self.bundle.file, *self.earlier) if path in file), None)


@dataclass(frozen=True)
class BundledImage:
    """An image of the release; `layers` by diff id, in the image's order."""

    image: ReleasedImage
    config: bytes
    layers: Mapping[str, Blob]
    diff_ids: tuple[str, ...]
    created: str

    @classmethod
    def of(cls, bundle: CheckedBundle, image: ReleasedImage) -> BundledImage:
        config = bundle.layout.read(image.id) or b""
        _, layers = parse_manifest(bundle.layout.read(image.digest) or b"")
        about = from_json(config)
        diff_ids = tuple(about["rootfs"].get("diff_ids") or ())
        return cls(image, config, dict(zip(diff_ids, layers, strict=True)), diff_ids, str(about.get("created") or ""))
