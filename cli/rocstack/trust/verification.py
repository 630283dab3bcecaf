"""Checks an image's signatures and attestations, by digest, against keys that somebody trusts.

A tag may move between the check and the pull: who pulls must pull this digest. What is not signed by a trusted key
proves nothing, whoever put it there, and is refused with the cause.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rocstack.base.errors import CheckFailed
from rocstack.base.words import Value
from rocstack.trust import attached, envelope
from rocstack.trust.attached import DSSE, PREDICATE_TYPE, SIGNER, SIMPLE_SIGNING, Attached, Source
from rocstack.trust.envelope import IN_TOTO, TYPES, Envelope, Payload, Statement
from rocstack.trust.keys import PublicKey


class Untrusted(CheckFailed):
    """The image is not what its signer released, or nobody whom we trust signed it."""


class Attestation(Value):
    """What a trusted key says of an image."""

    predicate_type: str
    digest: str  # of the envelope
    signers: tuple[str, ...]  # fingerprints
    predicate: dict[str, Any]


class SignedEvidence(Value):
    """What is proved of an image."""

    reference: str  # by digest
    signers: tuple[str, ...]  # fingerprints of the trusted keys that signed it
    others: int = 0  # signatures of keys that are not trusted: they count for nothing
    attestations: tuple[Attestation, ...] = ()

    def predicates(self, predicate_type: str) -> list[dict[str, Any]]:
        return [each.predicate for each in self.attestations if each.predicate_type == predicate_type]


def verify(
    source: Source,
    digest: str,
    keys: Sequence[PublicKey],
    required: Collection[str] = (),
    *,
    known: Collection[str] = tuple(TYPES),
) -> SignedEvidence:
    """Checks the image with this digest. `required` are predicate types of which each must be attested, `known` those
    that may be.

    Raises:
        Untrusted: with a code for each cause: image-absent, image-unsigned, unknown-signer, signature-broken,
            signature-of-another, attestation-missing, attestation-unsigned, attestation-of-another,
            attestation-broken, attestation-absent, attestation-unknown-type, unlisted-file.
        CheckFailed, Missing: the source fails, or gives other bytes than a digest says (digest-differs).
    """
    return _Check(source, digest, tuple(keys), frozenset(known) | frozenset(required)).evidence(required)


class _Check:
    def __init__(self, source: Source, digest: str, keys: tuple[PublicKey, ...], known: frozenset[str]) -> None:
        self.source, self.digest, self.keys, self.known = source, digest, keys, known
        self.at = f"{source.reference}@{digest}"
        self.listed: dict[str, str] | None = None  # what the trusted signatures list

    def evidence(self, required: Collection[str]) -> SignedEvidence:
        if self.source.manifest(self.digest) is None:
            raise Untrusted.of("image-absent", reference=self.at)
        signers, others = self._signatures()
        attestations = self._attestations()
        there = {each.predicate_type for each in attestations}
        for kind in required:
            if kind not in there:
                raise Untrusted.of("attestation-missing", reference=self.at, kind=_called(kind))
        return SignedEvidence(reference=self.at, signers=signers, others=others, attestations=attestations)

    def _signatures(self) -> tuple[tuple[str, ...], int]:
        """Fingerprints of the trusted keys that signed, and how many other signatures there are."""
        try:
            files = attached.read(self.source, self.digest, "sig")
        except ValueError as error:
            raise Untrusted.of("signature-broken", reference=self.at, why=error) from None
        if not files:
            raise Untrusted.of("image-unsigned", reference=self.at)
        signers: dict[str, None] = {}
        problem: Untrusted | None = None
        others = 0
        for each in files:
            if each.media_type != SIMPLE_SIGNING:
                raise Untrusted.of("unlisted-file", reference=self.at, file=f"{each.digest} ({each.media_type[:80]})")
            if each.data is None:
                problem = problem or Untrusted.of(
                    "signature-broken", reference=self.at, why=f"the registry lacks {each.digest}"
                )
                continue
            by = [key for key in self.keys if key.signed(each.data, each.signature)]
            if by:
                self._note(each)
                signers |= dict.fromkeys(key.fingerprint for key in by)
            elif each.annotations.get(SIGNER) in {key.fingerprint for key in self.keys}:
                why = f"it is said to be of key {each.annotations[SIGNER]}, and is not that key's over this payload"
                problem = problem or Untrusted.of("signature-broken", reference=self.at, why=why)
            else:
                others += 1
        if problem:
            raise problem
        if not signers:
            said = sorted({each.annotations.get(SIGNER, "")[:60] for each in files} - {""})
            trusted = ", ".join(map(str, self.keys)) or "none"
            raise Untrusted.of(
                "unknown-signer",
                reference=self.at,
                signer=", ".join(said) or "a key that it doesn't name",
                keys=trusted,
            )
        return tuple(signers), others

    def _note(self, each: Attached) -> None:
        """What a trusted signature says: of which image it is, and which attestations belong to it."""
        try:
            said = envelope.parse(each.data or b"", Payload)
            listed = said.listed
        except ValueError as error:
            raise Untrusted.of("signature-broken", reference=self.at, why=f"its payload: {error}") from None
        if said.digest != self.digest:
            raise Untrusted.of("signature-of-another", reference=self.at, other=said.digest)
        if listed is not None:
            self.listed = {**(self.listed or {}), **listed}

    def _attestations(self) -> tuple[Attestation, ...]:
        """What counts. One of a trusted key that no signature lists was listed once, or will be: it counts for nothing,
        so that nobody can put an older one beside today's."""
        try:
            files = attached.read(self.source, self.digest, "att") or ()
        except ValueError as error:
            raise Untrusted.of("attestation-broken", reference=self.at, kind="manifest", why=error) from None
        there = {each.digest for each in files}
        for digest, kind in (self.listed or {}).items():
            if digest not in there:
                raise Untrusted.of("attestation-absent", reference=self.at, kind=_called(kind), digest=digest[:80])
        found = map(self._attestation, files)
        return tuple(each for each in found if self.listed is None or each.digest in self.listed)

    def _attestation(self, each: Attached) -> Attestation:
        listed = self.listed is not None and each.digest in self.listed
        kind = _called(each.annotations.get(PREDICATE_TYPE, "unknown type"))
        if each.media_type != DSSE:
            raise Untrusted.of("unlisted-file", reference=self.at, file=f"{each.digest} ({each.media_type[:80]})")
        if each.data is None:
            raise Untrusted.of("attestation-absent", reference=self.at, kind=kind, digest=each.digest)
        try:
            envelope_ = envelope.parse(each.data, Envelope)
            signers = envelope_.signers(self.keys)
        except ValueError as error:
            raise Untrusted.of("attestation-broken", reference=self.at, kind=kind, why=error) from None
        if not signers:
            if envelope_.claims(self.keys):
                why = "its signature is said to be of a trusted key, and is not that key's over this statement"
                raise Untrusted.of("attestation-broken", reference=self.at, kind=kind, why=why)
            if self.listed is not None and not listed:
                raise Untrusted.of("unlisted-file", reference=self.at, file=f"{each.digest} ({kind})")
            raise Untrusted.of("attestation-unsigned", reference=self.at, kind=kind)
        if envelope_.payload_type != IN_TOTO:
            raise Untrusted.of("attestation-unknown-type", reference=self.at, kind=envelope_.payload_type[:80])
        try:
            said = envelope.parse(envelope_.content, Statement)
        except ValueError as error:
            raise Untrusted.of(
                "attestation-broken", reference=self.at, kind=kind, why=f"its statement: {error}"
            ) from None
        if not said.is_about(self.digest):
            other = said.subject[0].digest.get("sha256", "something without a sha256")[:80]
            raise Untrusted.of(
                "attestation-of-another", reference=self.at, kind=_called(said.predicate_type), other=other
            )
        if said.predicate_type not in self.known:
            raise Untrusted.of("attestation-unknown-type", reference=self.at, kind=said.predicate_type[:120])
        fingerprints = tuple(key.fingerprint for key in signers)
        return Attestation(
            predicate_type=said.predicate_type, digest=each.digest, signers=fingerprints, predicate=said.predicate
        )


def _called(kind: str) -> str:
    return TYPES.get(kind, kind[:120])
