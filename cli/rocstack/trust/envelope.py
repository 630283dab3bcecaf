"""What is signed: cosign's payload that names an image, and in-toto statements about it in DSSE envelopes. Pure.

github.com/sigstore/cosign, specs/SIGNATURE_SPEC.md; github.com/secure-systems-lab/dsse, protocol.md;
github.com/in-toto/attestation, spec/v1. What is read here was written by whoever can write to a registry.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from rocstack.base.text import from_json
from rocstack.base.words import ImageId
from rocstack.registry.oci import as_json
from rocstack.trust.keys import PublicKey, SigningKey

SIGNED_TYPE = "cosign container image signature"
IN_TOTO = "application/vnd.in-toto+json"
PROVENANCE = "https://slsa.dev/provenance/v1"
SBOM = "https://cyclonedx.org/bom"
VERIFY_REPORT = "urn:rocstack:verify-report:v1"
# Predicate type -> what people call it.
TYPES = {PROVENANCE: "provenance", SBOM: "SBOM", VERIFY_REPORT: "verify report"}
STATEMENTS = ("https://in-toto.io/Statement/v1", "https://in-toto.io/Statement/v0.1")  # we write the first
LISTED = "io.rocstack.attestations"
MOST_SIGNATURES = 16  # of one envelope
Shape = TypeVar("Shape", bound=BaseModel)


def _base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("it is no base64") from None
    return text


Base64 = Annotated[str, AfterValidator(_base64)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", populate_by_name=True)


class _Known(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", populate_by_name=True)


class _Identity(_Known):
    docker_reference: str = Field(alias="docker-reference")


class _Image(_Strict):
    docker_manifest_digest: ImageId = Field(alias="docker-manifest-digest")


class _Critical(_Strict):
    identity: _Identity
    image: _Image
    type: Literal["cosign container image signature"]


class Payload(_Strict):
    """What a signature of an image signs. `optional` is the signer's own; ours lists the attestations in it."""

    critical: _Critical
    optional: dict[str, Any] | None = None

    @property
    def digest(self) -> str:
        return self.critical.image.docker_manifest_digest

    @property
    def listed(self) -> Mapping[str, str] | None:
        """Digest of each attestation's envelope -> its predicate type; None where the signer lists none.

        Raises:
            ValueError: it is no such list.
        """
        listed = (self.optional or {}).get(LISTED)
        if listed is None:
            return None
        if not isinstance(listed, dict) or not all(isinstance(value, str) for value in listed.values()):
            raise ValueError(f"'{LISTED}' is no list of attestations")
        return listed


def payload(digest: str, reference: str, listed: Mapping[str, str] | None) -> bytes:
    """The bytes to sign: this digest, in this repository, has these attestations."""
    critical = {
        "identity": {"docker-reference": reference},
        "image": {"docker-manifest-digest": digest},
        "type": SIGNED_TYPE,
    }
    optional = None if listed is None else {LISTED: dict(sorted(listed.items()))}
    return as_json({"critical": critical, "optional": optional})


class _Signature(_Known):
    keyid: str | None = ""
    sig: Base64


class Envelope(_Known):
    payload_type: str = Field(alias="payloadType")
    payload: Base64
    signatures: list[_Signature] = Field(min_length=1, max_length=MOST_SIGNATURES)

    @property
    def content(self) -> bytes:
        return base64.b64decode(self.payload)

    def signers(self, keys: Sequence[PublicKey]) -> tuple[PublicKey, ...]:
        """Those of the keys that signed it."""
        data = _authenticated(self.payload_type, self.content)
        marks = [base64.b64decode(each.sig) for each in self.signatures]
        return tuple(key for key in keys if any(key.signed(data, mark) for mark in marks))

    def claims(self, keys: Sequence[PublicKey]) -> bool:
        """Does it say that one of the keys signed it? A hint, and no proof."""
        return bool({key.fingerprint for key in keys} & {each.keyid for each in self.signatures})


class _Subject(_Known):
    name: str = ""
    digest: dict[str, str]


class Statement(_Known):
    kind: Literal["https://in-toto.io/Statement/v1", "https://in-toto.io/Statement/v0.1"] = Field(alias="_type")
    subject: list[_Subject] = Field(min_length=1, max_length=16)
    predicate_type: str = Field(alias="predicateType")
    predicate: dict[str, Any]

    def is_about(self, digest: str) -> bool:
        """Is every subject this image? An attestation about two images says nothing certain of either."""
        return all(each.digest.get("sha256") == digest.removeprefix("sha256:") for each in self.subject)


def statement(digest: str, name: str, predicate_type: str, predicate: Mapping[str, Any]) -> bytes:
    subject = [{"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}]
    parts = {"subject": subject, "predicateType": predicate_type, "predicate": dict(predicate)}
    return as_json({"_type": STATEMENTS[0], **parts})


def enveloped(content: bytes, keys: Sequence[SigningKey]) -> bytes:
    """A DSSE envelope of an in-toto statement, signed by each of the keys."""
    data = _authenticated(IN_TOTO, content)
    signatures = [
        {"keyid": key.public.fingerprint, "sig": base64.b64encode(key.sign(data)).decode()} for key in keys
    ]  # fmt: skip
    body = base64.b64encode(content).decode()
    return as_json({"payloadType": IN_TOTO, "payload": body, "signatures": signatures})


def parse(data: bytes, shape: type[Shape]) -> Shape:
    """
    Raises:
        ValueError: it is something else; in one short sentence.
    """
    try:
        return shape.model_validate(from_json(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(map(str, first["loc"]))[:80]
        raise ValueError(f"{at}: {first['msg'][:120]}".removeprefix(": ")) from None


def _authenticated(kind: str, content: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(content), content)
