"""Publishing to a registry that fails, asks for a login, or is reached by a tunnel."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_registry import Handler, Store, cutting, failing, serving
from memory_image import BASE, NAME, TOP, Layers, send, unpacked

from rocstack.base.errors import CheckFailed, Missing, RocstackError
from rocstack.registry import oci
from rocstack.registry.layers import sha256
from rocstack.registry.publish import PackedLayers, publish
from rocstack.registry.registry_http import PushStopped, RegistryHttp, RegistryLogin
from rocstack.registry.repository import Repository


@pytest.fixture
def store() -> Iterator[Store]:
    with serving() as store:
        yield store


@pytest.fixture(autouse=True)
def chunk(monkeypatch: pytest.MonkeyPatch) -> int:
    """Chunks of 64 kB, or the tests would send gigabytes."""
    for module in (oci, __import__("rocstack.registry.repository", fromlist=["CHUNK"])):
        monkeypatch.setattr(module, "CHUNK", 1 << 16)
    return 1 << 16


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PATCH", "PUT"])
def test_failures_that_pass_are_waited_out(store: Store, method: str) -> None:
    waits: list[float] = []
    store.faults.append(failing(503, method, times=2))
    done = send(store, Layers(BASE, TOP), sleep=waits.append)
    assert unpacked(store, done) == [BASE, TOP]
    assert waits[:1] == [2]


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
        send(store, Layers(BASE, TOP), packed_layers=PackedLayers(file))
    store.faults.clear()
    if not any(name == NAME for name, _ in store.blobs):
        pytest.fail("the small layer should have arrived")
    with file.open("a") as out:
        out.write("sha256:cut o")
    source = Layers(BASE, TOP)
    done = send(store, source, packed_layers=PackedLayers(file))
    assert source.read == [sha256(BASE)]
    assert unpacked(store, done) == [BASE, TOP]


def test_memory_of_a_layer_that_is_gone_is_not_believed(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "layers"
    send(store, Layers(TOP), packed_layers=PackedLayers(file))
    store.blobs.clear()
    store.manifests.clear()
    assert unpacked(store, send(store, Layers(TOP), packed_layers=PackedLayers(file))) == [TOP]


def test_stop_ends_it_and_leaves_no_manifest(store: Store) -> None:
    stop = threading.Event()

    def fault(handler: Handler) -> bool:
        if handler.command == "PATCH":
            stop.set()
        return False

    store.faults.append(fault)
    with pytest.raises(PushStopped):
        send(store, Layers(BASE), stop=stop)
    assert not store.manifests


def test_a_layer_that_reads_wrong_comes_from_the_fallback(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Layers(BASE)
    source.lies = 1
    monkeypatch.setattr("rocstack.registry.docker_save.SavedImage.make", lambda *args: source)
    done = send(store, source)
    assert unpacked(store, done) == [BASE]
    assert source.read == [sha256(BASE)] * 2
    assert all(sha256(data) == digest for (_, digest), data in store.blobs.items())


def test_a_layer_that_always_reads_wrong_is_a_damaged_image(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Layers(BASE)
    source.lies = 100
    monkeypatch.setattr("rocstack.registry.docker_save.SavedImage.make", lambda *args: source)
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
        (failing(405, "PUT", 100), "registry-read-only"),
        (failing(418, "PUT", 100), "registry-failed"),
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
    done = send(store, Layers(BASE), login=RegistryLogin("ada", "s3cret"))
    assert unpacked(store, done) == [BASE]
    with pytest.raises(Missing) as caught:
        send(store, Layers(TOP), login=RegistryLogin("ada", "wrong-one"))
    assert caught.value.code == "registry-denied"
    assert "wrong-one" not in json.dumps(caught.value.to_dict()) + repr(RegistryLogin("ada", "wrong-one"))


def test_token_of_a_site_registry(store: Store) -> None:
    store.password, store.token = "s3cret", "t0ken"
    assert unpacked(store, send(store, Layers(BASE), login=RegistryLogin("ada", "s3cret"))) == [BASE]
    store.token = "renewed"
    assert unpacked(store, send(store, Layers(BASE), "u", login=RegistryLogin("ada", "s3cret"))) == [BASE]


@pytest.mark.parametrize("during", ["POST", "PATCH", "PUT"])
def test_a_token_that_ends_while_an_image_is_sent(store: Store, during: str) -> None:
    store.password, store.token = "s3cret", "t0ken"

    def expire(handler: Handler) -> bool:
        if handler.command == during:
            store.token = "renewed"
        return False

    store.faults.append(expire)
    done = send(store, Layers(BASE, TOP), login=RegistryLogin("ada", "s3cret"))
    assert store.token == "renewed"
    assert unpacked(store, done) == [BASE, TOP]


def test_through_a_tunnel_the_registry_keeps_its_name(store: Store) -> None:
    hosts: set[str] = set()

    def fault(handler: Handler) -> bool:
        hosts.add(str(handler.headers["Host"]))
        return False

    store.faults.append(fault)
    http = RegistryHttp("10.0.0.11:5000", plain=True, connect_to=("127.0.0.1", store.port))
    done = publish(Layers(BASE).image(), Repository(http, NAME), "t")
    assert done.reference.startswith(f"10.0.0.11:5000/{NAME}@sha256:")
    assert hosts == {"10.0.0.11:5000"}


def test_nobody_there() -> None:
    store = Store(port=9)
    with pytest.raises(Missing) as caught:
        send(store, Layers(TOP), attempts=2)
    assert caught.value.code == "registry-unreachable"
