"""Whether a trusted key signed the images of a deploy, judged on the control node by the keys that it remembers: what
an operator's machine says of an image counts for nothing here. Standard library, and openssl's command.

The formats are those of rocstack.trust: cosign's payload (github.com/sigstore/cosign, specs/SIGNATURE_SPEC.md) and
in-toto statements in DSSE envelopes (github.com/secure-systems-lab/dsse, protocol.md).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass

from .engine import PROGRAM_FOLDERS, NodeError, Row

REMEMBERED = "/etc/rocstack/trust"  # fingerprints, one a line
SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
LISTED = "io.rocstack.attestations"
IN_TOTO = "application/vnd.in-toto+json"
VERIFY_REPORT = "urn:rocstack:verify-report:v1"
OPENSSL_S = 30.0
MOST = 64  # files of one image, as rocstack.trust.attached has it
# DER of every public key on P-256, up to its point (RFC 5480).
_P256 = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d030107034200")


@dataclass(frozen=True)
class Key:
    """A public key for ECDSA P-256."""

    pem: str
    fingerprint: str

    @classmethod
    def of(cls, pem: str) -> Key:
        """
        Raises:
            ValueError: it is no such key.
        """
        found = re.fullmatch(r"-----BEGIN PUBLIC KEY-----\n([A-Za-z0-9+/=\n]{1,200})-----END PUBLIC KEY-----\n?", pem)
        der = base64.b64decode(found.group(1)) if found else b""
        if not der.startswith(_P256) or len(der) != len(_P256) + 65:
            raise ValueError("it is no public key for ECDSA P-256 in PEM")
        # Written anew: openssl may read a text otherwise than Python, and must see the key of this fingerprint.
        text = base64.b64encode(der).decode()
        pem = f"-----BEGIN PUBLIC KEY-----\n{text[:64]}\n{text[64:]}\n-----END PUBLIC KEY-----\n"
        parts = (b"ecdsa-sha2-nistp256", b"nistp256", der[len(_P256) :])
        blob = b"".join(struct.pack(">I", len(part)) + part for part in parts)
        return cls(pem, "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("="))


def judge(order: Row, remembered: str = REMEMBERED) -> dict[str, list[str]]:
    """Fingerprints of the keys that signed each image, by role.

    Args:
        order: "images" (role -> "id", "digest" and "held", what a registry has of it by name, in base64), "keys" (PEM),
            "require" (predicate types), "level" of a signed report or None, "virtual" (whether reports of virtual nodes
            count) and "replaces" (fingerprints that the person gives up).
        remembered: file with the keys of which one must be among the order's.

    Raises:
        NodeError: kind `no-openssl`, `trust-replaced`, or `untrusted`, which says of which image and why.
    """
    try:
        keys = [Key.of(pem) for pem in order["keys"]]
    except (ValueError, TypeError) as error:
        raise NodeError(f"a key of the trust policy can't be used: {error}", kind="untrusted") from None
    before = _remembered(remembered)
    if before and not before <= set(order["replaces"]):
        keys = [key for key in keys if key.fingerprint in before]  # another one counts when it is remembered, too
        if not keys:
            known = ", ".join(sorted(before)[:4])
            what = f"this cluster takes images that {known} signed, and the order names other keys"
            raise NodeError(what, kind="trust-replaced")
    openssl = _Openssl()
    images: dict[str, _Image] = {}
    found = {}
    for role, row in order["images"].items():
        try:
            images[role] = _Image(row, keys, openssl)
            found[role] = images[role].signers(order)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            text = f"what came with it can't be read ({type(error).__name__})"
            raise _refused(role, text) from None
        except _Doubt as doubt:
            raise _refused(role, str(doubt)) from None
    if order["level"] is not None:
        _require_level(order, images)
    return found


def _remembered(path: str) -> set[str]:
    try:
        with open(path) as file:
            return set(file.read(16 << 10).split())
    except FileNotFoundError:
        return set()
    except (OSError, ValueError) as error:
        raise NodeError(f"{path} can't be read: {error}", kind="untrusted") from None


def _refused(role: str, why: str) -> NodeError:
    cause = "what the registry or the way here has is not what a trusted key signed"
    return NodeError(f"the {role} image: {why}", cause, "untrusted")


def _require_level(order: Row, images: dict[str, _Image]) -> None:
    """A signed report of these two images together."""
    worker, control = images["worker"].id, images["control"].id
    for said in images["worker"].predicates().get(VERIFY_REPORT, ()):
        level, real = said.get("level"), said.get("virtual") is False
        pair = (said.get("image"), said.get("controlImage"))
        holds = isinstance(level, int) and level >= order["level"] and (real or order["virtual"])
        if pair == (worker, control) and holds:
            return
    raise _refused("worker", f"no signed report says level {order['level']} of it and this control image")


class _Doubt(Exception):
    """Why an image isn't what a trusted key signed."""


class _Image:
    """One image, and what belongs to it. Nothing counts before its bytes were compared with their digest."""

    def __init__(self, row: Row, keys: list[Key], openssl: _Openssl) -> None:
        self.id, self.digest, self.keys, self.openssl = str(row["id"]), str(row["digest"]), keys, openssl
        self.held = {str(name): base64.b64decode(text, validate=True) for name, text in row["held"].items()}
        for name, data in self.held.items():
            if name.startswith("sha256:") and "sha256:" + hashlib.sha256(data).hexdigest() != name:
                raise _Doubt(f"what came as {name[:19]} has other bytes")
        self.listed: dict[str, str] | None = None  # digest of each attestation that the signatures list -> its type
        self._attested: dict[str, list[Row]] | None = None

    def signers(self, order: Row) -> list[str]:
        """
        Raises:
            _Doubt: its signature or an attestation doesn't hold; the manifest that was signed is of another image.
        """
        signers = self._signed()
        if json.loads(self._there(self.digest))["config"]["digest"] != self.id:
            raise _Doubt(f"what was signed as {self.digest[:19]} is another image than {self.id[:19]}")
        missing = [kind for kind in order["require"] if kind not in self.predicates()]
        if missing:
            raise _Doubt(f"it has no attestation of type {missing[0]} by a trusted key")
        return signers

    def _signed(self) -> list[str]:
        signers: list[str] = []
        for layer in self._layers("sig"):
            data, mark = self._there(layer["digest"]), (layer.get("annotations") or {}).get(SIGNATURE, "")
            by = self.openssl.signers(self.keys, data, [_mark(mark)])
            if layer["mediaType"] != SIMPLE_SIGNING or not by:
                continue
            said = json.loads(data)
            if said["critical"]["image"]["docker-manifest-digest"] != self.digest:
                raise _Doubt("its signature is of another image")
            listed = (said.get("optional") or {}).get(LISTED)
            if listed is not None:
                self.listed = {**(self.listed or {}), **listed}
            signers += [each for each in by if each not in signers]
        if not signers:
            raise _Doubt(f"none of its signatures is of {', '.join(key.fingerprint for key in self.keys)}")
        return signers

    def predicates(self) -> dict[str, list[Row]]:
        """What trusted keys attest of it, by predicate type."""
        if self._attested is not None:
            return self._attested
        if self.listed is None:
            self._signed()
        found: dict[str, list[Row]] = {}
        names = self.listed if self.listed is not None else [layer["digest"] for layer in self._layers("att")]
        for name in names:
            parsed = json.loads(self._there(name))
            content = base64.b64decode(parsed["payload"], validate=True)
            kind = str(parsed["payloadType"])
            signed = b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(content), content)
            marks = [_mark(each["sig"]) for each in parsed["signatures"][:16]]
            if kind != IN_TOTO or not self.openssl.signers(self.keys, signed, marks):
                raise _Doubt(f"no trusted key signed its attestation {name[:19]}")
            said = json.loads(content)
            subjects = [each["digest"].get("sha256") for each in said["subject"]]
            if set(subjects) != {self.digest[len("sha256:") :]}:
                raise _Doubt(f"its attestation {name[:19]} is of another image")
            found.setdefault(str(said["predicateType"]), []).append(said["predicate"])
        self._attested = found
        return found

    def _layers(self, kind: str) -> list[Row]:
        data = self.held.get(self.digest.replace(":", "-") + "." + kind)
        if data is None and kind == "att":
            return []
        if data is None:
            raise _Doubt("no signature came with it")
        rows: list[Row] = json.loads(data)["layers"]
        return rows[:MOST]

    def _there(self, digest: str) -> bytes:
        if digest not in self.held or not digest.startswith("sha256:"):
            raise _Doubt(f"{digest[:19]} didn't come with it")
        return self.held[digest]


def _mark(text: str) -> bytes:
    """A signature; one that can't be read is a stranger's, and no reason to look at no other."""
    try:
        return base64.b64decode(text)
    except (ValueError, TypeError):
        return b""


class _Openssl:
    def __init__(self) -> None:
        path = shutil.which("openssl", path=os.environ.get("PATH", "") + ":" + PROGRAM_FOLDERS)
        if path is None:
            what = "there is no openssl command, by which this node checks signatures"
            raise NodeError(what, "install the package openssl", "no-openssl")
        self._path = path

    def signers(self, keys: list[Key], data: bytes, marks: list[bytes]) -> list[str]:
        """Fingerprints of the keys of which one of the marks is the signature of `data`."""
        with tempfile.TemporaryDirectory(prefix="rocstack-") as folder:
            key_file, mark_file, data_file = (os.path.join(folder, name) for name in ("key", "mark", "data"))
            with open(data_file, "wb") as file:
                file.write(data)
            found = []
            for key in keys:
                with open(key_file, "w") as text:
                    text.write(key.pem)
                for mark in marks:
                    with open(mark_file, "wb") as file:
                        file.write(mark)
                    line = [self._path, "dgst", "-sha256", "-verify", key_file, "-signature", mark_file, data_file]
                    try:
                        done = subprocess.run(line, capture_output=True, timeout=OPENSSL_S)
                    except (OSError, subprocess.TimeoutExpired) as error:
                        raise NodeError(f"openssl can't be run: {error}", kind="no-openssl") from None
                    if not done.returncode and done.stdout.strip() == b"Verified OK":
                        found.append(key.fingerprint)
                        break
            return found
