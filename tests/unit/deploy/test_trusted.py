"""What the site's trust policy accepts, judged against a registry in memory, or by what was kept while that is away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from signed_image import Shelf, released

from rocstack.base.errors import Missing, RocstackError
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.read.trusted import TrustCheck, Trusted
from rocstack.node.engine import NodeError
from rocstack.node.trust import judge
from rocstack.registry.layers import sha256
from rocstack.registry.oci import MANIFEST, as_json
from rocstack.trust.envelope import PROVENANCE, SBOM, VERIFY_REPORT
from rocstack.trust.keys import SigningKey
from rocstack.trust.verification import Untrusted

OURS, THEIRS = (SigningKey.generate(name) for name in ("ours.pub", "theirs.pub"))
CONTENT = "5" * 64
Predicates = dict[str, dict[str, Any]]
PREDICATES: Predicates = {PROVENANCE: {"buildDefinition": {}}, SBOM: {"bomFormat": "CycloneDX"}}


@dataclass
class Site:
    """A repository for each role. `away` is what each request ends with."""

    shelves: dict[str, Shelf]
    tags: dict[str, dict[str, str]]  # role -> tag -> digest
    away: Exception | None = None

    def repository(self, role: str) -> Any:
        site, shelf = self, self.shelves[role]

        class Repository:
            reference = f"registry.example/hpc/rocstack-{role}"

            def tags(self) -> list[str]:
                return [*site.tags[role], "sha256-aa.sig"]

            def manifest(self, name: str, *, denied_is_absent: bool = False) -> bytes | None:
                if site.away:
                    raise site.away
                return shelf.manifest(site.tags[role].get(name, name))

            def blob(self, digest: str) -> bytes | None:
                return shelf.blob(digest)

        return Repository()


def image(role: str) -> Image:
    labels = {"io.rocstack.role": role, "io.rocstack.content": CONTENT}
    return Image(role, sha256(role.encode()), f"rocstack/{role}", labels)


def manifest(of: Image) -> bytes:
    config = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": of.id, "size": 2}
    return as_json({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": []})


IMAGES = {role: image(role) for role in ("worker", "control")}
DIGESTS = {role: sha256(manifest(each)) for role, each in IMAGES.items()}


def site(key: SigningKey = OURS, predicates: Predicates | None = None, control_key: SigningKey | None = None) -> Site:
    keys = {"worker": key, "control": control_key or key}
    said = PREDICATES if predicates is None else predicates
    shelves = {role: released([keys[role]], said, DIGESTS[role]) for role in IMAGES}
    for role, shelf in shelves.items():
        shelf.manifests[DIGESTS[role]] = manifest(IMAGES[role])
    return Site(shelves, {role: {"2026.48": DIGESTS[role]} for role in IMAGES})


def check(where: Site, folder: Path, **more: Any) -> tuple[Trusted, list[str]]:
    values: dict[str, Any] = {"keys": (OURS.public,), "require": ("provenance", "sbom"), "level": None, "replaces": ()}
    said: list[str] = []
    policy = TrustCheck(**{**values, "repository": where.repository, **more}, folder=folder)
    return policy(IMAGES, said.append), said


def code(where: Site, folder: Path, **more: Any) -> str:
    with pytest.raises(RocstackError) as caught:
        check(where, folder, **more)
    return caught.value.code


def test_released_images_are_accepted(tmp_path: Path) -> None:
    found, said = check(site(), tmp_path)
    assert (found.signers, found.proved) == ((OURS.public.fingerprint,), ())
    assert not said
    assert {file.stem for file in tmp_path.iterdir()} == {each.id[7:] for each in IMAGES.values()}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_the_control_node_comes_to_the_same(tmp_path: Path) -> None:
    """From what was looked at here, and from what was kept of it."""
    where, remembered = site(), str(tmp_path / "none")
    fresh = check(where, tmp_path)[0].order
    where.away = AWAY
    kept = check(where, tmp_path)[0].order
    for order in (fresh, kept):
        signers = judge({**order, "virtual": False}, remembered)
        assert signers == {role: [OURS.public.fingerprint] for role in IMAGES}
        order["images"]["control"]["id"] = IMAGES["worker"].id
        with pytest.raises(NodeError, match=r"the control image: .* is another image"):
            judge({**order, "virtual": False}, remembered)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (lambda: site(THEIRS), "unknown-signer"),
        (lambda: site(control_key=THEIRS), "unknown-signer"),
        (lambda: site(predicates={PROVENANCE: {}}), "attestation-missing"),
        (lambda: Site(site().shelves, {"worker": {}, "control": {}}), "image-unreleased"),
    ],
    ids=["another signer", "another signer of one", "no SBOM", "not released"],
)
def test_others_are_refused(where: Callable[[], Site], expected: str, tmp_path: Path) -> None:
    assert code(where(), tmp_path) == expected
    assert expected == "attestation-missing" or not [*tmp_path.glob(f"{IMAGES['control'].id[7:]}*")]


def test_a_tag_of_another_image_is_passed_by(tmp_path: Path) -> None:
    """Whoever may write tags can't bring in another image, nor hide this one behind them."""
    where = site()
    for role in IMAGES:
        other = manifest(replace(IMAGES[role], id=sha256(b"evil")))
        where.shelves[role].manifests[sha256(other)] = other
        where.tags[role] = {f"c-{CONTENT[:16]}": sha256(other), "zz": sha256(other), "a": DIGESTS[role]}
    assert check(where, tmp_path)[0].signers


def test_another_manifest_of_the_same_image_hides_nothing(tmp_path: Path) -> None:
    """A layer that was packed anew, and tags without an end."""
    where = site()
    for role, each in IMAGES.items():
        twin = manifest(each) + b"\n"
        where.shelves[role].manifests[sha256(twin)] = twin
        where.tags[role] |= {f"c-{CONTENT[:16]}": sha256(twin), "zz": sha256(twin)}
        where.tags[role] |= {f"i-{n:032x}": sha256(twin) for n in range(100)}
    assert check(where, tmp_path)[0].signers
    for role in IMAGES:  # where it was last is looked at first
        where.tags[role] = {f"z{n}": "sha256:none" for n in range(100)}
    assert check(where, tmp_path)[0].signers


def test_images_of_two_keys_are_no_release(tmp_path: Path) -> None:
    assert code(site(control_key=THEIRS), tmp_path, keys=(OURS.public, THEIRS.public)) == "signers-differ"


def report(level: int | None, **more: Any) -> Predicates:
    said = {"report": "r1", "when": "2026-11-26T10:00:00Z", "level": level, "virtual": False}
    pair = {"image": IMAGES["worker"].id, "controlImage": IMAGES["control"].id}
    return {**PREDICATES, VERIFY_REPORT: {**said, **pair, **more}}


@pytest.mark.parametrize(
    ("predicates", "levels"),
    [
        (report(3), [3]),
        (report(None), []),
        (report(3, image=sha256(b"other")), []),
        (report(3, controlImage=None), []),
        (report(99), []),
        ({**PREDICATES, VERIFY_REPORT: {"of": "a newer rocstack"}}, []),
    ],
    ids=["proved", "nothing proved", "another worker", "no control image", "no such level", "another form"],
)
def test_signed_reports_prove_levels(predicates: Predicates, levels: list[int], tmp_path: Path) -> None:
    found, _ = check(site(predicates=predicates), tmp_path, level=2)
    assert [each.level for each in found.proved] == levels


def test_a_level_asks_for_a_report(tmp_path: Path) -> None:
    assert code(site(), tmp_path, level=0) == "attestation-missing"


AWAY = Missing.of("registry-unreachable", host="registry.example", tried="", cause="refused")


def test_a_rollback_needs_no_registry(tmp_path: Path) -> None:
    where = site()
    check(where, tmp_path)
    where.away = AWAY
    found, said = check(where, tmp_path)
    assert found.signers == (OURS.public.fingerprint,)
    assert ["signatures that were kept" in line for line in said] == [True]
    assert check(where, tmp_path, repository=None) == (found, [])  # as after the install of a bundle


def test_a_login_that_has_expired_is_a_registry_that_is_away(tmp_path: Path) -> None:
    where = site()
    where.away = Missing.of("registry-denied", reference="r", cause="401", host="registry.example")
    assert code(where, tmp_path) == "registry-denied"
    where.away = None
    check(where, tmp_path)
    where.away = Missing.of("registry-denied", reference="r", cause="401", host="registry.example")
    assert check(where, tmp_path)[0].signers


def test_without_a_registry_and_without_what_was_kept(tmp_path: Path) -> None:
    where = site()
    where.away = AWAY
    assert code(where, tmp_path) == "registry-unreachable"
    assert code(where, tmp_path, repository=None) == "no-trust-registry"


@pytest.mark.parametrize("more", [{"keys": (THEIRS.public,)}, {"level": 1}], ids=["another key", "a level"])
def test_what_was_kept_is_judged_by_todays_policy(more: dict[str, Any], tmp_path: Path) -> None:
    where = site()
    check(where, tmp_path)
    where.away = AWAY
    assert code(where, tmp_path, **more) in ("unknown-signer", "attestation-missing")


@pytest.mark.parametrize("what", ["manifest", "signature", "json", "nothing"])
def test_what_was_kept_and_changed_is_worth_nothing(what: str, tmp_path: Path) -> None:
    where = site()
    check(where, tmp_path)
    where.away = AWAY
    file = tmp_path / f"{IMAGES['worker'].id[7:]}.json"
    said = json.loads(file.read_text())
    signature = f"{DIGESTS['worker'].replace(':', '-')}.sig"
    if what == "manifest":
        said["held"][DIGESTS["worker"]] = "e30="
    elif what == "signature":
        said["held"][signature] = "e30="
    file.write_text({"json": "{", "nothing": "{}"}.get(what, json.dumps(said)))
    assert code(where, tmp_path) in ("signature-broken", "registry-unreachable")


def test_a_refusal_is_no_absence(tmp_path: Path) -> None:
    """What the registry says of an image now counts more than what it said before."""
    check(site(), tmp_path)
    assert code(site(THEIRS), tmp_path) == "unknown-signer"
    unsigned = site()
    for role, shelf in unsigned.shelves.items():
        del shelf.manifests[f"{DIGESTS[role].replace(':', '-')}.sig"]
    with pytest.raises(Untrusted) as caught:
        check(unsigned, tmp_path)
    assert caught.value.code == "image-unsigned"
