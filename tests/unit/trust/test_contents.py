"""Whether a registry has what a digest promises; and reading a blob that is larger than one answer."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from fake_registry import Handler, Store, serving

from rocstack.registry import repository as repositories
from rocstack.registry.layers import sha256
from rocstack.registry.oci import ZSTD_LAYER, Blob, as_json
from rocstack.registry.oci import manifest as manifest_of
from rocstack.registry.registry_http import RegistryHttp
from rocstack.registry.repository import Repository
from rocstack.trust import contents
from rocstack.trust.verification import Untrusted

NAME = "hpc/rocstack-worker"
LAYER = b"layer" * 1000


@pytest.fixture
def store() -> Iterator[Store]:
    with serving() as store:
        yield store


@pytest.fixture
def there(store: Store) -> Repository:
    return Repository(RegistryHttp(store.host, plain=True), NAME, attempts=1)


def put(there: Repository) -> str:
    config = as_json({"os": "linux", "rootfs": {"type": "layers", "diff_ids": [sha256(LAYER)]}})
    for data in (config, LAYER):
        there.put_blob(data)
    data = manifest_of(config, [Blob(digest=sha256(LAYER), size=len(LAYER), media_type=ZSTD_LAYER)])
    return there.put_manifest("w1", data)


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_there_passes(there: Repository, whole: bool) -> None:
    assert contents.check(there, put(there), whole=whole) == len(LAYER)


@pytest.mark.parametrize(
    ("data", "whole", "code"),
    [
        (None, False, "layer-absent"),
        (LAYER[:-1], False, "layer-differs"),
        (LAYER[:-1] + b"x", True, "layer-differs"),
        (b"", True, "layer-differs"),
    ],
)
def test_what_is_not_is_refused(store: Store, there: Repository, data: bytes | None, whole: bool, code: str) -> None:
    digest = put(there)
    del store.blobs[NAME, sha256(LAYER)]
    if data is not None:
        store.blobs[NAME, sha256(LAYER)] = data
    with pytest.raises(Untrusted) as caught:
        contents.check(there, digest, whole=whole)
    assert caught.value.code == code
    assert sha256(LAYER) in caught.value.what


def test_no_image_at_all(there: Repository) -> None:
    with pytest.raises(Untrusted) as caught:
        contents.check(there, sha256(b"none"))
    assert caught.value.code == "image-absent"


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 25])
def test_a_large_blob_comes_in_pieces(
    store: Store, there: Repository, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(repositories, "READ", 10)
    data = bytes(range(size))
    store.blobs[NAME, "sha256:x"] = data

    def ranged(handler: Handler) -> bool:
        if "/blobs/sha256:x" not in urlsplit(handler.path).path:
            return False
        first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
        if first >= size:
            handler.answer(416)
        else:
            handler.answer(206, data[first : last + 1])
        return True

    store.faults.append(ranged)
    assert b"".join(there.pieces("sha256:x")) == data
