"""What the control node takes, judged by itself: what rocstack.trust signs and accepts, and nothing else."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from signed_image import Shelf, released

from rocstack.node.engine import NodeError
from rocstack.node.trust import Key, judge
from rocstack.registry.layers import sha256
from rocstack.registry.oci import MANIFEST, as_json
from rocstack.trust import attached
from rocstack.trust.envelope import PROVENANCE, SBOM, VERIFY_REPORT
from rocstack.trust.keys import PublicKey, SigningKey
from rocstack.trust.signing import sign

OURS, THEIRS = (SigningKey.generate(name) for name in ("ours", "theirs"))
ROLES = ("worker", "control")
IDS = {role: sha256(role.encode()) for role in ROLES}
Order = dict[str, Any]

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")


def manifest(role: str) -> bytes:
    config = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": IDS[role], "size": 2}
    return as_json({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": []})


DIGESTS = {role: sha256(manifest(role)) for role in ROLES}


def shelf(role: str, *keys: SigningKey, level: int | None = None, virtual: bool = False) -> Shelf:
    said: dict[str, dict[str, Any]] = {PROVENANCE: {"a": "b"}, SBOM: {"bomFormat": "CycloneDX"}}
    if level is not None:
        pair = {"image": IDS["worker"], "controlImage": IDS["control"]}
        said[VERIFY_REPORT] = {"level": level, "virtual": virtual, **pair}
    made = released(keys or [OURS], said, DIGESTS[role])
    made.manifests[DIGESTS[role]] = manifest(role)
    return made


def held(of: Shelf) -> dict[str, str]:
    return {name: base64.b64encode(data).decode() for name, data in {**of.manifests, **of.blobs}.items()}


def order(worker: Shelf | None = None, *keys: SigningKey, **more: Any) -> Order:
    shelves = {"worker": worker or shelf("worker"), "control": shelf("control", *keys)}
    rows = {role: {"id": IDS[role], "digest": DIGESTS[role], "held": held(shelves[role])} for role in ROLES}
    policy = {"require": [PROVENANCE, SBOM], "level": None, "virtual": False, "replaces": []}
    return {"images": rows, "keys": [key.public.pem.decode() for key in keys or (OURS,)], **policy, **more}


def refusal(asked: Order, remembered: Path) -> NodeError:
    with pytest.raises(NodeError) as caught:
        judge(asked, str(remembered))
    return caught.value


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    """What a node remembers that never had a policy."""
    return tmp_path / "trust"


def test_what_a_key_of_the_policy_signed_is_taken(nothing: Path) -> None:
    assert judge(order(), str(nothing)) == {role: [OURS.public.fingerprint] for role in ROLES}


def test_the_fingerprint_is_the_same_everywhere() -> None:
    for key in (OURS, THEIRS):
        assert Key.of(key.public.pem.decode()).fingerprint == PublicKey(key.public.key).fingerprint


def flip(name: str) -> Callable[[Order], None]:
    """One bit of what came."""

    def change(asked: Order) -> None:
        had = asked["images"]["worker"]["held"]
        data = bytearray(base64.b64decode(had[name]))
        data[len(data) // 2] ^= 1
        had[name] = base64.b64encode(bytes(data)).decode()

    return change


WORKER = shelf("worker")


def of_kind(kind: attached.Kind) -> str:
    """The first file of the worker's signatures or attestations."""
    return str(json.loads(WORKER.manifests[attached.tag(DIGESTS["worker"], kind)])["layers"][0]["digest"])


def without(name: str) -> Callable[[Order], None]:
    return lambda asked: asked["images"]["worker"]["held"].pop(name)


def given(key: str, value: Any) -> Callable[[Order], None]:
    return lambda asked: asked["images"]["worker"].update({key: value})


SIG = attached.tag(DIGESTS["worker"], "sig")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (flip(of_kind("sig")), "has other bytes"),
        (flip(of_kind("att")), "has other bytes"),
        (flip(DIGESTS["worker"]), "has other bytes"),
        (without(SIG), "no signature came with it"),
        (without(of_kind("sig")), "didn't come with it"),
        (without(of_kind("att")), "didn't come with it"),
        (without(DIGESTS["worker"]), "didn't come with it"),
        (given("id", IDS["control"]), "is another image than"),
        (given("digest", DIGESTS["control"]), "no signature came with it"),
        (given("held", {SIG: "e30="}), "can't be read"),
        (given("held", {SIG: base64.b64encode(b'{"layers": [1]}').decode()}), "can't be read"),
        (given("held", {SIG: "?"}), "can't be read"),
        (given("held", {SIG: base64.b64encode(b"[" * 100000).decode()}), "can't be read"),
    ],
    ids=[
        "signed payload", "attestation", "manifest", "no signatures", "no payload", "no attestation", "no manifest",
        "other image", "other digest", "empty", "a number", "no base64", "deep",
    ],
)  # fmt: skip
def test_what_was_changed_on_the_way_is_refused(change: Callable[[Order], None], why: str, nothing: Path) -> None:
    asked = order(WORKER)
    change(asked)
    refused = refusal(asked, nothing)
    assert refused.kind == "untrusted"
    assert refused.what.startswith("the worker image: ")
    assert why in refused.what


def test_another_signer_is_refused(nothing: Path) -> None:
    assert "none of its signatures is of" in refusal(order(shelf("worker", THEIRS)), nothing).what


def test_a_signature_of_another_image_is_refused(nothing: Path) -> None:
    other = shelf("worker")
    other.put("sig", [sign(DIGESTS["control"], other.reference, OURS)], DIGESTS["worker"])
    assert "its signature is of another image" in refusal(order(other), nothing).what


def test_an_attestation_by_another_key_is_none(nothing: Path) -> None:
    """Somebody else's provenance under our signature, which lists none."""
    forged = shelf("worker", THEIRS)
    forged.put("sig", [sign(DIGESTS["worker"], forged.reference, OURS)], DIGESTS["worker"])
    assert "has no attestation of type" in refusal(order(forged), nothing).what


def test_a_report_must_say_the_level(nothing: Path) -> None:
    good = shelf("worker", level=2)
    assert judge(order(good, level=2), str(nothing))
    assert "level 3" in refusal(order(good, level=3), nothing).what
    assert "level 1" in refusal(order(level=1), nothing).what
    seen = shelf("worker", level=4, virtual=True)
    assert "level 4" in refusal(order(seen, level=4), nothing).what
    assert judge(order(seen, level=4, virtual=True), str(nothing))


def test_the_node_remembers_whom_it_trusts(nothing: Path) -> None:
    nothing.write_text(f"{THEIRS.public.fingerprint}\n")
    refused = refusal(order(), nothing)
    assert (refused.kind, THEIRS.public.fingerprint in refused.what) == ("trust-replaced", True)
    assert judge(order(replaces=[THEIRS.public.fingerprint]), str(nothing))
    nothing.write_text(f"{THEIRS.public.fingerprint}\n{OURS.public.fingerprint}\n")
    assert judge(order(), str(nothing))


@pytest.mark.parametrize("key", ["", "x", OURS.public.pem.decode().replace("M", "N", 1), 5])
def test_a_key_that_is_none(key: object, nothing: Path) -> None:
    assert "can't be used" in refusal({**order(), "keys": [key]}, nothing).what


def test_without_openssl_it_says_so(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocstack.node.trust.shutil.which", lambda name, path: None)
    assert refusal(order(), nothing).kind == "no-openssl"


def test_a_key_that_is_new_signs_nothing_alone(nothing: Path) -> None:
    """Beside one that is remembered it may stand in the policy; what it signed counts when it is remembered, too."""
    nothing.write_text(f"{OURS.public.fingerprint}\n")
    keys = [key.public.pem.decode() for key in (OURS, THEIRS)]
    theirs = order(shelf("worker", THEIRS), THEIRS, keys=keys)
    assert refusal(theirs, nothing).kind == "untrusted"
    given_up = {**theirs, "replaces": [OURS.public.fingerprint]}
    assert judge(given_up, str(nothing))["worker"] == [THEIRS.public.fingerprint]
    both = order(shelf("worker", OURS, THEIRS), OURS, THEIRS)
    assert judge(both, str(nothing))["worker"] == [OURS.public.fingerprint]
