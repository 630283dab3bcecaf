"""Signatures beside cosign's: each checks what the other made, at a real registry with TLS and a password."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cosign import PASSWORD, Cosign, installed, logged_in
from site_registry import USER, Registry, certificate, running

from rocstack.registry.oci import as_json, config_blob, manifest
from rocstack.registry.registry_http import RegistryHttp, RegistryLogin
from rocstack.registry.repository import Repository
from rocstack.trust.envelope import PROVENANCE, SBOM, VERIFY_REPORT
from rocstack.trust.keys import PublicKey, SigningKey, write_pair
from rocstack.trust.signing import sign_image
from rocstack.trust.verification import Untrusted, verify

pytestmark = pytest.mark.engine

PREDICATES: dict[str, dict[str, Any]] = {
    PROVENANCE: {
        "buildDefinition": {"buildType": "urn:rocstack:build:v1", "externalParameters": {"stack": "debian-13"}},
        "runDetails": {"builder": {"id": "urn:rocstack:builder"}},
    },
    SBOM: {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": []},
    VERIFY_REPORT: {"level": 2, "ok": True},
}


@dataclass
class Place:
    """A repository with one image, a folder with keys, and cosign beside it."""

    repository: Repository
    digest: str
    folder: Path
    cosign: Cosign
    authority: Path

    @property
    def reference(self) -> str:
        return f"{self.repository.reference}@{self.digest}"

    def verify(self, *words: str, key: str = "ours.pub") -> str:
        """What cosign says of our signature or attestations."""
        offline = ["--insecure-ignore-tlog=true", f"--key={key}"]
        return self.cosign.must(*words, *offline, self.reference, authority=self.authority)


@pytest.fixture(scope="module")
def registry(base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Registry, Path]]:
    folder = tmp_path_factory.mktemp("tls")
    authority = certificate(folder, "IP:127.0.0.1")
    with running(base, tls=folder) as registry:
        yield registry, authority


@pytest.fixture(scope="module")
def cosign_image(base: str) -> Iterator[str]:
    with installed(base) as name:
        yield name


@pytest.fixture
def place(registry: tuple[Registry, Path], cosign_image: str, tmp_path: Path) -> Iterator[Place]:
    site, authority = registry
    http = RegistryHttp(site.host, RegistryLogin(USER, site.password), ca=authority)
    repository = Repository(http, f"hpc/{secrets.token_hex(4)}", attempts=2)
    config = as_json({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}})
    repository.put_blob(config)
    assert config_blob(config).size == len(config)
    digest = repository.put_manifest("week", manifest(config, []))
    folder = tmp_path / "keys"
    folder.mkdir()
    cosign = Cosign(cosign_image, folder, logged_in(tmp_path / "login", site, USER))
    yield Place(repository, digest, folder, cosign, authority)
    http.close()


def test_cosign_takes_what_we_signed(place: Place) -> None:
    ours, second = SigningKey.generate("ours"), SigningKey.generate("second")
    for key in (ours, second):
        write_pair(key, place.folder / f"{key.name}.key", PASSWORD.encode())
    sign_image(place.repository, place.digest, [ours, second], PREDICATES)

    for key in ("ours.pub", "second.pub"):
        (said,) = json.loads(place.verify("verify", key=key))
        assert said["critical"]["image"]["docker-manifest-digest"] == place.digest
        assert said["critical"]["identity"]["docker-reference"] == place.repository.reference
        assert set(said["optional"]["io.rocstack.attestations"].values()) == set(PREDICATES)
    for kind, name in ((PROVENANCE, "slsaprovenance1"), (SBOM, "cyclonedx"), (VERIFY_REPORT, VERIFY_REPORT)):
        envelope = json.loads(place.verify("verify-attestation", f"--type={name}"))
        said = json.loads(base64.b64decode(envelope["payload"]))
        assert said["predicateType"] == kind
    place.cosign.must("generate-key-pair", "--output-key-prefix=theirs")
    refused = place.cosign.run(
        "verify", "--insecure-ignore-tlog=true", "--key=theirs.pub", place.reference, authority=place.authority
    )
    assert refused.returncode != 0


def test_we_take_what_cosign_signed_and_no_other(place: Place) -> None:
    place.cosign.must("generate-key-pair", "--output-key-prefix=theirs")
    key = PublicKey.load(place.folder / "theirs.pub")
    with pytest.raises(Untrusted) as caught:
        verify(place.repository, place.digest, [key])
    assert caught.value.code == "image-unsigned"

    offline = ["--tlog-upload=false", "--yes", "--key=theirs.key"]
    place.cosign.must("sign", *offline, place.reference, authority=place.authority)
    for kind, name in ((PROVENANCE, "slsaprovenance1"), (SBOM, "cyclonedx"), (VERIFY_REPORT, VERIFY_REPORT)):
        (place.folder / "predicate.json").write_text(json.dumps(PREDICATES[kind]))
        predicate = [f"--type={name}", "--predicate=predicate.json"]
        place.cosign.must("attest", *offline, *predicate, place.reference, authority=place.authority)
    found = verify(place.repository, place.digest, [key], PREDICATES)
    assert found.signers == (key.fingerprint,)
    assert {each.predicate_type for each in found.attestations} == set(PREDICATES)
    assert found.predicates(VERIFY_REPORT) == [PREDICATES[VERIFY_REPORT]]

    with pytest.raises(Untrusted) as caught:
        verify(place.repository, place.digest, [SigningKey.generate().public])
    assert caught.value.code == "unknown-signer"


def test_one_key_serves_both(place: Place) -> None:
    """cosign signs by a key of ours, and we by one of cosign's; we sign an image again that cosign signed."""
    write_pair(SigningKey.generate(), place.folder / "ours.key", PASSWORD.encode())
    offline = ["--tlog-upload=false", "--yes", "--key=ours.key"]
    place.cosign.must("sign", *offline, place.reference, authority=place.authority)
    ours = PublicKey.load(place.folder / "ours.pub")
    assert verify(place.repository, place.digest, [ours]).signers == (ours.fingerprint,)

    place.cosign.must("generate-key-pair", "--output-key-prefix=theirs")
    theirs = SigningKey.load(place.folder / "theirs.key", PASSWORD.encode())
    sign_image(place.repository, place.digest, [theirs], PREDICATES)
    found = verify(place.repository, place.digest, [ours, theirs.public], PREDICATES)
    assert found.signers == (ours.fingerprint, theirs.public.fingerprint)
    place.verify("verify")
    place.verify("verify", key="theirs.pub")

    mark = base64.b64decode(place.cosign.must("sign-blob", *offline, "ours.pub"))
    assert ours.signed((place.folder / "ours.pub").read_bytes(), mark)


def test_signing_again_changes_nothing_and_a_new_report_takes_the_place_of_the_old(place: Place) -> None:
    key = SigningKey.generate()
    kept = {PROVENANCE: PREDICATES[PROVENANCE], SBOM: PREDICATES[SBOM]}
    sign_image(place.repository, place.digest, [key], PREDICATES)
    names = [f"sha256-{place.digest[7:]}.{kind}" for kind in ("att", "sig")]
    before = [place.repository.manifest(name) for name in names]
    sign_image(place.repository, place.digest, [key], PREDICATES)
    assert [place.repository.manifest(name) for name in names] == before

    sign_image(place.repository, place.digest, [key], {VERIFY_REPORT: {"level": 4, "ok": True}})
    found = verify(place.repository, place.digest, [key.public], PREDICATES)
    assert found.predicates(VERIFY_REPORT) == [{"level": 4, "ok": True}]
    assert {each.predicate_type: each.predicate for each in found.attestations if each.predicate_type in kept} == kept
    assert [place.repository.manifest(name) for name in names] != before
