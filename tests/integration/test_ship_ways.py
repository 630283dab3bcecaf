"""The ways of shipping beside the control node's registry: archive, the site's registry and the racks'.

What is copied between registries is tested with two of them; whole deploys on two virtual nodes are slow.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from shipping_cluster import NAME, USER, Registry, ShippingCluster, start
from workspace import Built, Workspace, engine, inspect

from rocstack.node.engine import NodeError
from rocstack.node.registry_copy import copy_image
from rocstack.registry.local_image import LocalImage
from rocstack.registry.publish import publish

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def pair(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Registry, Registry]]:
    folder, found = tmp_path_factory.mktemp("registries"), []
    for name, port in (("head", 25431), ("rack", 25432)):
        ours = f"{built.workspace.prefix}-{name}"
        found.append(start(ours, built.control, folder / name, "127.0.0.1", port, "--network=host"))
    yield found[0], found[1]
    for registry in found:
        registry.node.remove()


@pytest.fixture(scope="module")
def published(client: docker.DockerClient, pair: tuple[Registry, Registry], tmp_path_factory: Any) -> Iterator[str]:
    """The digest of a small image in the first one."""
    folder = tmp_path_factory.mktemp("context")
    (folder / "file").write_bytes(secrets.token_bytes(300_000))
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY file /\n")
    image = engine("build", "--quiet", str(folder)).stdout.strip()
    with LocalImage.find(client, image) as found:
        made = publish(found, pair[0].repository(), "one")
    yield made.reference.partition("@")[2]
    engine("rmi", "--force", image, check=False)


def copy(pair: tuple[Registry, Registry], digest: str) -> dict[str, str]:
    return {"source": f"{pair[0].host}/{NAME}", "target": f"{pair[1].host}/{NAME}", "digest": digest, "tag": "t"}


def leftovers() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("rocstack-")}


def test_a_mirror_is_filled_once_byte_by_byte(built: Built, pair: tuple[Registry, Registry], published: str) -> None:
    before, control = leftovers(), inspect(built.control)["Id"]
    logins = [registry.row() for registry in pair]
    assert copy_image(copy(pair, published), logins, control)["changed"]
    assert not copy_image(copy(pair, published), logins, control)["changed"]
    data = pair[1].repository().manifest(published)
    assert data
    assert "sha256:" + hashlib.sha256(data).hexdigest() == published
    assert leftovers() == before


@pytest.mark.parametrize("wrong", [{"password": "not-the-password"}, {"ca": ""}])
def test_a_mirror_that_refuses_is_a_failure(
    built: Built, pair: tuple[Registry, Registry], published: str, wrong: dict[str, str]
) -> None:
    other = {**copy(pair, published), "target": f"{pair[1].host}/other"}
    with pytest.raises(NodeError, match=r"unauthorized|authentication required|certificate") as caught:
        copy_image(other, [pair[0].row(), pair[1].row(**wrong)], inspect(built.control)["Id"])
    assert pair[1].password not in caught.value.what


def test_an_image_that_was_never_published_is_a_failure(built: Built, pair: tuple[Registry, Registry]) -> None:
    with pytest.raises(NodeError, match="manifest unknown"):
        copy_image(copy(pair, "sha256:" + 64 * "0"), [each.row() for each in pair], inspect(built.control)["Id"])


def test_gzip_layers_are_refused(built: Built, pair: tuple[Registry, Registry]) -> None:
    """skopeo itself would pack so, and says nothing."""
    control = inspect(built.control)["Id"]
    where = pair[0].repository()
    config, layer = b'{"rootfs":{"type":"layers","diff_ids":[]}}', b"not looked into"
    for data in (config, layer):
        where.put_blob(data)

    def blob(kind: str, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = {
        "schemaVersion": 2,
        "mediaType": kind,
        "config": blob("config.v1+json", config),
        "layers": [blob("layer.v1.tar+gzip", layer)],
    }
    digest = where.put_manifest("gzip", json.dumps(manifest).encode(), kind)
    with pytest.raises(NodeError, match=r"tar\+gzip, not zstd"):
        copy_image(copy(pair, digest), [each.row() for each in pair], control)


# Whole deploys.


@pytest.fixture(scope="module")
def cloud(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShippingCluster]:
    workspace = Workspace(tmp_path_factory.mktemp("cloud"), built.workspace.prefix, made=built.workspace.made)
    done = workspace.run("local", "up", "--nodes", "2", "--json")
    assert done.code == 0, done.err
    cloud = ShippingCluster(workspace, built)
    yield cloud
    workspace.run("local", "down", "--all", "--json")
    for image in cloud.images:
        engine("rmi", "--force", image, check=False)


@pytest.fixture(autouse=True)
def _plain(request: pytest.FixtureRequest) -> Iterator[None]:
    """Settings are those of one test."""
    yield
    if "cloud" in request.fixturenames:
        (request.getfixturevalue("cloud").workspace.folder / "rocstack.yml").unlink(missing_ok=True)


@pytest.mark.slow
def test_archive_and_of_an_update_only_the_changed_layer(cloud: ShippingCluster) -> None:
    first = cloud.deploy(cloud.update(1000), "--method", "archive")
    assert first["published"] == {"method": "archive"}
    assert "rocstack-registry" not in cloud.services("n1")
    size = 3_000_000
    image = cloud.update(size)
    again = cloud.deploy(image, "--method", "archive")
    assert {row["node"] for row in again["shipped"]} == {"n1", "n2"}
    for row in again["shipped"]:
        assert size < row["bytes"] < 1.1 * size
        assert cloud.runs(row["node"]) == inspect(image)["Id"]


@pytest.mark.slow
def test_registry_of_a_rack_takes_the_load_off_the_control_node(cloud: ShippingCluster) -> None:
    """n2 has its rack's registry: both nodes pull from it, so one copy leaves n1, whatever their number."""
    size, mirror = 30_000_000, f"{cloud.address('n2')}:5000"
    inventory = cloud.inventory(rocstack_rack_registry=mirror)
    cloud.deploy(cloud.update(1000), "--method", "rack", inventory=inventory)  # base layers are everywhere now
    assert "rocstack-registry" in cloud.services("n2")
    image, before = cloud.update(size), cloud.sent("n1")
    done = cloud.deploy(image, "--method", "rack", inventory=inventory)
    left = cloud.sent("n1") - before
    assert done["published"]["sources"] == {"n1": mirror, "n2": mirror}
    assert size < left < 1.2 * size, "n1 sent more than one copy, or none"
    for node in ("n1", "n2"):
        assert cloud.runs(node) == inspect(image)["Id"]


@pytest.mark.slow
@pytest.mark.parametrize("passed_on", [True, False])
def test_registry_of_the_site(cloud: ShippingCluster, tmp_path: Path, passed_on: bool) -> None:
    """With the person's login, or with that of the nodes themselves."""
    network = cloud.network()
    address = cloud.address("n1").rpartition(".")[0] + (".201" if passed_on else ".202")
    name = f"{cloud.workspace.prefix}-site{address.rpartition('.')[2]}"
    site = start(name, cloud.built.control, tmp_path / "site", address, 5000, f"--network={network}", f"--ip={address}")
    try:
        login = base64.b64encode(f"{USER}:{site.password}".encode()).decode()
        config = json.dumps({"auths": {site.host: {"auth": login}}})
        (tmp_path / "docker").mkdir()
        (tmp_path / "docker/config.json").write_text(config)
        for node in ("n1", "n2"):
            cloud.write(node, f"/etc/docker/certs.d/{site.host}/ca.crt", site.ca.read_text())
            if not passed_on:
                cloud.write(node, "/root/.docker/config.json", config)
        cloud.settings(registry=f"{site.host}/ml", registry_login=passed_on)
        env = {"REQUESTS_CA_BUNDLE": str(site.ca), "DOCKER_CONFIG": str(tmp_path / "docker")}
        person = ShippingCluster(cloud.workspace.with_env(**env), cloud.built)
        image = cloud.update(1000)
        done = person.deploy(image)
        assert done["published"]["reference"].startswith(f"{site.host}/ml/rocstack-worker@sha256:")
        assert "rocstack-registry" not in cloud.services("n1")
        for node in ("n1", "n2"):
            assert cloud.runs(node) == inspect(image)["Id"]
        log = (cloud.workspace.folder / ".rocstack/deploy/ansible.log").read_text()
        assert site.password not in log + json.dumps(done)
    finally:
        site.node.remove()
