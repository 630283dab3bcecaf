"""What is attested: SBOM, provenance, verify report. By the schema of each, the same for the same image, and without
what belongs to the site."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import made_runs
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from resolved_stack import join

from rocstack.base.errors import CheckFailed
from rocstack.release.provenance import BUILD_TYPE, LOCAL, Builder, inputs_of, measured_in, provenance, recorded_in
from rocstack.release.report import predicate
from rocstack.release.sbom import packages_of, sbom
from rocstack.stack.lock import Lock, LockedSource
from rocstack.verify.result import NodeSeen

DIGEST = f"sha256:{'a' * 64}"
WHERE = "registry.example:5000/hpc/rocstack-worker"
HERE = Builder()
THEN = datetime(2026, 11, 23, 3, 17, tzinfo=UTC)


def manifest(lock: Lock, **more: Any) -> dict[str, Any]:
    """As a build reads it in an image that holds the first packages and wheels of the lock."""
    packages = {each.name: each.version for each in lock.packages[:5]}
    wheels = {each.name: each.version for each in lock.wheels[:2]}
    facts = {"nic.provider": "bnxt_re", "nic.provider-sha256": "b" * 64, "nic.provider-version": "56.1"}
    known = {"versions": {"rocm": "6.1.2", "trainer": "0.1.0", "ucx": "1.18.1"}, "facts": facts}
    own = {"packages": {**packages, "unlocked": "1:2-3"}, "sources": {"unlocked": "other@2-3"}}
    return {**known, **own, "wheels": wheels, **more}


def document(**more: Any) -> dict[str, Any]:
    joined = join(nic="broadcom")
    assert joined.lock
    about = {"repository": WHERE, "digest": DIGEST, "role": "worker", **more}
    return sbom(joined.resolved, joined.lock, manifest(joined.lock), **about)


def test_the_sbom_is_cyclonedx_by_its_schema() -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document())) is None


def test_the_sbom_is_the_same_for_the_same_image() -> None:
    assert document() == document()
    assert document()["serialNumber"] != document(digest=f"sha256:{'b' * 64}")["serialNumber"]
    assert "timestamp" not in document()["metadata"]


def test_the_sbom_has_what_scanners_miss() -> None:
    purls = {each["name"]: each["purl"] for each in document()["components"]}
    assert purls["rocstack-trainer"] == "pkg:generic/rocstack/trainer@0.1.0"
    assert purls["bnxt_re"] == "pkg:generic/broadcom/bnxt_re@56.1"
    assert purls["unlocked"] == "pkg:deb/debian/unlocked@1:2-3?distro=debian-13&upstream=other%402-3"


def test_the_sbom_names_the_archives_that_were_compiled() -> None:
    joined = join()
    assert joined.lock
    url = "https://example.com/ucx-1.18.1.tar.gz"
    source = LockedSource(component="ucx", version="1.18.1", url=url, sha256="c" * 64)
    ucx = joined.resolved.stack.components["ucx"].model_copy(update={"method": "source"})
    own = joined.resolved.stack.model_copy(update={"components": {**joined.resolved.stack.components, "ucx": ucx}})
    resolved = joined.resolved.model_copy(update={"stack": own})
    lock = joined.lock.model_copy(update={"sources": (source,)})
    found = sbom(resolved, lock, manifest(lock), repository=WHERE, digest=DIGEST, role="worker")
    (built,) = [each for each in found["components"] if each["name"] == "ucx"]
    assert built["hashes"] == [{"alg": "SHA-256", "content": "c" * 64}]
    assert built["externalReferences"][0]["url"] == url
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(found)) is None


def test_packages_of_an_sbom_are_its_packages_and_wheels() -> None:
    joined = join()
    assert joined.lock
    own = manifest(joined.lock)
    found = packages_of(sbom(joined.resolved, joined.lock, own, repository=WHERE, digest=DIGEST, role="worker"))
    assert found == {**own["packages"], **{f"{name} (wheel)": version for name, version in own["wheels"].items()}}


def said(builder: Builder = HERE) -> dict[str, Any]:
    joined = join()
    assert joined.lock
    return provenance(
        joined.resolved, joined.lock, manifest(joined.lock), role="worker", inputs="d" * 64, content="e" * 64,
        size=1000, base=("rocstack/base:debian-13-abc", f"sha256:{'f' * 64}"), context="0" * 64,
        asked={"variant": "debian-13-tcp"}, builder=builder, started=THEN, finished=THEN,
    )  # fmt: skip


def test_provenance_says_what_the_image_was_built_from() -> None:
    found = said()
    build, run = found["buildDefinition"], found["runDetails"]
    assert build["buildType"] == BUILD_TYPE
    assert build["externalParameters"]["nic"] == "tcp"
    assert run["builder"]["id"] == LOCAL
    assert run["metadata"]["startedOn"] == "2026-11-23T03:17:00Z"
    named = {each.get("name", each["uri"]): each["digest"] for each in build["resolvedDependencies"]}
    joined = join()
    assert joined.lock
    first = joined.lock.packages[0]
    assert named[PackageURL("deb", "debian", first.name, first.version).to_string()] == {"sha256": first.sha256}
    assert named["base"] == {"sha256": "f" * 64}
    assert named["lock"] == {"sha256": joined.lock.digest()}
    assert "unlocked" not in str(named)
    assert Lock.model_validate_json(json.dumps(build["internalParameters"]["lock"])).digest() == joined.lock.digest()
    assert inputs_of(found) == "d" * 64
    assert measured_in(found).size == 1000


def test_the_recorded_lock_is_the_one_whose_digest_is_named() -> None:
    """A lock of further images, too, which the digest leaves out: a bundle compares the two byte by byte."""
    joined = join()
    assert joined.lock
    lock = joined.lock.model_copy(update={"further": {"service": joined.lock.model_copy(update={"further": {}})}})
    found = provenance(
        joined.resolved, lock, manifest(lock), role="worker", inputs="d" * 64, content="e" * 64, size=1,
        base=("base", DIGEST), context="f" * 64, asked={}, builder=HERE, started=THEN, finished=THEN,
    )  # fmt: skip
    own = found["buildDefinition"]["internalParameters"]["lock"]
    text = json.dumps(own, indent=1, sort_keys=True) + "\n"
    assert hashlib.sha256(text.encode()).hexdigest() == lock.digest()


def test_a_ci_system_is_named_as_it_says() -> None:
    env = {
        "GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": "https://example.com", "GITHUB_REPOSITORY": "a/b",
        "GITHUB_RUN_ID": "7", "GITHUB_SHA": "abc", "GITHUB_WORKFLOW_REF": "a/b/.github/workflows/weekly.yml@main",
    }  # fmt: skip
    found = said(Builder.of(env))
    assert found["runDetails"]["metadata"]["invocationId"] == "https://example.com/a/b/actions/runs/7/attempts/1"
    assert any(each["digest"] == {"gitCommit": "abc"} for each in found["buildDefinition"]["resolvedDependencies"])
    gitlab = Builder.of({"GITLAB_CI": "true", "CI_PROJECT_URL": "https://example.com/a", "CI_JOB_URL": "u"})
    assert (gitlab.id, gitlab.invocation) == ("https://example.com/a/-/runners", "u")
    assert Builder.of({}) == Builder()


@pytest.mark.parametrize("found", [{}, {"buildDefinition": []}, {"runDetails": {"byproducts": [{"name": "image"}]}}])
def test_a_provenance_of_another_program_says_nothing_of_ours(found: dict[str, Any]) -> None:
    assert inputs_of(found) == ""
    with pytest.raises(CheckFailed) as caught:
        measured_in(found)
    assert caught.value.code == "foreign-provenance"


def test_a_report_names_no_node_user_or_address() -> None:
    seen = (NodeSeen(name="secret-node-1", roles=("worker",)), NodeSeen(name="secret-node-2", roles=("worker",)))
    run = made_runs.run(
        made_runs.result(made_runs.on("secret-node-1"), made_runs.on("secret-node-2", "failed", "10.1.2.3 is down")),
        seen=seen, cluster="secret-cluster", control="secret-node-1", who="secret-user", image=DIGEST,
    )  # fmt: skip
    found = predicate(run)
    assert "secret" not in json.dumps(found)
    assert "10.1.2.3" not in json.dumps(found)
    assert (found["level"], found["passed"], found["workers"], found["image"]) == (0, False, 2, DIGEST)
    assert [each["state"] for each in found["checks"]] == ["passed", "failed"]
    assert found["checks"][1]["measures"] == {"passed": 1, "failed": 1}


def test_provenance_has_all_that_makes_the_image_again() -> None:
    found, joined = recorded_in(json.loads(json.dumps(said()))), join()
    assert joined.lock
    assert found.lock == joined.lock.model_copy(update={"further": {}})
    assert (found.stack, found.nic, found.role, found.gfx, found.methods) == ("debian-13", "tcp", "worker", None, ())
    assert (found.context, found.base) == ("0" * 64, f"sha256:{'f' * 64}")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("buildType",), "https://example.com/other"),
        (("externalParameters", "stack"), "../other"),
        (("externalParameters", "stack"), "other.yml"),
        (("externalParameters", "nic"), "tcp;reboot"),
        (("externalParameters", "role"), "base"),
        (("externalParameters", "nic_releases"), ["$(x)"]),
        (("internalParameters", "lock"), {}),
        (("internalParameters", "lock"), None),
        (("internalParameters", "context"), "x"),
        (("resolvedDependencies",), []),
    ],
)
def test_a_provenance_of_another_shape_makes_nothing(place: tuple[str, ...], value: object) -> None:
    document = json.loads(json.dumps(said()))
    inner = document["buildDefinition"]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(CheckFailed) as error:
        recorded_in(document)
    assert error.value.code == "foreign-provenance"
    with pytest.raises(CheckFailed):
        recorded_in({})
