"""Images pulled by digest from the distribution's docker-registry, over TLS by a CA of our own and with a password."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from site_registry import USER, Registry, running
from workspace import engine

from rocstack.deploy.plan import tls
from rocstack.node import pull
from rocstack.node.engine import NodeError

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.geteuid() != 0, reason=f"only root may write {pull.CERTS}"),
]


@dataclass(frozen=True)
class Site:
    """`inside` is where the engine finds the registry as nodes do; on this machine's own address an engine takes any
    certificate."""

    registry: Registry
    inside: str
    ca: str

    def login(self, **changes: str) -> dict[str, str]:
        return {"address": self.inside, "user": USER, "password": self.registry.password, "ca": self.ca, **changes}

    def publish(self, folder: Path) -> dict[str, Any]:
        """An image that nobody else has, and that is no longer here: as an order names it."""
        (folder / "weights").write_bytes(secrets.token_bytes(300_000))
        with tarfile.open(folder / "image.tar", "w") as tar:  # not built: the builder's cache would keep the layer
            tar.add(folder / "weights", "weights")
        name = f"{self.registry.host}/{secrets.token_hex(4)}/rocstack-worker"
        ident = engine("import", str(folder / "image.tar"), name).stdout.strip()
        (folder / "config.json").write_text(json.dumps({"auths": {self.registry.host: {"auth": self._token()}}}))
        engine("--config", str(folder), "push", "--quiet", name)
        digests = json.loads(engine("image", "inspect", "--format", "{{json .RepoDigests}}", name).stdout)
        engine("rmi", "--force", ident)
        reference = digests[0].replace(self.registry.host, self.inside)
        return {"id": ident, "reference": reference, "name": f"{self.registry.container}/worker:{ident[7:19]}"}

    def _token(self) -> str:
        return base64.b64encode(f"{USER}:{self.registry.password}".encode()).decode()


@pytest.fixture(scope="module")
def site(base: str, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, network = tmp_path_factory.mktemp("tls"), f"{prefix}-pull"
    now = datetime.now(UTC)
    (ca, ca_key), key = tls.make_ca(now), tls.make_key()
    (folder / "server.key").write_text(key)

    def certify(*names: str) -> None:
        (folder / "server.pem").write_text(tls.certificate(ca, ca_key, key, names, now))

    certify("127.0.0.1")
    engine("network", "create", network)
    workspace = None
    try:
        with running(base, folder) as registry:
            engine("network", "connect", network, registry.container)
            networks = json.loads(engine("inspect", registry.container).stdout)[0]["NetworkSettings"]["Networks"]
            address = networks[network]["IPAddress"]
            certify(address, "127.0.0.1")
            registry.stop()
            registry.start()
            workspace = Path(pull.CERTS) / f"{address}:5000"
            yield Site(registry, f"{address}:5000", ca)
    finally:
        engine("network", "rm", network, check=False)
        if workspace:
            shutil.rmtree(workspace, ignore_errors=True)


@pytest.fixture
def image(site: Site, tmp_path: Path) -> Iterator[dict[str, Any]]:
    found = site.publish(tmp_path)
    shutil.rmtree(Path(pull.CERTS) / site.inside, ignore_errors=True)
    yield found
    engine("rmi", "--force", found["id"], check=False)


def test_pulled_checked_and_named(site: Site, image: dict[str, Any]) -> None:
    [done] = pull.pull([image], site.login())
    assert (done["changed"], done["attempts"], done["layers"]) == (True, 1, {"pulled": 1, "existing": 0})
    assert 300_000 <= done["bytes"] < 330_000
    assert engine("image", "inspect", "--format", "{{.Id}}", image["name"]).stdout.strip() == image["id"]
    [again] = pull.pull([image], site.login(password="not needed any more"))
    assert (again["changed"], again["attempts"], again["bytes"]) == (False, 0, 0)


@pytest.mark.parametrize(
    ("change", "kind"),
    [({"password": "wrong-word"}, "denied"), ({"user": ""}, "denied"), ({"ca": ""}, "certificate")],
)
def test_refused_at_once_and_said(site: Site, image: dict[str, Any], change: dict[str, str], kind: str) -> None:
    with pytest.raises(NodeError) as caught:
        pull.pull([image], site.login(**change), sleep=pytest.fail)
    assert caught.value.kind == kind
    assert site.inside in caught.value.cause
    assert "wrong-word" not in caught.value.what + caught.value.cause


def test_the_certificate_of_another_cluster(site: Site, image: dict[str, Any]) -> None:
    other, _ = tls.make_ca(datetime.now(UTC))
    with pytest.raises(NodeError) as caught:
        pull.pull([image], site.login(ca=other), sleep=pytest.fail)
    assert caught.value.kind == "certificate"
    pull.pull([image], site.login())


def test_not_the_image_that_was_meant(site: Site, image: dict[str, Any]) -> None:
    with pytest.raises(NodeError) as caught:
        pull.pull([{**image, "id": "sha256:" + "0" * 64}], site.login())
    assert caught.value.kind == "wrong-image"
    assert engine("image", "inspect", image["id"], check=False).returncode, "it stays nowhere"


def test_a_registry_that_is_away_for_a_while(site: Site, image: dict[str, Any]) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            site.registry.start()

    site.registry.stop()
    try:
        [done] = pull.pull([image], site.login(), sleep=wait)
    finally:
        site.registry.start()
    assert (done["attempts"], waits[:2]) == (len(waits) + 1, [1, 2])
    assert done["retried"]
