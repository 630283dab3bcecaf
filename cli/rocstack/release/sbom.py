"""The SBOM of an image, CycloneDX 1.6: what was measured in it, and what no scanner finds, by the lock. Pure.

Packages and wheels are those that the build read in the image. Parts built from source have neither a dpkg entry nor a
wheel: lock, labels and the stack know where they come from.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from rocstack.base import __version__
from rocstack.base.errors import CheckFailed
from rocstack.base.text import from_json
from rocstack.stack.lock import Lock
from rocstack.stack.resolve import Resolved

OWN = "rocstack:"


def sbom(
    resolved: Resolved, lock: Lock, manifest: Mapping[str, Any], *, repository: str, digest: str, role: str
) -> dict[str, Any]:
    """The document. The same for the same image: its serial number comes from the digest, and it has no time."""
    name = repository.rpartition("/")[2]
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{repository}@{digest}"))
    bom.metadata.component = Component(
        name=repository,
        version=digest,
        type=ComponentType.CONTAINER,
        bom_ref=digest,
        purl=PackageURL("oci", None, name, digest, {"repository_url": repository}),
        properties=[Property(name=OWN + "role", value=role), Property(name=OWN + "nic", value=resolved.nic.name)],
    )
    bom.metadata.tools.components.add(
        Component(name="rocstack", version=__version__, type=ComponentType.APPLICATION, bom_ref="tool-rocstack")
    )
    for component in (
        *_packages(resolved, lock, manifest),
        *_wheels(lock, manifest),
        *_built(resolved, lock, manifest),
    ):
        bom.components.add(component)
    bom.register_dependency(bom.metadata.component, bom.components)
    document: dict[str, Any] = from_json(JsonV1Dot6(bom).output_as_string())
    document["metadata"].pop("timestamp", None)
    return document


def _packages(resolved: Resolved, lock: Lock, manifest: Mapping[str, Any]) -> Iterator[Component]:
    system = resolved.stack.base.os
    locked = {(each.name, each.version): each.sha256 for each in lock.packages}
    for name, version in sorted(manifest["packages"].items()):
        # The qualifier of Syft and Grype: security data is by source package.
        upstream = {"upstream": source} if (source := manifest.get("sources", {}).get(name)) else {}
        purl = PackageURL("deb", system.partition("-")[0], name, version, {"distro": system, **upstream})
        sha256 = locked.get((name, version))
        yield _component(name, version, purl, _hashes(sha256))


def _wheels(lock: Lock, manifest: Mapping[str, Any]) -> Iterator[Component]:
    locked = {(each.name, each.version): each.sha256 for each in lock.wheels}
    for name, version in sorted(manifest["wheels"].items()):
        known = locked.get((name, version), ())
        hashes = _hashes(known[0]) if len(known) == 1 else []  # of several, pip took the one that fits
        yield _component(name, version, PackageURL("pypi", None, name, version), hashes)


def _built(resolved: Resolved, lock: Lock, manifest: Mapping[str, Any]) -> Iterator[Component]:
    """What was compiled, and the files of a vendor."""
    own = resolved.stack.components
    for name, version in sorted(manifest["versions"].items()):
        method = own[name].method if name in own else ""
        if method == "own":
            yield _component(f"rocstack-{name}", version, PackageURL("generic", "rocstack", name, version))
        if method != "source":
            continue
        for source in (each for each in lock.sources if each.component == name):
            kind = {"download_url": source.url} if source.url else {}
            title = name if source.package is None else source.package
            purl = PackageURL("generic", None, title, source.version, kind)
            found = _component(
                title, source.version, purl, _hashes(source.sha256), ref=f"source:{name}:{source.sha256}"
            )
            if source.url:
                found.external_references.add(
                    ExternalReference(
                        type=ExternalReferenceType.SOURCE_DISTRIBUTION,
                        url=XsUri(source.url),
                        hashes=_hashes(source.sha256),
                    )
                )
            yield found
    facts = manifest["facts"]
    for provider in resolved.providers:
        if provider.archive:
            title, version = str(resolved.nic.provider), provider.version or "unknown"
            purl = PackageURL("generic", resolved.nic.name, title, version, {"file_name": provider.archive})
            found = _component(title, version, purl, _hashes(provider.sha256), ref=f"nic:{provider.place}:{title}")
            found.properties.add(Property(name=OWN + "provider", value=provider.place))
            yield found
    if facts.get("nic.provider-sha256") and not any(each.archive for each in resolved.providers):
        title, version = str(facts.get("nic.provider")), str(facts.get("nic.provider-version", "unknown"))
        purl = PackageURL("generic", resolved.nic.name, title, version)
        yield _component(title, version, purl, _hashes(facts["nic.provider-sha256"]), kind=ComponentType.FILE)


def _component(
    name: str,
    version: str,
    purl: PackageURL,
    hashes: list[HashType] | None = None,
    *,
    ref: str = "",
    kind: ComponentType = ComponentType.LIBRARY,
) -> Component:
    return Component(
        name=name, version=version, type=kind, bom_ref=ref or purl.to_string(), purl=purl, hashes=hashes or []
    )


def _hashes(sha256: str | None) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else []


def packages_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Of an SBOM of ours: packages and wheels, and their versions.

    Raises:
        CheckFailed: another program made it.
    """
    known = {}
    try:
        for each in document["components"]:
            purl = str(each.get("purl", ""))
            if purl.startswith(("pkg:deb/", "pkg:pypi/")):
                wheel = " (wheel)" if purl.startswith("pkg:pypi/") else ""
                known[f"{each['name']}{wheel}"] = str(each["version"])
    except (KeyError, TypeError, AttributeError):
        raise CheckFailed.of("foreign-sbom") from None
    return known
