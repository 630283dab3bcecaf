"""An image of two layers as the engine saves it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import zstandard

from rocstack.registry.layers import sha256

FILES: dict[str, bytes] = {"etc/a": b"a" * 700, "big": b"0123456789" * 200_000, "none": b"", "n\udcff": b"odd"}


def tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


LOWER, UPPER = tar(FILES), tar({"top": b"t"})


DIFF_IDS = [sha256(LOWER), sha256(UPPER)]


CONFIG = json.dumps({"rootfs": {"type": "layers", "diff_ids": DIFF_IDS}}).encode()


def modern() -> dict[str, bytes]:
    """docker 25 and newer, older store: layers by their content."""
    blobs = {f"blobs/sha256/{sha256(data)[7:]}": data for data in (LOWER, UPPER, CONFIG)}
    paths = [f"blobs/sha256/{diff_id[7:]}" for diff_id in DIFF_IDS]
    return {**blobs, **listing(f"blobs/sha256/{sha256(CONFIG)[7:]}", paths)}


def compressed() -> dict[str, bytes]:
    """containerd's store: layers as they were pulled."""
    packed = [gzip.compress(LOWER), zstandard.compress(UPPER)]
    blobs = {f"blobs/sha256/{sha256(data)[7:]}": data for data in (*packed, CONFIG)}
    config = f"blobs/sha256/{sha256(CONFIG)[7:]}"
    return {**blobs, **listing(config, [f"blobs/sha256/{sha256(data)[7:]}" for data in packed])}


def old() -> dict[str, bytes]:
    """docker 23 and 24: a folder for each layer."""
    return {
        "f0/layer.tar": LOWER,
        "f1/layer.tar": UPPER,
        "c.json": CONFIG,
        **listing("c.json", ["f0/layer.tar", "f1/layer.tar"]),
    }


def listing(config: str, layers: list[str]) -> dict[str, bytes]:
    return {"manifest.json": json.dumps([{"Config": config, "RepoTags": None, "Layers": layers}]).encode()}


def engine(files: dict[str, bytes], link: tuple[str, str] | None = None) -> Any:
    data = io.BytesIO(tar(files))
    if link:
        with tarfile.open(fileobj=data, mode="a") as archive:
            info = tarfile.TarInfo(link[0])
            info.type, info.linkname = tarfile.SYMTYPE, link[1]
            archive.addfile(info)
    text = data.getvalue()

    @contextmanager
    def get(url: str, stream: bool, timeout: float) -> Iterator[Any]:
        pieces = (text[i : i + 100_000] for i in range(0, len(text), 100_000))
        yield SimpleNamespace(raise_for_status=lambda: None, iter_content=lambda size: pieces)

    return SimpleNamespace(api=SimpleNamespace(base_url="http://engine", api_version="1.43", timeout=300, get=get))
