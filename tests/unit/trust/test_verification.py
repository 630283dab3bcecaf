"""What proves that an image is the one released: everything that can be done to it without a key is refused by name."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signed_image import DIGEST, REFERENCE, Shelf, released

from rocstack.registry.layers import sha256
from rocstack.trust import attached, envelope
from rocstack.trust.attached import DSSE, PREDICATE_TYPE, SIGNATURE, SIGNER, SIMPLE_SIGNING, Attached
from rocstack.trust.envelope import PROVENANCE, SBOM, VERIFY_REPORT
from rocstack.trust.keys import SigningKey
from rocstack.trust.signing import attest, sign
from rocstack.trust.verification import Untrusted, verify

OURS, SECOND, THEIRS = (SigningKey.generate(name) for name in ("ours.pub", "second.pub", "theirs.pub"))
PREDICATES = {PROVENANCE: {"buildDefinition": {"lock": "a"}}, SBOM: {"bomFormat": "CycloneDX"}}
OTHER = sha256(b"another image")


@pytest.fixture
def shelf() -> Shelf:
    return released([OURS], PREDICATES)


def refusal(shelf: Shelf, *keys: SigningKey, required: tuple[str, ...] = (PROVENANCE, SBOM)) -> Untrusted:
    with pytest.raises(Untrusted) as caught:
        verify(shelf, DIGEST, [key.public for key in keys or (OURS,)], required)
    assert DIGEST in caught.value.what
    assert caught.value.next_step
    return caught.value


def test_a_released_image_is_proved(shelf: Shelf) -> None:
    found = verify(shelf, DIGEST, [OURS.public], [PROVENANCE, SBOM])
    assert found.signers == (OURS.public.fingerprint,)
    assert found.reference == f"{REFERENCE}@{DIGEST}"
    assert {each.predicate_type: each.predicate for each in found.attestations} == PREDICATES
    assert found.predicates(SBOM) == [PREDICATES[SBOM]]


def test_several_keys_sign(shelf: Shelf) -> None:
    both = released([OURS, SECOND], PREDICATES)
    for keys in ([OURS], [SECOND], [OURS, SECOND]):
        found = verify(both, DIGEST, [key.public for key in keys], PREDICATES)
        assert found.signers == tuple(key.public.fingerprint for key in keys)
        assert found.others == 2 - len(keys)


Change = Callable[[Shelf], Any]


def drop(kind: attached.Kind) -> Change:
    return lambda shelf: shelf.manifests.pop(attached.tag(DIGEST, kind))


def replaced(kind: attached.Kind, old: Callable[[Shelf], int], make: Callable[[Attached], Attached]) -> Change:
    def change(shelf: Shelf) -> None:
        files = list(attached.read(shelf, DIGEST, kind) or ())
        at = old(shelf)
        files[at] = make(files[at])
        shelf.put(kind, files)

    return change


def flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def in_envelope(name: str, change: Callable[[str], str]) -> Callable[[Attached], Attached]:
    def make(each: Attached) -> Attached:
        parsed = json.loads(each.data or b"")
        if name == "sig":
            parsed["signatures"][0]["sig"] = change(parsed["signatures"][0]["sig"])
        else:
            parsed[name] = change(parsed[name])
        return Attached.make(DSSE, json.dumps(parsed).encode(), each.annotations)

    return make


def in_base64(text: str) -> str:
    return base64.b64encode(flipped(base64.b64decode(text))).decode()


def with_signature(data: bytes, mark: bytes, key: SigningKey) -> Attached:
    said = {SIGNATURE: base64.b64encode(mark).decode(), SIGNER: key.public.fingerprint}
    return Attached.make(SIMPLE_SIGNING, data, said)


def first(shelf: Shelf) -> int:
    return 0


def one_of(kind: str, value: Any, key: SigningKey, digest: str = DIGEST) -> Attached:
    return attest(digest, REFERENCE, kind, value, [key])


def added(kind: attached.Kind, *files: Attached) -> Change:
    return lambda shelf: shelf.put(kind, [*(attached.read(shelf, DIGEST, kind) or ()), *files])


def only(kind: attached.Kind, *files: Attached) -> Change:
    return lambda shelf: shelf.put(kind, files)


CASES: dict[str, tuple[str, Change]] = {
    "the image is gone": ("image-absent", lambda shelf: shelf.manifests.pop(DIGEST)),
    "the signature is gone": ("image-unsigned", drop("sig")),
    "its manifest is empty": ("image-unsigned", only("sig")),
    "somebody else signed": ("unknown-signer", only("sig", sign(DIGEST, REFERENCE, THEIRS))),
    "somebody else signed and says that it was us": (
        "signature-broken",
        only("sig", with_signature(b"{}", THEIRS.sign(b"{}"), OURS)),
    ),
    "a bit of the signature": (
        "signature-broken",
        replaced("sig", first, lambda each: with_signature(each.data or b"", flipped(each.signature), OURS)),
    ),
    "a signature that is none": (
        "signature-broken",
        replaced("sig", first, lambda each: with_signature(each.data or b"", b"x", OURS)),
    ),
    "a bit of the payload": (
        "signature-broken",
        replaced("sig", first, lambda each: with_signature(flipped(each.data or b""), each.signature, OURS)),
    ),
    "the payload is gone": ("signature-broken", lambda shelf: [shelf.blobs.pop(d) for d in payloads(shelf)]),
    "signed, but no payload of cosign's": (
        "signature-broken",
        only("sig", with_signature(b"[]", OURS.sign(b"[]"), OURS)),
    ),
    "the signature of another image": ("signature-of-another", only("sig", sign(OTHER, REFERENCE, OURS))),
    "no manifest": (
        "signature-broken",
        lambda shelf: shelf.manifests.update({attached.tag(DIGEST, "sig"): b'{"layers": 1}'}),
    ),
    "no JSON": (
        "signature-broken",
        lambda shelf: shelf.manifests.update({attached.tag(DIGEST, "sig"): b"[" * 100_000}),
    ),
    "a file among the signatures": ("unlisted-file", added("sig", Attached.make("text/plain", b"hello", {}))),
    "all attestations are gone": ("attestation-absent", drop("att")),
    "one attestation is gone": (
        "attestation-absent",
        lambda shelf: shelf.put("att", (attached.read(shelf, DIGEST, "att") or ())[:1]),
    ),
    "the file of an attestation is gone": (
        "attestation-absent",
        lambda shelf: [shelf.blobs.pop(d) for d in files(shelf)[:1]],
    ),
    "a file among the attestations": ("unlisted-file", added("att", Attached.make("text/plain", b"hello", {}))),
    "an attestation of somebody else beside ours": ("unlisted-file", added("att", one_of(SBOM, {}, THEIRS))),
    "an attestation of ours about another image": (
        "attestation-of-another",
        added("att", one_of(SBOM, {}, OURS, OTHER)),
    ),
    "an attestation of ours of a new type": (
        "attestation-unknown-type",
        added("att", one_of("https://example.com/new", {}, OURS)),
    ),
    "a bit of the statement": (
        "attestation-absent",  # its digest isn't listed any more
        replaced("att", first, in_envelope("payload", in_base64)),
    ),
}


def payloads(shelf: Shelf) -> list[str]:
    return [each.digest for each in attached.read(shelf, DIGEST, "sig") or ()]


def files(shelf: Shelf) -> list[str]:
    return [each.digest for each in attached.read(shelf, DIGEST, "att") or ()]


@pytest.mark.parametrize("case", CASES)
def test_what_somebody_does_without_our_key_is_refused_by_name(shelf: Shelf, case: str) -> None:
    code, change = CASES[case]
    change(shelf)
    assert refusal(shelf).code == code


def cosigned(*files: Attached) -> Shelf:
    """As cosign leaves it: the signature lists nothing."""
    shelf = Shelf()
    data = envelope.payload(DIGEST, REFERENCE, None)
    shelf.put("sig", [Attached.make(SIMPLE_SIGNING, data, {SIGNATURE: base64.b64encode(OURS.sign(data)).decode()})])
    shelf.put("att", files)
    return shelf


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("attestation-unsigned", in_envelope("sig", lambda text: base64.b64encode(THEIRS.sign(b"")).decode())),
        ("attestation-broken", lambda each: one_said_ours(each)),
        ("attestation-broken", in_envelope("payload", lambda text: "?")),
        ("attestation-broken", lambda each: Attached.make(DSSE, b"{}", each.annotations)),
        ("attestation-unsigned", lambda each: one_of(SBOM, {}, THEIRS)),
        ("attestation-of-another", lambda each: one_of(SBOM, {}, OURS, OTHER)),
        ("attestation-missing", lambda each: one_of(VERIFY_REPORT, {}, OURS)),
    ],
)
def test_without_a_list_each_attestation_needs_its_own_signature(
    code: str, change: Callable[[Attached], Attached]
) -> None:
    plain = nameless(one_of(SBOM, {}, OURS))
    verify(cosigned(plain), DIGEST, [OURS.public], [SBOM])
    assert refusal(cosigned(change(plain)), required=(SBOM,)).code == code


def nameless(each: Attached) -> Attached:
    """As cosign writes it."""
    parsed = json.loads(each.data or b"")
    parsed["signatures"][0]["keyid"] = ""
    return Attached.make(DSSE, json.dumps(parsed).encode(), each.annotations)


def one_said_ours(each: Attached) -> Attached:
    parsed = json.loads(one_of(SBOM, {}, OURS).data or b"")
    parsed["payload"] = in_base64(parsed["payload"])
    return Attached.make(DSSE, json.dumps(parsed).encode(), each.annotations)


def test_the_type_is_the_one_that_was_signed_not_the_one_beside_it(shelf: Shelf) -> None:
    """Who writes annotations could else pass an SBOM off as a verify report."""
    each = one_of(SBOM, {}, OURS)
    shelf = cosigned(Attached.make(DSSE, each.data or b"", {PREDICATE_TYPE: VERIFY_REPORT}))
    assert refusal(shelf, required=(VERIFY_REPORT,)).code == "attestation-missing"


def test_nothing_required_is_missing_where_nothing_is_attested() -> None:
    shelf = released([OURS], {})
    assert verify(shelf, DIGEST, [OURS.public]).attestations == ()
    told = refusal(shelf, required=(SBOM,))
    assert (told.code, "SBOM" in told.what) == ("attestation-missing", True)


def test_no_key_trusts_nobody(shelf: Shelf) -> None:
    with pytest.raises(Untrusted) as caught:
        verify(shelf, DIGEST, [])
    assert caught.value.code == "unknown-signer"


def test_a_signature_too_large_is_not_fetched(shelf: Shelf) -> None:
    shelf.edit("att", lambda manifest: manifest["layers"][0].update(size=1 << 40))
    assert refusal(shelf).code == "attestation-broken"


@pytest.mark.parametrize("mark", ["é", "====", "\ud800", "a"])
def test_a_strangers_signature_that_is_none_is_refused_by_name(shelf: Shelf, mark: str) -> None:
    other = Attached.make(SIMPLE_SIGNING, b"{}", {SIGNATURE: mark})
    assert not OURS.public.signed(other.data or b"", other.signature)
    shelf.put("sig", [other])
    refusal(shelf)


def test_more_files_than_any_image_has_are_refused(shelf: Shelf) -> None:
    shelf.edit("sig", lambda manifest: manifest.update(layers=manifest["layers"] * 100))
    assert refusal(shelf).code == "signature-broken"


def test_several_subjects_say_nothing_certain() -> None:
    said = json.loads(envelope.statement(DIGEST, REFERENCE, SBOM, {}))
    said["subject"].append({"name": "other", "digest": {"sha256": OTHER[7:]}})
    each = Attached.make(DSSE, envelope.enveloped(json.dumps(said).encode(), [OURS]), {})
    assert refusal(cosigned(each), required=(SBOM,)).code == "attestation-of-another"


WHOLE = released([OURS], PREDICATES)


@settings(max_examples=100)
@given(st.booleans(), st.integers(0, 20), st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_no_change_of_a_byte_anywhere_passes(in_manifests: bool, nth: int, at: float, change: int) -> None:
    """Refused, or it proves the same: annotations prove nothing. (A registry's client compares blobs with their digests
    besides.)"""
    shelf = Shelf(dict(WHOLE.manifests), dict(WHOLE.blobs))
    place = shelf.manifests if in_manifests else shelf.blobs
    names = [name for name in place if name != DIGEST]
    data = bytearray(place[name := names[nth % len(names)]])
    data[int(at * len(data))] ^= change
    place[name] = bytes(data)
    try:
        found = verify(shelf, DIGEST, [OURS.public], PREDICATES)
    except Untrusted:
        return
    assert found.signers == (OURS.public.fingerprint,)
    assert {each.predicate_type: each.predicate for each in found.attestations} == PREDICATES
