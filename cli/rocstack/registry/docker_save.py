"""`docker save` as a source of layers: the layers that are needed are kept in a temporary folder.

Engines with the older store (23 and 24) name layers by something else than their content, those with containerd's
store keep them compressed: only `manifest.json` at the end tells which is which.
"""

import errno
import gzip
import posixpath
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self

from docker import DockerClient
from docker.errors import APIError, create_api_error_from_http_exception
from requests.exceptions import HTTPError, RequestException

from rocstack.base.errors import CheckFailed, Missing
from rocstack.base.tar_stream import Pieces, open_tar
from rocstack.base.text import from_json
from rocstack.registry.layers import BLOCK, UnreadableLayer, checked

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class SavedImage:
    config: bytes
    files: dict[str, Path]  # diff id -> its file; only the layers that were asked for
    close: Callable[[], None]

    @classmethod
    def make(
        cls, client: DockerClient, image: str, diff_ids: Sequence[str], only: Collection[str] | None = None
    ) -> Self:
        """Saves `image` and keeps the layers of `only` (all, if None).

        Raises:
            CheckFailed: the archive does not hold the image, or the temporary folder is full.
            Missing: the engine refused.
        """
        skip = set(diff_ids) - set(diff_ids if only is None else only)
        try:
            with ExitStack() as undo:
                made = tempfile.TemporaryDirectory(prefix="rocstack-save-", ignore_cleanup_errors=True)
                folder = Path(undo.enter_context(made))
                links = _unpack(_saved(client, image), folder, skip)
                config, files = _sorted(folder, links, diff_ids)
                return cls(config, files, undo.pop_all().close)
        except (APIError, RequestException) as error:
            raise Missing.of("save-failed", image=image[:19], cause=error) from None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, tarfile.TarError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise Missing.of("no-room-to-save", folder=tempfile.gettempdir()) from None
            cause = str(error) or type(error).__name__
            raise CheckFailed.of("unreadable-save", image=image[:19], cause=cause) from None

    def size(self, diff_id: str) -> int:
        return self.files[diff_id].stat().st_size if diff_id in self.files else 0

    def open(self, diff_id: str) -> Iterator[bytes | bytearray]:
        if diff_id not in self.files:
            raise UnreadableLayer(f"layer {diff_id[:19]} was not saved")
        return checked(plain(self.files[diff_id]), diff_id)


def _saved(client: DockerClient, image: str) -> Iterator[bytes]:
    """As `get_image` of docker-py, which takes the client's time limit off the answer: at an engine that freezes in the
    middle it would wait for ever."""
    api = client.api
    with api.get(f"{api.base_url}/v{api.api_version}/images/{image}/get", stream=True, timeout=api.timeout) as answer:
        try:
            answer.raise_for_status()
        except HTTPError as error:
            create_api_error_from_http_exception(error)  # raises it with the engine's words
        yield from answer.iter_content(BLOCK)


def _unpack(blocks: Iterable[bytes], folder: Path, skip: Collection[str]) -> dict[str, str]:
    """Files of the archive by their path; returns the links among them (older engines link equal layers)."""
    links: dict[str, str] = {}
    with open_tar(Pieces(blocks)) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"the archive holds '{member.name}'")
            if member.issym() or member.islnk():
                target = path.parent / member.linkname if member.issym() else PurePosixPath(member.linkname)
                links[str(path)] = posixpath.normpath(target)
            if not member.isfile() or f"sha256:{path.name}" in skip:
                continue
            to = folder / path
            to.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            assert content is not None
            with to.open("wb") as file:
                shutil.copyfileobj(content, file, BLOCK)
    return links


def _sorted(folder: Path, links: dict[str, str], diff_ids: Sequence[str]) -> tuple[bytes, dict[str, Path]]:
    manifest: dict[str, Any] = from_json((folder / "manifest.json").read_bytes())[0]
    config = (folder / _contained(manifest["Config"])).read_bytes()
    if tuple(from_json(config)["rootfs"].get("diff_ids") or ()) != tuple(diff_ids):
        raise ValueError("it holds another image")
    paths = [_contained(links.get(name, name)) for name in manifest["Layers"] or ()]
    named = dict(zip(diff_ids, paths, strict=True))
    return config, {diff_id: folder / path for diff_id, path in named.items() if (folder / path).is_file()}


def _contained(name: str) -> str:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError(f"the archive names '{name}'")
    return name


def plain(file: Path) -> Iterator[bytes]:
    """The file's content, uncompressed."""
    import zstandard

    with file.open("rb") as raw:
        start = raw.read(4)
        raw.seek(0)
        opened: IO[bytes]
        if start.startswith(_GZIP):
            opened = gzip.GzipFile(fileobj=raw)  # type: ignore[assignment]  # reads bytes
        elif start == _ZSTD:
            opened = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        else:
            opened = raw
        while block := opened.read(BLOCK):
            yield block
