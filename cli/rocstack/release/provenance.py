"""SLSA provenance (slsa.dev/spec/v1.0/provenance) of an image: what it was built from, and by what. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from packageurl import PackageURL
from pydantic import BaseModel, ConfigDict

from rocstack.base import __version__
from rocstack.base.errors import CheckFailed
from rocstack.base.text import from_json
from rocstack.base.words import Line, Name, Sha256, Version
from rocstack.stack.component import Role
from rocstack.stack.lock import Lock
from rocstack.stack.resolve import Resolved

BUILD_TYPE = "urn:rocstack:build:v1"
MEASURED = "image"  # the by-product with what was measured in it
LOCAL = "urn:rocstack:builder:local"


@dataclass(frozen=True)
class Builder:
    """Who ran the build, as a CI system says it. The signature alone proves anything of that."""

    id: str = LOCAL
    invocation: str = ""
    source: str = ""  # repository
    commit: str = ""

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Builder:
        """docs.github.com/actions/reference/variables; docs.gitlab.com/ci/variables/predefined_variables"""
        if env.get("GITHUB_ACTIONS") == "true":
            place = f"{env.get('GITHUB_SERVER_URL', '')}/{env.get('GITHUB_REPOSITORY', '')}"
            run = f"{place}/actions/runs/{env.get('GITHUB_RUN_ID', '')}/attempts/{env.get('GITHUB_RUN_ATTEMPT', '1')}"
            workflow = f"{env.get('GITHUB_SERVER_URL', '')}/{env.get('GITHUB_WORKFLOW_REF', '')}"
            return cls(workflow, run, place, env.get("GITHUB_SHA", ""))
        if env.get("GITLAB_CI") == "true":
            place = env.get("CI_PROJECT_URL", "")
            return cls(f"{place}/-/runners", env.get("CI_JOB_URL", ""), place, env.get("CI_COMMIT_SHA", ""))
        return cls()


def inputs_of(predicate: Mapping[str, Any]) -> str:
    """The digest of what the image was built from, as its provenance says; empty where it says none."""
    try:
        return str(predicate["buildDefinition"]["internalParameters"]["inputs"])
    except (KeyError, TypeError):
        return ""


class Measured(BaseModel):
    """What a provenance says of the image itself. `size` is bytes."""

    model_config = ConfigDict(frozen=True)
    content: Sha256
    size: int
    versions: dict[str, str]


def measured_in(predicate: Mapping[str, Any]) -> Measured:
    """
    Raises:
        CheckFailed: it says nothing of that: another program made it.
    """
    try:
        products = predicate["runDetails"]["byproducts"]
        return Measured.model_validate(next(each["annotations"] for each in products if each["name"] == MEASURED))
    except (KeyError, TypeError, StopIteration, ValueError):
        raise CheckFailed.of("foreign-provenance") from None


class RecordedBuild(BaseModel):
    """What a provenance says that an image was made of, as far as that makes it again. All of it is data: names are
    looked up among what this machine has."""

    model_config = ConfigDict(frozen=True)
    stack: Name
    nic: Name
    way: Line
    role: Role
    methods: tuple[Line, ...] = ()
    gfx: Line | None = None
    nic_releases: tuple[Version, ...] = ()
    lock: Lock
    context: Sha256
    base: Line  # its digest
    rocstack: Line  # the version that made it


def recorded_in(predicate: Mapping[str, Any]) -> RecordedBuild:
    """
    Raises:
        CheckFailed: it says nothing of that: another program made it.
    """
    try:
        definition, builder = predicate["buildDefinition"], predicate["runDetails"]["builder"]
        own = definition["internalParameters"]
        base = next(each["digest"]["sha256"] for each in definition["resolvedDependencies"] if each["name"] == "base")
        said = {**definition["externalParameters"], "lock": own["lock"], "context": own["context"]}
        said |= {"base": f"sha256:{base}", "rocstack": builder["version"]["rocstack"]}
        found = RecordedBuild.model_validate_json(json.dumps(said))
        if definition["buildType"] != BUILD_TYPE or found.stack.endswith((".yml", ".yaml")):
            raise ValueError(found.stack)
        return found
    except (KeyError, TypeError, StopIteration, ValueError):
        raise CheckFailed.of("foreign-provenance") from None


def provenance(
    resolved: Resolved,
    lock: Lock,
    manifest: Mapping[str, Any],
    *,
    role: str,
    inputs: str,
    content: str,
    size: int,
    base: tuple[str, str],
    context: str,
    asked: Mapping[str, Any],
    builder: Builder,
    started: datetime,
    finished: datetime,
) -> dict[str, Any]:
    """The predicate. `inputs` is the digest of all that was decided before the build, `asked` what release.yml
    asks for, `size` the bytes of the image's files, `base` the base's reference and digest."""
    source = {"uri": f"git+{builder.source}", "digest": {"gitCommit": builder.commit}} if builder.commit else None
    dependencies: list[dict[str, Any]] = [
        {"name": "base", "uri": f"urn:rocstack:base:{base[0]}", "digest": _sha256(base[1])},
        {"name": "lock", "uri": f"urn:rocstack:lock:{lock.stack}", "digest": _sha256(lock.digest())},
    ]
    if source:
        dependencies.append({"name": "source", **source})
    system = resolved.stack.base.os.partition("-")[0]
    for package in lock.packages:
        if manifest["packages"].get(package.name) == package.version and package.sha256:
            uri = PackageURL("deb", system, package.name, package.version).to_string()
            dependencies.append({"uri": uri, "digest": _sha256(package.sha256)})
    for wheel in lock.wheels:
        if manifest["wheels"].get(wheel.name) == wheel.version and len(wheel.sha256) == 1:
            uri = PackageURL("pypi", None, wheel.name, wheel.version).to_string()
            dependencies.append({"uri": uri, "digest": _sha256(wheel.sha256[0])})
    for each in lock.sources:
        if each.component in manifest["versions"]:
            uri = each.url or PackageURL("deb", system, each.package, each.version, {"arch": "source"}).to_string()
            dependencies.append({"name": each.component, "uri": uri, "digest": _sha256(each.sha256)})
    for provider in resolved.providers:
        if provider.archive and provider.sha256:
            uri = f"urn:rocstack:nic-source:{provider.archive}"
            dependencies.append({"name": str(resolved.nic.provider), "uri": uri, "digest": _sha256(provider.sha256)})
    own = {
        "inputs": inputs,
        "context": context,
        "lock": from_json(lock.model_copy(update={"further": {}}).to_text()),  # what its digest is of
    }
    what = {"stack": resolved.stack.name, "nic": resolved.nic.name, "way": resolved.ways, "role": role}
    measured = {"content": content, "size": size, "versions": dict(sorted(manifest["versions"].items()))}
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {**what, **asked},
            "internalParameters": own,
            "resolvedDependencies": dependencies,
        },
        "runDetails": {
            "builder": {"id": builder.id, "version": {"rocstack": __version__}},
            "metadata": {
                "invocationId": builder.invocation or f"urn:rocstack:inputs:{inputs}",
                "startedOn": _moment(started),
                "finishedOn": _moment(finished),
            },
            "byproducts": [{"name": MEASURED, "annotations": measured}],
        },
    }


def _sha256(digest: str) -> dict[str, str]:
    return {"sha256": digest.removeprefix("sha256:")}


def _moment(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
