"""Keys: ECDSA P-256, in the files that cosign reads and writes, or in a PKCS#8 file of openssl.

A fingerprint is OpenSSH's: `ssh-keygen -l -f` shows the same for the same key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from pydantic import BaseModel, ConfigDict, Field

from rocstack.base.errors import BadInput
from rocstack.base.text import from_json
from rocstack.edge import files

LARGEST = 16 << 10  # bytes of a key's file
_PEM = "ENCRYPTED SIGSTORE PRIVATE KEY"
_COSIGNS = (_PEM, "ENCRYPTED COSIGN PRIVATE KEY")  # the name until cosign 2
_SHA256 = ec.ECDSA(hashes.SHA256())
_COST = 1 << 16  # of scrypt, as cosign 2 has it


class _ScryptParams(BaseModel):
    """github.com/secure-systems-lab/go-securesystemslib, encrypted/encrypted.go: these and no others, so that no file
    asks for more memory than there is."""

    model_config = ConfigDict(strict=True)
    cost: Literal[32768, 65536, 131072] = Field(alias="N")
    r: Literal[8]
    p: Literal[1]


class _Kdf(BaseModel):
    model_config = ConfigDict(strict=True)
    name: Literal["scrypt"]
    params: _ScryptParams
    salt: str


class _Cipher(BaseModel):
    model_config = ConfigDict(strict=True)
    name: Literal["nacl/secretbox"]
    nonce: str


class _EncryptedKey(BaseModel):
    model_config = ConfigDict(strict=True)
    kdf: _Kdf
    cipher: _Cipher
    ciphertext: str


@dataclass(frozen=True)
class PublicKey:
    """A key that signatures are checked with. `name` is what people call it: its file."""

    key: ec.EllipticCurvePublicKey
    name: str = ""

    @classmethod
    def load(cls, path: Path) -> Self:
        """From a PEM file, such as cosign.pub.

        Raises:
            BadInput: it can't be read, or is no public key for ECDSA P-256.
        """
        return cls.parse(_read(path), path.name, path)

    @classmethod
    def parse(cls, pem: bytes, name: str = "", where: Path | None = None) -> Self:
        """
        Raises:
            BadInput: as `load`.
        """
        if b"PRIVATE KEY" in pem:
            raise BadInput.of("private-key-given", where)
        try:
            key = serialization.load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm):
            raise BadInput.of("unfit-key", where, why="it is no public key in PEM") from None
        return cls(_p256(key, where), name)

    @property
    def fingerprint(self) -> str:
        form = serialization.PublicFormat.OpenSSH
        blob = self.key.public_bytes(serialization.Encoding.OpenSSH, form).split()[1]
        return "SHA256:" + base64.b64encode(hashlib.sha256(base64.b64decode(blob)).digest()).decode().rstrip("=")

    @property
    def pem(self) -> bytes:
        return self.key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )  # fmt: skip

    def signed(self, data: bytes, signature: bytes) -> bool:
        """Did this key sign `data`? As `cosign verify-blob --key` asks."""
        try:
            self.key.verify(signature, data, _SHA256)
        except InvalidSignature:
            return False
        return True

    def __str__(self) -> str:
        return f"{self.name} ({self.fingerprint})" if self.name else self.fingerprint


@dataclass(frozen=True)
class SigningKey:
    """A key that signs."""

    key: ec.EllipticCurvePrivateKey = field(repr=False)
    name: str = ""

    @classmethod
    def generate(cls, name: str = "") -> Self:
        return cls(ec.generate_private_key(ec.SECP256R1()), name)

    @classmethod
    def load(cls, path: Path, password: bytes) -> Self:
        """From a file of cosign's, or PKCS#8 in PEM, encrypted.

        Raises:
            BadInput: it can't be read, others than its owner can read it, the password is wrong, or it is no such key.
        """
        pem = _read(path)
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise BadInput.of("open-key", path)
        if any(f"BEGIN {kind}-".encode() in pem for kind in _COSIGNS):
            pem = _opened(pem, password, path)
            secret = None
        elif b"BEGIN ENCRYPTED PRIVATE KEY-" in pem:
            secret = password
        else:
            raise BadInput.of("unfit-key", path, why="it is no encrypted private key, of cosign or PKCS#8 in PEM")
        try:
            loader = serialization.load_pem_private_key if secret is not None else serialization.load_der_private_key
            key = loader(pem, secret)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            if secret is not None:
                raise BadInput.of("bad-password", path) from None
            raise BadInput.of("unfit-key", path, why="what is encrypted in it is no private key") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise BadInput.of("unfit-key", path, why="it is no key for ECDSA P-256")
        _p256(key.public_key(), path)
        return cls(key, path.name)

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.key.public_key(), self.name)

    def sign(self, data: bytes) -> bytes:
        """As `cosign sign-blob`: DER, of the sha256 of `data`."""
        return self.key.sign(data, _SHA256)

    def sign_digest(self, sha256: bytes) -> bytes:
        """The same of data that has this sha256."""
        return self.key.sign(sha256, ec.ECDSA(Prehashed(hashes.SHA256())))

    def encrypted(self, password: bytes) -> str:
        """The file that `cosign generate-key-pair` would write."""
        from nacl.secret import SecretBox
        from nacl.utils import random

        der = self.key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        salt, nonce = random(32), random(SecretBox.NONCE_SIZE)
        sealed = SecretBox(_derived(password, salt, _COST)).encrypt(der, nonce).ciphertext
        text = {
            "kdf": {"name": "scrypt", "params": {"N": _COST, "r": 8, "p": 1}, "salt": _base64(salt)},
            "cipher": {"name": "nacl/secretbox", "nonce": _base64(nonce)},
            "ciphertext": _base64(sealed),
        }
        body = _base64(json.dumps(text).encode())
        lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
        return f"-----BEGIN {_PEM}-----\n{lines}\n-----END {_PEM}-----\n"


def write_pair(key: SigningKey, private: Path, password: bytes) -> Path:
    """Writes `private`, for this user alone, and the public key beside it; returns the latter's path.

    Raises:
        BadInput: one of them is there already, or can't be written.
    """
    public = private.with_suffix(".pub")
    for path in (private, public):
        if path.exists():
            raise BadInput.of("key-exists", path)
    try:
        files.create_private(private, key.encrypted(password))
        files.write(public, key.public.pem.decode())
    except OSError as error:
        raise BadInput.of("no-access", private, why=error.strerror or error) from None
    return public


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise BadInput.of("no-key", path=path, why=error.strerror or error) from None
    if len(data) > LARGEST:
        raise BadInput.of("unfit-key", path, why=f"it has more than {LARGEST >> 10} KB")
    return data


def _p256(key: object, where: Path | None) -> ec.EllipticCurvePublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadInput.of("unfit-key", where, why="it is no key for ECDSA P-256")
    return key


def _opened(pem: bytes, password: bytes, path: Path) -> bytes:
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

    try:
        body = b"".join(line for line in pem.strip().splitlines()[1:-1])
        parsed = _EncryptedKey.model_validate(from_json(base64.b64decode(body, validate=True)))
        salt, nonce, sealed = map(_bytes, (parsed.kdf.salt, parsed.cipher.nonce, parsed.ciphertext))
    except ValueError:
        raise BadInput.of("unfit-key", path, why="its content is no key of cosign's") from None
    if len(nonce) != SecretBox.NONCE_SIZE:
        raise BadInput.of("unfit-key", path, why="its content is no key of cosign's")
    try:
        return SecretBox(_derived(password, salt, parsed.kdf.params.cost)).decrypt(sealed, nonce)
    except CryptoError:
        raise BadInput.of("bad-password", path) from None


def _derived(password: bytes, salt: bytes, cost: int) -> bytes:
    return Scrypt(salt=salt, length=32, n=cost, r=8, p=1).derive(password)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    """
    Raises:
        ValueError: it is no base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
