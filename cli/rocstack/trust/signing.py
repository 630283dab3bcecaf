"""Signs images in a registry, and attests what is said of them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from rocstack.registry.repository import Repository
from rocstack.trust import attached, envelope
from rocstack.trust.attached import DSSE, PREDICATE_TYPE, SIGNATURE, SIGNER, SIMPLE_SIGNING, Attached
from rocstack.trust.envelope import Envelope, Statement
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

    An attestation of ours that is there already stays if it says the same, and goes if it says something else; other
    types, and what other keys signed, stay. The signatures come last: until then nothing lists what was attested.

    Raises:
        CheckFailed, Missing: as `Repository`.
    """
    present = _readable(repository, digest, "att")
    own = [key.public for key in keys]
    files: list[Attached] = []
    due = dict(predicates)
    for each in present:
        said = _said(each, digest, own)
        if said is None or said.predicate_type not in predicates:
            files.append(each)
        elif said.predicate_type in due and said.predicate == due[said.predicate_type]:
            files.append(each)
            del due[said.predicate_type]
    files += [attest(digest, repository.reference, kind, value, keys) for kind, value in due.items()]
    if files:
        attached.write(repository, digest, "att", files)
    ours = [each for each in files if _said(each, digest, own)]
    marks = {key.fingerprint for key in own}
    others = [each for each in _readable(repository, digest, "sig") if each.annotations.get(SIGNER) not in marks]
    signatures = [sign(digest, repository.reference, key, ours) for key in keys]
    attached.write(repository, digest, "sig", [*others, *signatures])


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
