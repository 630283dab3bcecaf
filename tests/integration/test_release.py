"""A release at a real registry: it is tagged as a whole or not at all, it goes on where it broke off, and whatever
somebody does to it afterwards is refused by name."""

from __future__ import annotations

import base64
import json
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import broadcom_standin
import docker
import pytest
from cosign import logged_in
from released import PASSWORD, Releases, entry, releases
from site_registry import USER, engine
from workspace import Built, Workspace

from rocstack.registry.layers import sha256
from rocstack.registry.oci import as_json, config_blob, manifest, parse_manifest
from rocstack.registry.repository import Repository
from rocstack.release import catalog
from rocstack.trust import attached
from rocstack.trust.attached import Attached
from rocstack.trust.envelope import SBOM
from rocstack.trust.keys import SigningKey
from rocstack.trust.signing import attest, sign, sign_image

pytestmark = pytest.mark.engine

TAG = "2026.01"
CONTROL = entry(roles=["control"], default=True)


@pytest.fixture(scope="module")
def place(base: str, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    """One release of one image, which tests change and restore."""
    folder = tmp_path_factory.mktemp("release")
    (folder / "work").mkdir()
    here = Workspace(folder / "work", built.workspace.prefix, made=built.workspace.made)
    with releases(base, built, here, folder) as place:
        place.write(CONTROL)
        place.must("--tag", TAG)
        yield place


@pytest.fixture
def fresh(place: Releases, tmp_path: Path) -> Releases:
    """Another folder that releases below its own prefix of the same registry."""
    folder = tmp_path / "work"
    subprocess.run(["cp", "-a", str(place.here.folder), str(folder)], check=True)
    subprocess.run(["rm", "-rf", str(folder / ".rocstack")], check=True)
    here = Workspace(folder, place.here.prefix, env=place.here.env, made=place.here.made)
    return Releases(here, place.registry, place.authority, f"t{secrets.token_hex(3)}")


def released(place: Releases) -> dict[str, Any]:
    """The image in release.json."""
    found: dict[str, Any] = json.loads((place.here.folder / ".rocstack/release/release.json").read_text())["images"][0]
    return found


def test_a_release_is_tagged_signed_and_proved(place: Releases) -> None:
    image = released(place)
    assert image["tags"] == [f"debian-13-tcp-{TAG}", TAG]
    with place.repository("control") as repository:
        for tag in image["tags"]:
            assert sha256(repository.manifest(tag) or b"") == image["digest"]
    found = place.verify(TAG, "--layers")
    assert (found["ok"], found["tag"], len(found["images"])) == (True, TAG, 1)
    assert found["images"][0]["signers"] == [place.public.fingerprint]
    said = place.here.folder / ".rocstack/release/release.json"
    mark = base64.b64decode(said.with_name("release.json.release.sig").read_text())
    assert place.public.signed(said.read_bytes(), mark)
    notes = said.with_name("notes.md").read_text()
    assert image["digest"] in notes
    assert "not looked up" in notes
    assert PASSWORD not in notes + said.read_text()


def test_a_node_pulls_what_was_released(place: Releases) -> None:
    image = released(place)
    client = docker.from_env()
    auth = {"username": USER, "password": place.registry.password}
    pulled = client.images.pull(image["repository"], tag=image["digest"], auth_config=auth)
    assert pulled.id == image["id"]
    assert pulled.labels["io.rocstack.lock"] == image["lock"]
    client.images.remove(f"{image['repository']}@{image['digest']}", noprune=True)
    client.close()


def test_the_attested_sbom_has_the_packages_of_the_image(place: Releases) -> None:
    image = released(place)
    with place.repository("control") as repository:
        found = attached.read(repository, image["digest"], "att") or ()
    said = [json.loads(base64.b64decode(json.loads(each.data or b"")["payload"])) for each in found]
    (document,) = [each["predicate"] for each in said if each["predicateType"] == SBOM]
    listing = engine(
        "run", "--rm", "--entrypoint=dpkg-query", image["id"], "--show", "--showformat=${Package} ${Version}\\n"
    )
    packages = dict(line.split() for line in listing.splitlines())
    listed = {each["name"]: each["version"] for each in document["components"] if "pkg:deb/" in each["purl"]}
    assert listed == packages
    assert document["specVersion"] == "1.6"
    assert document["metadata"]["component"]["version"] == image["digest"]


def test_an_unchanged_release_does_nothing(place: Releases) -> None:
    everything = "find . -type f -not -path '*/_uploads/*' | sort | xargs sha256sum"
    before = place.inside(everything)
    done = place.run()
    assert done.code == 0, done.err
    assert f"nothing changed since release {TAG}" in done.out
    assert "building" not in done.err
    assert place.inside(everything) == before


# What somebody does who may write to the registry, or reaches its storage. The code says what was noticed.
Change = Callable[[Releases, Repository, dict[str, Any]], object]


def by_storage(script: str, part: str = "") -> Change:
    """`part` names the blob, whose file is $0."""

    def change(place: Releases, repository: Repository, image: dict[str, Any]) -> None:
        digest = {"": image["digest"], "layer": largest(repository, image)}.get(part) or blob_of(
            repository, image["digest"], part
        )
        place.with_storage(lambda: place.inside(script.replace("$0", place.blob(digest))))

    return change


def largest(repository: Repository, image: dict[str, Any]) -> str:
    layers = parse_manifest(repository.manifest(image["digest"]) or b"")[1]
    return max(layers, key=lambda layer: layer.size).digest


def blob_of(repository: Repository, digest: str, kind: Any) -> str:
    return (attached.read(repository, digest, kind) or ())[0].digest


FLIP = "printf x | dd of=$0 bs=1 seek=100 conv=notrunc 2>/dev/null"


def moved(place: Releases, repository: Repository, image: dict[str, Any]) -> None:
    config = as_json({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}})
    repository.put_blob(config)
    assert config_blob(config).size
    repository.put_manifest(TAG, manifest(config, []))


def untagged(place: Releases, repository: Repository, image: dict[str, Any]) -> None:
    place.with_storage(lambda: place.inside(f"rm -r {place.tag_folder('control', TAG)}"))


def without(kind: attached.Kind) -> Change:
    def change(place: Releases, repository: Repository, image: dict[str, Any]) -> None:
        folder = place.tag_folder("control", attached.tag(image["digest"], kind))
        place.with_storage(lambda: place.inside(f"rm -r {folder}"))

    return change


def files(kind: attached.Kind, make: Callable[[tuple[Attached, ...], Releases, str, str], list[Attached]]) -> Change:
    """Writes other signatures or attestations, by the protocol."""

    def change(place: Releases, repository: Repository, image: dict[str, Any]) -> None:
        there = attached.read(repository, image["digest"], kind) or ()
        attached.write(repository, image["digest"], kind, make(there, place, image["digest"], repository.reference))

    return change


def other_list(place: Releases, repository: Repository, image: dict[str, Any]) -> None:
    """A list of releases that another key signed."""
    theirs = SigningKey.generate()
    with place.repository("release") as listing:
        found = catalog.find(listing, TAG, [place.public])
        assert found
        _, data = catalog.publish(listing, found.release.model_copy(update={"created": "then"}), [theirs])
        listing.put_manifest(TAG, data)


def older_list(place: Releases, repository: Repository, image: dict[str, Any]) -> None:
    """A release's tag is put on another release of ours."""
    with place.repository("release") as listing:
        found = catalog.find(listing, TAG, [place.public])
        assert found
        older = found.release.model_copy(update={"tag": "2025.50"})
        _, data = catalog.publish(listing, older, [place.key])
        listing.put_manifest(TAG, data)


def signed_again(place: Releases, repository: Repository, image: dict[str, Any]) -> None:
    theirs = SigningKey.generate()
    attached.write(repository, image["digest"], "sig", [])
    sign_image(repository, image["digest"], [theirs], {})


THEIRS = SigningKey.generate()
TAMPERED: dict[str, tuple[str, Change]] = {
    "a byte of a layer": ("layer-differs", by_storage(FLIP, "layer")),
    "a layer cut off": ("layer-differs", by_storage("truncate -s 1000 $0", "layer")),
    "a layer gone": ("layer-absent", by_storage("rm $0", "layer")),
    "a byte of the manifest": ("digest-differs", by_storage(FLIP)),
    "a tag moved": ("tag-moved", moved),
    "a tag gone": ("tag-moved", untagged),
    "the signature gone": ("image-unsigned", without("sig")),
    "a byte of the signed payload": ("digest-differs", by_storage(FLIP, "sig")),
    "another payload under our signature": (
        "signature-broken",
        files("sig", lambda old, p, d, r: [Attached.make(old[0].media_type, b'{"a":1}', old[0].annotations)]),
    ),
    "signed by another key": ("unknown-signer", files("sig", lambda old, p, d, r: [sign(d, r, THEIRS)])),
    "all of it signed again by another key": ("unknown-signer", signed_again),
    "the signature of another image": (
        "signature-of-another",
        files("sig", lambda old, p, d, r: [sign(sha256(b"other"), r, p.key)]),
    ),
    "a byte of an attestation": ("digest-differs", by_storage(FLIP, "att")),
    "the attestations gone": ("attestation-absent", without("att")),
    "the SBOM gone": (
        "attestation-absent",
        files("att", lambda old, p, d, r: [each for each in old if each.annotations["predicateType"] != SBOM]),
    ),
    "an SBOM of another key in place of ours": (
        "attestation-absent",
        files("att", lambda old, p, d, r: [old[0], attest(d, r, SBOM, {"components": []}, [THEIRS])]),
    ),
    "an attestation of another key beside ours": (
        "unlisted-file",
        files("att", lambda old, p, d, r: [*old, attest(d, r, SBOM, {"components": []}, [THEIRS])]),
    ),
    "an attestation of ours of another image": (
        "attestation-of-another",
        files("att", lambda old, p, d, r: [*old, attest(sha256(b"other"), r, SBOM, {}, [p.key])]),
    ),
    "an attestation of an unknown type": (
        "attestation-unknown-type",
        files("att", lambda old, p, d, r: [*old, attest(d, r, "https://example.com/new", {}, [p.key])]),
    ),
    "a file that nothing lists": (
        "unlisted-file",
        files("att", lambda old, p, d, r: [*old, Attached.make("text/plain", b"hello", {"predicateType": "x"})]),
    ),
    "the list of another key": ("unknown-signer", other_list),
    "another release under this tag": ("release-of-another", older_list),
}


SHORT = {  # one of each kind; the others are slow only for their number
    "a byte of a layer", "a byte of the manifest", "a tag moved", "the signature gone", "signed by another key",
    "the SBOM gone", "a file that nothing lists", "the list of another key",
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in SHORT else pytest.mark.slow) for case in TAMPERED]
)
def test_what_is_done_to_a_release_is_refused_by_name(place: Releases, case: str) -> None:
    code, change = TAMPERED[case]
    with place.restored():
        with place.repository("control") as repository:
            change(place, repository, released(place))
        found = place.verify(TAG, "--layers")
        error = found.get("error") or found["images"][0]["error"]
        assert error["code"] == code, error
        assert not found.get("ok")


def test_what_is_refused_is_not_promoted(place: Releases) -> None:
    with place.restored():
        with place.repository("control") as repository:
            without("att")(place, repository, released(place))
        done = place.run("promote", TAG, "--json")
        assert (done.code, done.json["error"]["code"]) == (1, "attestation-absent")
        for role in ("release", "control"):
            with place.repository(role) as repository:
                assert "stable" not in repository.tags()
    assert place.verify(TAG)["ok"]


def test_another_key_trusts_nothing_of_it(place: Releases, tmp_path: Path) -> None:
    place.here.run("release", "keygen", str(tmp_path / "other.key"), "--password-file", "password")
    found = place.verify(TAG, "--key", str(tmp_path / "other.pub"))
    assert found["error"]["code"] == "unknown-signer"
    done = place.run("--tag", TAG, "--key", str(tmp_path / "other.key"), "--json")
    assert (done.code, done.json["error"]["code"]) == (1, "release-exists")
    assert "building" not in done.err
    assert place.verify(TAG)["ok"]


def test_a_signature_that_was_removed_is_made_again(place: Releases) -> None:
    with place.restored():
        with place.repository("control") as repository:
            without("sig")(place, repository, released(place))
        done = place.run("--tag", TAG, "--json")
        assert done.code == 0, done.err
        assert "is made again" in done.err
        assert place.verify(TAG, "--layers")["ok"]


def test_promoted_it_has_a_second_name(place: Releases) -> None:
    with place.restored():
        place.must("promote", TAG)
        found = place.verify("stable")
        assert (found["ok"], found["tag"], found["promoted"]) == (True, TAG, "stable")
        assert place.must("promote", TAG)["changed"] is False
        again = place.must("--tag", TAG)
        assert (again["changed"], again["stable"]) == (False, TAG)
        with place.repository("control") as repository:
            assert sha256(repository.manifest("stable") or b"") == released(place)["digest"]


# What goes wrong on the way


def test_a_failure_in_the_middle_tags_nothing_and_the_next_run_goes_on(fresh: Releases) -> None:
    wrong = json.loads((fresh.here.folder / "debian-13.lock").read_text())
    for package in wrong["packages"]:
        package["version"] = "0:1" if package["name"] == "munge" else package["version"]
    (fresh.here.folder / "wrong.lock").write_text(json.dumps(wrong))
    good = {**CONTROL, "nic": "tcp"}
    fresh.write(good, entry("mellanox", roles=["control"], lock="wrong.lock"))
    done = fresh.run("--tag", "w1", "--json")
    assert (done.code, done.json["error"]["code"]) == (1, "release-incomplete")
    assert re.fullmatch(r"release\.yml:[0-9]+", done.json["error"]["where"])
    with fresh.repository("control") as repository:
        signed = [tag for tag in repository.tags() if tag.startswith("i-")]
        assert len(signed) == 1
        assert not [tag for tag in repository.tags() if tag.endswith("w1")]
        before = repository.manifest(signed[0])
    with fresh.repository("release") as listing:
        assert listing.tags() == []

    fresh.write(good, entry("mellanox", roles=["control"]))
    done = fresh.run("--tag", "w1", "--json")
    assert done.code == 0, done.err
    assert "debian-13-mellanox (1 of 1)" in done.err
    assert sha256(before or b"") in {image["digest"] for image in done.json["images"]}
    assert fresh.verify("w1")["ok"]


def test_a_registry_that_dies_while_it_gets_an_image(fresh: Releases) -> None:
    fresh.write(CONTROL)
    here = fresh.here.with_env(ROCSTACK_ATTEMPTS="1")
    running = here.start("release", "--tag", "w1", "--json")
    assert running.stderr
    try:
        for line in running.stderr:
            if line.startswith("pushing "):
                fresh.registry.stop()
                break
        out, _ = running.communicate(timeout=120)
    finally:
        running.kill()
        fresh.registry.start()
    assert running.returncode in (1, 3), out
    assert json.loads(out)["error"]["code"] in ("registry-unreachable", "release-incomplete")
    assert fresh.must("--tag", "w1")["changed"]
    assert fresh.verify("w1", "--layers")["ok"]


def test_without_a_login_nothing_is_built(fresh: Releases) -> None:
    fresh.write(CONTROL)
    empty = fresh.here.folder / "login"
    logged_in(empty, fresh.registry, "nobody")
    done = fresh.here.with_env(DOCKER_CONFIG=str(empty)).run("release", "--tag", "w1", "--json")
    assert (done.code, done.json["error"]["code"]) == (3, "registry-denied")
    assert "building" not in done.err
    built = fresh.here.with_env(DOCKER_CONFIG=str(empty)).run("release", "--build-only", "--json")
    assert (built.code, built.json["changed"], len(built.json["built"])) == (0, False, 1), built.err


@pytest.mark.slow
def test_another_image_under_the_same_tag_is_refused_before_any_tag(fresh: Releases) -> None:
    fresh.write(CONTROL)
    first = fresh.must("--tag", "w1")["images"][0]["digest"]
    lock = fresh.here.folder / "debian-13.lock"
    changed = json.loads(lock.read_text())
    changed["packages"] = [each for each in changed["packages"] if each["name"] != "ucx-utils"]
    lock.write_text(json.dumps(changed))  # another input, whose image has the same versions
    done = fresh.run("--tag", "w1", "--json")
    if done.code == 0:
        assert done.json["images"][0]["digest"] == first
        return
    assert done.json["error"]["code"] == "release-exists"
    assert fresh.verify("w1")["images"][0]["reference"].endswith(first)
    assert fresh.must("--tag", "w1", "--move-tags")["images"][0]["digest"] != first
    assert fresh.verify("w1")["ok"]


@pytest.mark.slow
def test_the_whole_matrix(fresh: Releases, base: str) -> None:
    """Three NICs, two roles; Broadcom's library for two releases of its driver in one image."""
    drivers = fresh.here.folder / "drivers"
    versions = {6: "900.0.56.1", 7: "901.0.56.1"}
    for abi, version in versions.items():
        broadcom_standin.make_tarball(drivers, version, abi, source=broadcom_standin.fetch_source(base))
    named = list(versions.values())
    broadcom = entry("broadcom", name="rocm6.1-broadcom", nic_source="drivers", nic_releases=named)
    fresh.write(entry(default=True), entry("mellanox"), broadcom)
    made = fresh.must("--tag", "w1")
    assert [(image["variant"], image["role"]) for image in made["images"]] == [
        (variant, role)
        for variant in ("debian-13-tcp", "debian-13-mellanox", "rocm6.1-broadcom")
        for role in ("worker", "control")
    ]
    assert fresh.must()["changed"] is False
    assert fresh.verify("w1", "--layers")["ok"]
    client = docker.from_env()
    auth = {"username": USER, "password": fresh.registry.password}
    for image in made["images"]:
        pulled = client.images.pull(image["repository"], tag=image["digest"], auth_config=auth)
        assert pulled.id == image["id"]
        if (image["variant"], image["role"]) == ("rocm6.1-broadcom", "worker"):
            said = json.dumps(pulled.labels)
            assert all(version in said for version in named), said
        client.images.remove(f"{image['repository']}@{image['digest']}", noprune=True)
    client.close()
    with fresh.repository("worker") as repository:
        files_ = attached.read(repository, made["images"][4]["digest"], "att") or ()
        said = [json.loads(base64.b64decode(json.loads(each.data or b"")["payload"])) for each in files_]
        (document,) = [each["predicate"] for each in said if each["predicateType"] == SBOM]
        assert {each["version"] for each in document["components"] if each["name"] == "bnxt_re"} == set(named)
        by_storage(FLIP, "layer")(fresh, repository, made["images"][0])
    found = fresh.verify("w1", "--layers")
    refused = [(each["image"], each["error"]["code"]) for each in found["images"] if not each["ok"]]
    assert ("debian-13-tcp worker", "layer-differs") in refused
