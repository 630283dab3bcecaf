"""Publishing to a registry in this process: what is sent, what isn't, and what happens when it fails."""

from __future__ import annotations

import gzip
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import zstandard
from docker import DockerClient
from fake_registry import Handler, Store, cutting, failing, serving

from rocstack.errors import CheckFailed, Missing, RocstackError
from rocstack.ship import oci
from rocstack.ship.layers import Image, checked, sha256
from rocstack.ship.publish import Memory, Published, publish
from rocstack.ship.repository import Repository
from rocstack.ship.wire import Login, Stopped, Wire

NAME = "rocstack-worker"


@pytest.fixture
def store() -> Iterator[Store]:
    with serving() as store:
        yield store


@pytest.fixture(autouse=True)
def chunk(monkeypatch: pytest.MonkeyPatch) -> int:
    """Chunks of 64 kB, or the tests would send gigabytes."""
    for module in (oci, __import__("rocstack.ship.repository", fromlist=["CHUNK"])):
        monkeypatch.setattr(module, "CHUNK", 1 << 16)
    return 1 << 16


class Layers:
    """A source in memory; counts what is read."""

    def close(self) -> None:
        pass

    def __init__(self, *layers: bytes) -> None:
        self.data = {sha256(layer): layer for layer in layers}
        self.config = json.dumps({"rootfs": {"type": "layers", "diff_ids": [sha256(x) for x in layers]}}).encode()
        self.read: list[str] = []
        self.lies = 0

    def open(self, diff_id: str) -> Iterator[bytes | bytearray]:
        self.read.append(diff_id)
        data = self.data[diff_id]
        if self.lies:
            self.lies -= 1
            data = b"x" + data[1:]
        return checked((data[i : i + 50_000] for i in range(0, len(data), 50_000)), diff_id)

    def size(self, diff_id: str) -> int:
        return len(self.data[diff_id])

    def image(self) -> Image:
        image = Image(
            cast(DockerClient, None), "rocstack/worker:x", tuple(json.loads(self.config)["rootfs"]["diff_ids"])
        )
        image._source = self
        return image


def layer(size: int, seed: int = 0) -> bytes:
    """Bytes that don't compress."""
    return random.Random(seed).randbytes(size)


BASE, MIDDLE, TOP = layer(300_000, 1), layer(70_000, 2), layer(2_000, 3)


def repository(store: Store, name: str = NAME, **options: Any) -> Repository:
    options.setdefault("sleep", lambda seconds: None)
    wire = Wire(store.host, options.pop("login", None), plain=True, connect_to=options.pop("connect_to", None))
    return Repository(wire, name, **options)


def send(store: Store, source: Layers, tag: str = "t", name: str = NAME, **options: Any) -> Published:
    more = {key: options.pop(key) for key in ("siblings", "memory", "progress") if key in options}
    return publish(source.image(), repository(store, name, **options), tag, **more)


def unpacked(store: Store, done: Published) -> list[bytes]:
    """What a node would get."""
    data = store.manifests[NAME, done.reference.partition("@")[2]][1]
    blobs = [store.blobs[NAME, found["digest"]] for found in json.loads(data)["layers"]]
    return [zstandard.ZstdDecompressor().decompressobj().decompress(blob) for blob in blobs]


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
    assert done.skipped == ()
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


def test_second_publish_sends_and_reads_nothing(store: Store) -> None:
    first = send(store, Layers(BASE, TOP))
    store.requests.clear()
    source = Layers(BASE, TOP)
    again = send(store, source)
    assert (again.reference, again.bytes_sent, source.read) == (first.reference, 0, [])
    assert again.skipped == tuple(layer.digest for layer in again.layers)
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
        if handler.command != "GET" or "manifests/sha256:" not in handler.path:
            return False
        handler.answer(200, b'{"config":{"digest":""},"layers":[]}')
        return True

    store.faults.append(fault)
    with pytest.raises(CheckFailed, match="another manifest") as caught:
        send(store, Layers(TOP))
    assert caught.value.code == "digest-differs"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PATCH", "PUT"])
def test_failures_that_pass_are_waited_out(store: Store, method: str) -> None:
    waits: list[float] = []
    store.faults.append(failing(503, method, times=2))
    done = send(store, Layers(BASE, TOP), sleep=waits.append)
    assert unpacked(store, done) == [BASE, TOP]
    assert waits[:1] == [1]


def test_what_arrived_before_a_cut_is_not_sent_again(store: Store, chunk: int) -> None:
    store.faults.append(cutting(after=40_000))
    done = send(store, Layers(BASE))
    assert unpacked(store, done) == [BASE]
    # What the kernel had taken when the connection went doesn't reach the registry; more than a chunk it isn't.
    assert done.bytes_sent < done.bytes_total + chunk + 1000
    assert store.count("POST") == 2  # layer and configuration: the upload went on


def test_upload_that_the_registry_forgot_starts_again(store: Store) -> None:
    store.faults.append(cutting(after=40_000, keeps=False))
    source = Layers(BASE)
    done = send(store, source)
    assert unpacked(store, done) == [BASE]
    assert source.read == [sha256(BASE)] * 2


def test_registry_that_stays_away_ends_with_its_name(store: Store) -> None:
    store.faults.append(cutting(after=40_000, times=100, keeps=False))
    with pytest.raises(Missing, match=r"can't be reached \(\d attempts\)") as caught:
        send(store, Layers(BASE))
    assert caught.value.code == "registry-unreachable"
    assert not store.manifests


def test_second_run_goes_on_with_complete_layers(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "here/layers"
    store.faults.append(cutting(after=10, times=100))  # only the layer with several chunks uses PATCH
    with pytest.raises(RocstackError):
        send(store, Layers(BASE, TOP), memory=Memory(file))
    store.faults.clear()
    if not any(name == NAME for name, _ in store.blobs):
        pytest.fail("the small layer should have arrived")
    with file.open("a") as out:
        out.write("sha256:cut o")
    source = Layers(BASE, TOP)
    done = send(store, source, memory=Memory(file))
    assert source.read == [sha256(BASE)]
    assert unpacked(store, done) == [BASE, TOP]


def test_memory_of_a_layer_that_is_gone_is_not_believed(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "layers"
    send(store, Layers(TOP), memory=Memory(file))
    store.blobs.clear()
    store.manifests.clear()
    assert unpacked(store, send(store, Layers(TOP), memory=Memory(file))) == [TOP]


def test_stop_ends_it_and_leaves_no_manifest(store: Store) -> None:
    stop = threading.Event()

    def fault(handler: Handler) -> bool:
        if handler.command == "PATCH":
            stop.set()
        return False

    store.faults.append(fault)
    with pytest.raises(Stopped):
        send(store, Layers(BASE), stop=stop)
    assert not store.manifests


def test_a_layer_that_reads_wrong_comes_from_the_fallback(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Layers(BASE)
    source.lies = 1
    monkeypatch.setattr("rocstack.ship.saved.Saved.make", lambda *args: source)
    done = send(store, source)
    assert unpacked(store, done) == [BASE]
    assert source.read == [sha256(BASE)] * 2
    assert all(sha256(data) == digest for (_, digest), data in store.blobs.items())


def test_a_layer_that_always_reads_wrong_is_a_damaged_image(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Layers(BASE)
    source.lies = 100
    monkeypatch.setattr("rocstack.ship.saved.Saved.make", lambda *args: source)
    with pytest.raises(CheckFailed) as caught:
        send(store, source)
    assert caught.value.code == "damaged-image"
    assert not store.blobs
    assert not store.manifests


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (failing(507, "PATCH", 100, b"Insufficient Storage"), "registry-full"),
        (failing(500, "POST", 100, b"write: no space left on device"), "registry-full"),
        (failing(403, "POST", 100), "registry-denied"),
        (failing(429, "POST", 100), "registry-busy"),
        (failing(405, "PUT", 100), "push-failed"),
    ],
)
def test_what_stays_is_told_in_words(store: Store, fault: Any, code: str) -> None:
    store.faults.append(fault)
    with pytest.raises(RocstackError) as caught:
        send(store, Layers(BASE))
    assert caught.value.code == code
    assert caught.value.next_step


def test_password_is_sent_only_where_it_is_asked_for(store: Store) -> None:
    store.password = "s3cret"
    done = send(store, Layers(BASE), login=Login("ada", "s3cret"))
    assert unpacked(store, done) == [BASE]
    with pytest.raises(Missing) as caught:
        send(store, Layers(TOP), login=Login("ada", "wrong-one"))
    assert caught.value.code == "registry-denied"
    assert "wrong-one" not in json.dumps(caught.value.as_dict()) + repr(Login("ada", "wrong-one"))


def test_token_of_a_site_registry(store: Store) -> None:
    store.password, store.token = "s3cret", "t0ken"
    assert unpacked(store, send(store, Layers(BASE), login=Login("ada", "s3cret"))) == [BASE]
    store.token = "renewed"
    assert unpacked(store, send(store, Layers(BASE), "u", login=Login("ada", "s3cret"))) == [BASE]


def test_through_a_tunnel_the_registry_keeps_its_name(store: Store) -> None:
    hosts: set[str] = set()

    def fault(handler: Handler) -> bool:
        hosts.add(str(handler.headers["Host"]))
        return False

    store.faults.append(fault)
    wire = Wire("10.0.0.11:5000", plain=True, connect_to=("127.0.0.1", store.port))
    done = publish(Layers(BASE).image(), Repository(wire, NAME), "t")
    assert done.reference.startswith(f"10.0.0.11:5000/{NAME}@sha256:")
    assert hosts == {"10.0.0.11:5000"}


def test_nobody_there() -> None:
    store = Store(port=9)
    with pytest.raises(Missing) as caught:
        send(store, Layers(TOP), attempts=2)
    assert caught.value.code == "registry-unreachable"
