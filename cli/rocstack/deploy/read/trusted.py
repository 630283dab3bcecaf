"""What is proved of images before any node gets them: signed by a key of the site's trust policy, attested, and by
digest. It is read from the registry where they were released, or, while that can't be reached, from what was kept when
it was checked last: signatures are as good from a file.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rocstack.base.errors import BadInput, CheckFailed, Missing, RocstackError
from rocstack.base.image_names import content_tag, id_tag
from rocstack.base.levels import Level
from rocstack.base.text import from_json
from rocstack.base.words import Value
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.read.journal import VerifiedLevel
from rocstack.edge import files
from rocstack.registry.layers import sha256
from rocstack.registry.oci import is_of
from rocstack.registry.repository import Repository
from rocstack.trust.attached import Source
from rocstack.trust.envelope import PROVENANCE, SBOM, VERIFY_REPORT
from rocstack.trust.keys import PublicKey
from rocstack.trust.verification import SignedEvidence, Untrusted, verify

ATTESTATIONS = {"provenance": PROVENANCE, "sbom": SBOM, "verify": VERIFY_REPORT}
AWAY = frozenset({"registry-unreachable", "registry-busy", "registry-denied"})  # a login may have expired
NEWEST = 64  # tags in which an image is looked for
SCHEMA = 1


class Trusted(Value):
    """`signers` are fingerprints of the keys that signed all images; `proved` is what signed reports say of them."""

    signers: tuple[str, ...] = ()
    proved: tuple[VerifiedLevel, ...] = ()
    order: dict[str, Any] = Field(default_factory=dict, repr=False)  # by which the control node judges them itself


class SignedReport(BaseModel):
    """The predicate of a verify report, as `rocstack release` attests it."""

    model_config = ConfigDict(strict=True, extra="ignore")
    report: str = ""
    when: str = ""
    level: Level | None = None
    virtual: bool = True
    image: str | None = None
    controlImage: str | None = None


@dataclass
class Kept:
    """A source of one image's manifests and files, and what is noted of another one. Compares what it gives."""

    reference: str
    digest: str
    held: dict[str, bytes] = field(default_factory=dict, repr=False)

    def manifest(self, name: str) -> bytes | None:
        return self._compared(name, self.held.get(name))

    def blob(self, digest: str) -> bytes | None:
        return self._compared(digest, self.held.get(digest))

    def _compared(self, name: str, data: bytes | None) -> bytes | None:
        if data is not None and name.startswith("sha256:") and sha256(data) != name:
            raise Untrusted.of("signature-broken", reference=self.reference, why=f"what was kept of {name} was changed")
        return data

    def to_dict(self) -> dict[str, Any]:
        held = {name: base64.b64encode(data).decode() for name, data in self.held.items()}
        return {"reference": self.reference, "digest": self.digest, "held": held}

    def save(self, file: Path) -> None:
        about = {"schema": SCHEMA, **self.to_dict()}
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write(file, json.dumps(about) + "\n")

    @classmethod
    def read(cls, file: Path) -> Kept | None:
        """None where nothing was kept, or what can't be read: it is only kept."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            said = from_json(file.read_bytes())
            held = {str(name): base64.b64decode(text, validate=True) for name, text in said["held"].items()}
            return cls(str(said["reference"]), str(said["digest"]), held)
        return None


@dataclass(frozen=True)
class Noting:
    """A source that notes in `kept` what it gives."""

    source: Source
    kept: Kept

    @property
    def reference(self) -> str:
        return self.source.reference

    def manifest(self, name: str) -> bytes | None:
        return self._noted(name, self.source.manifest(name))

    def blob(self, digest: str) -> bytes | None:
        return self._noted(digest, self.source.blob(digest))

    def _noted(self, name: str, data: bytes | None) -> bytes | None:
        if data is not None:
            self.kept.held[name] = data
        return data


@dataclass(frozen=True)
class TrustCheck:
    """The site's trust policy at work. `repository` gives that of a role: None where a site has no registry, and only
    what was kept in `folder` counts."""

    keys: tuple[PublicKey, ...]
    require: tuple[str, ...]  # keys of ATTESTATIONS
    level: int | None
    replaces: tuple[str, ...]
    repository: Callable[[str], Repository] | None
    folder: Path

    @property
    def fingerprints(self) -> tuple[str, ...]:
        return tuple(key.fingerprint for key in self.keys)

    def __call__(self, images: Mapping[str, Image], say: Callable[[str], None]) -> Trusted:
        """
        Raises:
            Untrusted: one of the images isn't what the policy accepts; as `verify`, or image-unreleased.
            CheckFailed, Missing, BadInput: its registry fails, or there is none, and nothing was kept.
        """
        required = {ATTESTATIONS[name] for name in (*self.require, *(("verify",) if self.level is not None else ()))}
        found, held = dict[str, SignedEvidence](), dict[str, Kept]()
        away: RocstackError | None = None if self.repository else BadInput.of("no-trust-registry")
        for role, image in images.items():
            if self.repository and not away:  # it is asked once
                try:
                    found[role], held[role] = self._released(self.repository(role), image, required)
                    continue
                except (CheckFailed, Missing) as error:
                    if error.code not in AWAY:
                        raise
                    away = error
                    say(f"{error.what.splitlines()[0]}: checking the signatures that were kept")
            found[role], held[role] = self._kept(image, required, away)
        common = set.intersection(*(set(each.signers) for each in found.values()))
        if not common:
            raise Untrusted.of("signers-differ", images=" and ".join(each.reference for each in found.values()))
        proved = tuple(_levels(found["worker"], images))
        rows = {role: {"id": images[role].id, **each.to_dict()} for role, each in held.items()}
        policy = {"require": sorted(required), "level": self.level, "replaces": list(self.replaces)}
        order = {"images": rows, "keys": [key.pem.decode() for key in self.keys], **policy}
        return Trusted(signers=tuple(sorted(common)), proved=proved, order=order)

    def _released(self, repository: Repository, image: Image, required: set[str]) -> tuple[SignedEvidence, Kept]:
        """Tags are hints where to look: of what has this image's configuration, the first that is proved counts."""
        kept, problem = Kept.read(_file(self.folder, image.id)), None
        for digest in _digests(repository, image, kept.digest if kept else ""):
            try:
                return keep(self.folder, repository, image.id, digest, self.keys, required)
            except Untrusted as error:
                problem = problem or error
        if problem:
            raise problem
        raise Untrusted.of("image-unreleased", repository=repository.reference, role=image.role, id=image.id[7:19])

    def _kept(self, image: Image, required: set[str], away: RocstackError | None) -> tuple[SignedEvidence, Kept]:
        """Raises `away` where nothing was kept of this image."""
        kept = Kept.read(_file(self.folder, image.id))
        if kept is None or not is_of(kept.manifest(kept.digest), image.id):
            assert away is not None
            raise away
        return verify(kept, kept.digest, self.keys, required), kept


def keep(
    folder: Path, source: Source, image_id: str, digest: str, keys: Sequence[PublicKey], required: Collection[str] = ()
) -> tuple[SignedEvidence, Kept]:
    """Verifies an image of `source`, and keeps what proves it for a time without that source.

    Raises:
        Untrusted, CheckFailed, Missing: as `verify`.
    """
    kept = Kept(source.reference, digest)
    evidence = verify(Noting(source, kept), digest, keys, required)
    kept.save(_file(folder, image_id))
    return evidence, kept


def _file(folder: Path, image_id: str) -> Path:
    return folder / f"{image_id.removeprefix('sha256:')}.json"


def _digests(repository: Repository, image: Image, kept: str) -> Iterator[str]:
    """Of the manifests that name this very image, each once. `kept` is where it was last."""
    seen = set[str]()
    for name in _names(repository, image, kept):
        data = repository.manifest(name)
        if data is not None and is_of(data, image.id) and sha256(data) not in seen:
            seen.add(sha256(data))
            yield sha256(data)


def _names(repository: Repository, image: Image, kept: str) -> Iterator[str]:
    if re.fullmatch(r"sha256:[0-9a-f]{64}", kept):
        yield kept
    reference, _, digest = (image.reference or "").partition("@")
    if digest and reference == repository.reference:
        yield digest
    with suppress(ValueError):  # no label, or one that isn't ours
        yield content_tag(image.label("content"))
    yield id_tag(image.id)
    tags = [tag for tag in sorted(repository.tags(), reverse=True) if not tag.startswith(("sha256-", "i-", "c-"))]
    yield from tags[:NEWEST]


def _levels(evidence: SignedEvidence, images: Mapping[str, Image]) -> Iterator[VerifiedLevel]:
    for predicate in evidence.predicates(VERIFY_REPORT):
        try:
            said = SignedReport.model_validate(predicate)
        except ValidationError:  # of a newer rocstack: it proves nothing here
            continue
        pair = (said.image, said.controlImage)
        if said.level is not None and pair == (images["worker"].id, images["control"].id):
            yield VerifiedLevel(level=said.level, when=said.when, virtual=said.virtual, report=said.report)
