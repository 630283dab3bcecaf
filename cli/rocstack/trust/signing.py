"""Signs images in a registry, and attests what is said of them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from rocstack.registry.repository import Repository
from rocstack.trust import attached, envelope
from rocstack.trust.attached import DSSE, PREDICATE_TYPE, SIGNATURE, SIGNER, SIMPLE_SIGNING, Attached
from rocstack.trust.envelope import Envelope, Payload, Statement
from rocstack.trust.keys import PublicKey, SigningKey

Predicates = Mapping[str, Mapping[str, Any]]  # predicate type -> predicate


def sign(digest: str, reference: str, key: SigningKey, attestations: Sequence[Attached] = ()) -> Attached:
    """A signature of the image with this digest in this repository (`host/name`), as a file for the registry. It lists
    the attestations, so that none can be taken away."""
    listed = {each.digest: each.annotations[PREDICATE_TYPE] for each in attestations}
    data = envelope.payload(digest, reference, listed)
    mark = base64.b64encode(key.sign(data)).decode()
    return Attached.make(SIMPLE_SIGNING, data, {SIGNATURE: mark, SIGNER: key.public.fingerprint})


def attest(
    digest: str, reference: str, predicate_type: str, predicate: Mapping[str, Any], keys: Sequence[SigningKey]
) -> Attached:
    """One attestation about the image, as a file for the registry."""
    data = envelope.enveloped(envelope.statement(digest, reference, predicate_type, predicate), keys)
    return Attached.make(DSSE, data, {SIGNATURE: "", PREDICATE_TYPE: predicate_type})


def sign_image(repository: Repository, digest: str, keys: Sequence[SigningKey], predicates: Predicates) -> None:
    """Attests `predicates`, and signs the image with each of the keys.

    An attestation of ours stays if it says the same, and goes if it says something else; those of other types stay.
    What none of the keys signed goes: nobody who trusts these keys would take the image with it. So do signatures of
    other keys that list what is gone. To change a key, sign with both for a while. The signatures come last: until then
    nothing lists what was attested.

    Raises:
        CheckFailed, Missing: as `Repository`.
    """
    own = [key.public for key in keys]
    due = dict(predicates)
    files: list[Attached] = []
    for each in _readable(repository, digest, "att"):
        said = _said(each, digest, own)
        if said is None:
            continue
        if said.predicate_type not in predicates:
            files.append(each)
        elif said.predicate_type in due and said.predicate == due[said.predicate_type]:
            files.append(each)
            del due[said.predicate_type]
    files += [attest(digest, repository.reference, kind, value, keys) for kind, value in due.items()]
    if files:
        attached.write(repository, digest, "att", files)
    there = {each.digest for each in files}
    present = _readable(repository, digest, "sig")
    marks = {key.fingerprint for key in own}
    signatures = [each for each in present if each.annotations.get(SIGNER) not in marks and there >= _listed(each)]
    for key in keys:
        fresh = sign(digest, repository.reference, key, files)
        same = (
            each for each in present if each.data == fresh.data and key.public.signed(fresh.data or b"", each.signature)
        )
        signatures.append(next(same, fresh))
    attached.write(repository, digest, "sig", signatures)


def _listed(each: Attached) -> set[str]:
    """Digests of the attestations that a signature lists."""
    try:
        return set(envelope.parse(each.data or b"", Payload).listed or ())
    except ValueError:
        return set()


def _readable(repository: Repository, digest: str, kind: attached.Kind) -> list[Attached]:
    """Those there that can be kept; the rest is what no verification would take."""
    try:
        return [each for each in attached.read(repository, digest, kind) or () if each.data is not None]
    except ValueError:
        return []


def _said(each: Attached, digest: str, keys: Sequence[PublicKey]) -> Statement | None:
    """What all of the keys signed about the image; None for anything else."""
    try:
        envelope_ = envelope.parse(each.data or b"", Envelope)
        said = envelope.parse(envelope_.content, Statement)
    except ValueError:
        return None
    return said if said.is_about(digest) and len(envelope_.signers(keys)) == len(keys) else None
