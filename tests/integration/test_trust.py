"""Deploy takes what a trusted key signed, and nothing else: a real registry, a real cluster, signatures that change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import docker
import pytest
from cosign import logged_in
from deployed_cluster import SETTINGS, DeployedCluster
from site_registry import USER, Registry, engine, running
from workspace import Outcome

from rocstack.registry.layers import sha256
from rocstack.registry.local_image import LocalImage
from rocstack.registry.publish import publish
from rocstack.registry.registry_http import RegistryHttp, RegistryLogin
from rocstack.registry.repository import Repository
from rocstack.trust.attached import tag, write
from rocstack.trust.envelope import PROVENANCE, SBOM, VERIFY_REPORT
from rocstack.trust.keys import SigningKey
from rocstack.trust.signing import sign_image

pytestmark = pytest.mark.engine

ROLES = ("worker", "control")
OURS, THEIRS = SigningKey.generate("ours"), SigningKey.generate("theirs")


@dataclass
class Site:
    """A cluster, and a registry in which its images are signed."""

    deployed: DeployedCluster
    registry: Registry
    digests: dict[str, str]

    @contextmanager
    def repository(self, role: str) -> Iterator[Repository]:
        http = RegistryHttp(self.registry.host, RegistryLogin(USER, self.registry.password), insecure=True)
        yield Repository(http, f"hpc/rocstack-{role}", attempts=3)
        http.close()

    def sign(self, *keys: SigningKey, report: dict[str, Any] | None = None) -> None:
        """Anew, whatever was signed."""
        for role in ROLES:
            with self.repository(role) as repository:
                for kind in ("sig", "att"):
                    write(repository, self.digests[role], kind, [])
                said = {PROVENANCE: {"buildDefinition": {}}, SBOM: {"bomFormat": "CycloneDX"}}
                said |= {VERIFY_REPORT: report} if report else {}
                sign_image(repository, self.digests[role], keys, said)

    def policy(self, *keys: SigningKey, **more: Any) -> None:
        """As the person's rocstack.yml has it; without keys it has none."""
        folder = self.deployed.workspace.folder
        for key in (OURS, THEIRS):
            (folder / f"{key.public.name}.pub").write_bytes(key.public.pem)
        trust = {"keys": [f"{key.public.name}.pub" for key in keys], **more}
        text = f"push: {self.registry.host}/hpc\n" if keys else ""
        (folder / "rocstack.yml").write_text(SETTINGS + text + f"trust: {json.dumps(trust)}\n")

    def run(self, *words: str) -> Outcome:
        return self.deployed.workspace.run(*words, "--json")

    def refusal(self, *words: str) -> str:
        done = self.run("deploy", *words)
        assert done.code == 1, done.out + done.err
        return str(done.json["error"]["code"])


@pytest.fixture(scope="module")
def site(base: str, deployed: DeployedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The cluster and its settings are as before afterwards."""
    workspace, client = deployed.workspace, docker.from_env()
    before, settings = dict(workspace.env), (workspace.folder / "rocstack.yml").read_text()
    with running(base) as registry:
        workspace.env["DOCKER_CONFIG"] = str(logged_in(tmp_path_factory.mktemp("docker"), registry, USER))
        site = Site(deployed, registry, {})
        try:
            for role in ROLES:
                image = client.images.get(workspace.reference(role))
                with site.repository(role) as repository, LocalImage.find(client, str(image.id)) as source:
                    site.digests[role] = sha256(publish(source, repository, "2026.48").manifest)
            site.sign(OURS)
            yield site
        finally:
            site.policy(replaces=[OURS.public.fingerprint])
            assert site.run("deploy").code == 0
            workspace.env.clear()
            workspace.env.update(before)
            (workspace.folder / "rocstack.yml").write_text(settings)
            client.close()


@pytest.fixture
def ours(site: Site) -> Iterator[Site]:
    """Signed by our key, which is trusted."""
    site.policy(OURS)
    yield site
    site.sign(OURS)


def test_the_cluster_remembers_whose_images_it_takes(ours: Site) -> None:
    done = ours.run("deploy")
    assert done.code == 0, done.out + done.err
    assert ours.run("status").json["release"]["images"]["signers"] == [OURS.public.fingerprint]
    assert f"signed by {OURS.public.fingerprint}" in ours.deployed.workspace.run("status").out
    ours.policy()  # somebody else's rocstack.yml
    plan = ours.run("deploy", "--plan")
    assert plan.code == 1
    assert OURS.public.fingerprint in plan.json["refused"]
    ours.policy(OURS)
    assert ours.run("deploy", "--plan").code == 0


def test_the_control_node_checks_again(ours: Site) -> None:
    """By its own memory and its own openssl, whatever this machine found; and nothing is changed before it has."""
    assert ours.run("deploy").code == 0
    node, theirs = ours.deployed.workspace.nodes()["n1"], f"echo {THEIRS.public.fingerprint} >/etc/rocstack/trust"
    away, back = "mv /usr/bin/openssl /usr/bin/openssl.away", "mv /usr/bin/openssl.away /usr/bin/openssl"
    for spoil, mend, code, why in (
        (f": >/etc/rocstack/trust; {away}", back, "control-without-openssl", "no openssl"),
        (theirs, ":", "control-knows-other-keys", THEIRS.public.fingerprint),
    ):
        engine("exec", node, "sh", "-c", spoil)
        try:
            done = ours.run("deploy")
        finally:
            engine("exec", node, "sh", "-c", mend)
        assert (done.code, done.json["error"]["code"]) == (1, code), done.out + done.err
        assert why in done.json["error"]["what"]
    there = engine("exec", node, "cat", "/etc/rocstack/trust")
    assert there.split() == [THEIRS.public.fingerprint]  # the policy, which was to be written, wasn't
    engine("exec", node, "rm", "/etc/rocstack/trust")
    done = ours.run("deploy")
    assert done.code == 0, done.err
    assert engine("exec", node, "cat", "/etc/rocstack/trust").split() == [OURS.public.fingerprint]


def test_the_history_says_who_signed_each_line(ours: Site) -> None:
    folder, node = ours.deployed.workspace.folder, ours.deployed.workspace.nodes()["n1"]
    for name, text in (("theirs.key", THEIRS.encrypted(b"secret")), ("password", "secret\n")):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(text)
    ours.policy(OURS, operators=["theirs.pub"], sign="theirs.key", password_file="password")
    assert ours.run("deploy").code == 0
    engine("exec", node, "rm", "/etc/rocstack/trust")
    done = ours.run("deploy")
    assert done.code == 0, done.err
    read = ours.run("status", "--history")
    assert (read.code, read.json["deploys"][-1]["signed"]) == (0, THEIRS.public.fingerprint), read.out
    assert read.json["journal"] == THEIRS.public.fingerprint
    for file, change in (
        ("history.jsonl", '$s/"outcome": "done"/"outcome": "failed"/'),
        ("deploy.json", 's/"healthy": true/"healthy": false/'),
    ):
        path = f"/var/lib/rocstack/{file}"
        engine("exec", node, "cp", path, "/root/kept")
        try:
            engine("exec", node, "sed", "-i", change, path)
            read = ours.run("status", "--history")
        finally:
            engine("exec", node, "cp", "/root/kept", path)
        found = read.json["journal"] if file == "deploy.json" else read.json["deploys"][-1]["signed"]
        assert (read.code, found) == (1, "changed"), read.out


def test_another_signer_is_refused(ours: Site) -> None:
    ours.sign(THEIRS)
    assert ours.refusal() == ours.refusal("--plan") == "unknown-signer"
    ours.policy(OURS, THEIRS)
    assert ours.run("deploy", "--plan").code == 0


def test_a_signature_that_is_gone_is_no_registry_that_is_away(ours: Site) -> None:
    assert ours.run("deploy", "--plan").code == 0  # what is proved is kept
    for role in ROLES:
        with ours.repository(role) as repository:
            write(repository, ours.digests[role], "sig", [])
    assert ours.refusal("--plan") in ("image-unsigned", "signature-broken")
    ours.sign(OURS)
    ours.registry.stop()
    try:
        done = ours.run("deploy", "--plan")
        assert done.code == 0, done.err
        assert "signatures that were kept" in done.err
    finally:
        ours.registry.start()


def test_an_attestation_that_was_swapped_is_refused(ours: Site) -> None:
    with ours.repository("worker") as repository, ours.repository("control") as other:
        theirs = other.manifest(tag(ours.digests["control"], "att"))
        assert theirs
        for blob in json.loads(theirs)["layers"]:
            repository.put_blob(other.blob(blob["digest"]) or b"")
        repository.put_blob(other.blob(json.loads(theirs)["config"]["digest"]) or b"")
        repository.put_manifest(tag(ours.digests["worker"], "att"), theirs)
    assert ours.refusal("--plan") in ("attestation-absent", "attestation-of-another")


def test_an_image_that_was_never_released_is_refused(ours: Site) -> None:
    own = ours.deployed.image("unreleased")
    assert ours.refusal("--image", own) == "image-unreleased"
    assert own not in ours.deployed.workspace.run("status").out


def test_only_signed_reports_prove_a_level(ours: Site) -> None:
    workspace, client = ours.deployed.workspace, docker.from_env()
    ids = {role: str(client.images.get(workspace.reference(role)).id) for role in ROLES}
    client.close()
    assert ours.run("deploy", "--plan", "--require", "1").code == 1
    said = {"report": "r", "when": "2026-11-26T10:00:00Z", "level": 1, "virtual": True}
    ours.sign(OURS, report={**said, "image": ids["worker"], "controlImage": ids["control"]})
    ours.policy(OURS, level=1)
    assert ours.run("deploy", "--plan").code == 0
    assert ours.run("deploy", "--plan", "--require", "2").code == 1
    ours.sign(OURS, report={**said, "image": ids["control"], "controlImage": ids["control"]})
    assert ours.run("deploy", "--plan", "--require", "1").code == 1
