"""Archives made member by member."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable

Edit = Callable[[tarfile.TarFile], None]


def entry(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(data), link
    return info, io.BytesIO(data)


def raw_tar(files: dict[str, bytes], edit: Edit | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            tar.addfile(*entry(name, data))
        if edit:
            edit(tar)
    return out.getvalue()


def tar_gz(files: dict[str, bytes], edit: Edit | None = None) -> bytes:
    return gzip.compress(raw_tar(files, edit), mtime=0)
