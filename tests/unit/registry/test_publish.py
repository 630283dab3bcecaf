"""Publishing to a registry in this process: what is read and sent, and what is not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import count

import pytest
from fake_registry import Handler, Store, serving
from memory_image import BASE, MIDDLE, NAME, TOP, Layers, layer, send, unpacked

from rocstack.base.errors import CheckFailed
from rocstack.registry import oci, pack_ahead
from rocstack.registry.layers import sha256
from rocstack.registry.pack_ahead import PackedAhead


@pytest.fixture
def store() -> Iterator[Store]:
    with serving() as store:
        yield store


@pytest.fixture(autouse=True)
def chunk(monkeypatch: pytest.MonkeyPatch) -> int:
    """Chunks of 64 kB, or the tests would send gigabytes."""
    for module in (oci, pack_ahead, __import__("rocstack.registry.repository", fromlist=["CHUNK"])):
        monkeypatch.setattr(module, "CHUNK", 1 << 16)
    return 1 << 16


def test_first_publish_holds_the_image_itself(store: Store) -> None:
    source = Layers(BASE, MIDDLE, TOP)
    seen: dict[str, list[tuple[int, int]]] = {}
    done = send(store, source, progress=lambda layer, at, total: seen.setdefault(layer, []).append((at, total)))
    assert unpacked(store, done) == [BASE, MIDDLE, TOP]
    assert done.id == sha256(source.config)
    kind, data = store.manifests[NAME, "t"]
    assert kind == json.loads(data)["mediaType"] == oci.MANIFEST
    assert {found["mediaType"] for found in json.loads(data)["layers"]} == {oci.ZSTD_LAYER}
    assert done.reference == f"{store.host}/{NAME}@{sha256(data)}"
    assert done.bytes_total < done.bytes_sent < done.bytes_total + 1000  # and the configuration
    for diff_id, steps in seen.items():
        assert steps == sorted(steps)
        assert steps[-1] == (source.size(diff_id),) * 2


def test_same_layers_are_the_same_bytes_whatever_the_threads() -> None:
    text = b"".join(b"line %d\n" % (n * n) for n in range(200_000)) * 4
    packers = []
    for step, threads in ((7001, 1), (1 << 20, 2), (99_000, 4)):
        packers.append(oci.Packer([text[i : i + step] for i in range(0, len(text), step)], threads))
    packed = [b"".join(packer) for packer in packers]
    assert len(set(packed)) == 1
    assert {packer.blob.digest for packer in packers} == {sha256(packed[0])}


def test_layers_that_were_packed_before_are_sent_as_they_are(store: Store) -> None:
    source = Layers(BASE, MIDDLE, TOP, b"")
    with PackedAhead.start(source.image()) as ahead:
        done = send(store, source, ahead=ahead)
    assert unpacked(store, done) == [BASE, MIDDLE, TOP, b""]
    assert sorted(source.read) == sorted(source.data), "each is read once"
    plain = send(store, Layers(BASE, MIDDLE, TOP, b""), name="other")
    assert [layer.digest for layer in done.layers] == [layer.digest for layer in plain.layers]


def test_layers_that_could_not_be_packed_before_are_packed_anew(store: Store) -> None:
    broken, source = Layers(BASE, TOP), Layers(BASE, TOP)
    broken.lies = 2
    with PackedAhead.start(broken.image()) as ahead:
        assert unpacked(store, send(store, source, ahead=ahead)) == [BASE, TOP]
    assert sorted(source.read) == sorted(source.data)


def test_packing_ends_with_its_block() -> None:
    class Endless(Layers):
        def open(self, diff_id: str) -> Iterator[bytes | bytearray]:
            return (layer(50_000, number) for number in count())

    with PackedAhead.start(Endless(BASE, MIDDLE, TOP).image()) as ahead:
        folder = ahead.packers[sha256(BASE)]._path.parent
        assert next(iter(ahead.packers[sha256(BASE)]))
    assert not folder.exists()


def test_second_publish_sends_and_reads_nothing(store: Store) -> None:
    first = send(store, Layers(BASE, TOP))
    store.requests.clear()
    source = Layers(BASE, TOP)
    again = send(store, source)
    assert (again.reference, again.bytes_sent, source.read) == (first.reference, 0, [])
    assert again.layers == first.layers
    assert store.requests == [f"GET /v2/{NAME}/manifests/t"]


def test_only_a_changed_layer_is_read_and_sent(store: Store) -> None:
    send(store, Layers(BASE, MIDDLE, TOP), "one")
    changed = layer(2_000, 4)
    source = Layers(BASE, MIDDLE, changed)
    done = send(store, source, "two")
    assert source.read == [sha256(changed)]
    assert done.bytes_sent < 3_000
    assert unpacked(store, done) == [BASE, MIDDLE, changed]


def test_a_layer_that_stands_twice_is_sent_once(store: Store) -> None:
    source = Layers(BASE)
    source.config = json.dumps({"rootfs": {"diff_ids": [sha256(BASE)] * 2}}).encode()
    done = send(store, source)
    assert len(done.layers) == 2
    assert source.read == [sha256(BASE)]


def test_another_repository_of_the_registry_lends_layers(store: Store) -> None:
    send(store, Layers(BASE, MIDDLE), name="rocstack-control")
    source = Layers(BASE, TOP)
    done = send(store, source, siblings=("rocstack-control",))
    assert source.read == [sha256(TOP)]
    assert unpacked(store, done) == [BASE, TOP]


def test_gzip_layers_of_others_are_not_taken_for_ours(store: Store) -> None:
    source = Layers(BASE)
    blob = gzip.compress(BASE, mtime=0)
    store.blobs[NAME, sha256(blob)] = blob
    store.blobs[NAME, sha256(source.config)] = source.config
    theirs = oci.Blob(digest=sha256(blob), size=len(blob), media_type="application/vnd.oci.image.layer.v1.tar+gzip")
    store.manifests[NAME, "t"] = (oci.MANIFEST, oci.manifest(source.config, [theirs]))
    done = send(store, source)
    assert source.read == [sha256(BASE)]
    assert unpacked(store, done) == [BASE]


def test_gzip_where_zstd_was_sent_is_refused() -> None:
    blob = oci.Blob(digest=sha256(b"x"), size=1, media_type="application/vnd.docker.image.rootfs.diff.tar.gzip")
    with pytest.raises(CheckFailed, match=r"1 layers that are not zstd, such as .*gzip") as caught:
        oci.require_zstd(oci.manifest(b"{}", [blob]), "here")
    assert caught.value.code == "wrong-media-type"


def test_registry_that_changes_a_manifest_is_found_out(store: Store) -> None:
    def fault(handler: Handler) -> bool:
        if handler.command != "GET" or (NAME, "t") not in store.manifests:
            return False
        handler.answer(200, b'{"config":{"digest":""},"layers":[]}')
        return True

    store.faults.append(fault)
    with pytest.raises(CheckFailed, match="different manifest") as caught:
        send(store, Layers(TOP))
    assert caught.value.code == "digest-differs"
