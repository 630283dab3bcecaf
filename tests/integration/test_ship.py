"""Shipping for real: images of this engine to a real registry that is killed, and pulled and loaded again."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import docker
import pytest
from docker import DockerClient
from site_registry import USER, Registry, certificate, engine, running

from rocstack.base.errors import Missing
from rocstack.registry.image_archive import ImageArchive
from rocstack.registry.local_image import LocalImage
from rocstack.registry.oci import ZSTD_LAYER
from rocstack.registry.publish import PackedLayers, Published, publish
from rocstack.registry.registry_http import RegistryHttp, RegistryLogin, docker_login
from rocstack.registry.repository import Repository
from rocstack.registry.send_archive import LoadTarget, load

pytestmark = pytest.mark.engine
INSIDE = "10.0.0.11:5000"  # what nodes call it; from here it is at the end of a tunnel


@pytest.fixture(scope="module")
def registry(base: str) -> Iterator[Registry]:
    with running(base) as registry:
        yield registry


@dataclass
class Shop:
    """Images made here, a repository of their own, and what is removed again."""

    client: DockerClient
    registry: Registry
    folder: Path
    name: str = field(default_factory=lambda: f"{secrets.token_hex(4)}/rocstack-worker")
    made: list[str] = field(default_factory=list)

    def image(self, *layers: bytes) -> str:
        """An image of these layers, one file each."""
        lines = ["FROM scratch"]
        for number, data in enumerate(layers):
            (self.folder / f"file{number}").write_bytes(data)
            lines.append(f"COPY file{number} /")
        (self.folder / "Dockerfile").write_text("\n".join([*lines, f"LABEL of={self.name}", ""]))
        self.made.append(engine("build", "--quiet", str(self.folder)))
        return self.made[-1]

    def repository(self, **options: object) -> Repository:
        http = RegistryHttp(self.registry.host, RegistryLogin(USER, self.registry.password), plain=True)
        return Repository(http, self.name, **options)  # type: ignore[arg-type]

    def publish(self, image: str, tag: str = "one", **options: object) -> Published:
        packed_layers = options.pop("packed_layers", None)
        progress = options.pop("progress", lambda layer, done, total: None)
        with LocalImage.find(self.client, image) as found:
            return publish(found, self.repository(**options), tag, packed_layers=packed_layers, progress=progress)  # type: ignore[arg-type]

    def remove(self, image: str) -> None:
        subprocess.run(["docker", "rmi", "--force", image], capture_output=True)


@pytest.fixture
def shop(client: DockerClient, registry: Registry, tmp_path: Path) -> Iterator[Shop]:
    folder = tmp_path / "context"
    folder.mkdir()
    shop = Shop(client, registry, folder)
    yield shop
    for image in shop.made:
        shop.remove(image)


def test_a_node_that_pulls_by_digest_has_the_image_that_was_built(shop: Shop, tmp_path: Path) -> None:
    image = shop.image(secrets.token_bytes(300_000), b"x" * 100_000)
    done = shop.publish(image)
    assert done.id == image
    assert 300_000 < done.bytes_sent < 320_000
    shop.remove(image)
    login = tmp_path / "config"
    login.mkdir()
    pulled = docker.from_env()
    pulled.login(USER, shop.registry.password, registry=shop.registry.host, dockercfg_path=str(login / "config.json"))
    pulled.images.pull(done.reference)
    found = client_inspect(done.reference)
    assert found["Id"] == image
    assert done.reference in found["RepoDigests"]  # type: ignore[operator]
    pulled.close()


def client_inspect(image: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(engine("image", "inspect", image))[0]
    return found


def test_only_the_changed_layer_travels_and_nothing_the_third_time(shop: Shop) -> None:
    large = secrets.token_bytes(2_000_000)
    first = shop.publish(shop.image(large, b"one"))
    second = shop.publish(shop.image(large, b"two"), "two")
    assert first.bytes_sent > 2_000_000 > 5_000 > second.bytes_sent > 0
    assert first.layers[0] == second.layers[0]
    again = shop.publish(shop.made[-1], "two")
    assert (again.bytes_sent, again.reference) == (0, second.reference)


def test_docker_save_gives_the_same_manifest(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    image = shop.image(secrets.token_bytes(100_000), b"two")
    first = shop.publish(image)
    shop.name = f"{shop.name}-saved"
    monkeypatch.setattr("rocstack.registry.layers.GraphStore.find", lambda root, image_id: None)
    second = shop.publish(image)
    assert first.reference.partition("@")[2] == second.reference.partition("@")[2]


def test_registry_killed_in_the_middle_comes_back(shop: Shop) -> None:
    image = shop.image(secrets.token_bytes(40_000_000))
    waits: list[float] = []
    killed: list[int] = []

    def kill(layer: str, done: int, total: int) -> None:
        if not killed and done > total // 4:
            killed.append(done)
            shop.registry.stop()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            shop.registry.start()

    try:
        done = shop.publish(image, progress=kill, sleep=wait)
    finally:
        shop.registry.start()
    assert killed
    assert len(waits) >= 2
    assert done.bytes_sent > done.bytes_total
    assert shop.repository().manifest("one") is not None


def test_registry_killed_for_good_is_said_and_the_second_run_goes_on(shop: Shop, tmp_path: Path) -> None:
    image = shop.image(secrets.token_bytes(40_000_000), secrets.token_bytes(1_000_000))
    file = tmp_path / "layers"
    done_layers: set[str] = set()

    def kill(layer: str, done: int, total: int) -> None:
        if done == total:
            done_layers.add(layer)
        elif done_layers and shop.repository().http.host:
            subprocess.run(["docker", "kill", shop.registry.container], capture_output=True)

    try:
        with pytest.raises(Missing) as caught:
            shop.publish(image, progress=kill, packed_layers=PackedLayers(file), sleep=lambda seconds: None)
    finally:
        shop.registry.start()
    assert caught.value.code == "registry-unreachable"
    assert shop.repository().manifest("one") is None
    done = shop.publish(image, packed_layers=PackedLayers(file))
    assert len(done_layers) == 1
    assert done.bytes_sent < done.bytes_total - 900_000


def test_tls_by_the_nodes_name_through_a_tunnel(base: str, client: DockerClient, tmp_path: Path) -> None:
    for name in ("good", "other", "context"):
        (tmp_path / name).mkdir()
    ca, other = certificate(tmp_path / "good", "IP:10.0.0.11"), certificate(tmp_path / "other", "IP:10.0.0.11")
    with running(base, tls=tmp_path / "good") as registry:
        shop = Shop(client, registry, tmp_path / "context")
        image = shop.image(b"something")
        login, end = RegistryLogin(USER, registry.password), ("127.0.0.1", registry.port)

        def send(http: RegistryHttp) -> Published:
            with LocalImage.find(client, image) as found:
                return publish(found, Repository(http, "rocstack-worker", attempts=1), "one")

        try:
            done = send(RegistryHttp(INSIDE, login, ca, connect_to=end))
            assert done.reference.startswith(f"{INSIDE}/rocstack-worker@sha256:")
            assert {layer.media_type for layer in done.layers} == {ZSTD_LAYER}
            for http in (
                RegistryHttp(INSIDE, login, other, connect_to=end),
                RegistryHttp("10.0.0.12:5000", login, ca, connect_to=end),
            ):
                with pytest.raises(Missing) as caught:
                    send(http)
                assert caught.value.code == "registry-untrusted"
        finally:
            shop.remove(image)


def test_what_docker_login_wrote_is_used(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    host = shop.registry.host
    assert docker_login(host) is None
    subprocess.run(
        ["docker", "login", "--username", USER, "--password-stdin", host],
        input=shop.registry.password, text=True, check=True, capture_output=True,
    )  # fmt: skip
    assert docker_login(host) == RegistryLogin(USER, shop.registry.password)


def test_an_archive_loads_and_leaves_out_what_is_there(shop: Shop, tmp_path: Path) -> None:
    image = shop.image(secrets.token_bytes(500_000), b"top")
    name = f"{shop.name}:deployed"
    here = LoadTarget("here", ["sh", "-c"])
    with LocalImage.find(shop.client, image) as found, ImageArchive.make(found, name, folder=tmp_path) as archive:
        shop.remove(image)
        (done,) = load(archive, [here], attempts=1)
        assert (done.error, archive.id) == (None, image)
        assert done.bytes > 500_000
        assert client_inspect(name)["Id"] == image
        graph = frozenset(archive.diff_ids)
        if found._saved is None:
            (again,) = load(archive, [LoadTarget("here", ["sh", "-c"], have=graph)], attempts=1)
            assert again.error is None
            assert again.bytes < 20_000
