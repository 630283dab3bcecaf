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


def sign_image(
    repository: Repository,
    digest: str,
    keys: Sequence[SigningKey],
    predicates: Predicates,
    trusted: Sequence[PublicKey] = (),
) -> None:
    """Attests `predicates`, and signs the image with each of the keys.

    An attestation of ours stays if it says the same, and goes if it says something else; those of other types stay.
    What one of these keys or of the `trusted` ones signed, and not all of these, is attested anew by these: so keys
    change without a build. What none of them signed goes: nobody who trusts these keys would take the image with it. So
    do signatures of other keys that list what is gone. Whatever it breaks off at, what was proved stays so: the new
    attestations lie beside the old ones until the signatures list them.

    Raises:
        CheckFailed, Missing: as `Repository`.
    """
    own = [key.public for key in keys]
    due = dict(predicates)
    files: list[Attached] = []
    present = _readable(repository, digest, "sig")
    before = _readable(repository, digest, "att")
    listed = _listed_by(present, [*own, *trusted])
    for each in before:
        said, signers = _said(each, digest, [*own, *trusted])
        if said is None or each.digest not in (listed or ()):  # without a list, any of them may be an old one put back
            continue
        kind, by_all = said.predicate_type, set(signers) >= {key.fingerprint for key in own}
        if kind in predicates:
            if by_all and kind in due and said.predicate == due[kind]:
                files.append(each)
                del due[kind]
        else:
            files.append(each if by_all else attest(digest, repository.reference, kind, said.predicate, keys))
    files += [attest(digest, repository.reference, kind, value, keys) for kind, value in due.items()]
    there = {each.digest for each in files}
    if files:
        attached.write(repository, digest, "att", [*files, *(each for each in before if each.digest not in there)])
    marks = {key.fingerprint for key in own}
    signatures = [each for each in present if each.annotations.get(SIGNER) not in marks and there >= _listed(each)]
    for key in keys:
        fresh = sign(digest, repository.reference, key, files)
        same = (
            each for each in present if each.data == fresh.data and key.public.signed(fresh.data or b"", each.signature)
        )
        signatures.append(next(same, fresh))
    attached.write(repository, digest, "sig", signatures)
    if files and not {each.digest for each in before} <= there:
        attached.write(repository, digest, "att", files)


def _listed_by(signatures: Sequence[Attached], keys: Sequence[PublicKey]) -> set[str] | None:
    """Digests of the attestations that signatures of these keys list; None where none has a list."""
    ours = [each for each in signatures if any(key.signed(each.data or b"", each.signature) for key in keys)]
    lists = [found for each in ours if (found := _list(each)) is not None]
    return set().union(*lists) if lists else None


def _listed(each: Attached) -> set[str]:
    """Digests of the attestations that a signature lists."""
    return _list(each) or set()


def _list(each: Attached) -> set[str] | None:
    try:
        found = envelope.parse(each.data or b"", Payload).listed
    except ValueError:
        return None
    return None if found is None else set(found)


def _readable(repository: Repository, digest: str, kind: attached.Kind) -> list[Attached]:
    """Those there that can be kept; the rest is what no verification would take."""
    try:
        return [each for each in attached.read(repository, digest, kind) or () if each.data is not None]
    except ValueError:
        return []


def _said(each: Attached, digest: str, keys: Sequence[PublicKey]) -> tuple[Statement | None, tuple[str, ...]]:
    """What one of the keys signed about the image, and the fingerprints of those that did; None for anything else."""
    try:
        envelope_ = envelope.parse(each.data or b"", Envelope)
        said = envelope.parse(envelope_.content, Statement)
    except ValueError:
        return None, ()
    signers = tuple(key.fingerprint for key in envelope_.signers(keys))
    return (said, signers) if signers and said.is_about(digest) else (None, ())
