"""Files of a base image: what an engine gives of them is the image's to say."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any

from rocstack.image import base_reader
from rocstack.image.base_reader import MOST


class Given:
    """A container whose paths have these archives; `taken` is how many bytes of them were read."""

    def __init__(self, archive: bytes, size: int, times: int = 1) -> None:
        self.archive, self.size, self.times, self.taken = archive, size, times, 0

    def get_archive(self, path: str) -> tuple[Iterator[bytes], dict[str, Any]]:
        return self._chunks(), {"name": path, "size": self.size, "linkTarget": ""}

    def _chunks(self) -> Iterator[bytes]:
        for _ in range(self.times):
            self.taken += len(self.archive)
            yield self.archive


def archive(content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo("a")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def test_a_file_is_read() -> None:
    content = bytes(range(256)) * (MOST // 256)
    assert base_reader._file(Given(archive(content), len(content)), "/a") == content  # type: ignore[arg-type]


def test_of_a_folder_no_more_is_read_than_of_a_file() -> None:
    """Its own size is some KB, and what the engine sends is all that lies in it."""
    folder = Given(bytes(MOST), 4096, times=100)
    assert base_reader._file(folder, "/usr") is None  # type: ignore[arg-type]
    assert folder.taken <= 3 * MOST


def test_a_library_of_slashes_is_no_work() -> None:
    assert base_reader._PATTERN.search(b"/" * MOST) is None
    found = base_reader._PATTERN.search(b"\0/usr/lib/x86_64-linux-gnu/libibverbs/lib%s-rdmav34.so\0")
    assert found
    assert found.groups() == (b"/usr/lib/x86_64-linux-gnu/libibverbs", b"rdmav34")
