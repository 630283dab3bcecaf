"""Releases at a registry in this process, which fails on demand: what is tagged, moved and refused, in what order."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_runs
import pytest
from fake_registry import Handler, Store, failing, serving

from rocstack.base.errors import BadInput, CheckFailed, Missing
from rocstack.base.image_names import RegistryAddress
from rocstack.deploy.read.trusted import SignedReport
from rocstack.registry.layers import sha256
from rocstack.registry.oci import MANIFEST, ZSTD_LAYER, Blob, as_json
from rocstack.registry.oci import manifest as manifest_of
from rocstack.registry.registry_http import RegistryHttp, RegistryLogin
from rocstack.registry.repository import READ
from rocstack.release import catalog, plan
from rocstack.release.plan import ReleaseEntry
from rocstack.release.record import ReleasedImage, ReleaseRecord
from rocstack.release.report import predicate
from rocstack.release.site import ReleaseSite
from rocstack.steps import release as steps
from rocstack.steps.release_access import keygen
from rocstack.steps.release_check import attest_report
from rocstack.trust import contents
from rocstack.trust.envelope import PROVENANCE, SBOM, VERIFY_REPORT
from rocstack.trust.keys import SigningKey
from rocstack.trust.signing import sign_image
from rocstack.trust.verification import Untrusted, verify

KEY, OTHER = SigningKey.generate("ours"), SigningKey.generate("theirs")
INPUTS = "c" * 64
COUNT = itertools.count()


@pytest.fixture
def store() -> Iterator[Store]:
    with serving() as store:
        yield store


def site(store: Store, *keys: SigningKey, login: RegistryLogin | None = None) -> ReleaseSite:
    http = RegistryHttp(store.host, login, plain=True)
    return ReleaseSite(RegistryAddress(store.host, "hpc"), http, tuple(k.public for k in keys or (KEY,)), 1, print)


def image(here: ReleaseSite, role: Any = "worker", key: SigningKey = KEY, **more: Any) -> ReleasedImage:
    """A signed image that nobody else has."""
    repository = here.repository(role)
    config = as_json({"os": "linux", "number": next(COUNT), "rootfs": {"type": "layers", "diff_ids": []}})
    repository.put_blob(config)
    data = manifest_of(config, [])
    repository.put_manifest(sha256(data), data)
    said = {"buildDefinition": {"internalParameters": {"inputs": INPUTS}}}
    sign_image(repository, sha256(data), [key], {PROVENANCE: said, SBOM: {"components": []}})
    about: dict[str, Any] = {
        "stack": "s", "nic": "tcp", "way": "inbox", "role": role, "variant": "s-tcp", "inputs": INPUTS,
        "repository": repository.reference, "digest": sha256(data), "id": sha256(config), "lock": "d" * 64,
        "content": "e" * 64, "size": 1, "compressed": 1, "versions": {}, "packages": {}, "tags": ("s-tcp-w1", "w1"),
    }  # fmt: skip
    return ReleasedImage(**{**about, **more})


def record(*images: ReleasedImage, **more: Any) -> ReleaseRecord:
    about = {"tag": "w1", "created": "2026-11-22T03:17:00Z", "rocstack": "0", "registry": "r.example"}
    return ReleaseRecord(**{**about, **more}, images=images)


def names(store: Store) -> set[str]:
    return {f"{repo.rpartition('-')[2]}:{tag}" for repo, tag in store.manifests if not tag.startswith("sha256")}


def test_all_tags_and_then_the_list(store: Store) -> None:
    here = site(store)
    made = record(image(here), image(here, "control"))
    here.publish(made, [KEY], move=False)
    tags = {f"{role}:{tag}" for role in ("worker", "control") for tag in ("w1", "s-tcp-w1")}
    assert names(store) == tags | {"release:w1", "release:latest"}
    puts = [
        each for each in store.requests if each.startswith("PUT") and "/manifests/" in each and "sha256" not in each
    ]
    assert [each.rpartition("/")[2] for each in puts[-2:]] == ["w1", "latest"]
    assert "rocstack-release" in puts[-1]
    assert all(each.error is None for each in here.verified(made))
    before = dict(store.manifests)
    here.publish(made, [KEY], move=False)
    assert {key: store.manifests[key] for key in before} == before


@pytest.mark.parametrize("role", ["worker", "control", "release"])
def test_one_taken_tag_refuses_all(store: Store, role: Any) -> None:
    here = site(store)
    if role == "release":
        here.publish(record(image(here), tag="w1"), [KEY], move=False)
        for key in [key for key in store.manifests if key[1] in ("w1", "s-tcp-w1") and "release" not in key[0]]:
            del store.manifests[key]
    else:
        other = image(here, role)
        store.manifests[f"hpc/rocstack-{role}", "w1"] = store.manifests[f"hpc/rocstack-{role}", other.digest]
    before, made = names(store), record(image(here), image(here, "control"))
    with pytest.raises(CheckFailed) as caught:
        here.publish(made, [KEY], move=False)
    assert caught.value.code == "release-exists"
    assert names(store) == before
    here.publish(made, [KEY], move=True)
    assert all(each.error is None for each in here.verified(made))


def test_a_tag_that_the_registry_refuses_leaves_no_list(store: Store) -> None:
    """A read-only tag: the release isn't one, and another run completes it."""
    here = site(store)
    made = record(image(here), image(here, "control"))

    def read_only(handler: Handler) -> bool:
        if handler.command != "PUT" or not handler.path.endswith("rocstack-control/manifests/w1"):
            return False
        handler.body()
        handler.answer(403, b'{"errors":[{"code":"DENIED","message":"tag is immutable"}]}')
        return True

    store.faults.append(read_only)
    with pytest.raises(Missing) as caught:
        here.publish(made, [KEY], move=False)
    assert caught.value.code == "registry-denied"
    assert not {"release:w1", "release:latest"} & names(store)
    with pytest.raises(BadInput) as missing:
        here.listed("w1")
    assert missing.value.code == "no-such-release"
    store.faults.clear()
    here.publish(made, [KEY], move=False)
    assert here.listed("w1").release == made


def test_an_expired_token_says_so_at_the_first_request_that_needs_it(store: Store) -> None:
    store.token, store.password = "new", "right"
    here = site(store, login=RegistryLogin("ada", "expired"))
    with pytest.raises(Missing) as caught:
        here.repository("worker").check_access()
    assert caught.value.code == "registry-denied"
    assert "expired" not in str(caught.value.to_dict())


def test_without_a_login_a_release_is_denied_and_not_absent(store: Store) -> None:
    store.password = "right"
    with pytest.raises(Missing) as caught:
        site(store).listed("w1")
    assert caught.value.code == "registry-denied"


def test_a_registry_that_dies_between_two_tags(store: Store) -> None:
    here = site(store)
    made = record(image(here), image(here, "control"))
    store.faults.append(failing(503, "PUT", times=1))
    with pytest.raises(CheckFailed):
        here.publish(made, [KEY], move=False)
    here.publish(made, [KEY], move=False)
    assert here.listed("latest").release == made


def test_the_release_of_other_keys_is_left_alone(store: Store) -> None:
    theirs = site(store, OTHER)
    theirs.publish(record(image(theirs, key=OTHER)), [OTHER], move=False)
    with pytest.raises(CheckFailed) as caught:
        site(store).refuse_others("w1")
    assert caught.value.code == "release-exists"
    site(store).refuse_others("w2")
    theirs.refuse_others("w1")


def test_an_image_of_other_inputs_is_refused(store: Store) -> None:
    here = site(store)
    (found,) = here.verified(record(image(here, inputs="f" * 64, tags=())))
    assert found.error
    assert found.error.code == "made-of-another"


def test_a_list_that_cannot_be_read_is_refused(store: Store) -> None:
    here = site(store)
    listing = here.catalog
    listing.put_blob(b"{}")
    data = as_json({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": {"mediaType": catalog.EMPTY, "digest": sha256(b"{}"), "size": 2},
        "layers": [{"mediaType": catalog.KIND, "digest": sha256(b"{}"), "size": 2}],
    })  # fmt: skip
    digest = listing.put_manifest("w1", data)
    sign_image(listing, digest, [KEY], {})
    with pytest.raises(Untrusted) as caught:
        here.listed("w1")
    assert caught.value.code == "unreadable-release"


def test_a_key_may_change(store: Store) -> None:
    """Signed by both, then by the new one alone; what the old one attested goes with it."""
    here = site(store)
    own = image(here)
    repository = here.repository("worker")
    predicates: dict[str, Any] = {PROVENANCE: {"a": 1}, SBOM: {"components": []}}
    sign_image(repository, own.digest, [KEY, OTHER], predicates)
    for key in (KEY, OTHER):
        verify(repository, own.digest, [key.public], predicates)
    sign_image(repository, own.digest, [OTHER], predicates)
    found = verify(repository, own.digest, [OTHER.public], predicates)
    assert len(found.attestations) == 2
    verify(repository, own.digest, [KEY.public, OTHER.public], predicates)


def run(**more: Any) -> Any:
    return made_runs.run(made_runs.result(made_runs.on("n1"), made_runs.on("n2")), **more)


def test_a_report_is_attested_to_the_images_that_ran(store: Store) -> None:
    here = site(store)
    worker, control = image(here), image(here, "control")
    attest_report(run(image=worker.id, control_image=control.id), [worker, control], here, [KEY])
    for each in (worker, control):
        found = verify(here.repository(each.role), each.digest, [KEY.public], [VERIFY_REPORT])
        assert found.predicates(VERIFY_REPORT)[0]["level"] == 1


def test_a_report_of_other_images_or_of_nothing_is_refused(store: Store) -> None:
    here = site(store)
    worker = image(here)
    with pytest.raises(BadInput) as other:
        attest_report(run(image=f"sha256:{'0' * 64}"), [worker], here, [KEY])
    assert other.value.code == "report-of-another"
    for proves_nothing in (run(image=worker.id, complete=False), run(image=worker.id, only="munge")):
        with pytest.raises(CheckFailed) as caught:
            attest_report(proves_nothing, [worker], here, [KEY])
        assert caught.value.code == "report-unproved"


def test_a_clock_that_is_off_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    here = site(store)
    steps._refuse_clock(here, "2026.47", None)
    monkeypatch.setattr(Handler, "date_time_string", lambda self, when=None: "Mon, 05 Jan 2026 00:00:00 GMT")
    with pytest.raises(CheckFailed) as caught:
        steps._refuse_clock(here, "2026.47", None)
    assert caught.value.code == "clock-off"
    monkeypatch.setattr(Handler, "date_time_string", lambda self, when=None: "yesterday")
    steps._refuse_clock(here, "2026.47", None)


def test_an_older_week_than_the_last_release_is_refused(store: Store) -> None:
    here = site(store)
    here.publish(record(image(here), tag="2026.48"), [KEY], move=False)
    with pytest.raises(CheckFailed) as caught:
        steps._refuse_clock(here, "2026.47", None)
    assert caught.value.code == "older-week"
    steps._refuse_clock(here, "2026.47", "2026.47")
    steps._refuse_clock(here, "2026.49", None)


RELEASE_YML = "registry: registry.example.com/hpc\nkeys: [release.key]\nimages:\n  - stack: {stack}\n    nic: {nic}\n"


@pytest.mark.parametrize(
    ("stack", "nic", "code", "line"),
    [
        ("rocm-7.2-ubuntu-24.04", "tcp", "no-lock", 4),
        ("debian-31", "tcp", "unknown-stack", 4),
        ("debian-13", "tpc", "unknown-nic", 4),
        ("debian-13", "tcp", "no-key", 2),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_built(
    cli: Any, tmp_path: Path, stack: str, nic: str, code: str, line: int
) -> None:
    (tmp_path / "release.yml").write_text(RELEASE_YML.format(stack=stack, nic=nic))
    done = cli("release", "--json")
    error = done.json()["error"]
    assert (done.code, error["code"]) == (2, code), error
    assert error["where"] == f"release.yml:{line}"


def test_keys_and_passwords(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "release.yml").write_text(RELEASE_YML.format(stack="debian-13", nic="tcp"))
    assert cli("release", "keygen", "release.key", "--json").code == 2
    assert "--password-file" in cli("release", "keygen", "release.key").err
    password = tmp_path / "password"
    password.write_text("one\n")
    password.chmod(0o644)
    assert "open-key" in cli("release", "keygen", "release.key", "--password-file", "password").err
    password.chmod(0o600)
    made = cli("release", "keygen", "release.key", "--password-file", "password")
    assert (made.code, (tmp_path / "release.key").stat().st_mode & 0o777) == (0, 0o600)
    assert "one" not in made.out + made.err
    assert "no-password" in cli("release").err
    password.write_text("two\n")
    assert "bad-password" in cli("release", "--password-file", "password").err
    password.write_text("")
    assert "bad-password" in cli("release", "--password-file", "password").err
    (tmp_path / "release.yml").write_text(f"{RELEASE_YML.format(stack='debian-13', nic='tcp')}trusted: [other.pub]\n")
    password.write_text("one\n")
    cli("release", "keygen", "other.key", "--password-file", "password")
    refused = cli("release", "--password-file", "password")
    assert "no-signing-key (release.yml:6)" in refused.err


def test_a_file_or_command_that_is_not_there(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "release.yml").write_text("images: []\n")
    assert "did you mean 'release.yml'?" in cli("release", "relese.yml").err
    refused = cli("release", "promot")
    assert (refused.code, "No such command 'promot'" in refused.err) == (2, True)
    assert "docs/release.md" in cli("release", "verify", "--file", "none.yml").err


def report(level: int) -> dict[str, dict[str, Any]]:
    return {VERIFY_REPORT: {"level": level}}


def test_a_report_by_a_new_key_keeps_what_the_old_one_signed(store: Store) -> None:
    """As the documentation has it: with both keys for a while."""
    old = site(store)
    made = image(old)
    both, repository = site(store, KEY, OTHER), old.repository("worker")
    attest_report(run(image=made.id), [made], both, [KEY, OTHER])
    for here in (old, both, site(store, OTHER)):
        found = verify(repository, made.digest, here.trusted, (PROVENANCE, SBOM, VERIFY_REPORT))
        assert len(found.attestations) == 3


def test_an_older_attestation_of_ours_counts_for_nothing(store: Store) -> None:
    here = site(store)
    made, repository = image(here), here.repository("worker")
    sign_image(repository, made.digest, [KEY], report(4))
    name = f"{made.digest.replace(':', '-')}.att"
    old = json.loads(repository.manifest(name) or b"")
    sign_image(repository, made.digest, [KEY], report(1))
    now = json.loads(repository.manifest(name) or b"")
    assert {each["digest"] for each in old["layers"]} != {each["digest"] for each in now["layers"]}
    now["layers"] = [*now["layers"], *(each for each in old["layers"] if each not in now["layers"])]
    repository.put_manifest(name, as_json(now))
    assert verify(repository, made.digest, here.trusted).predicates(VERIFY_REPORT) == [{"level": 1}]
    sign_image(repository, made.digest, [KEY], {"urn:more": {}})  # and it isn't taken over
    found = verify(repository, made.digest, here.trusted, known=[PROVENANCE, SBOM, VERIFY_REPORT, "urn:more"])
    assert found.predicates(VERIFY_REPORT) == [{"level": 1}]


@pytest.mark.parametrize("puts", range(1, 8))
def test_signing_that_breaks_off_leaves_what_was_proved(store: Store, puts: int) -> None:
    here = site(store)
    made, repository = image(here), here.repository("worker")
    sign_image(repository, made.digest, [KEY], report(4))
    left = [puts]

    def dies(handler: Handler) -> bool:
        left[0] -= handler.command in ("PUT", "POST")
        if left[0] > 0:
            return False
        handler.body()
        handler.answer(500)
        return True

    store.faults.append(dies)
    with contextlib.suppress(CheckFailed, Missing):
        sign_image(repository, made.digest, [KEY], report(1))
    store.faults.clear()
    found = verify(repository, made.digest, here.trusted, (PROVENANCE, SBOM, VERIFY_REPORT))
    assert found.predicates(VERIFY_REPORT) in ([{"level": 4}], [{"level": 1}])
    sign_image(repository, made.digest, [KEY], report(1))
    assert verify(repository, made.digest, here.trusted).predicates(VERIFY_REPORT) == [{"level": 1}]
    assert len(json.loads(repository.manifest(f"{made.digest.replace(':', '-')}.att") or b"")["layers"]) == 3


def test_a_layer_without_an_end_is_not_read_for_ever(store: Store) -> None:
    here = site(store)
    repository = here.repository("worker")
    layer, config = b"x" * 100, as_json({"os": "linux", "rootfs": {"type": "layers", "diff_ids": []}})
    for blob in (layer, config):
        repository.put_blob(blob)
    data = manifest_of(config, [Blob(digest=sha256(layer), size=100, media_type=ZSTD_LAYER)])
    repository.put_manifest(sha256(data), data)

    def endless(handler: Handler) -> bool:
        if handler.command != "GET" or sha256(layer) not in handler.path:
            return False
        handler.answer(206, b"x" * READ)
        return True

    store.faults.append(endless)
    with pytest.raises(Untrusted) as caught:
        contents.check(repository, sha256(data), whole=True)
    assert caught.value.code == "layer-differs"
    assert "more bytes" in caught.value.what


def test_many_large_files_are_not_read(store: Store) -> None:
    here = site(store)
    made, repository = image(here), here.repository("worker")
    name = f"{made.digest.replace(':', '-')}.sig"
    said = json.loads(repository.manifest(name) or b"")
    said["layers"][0]["size"] = 70_000
    repository.put_manifest(name, as_json(said))
    with pytest.raises(Untrusted) as caught:
        verify(repository, made.digest, here.trusted)
    assert caught.value.code == "signature-broken"


@pytest.mark.parametrize("tag", ["latest", "stable", "i-" + "a" * 32, "c-1", "sha256-" + "a" * 64 + ".sig"])
def test_a_release_has_no_name_that_means_something_else(tag: str) -> None:
    with pytest.raises(BadInput) as caught:
        plan.tags(ReleaseEntry(stack="debian-13", nic="tcp"), tag)
    assert caught.value.code == "bad-tag"


@pytest.mark.parametrize("name", ["release.pub", "."])
def test_a_pair_of_keys_has_two_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        keygen(tmp_path / name if name != "." else Path("."), None, lambda: b"secret")
    assert caught.value.code == "public-name"
    assert not list(tmp_path.iterdir())


def test_deploy_reads_what_a_report_says() -> None:
    made = run(image="sha256:" + "a" * 64, control_image="sha256:" + "b" * 64)
    said = SignedReport.model_validate(predicate(made))
    assert (said.report, said.when, said.level, said.virtual) == (made.id, made.when, made.proved, made.virtual)
    assert (said.image, said.controlImage) == (made.image, made.control_image)
    assert said.level is not None
