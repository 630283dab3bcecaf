"""Keys in their files: what is written can be read by the same password alone, and nothing else is taken for a key."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from rocstack.base.errors import BadInput
from rocstack.trust.keys import PublicKey, SigningKey, write_pair

PASSWORD = b"correct horse"


def test_a_pair_is_written_once_for_its_owner_alone(tmp_path: Path) -> None:
    private = tmp_path / "release.key"
    public = write_pair(SigningKey.generate(), private, PASSWORD)
    assert public == tmp_path / "release.pub"
    assert private.stat().st_mode & 0o777 == 0o600
    key, theirs = SigningKey.load(private, PASSWORD), PublicKey.load(public)
    assert theirs.signed(b"data", key.sign(b"data"))
    assert not theirs.signed(b"other", key.sign(b"data"))
    assert key.public.fingerprint == theirs.fingerprint
    with pytest.raises(BadInput) as caught:
        write_pair(SigningKey.generate(), private, PASSWORD)
    assert caught.value.code == "key-exists"
    assert SigningKey.load(private, PASSWORD).public.fingerprint == theirs.fingerprint


def test_the_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    key = SigningKey.generate().public
    file = tmp_path / "key.pub"
    file.write_bytes(key.key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH))
    done = subprocess.run(["ssh-keygen", "-l", "-f", str(file)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no ssh-keygen here")
    assert done.stdout.split()[1] == key.fingerprint


@pytest.mark.parametrize("password", [b"", b"wrong"])
def test_a_wrong_password_is_named(tmp_path: Path, password: bytes) -> None:
    write_pair(SigningKey.generate(), tmp_path / "a.key", PASSWORD)
    assert refusal(tmp_path / "a.key", password) == "bad-password"


def test_pkcs8_of_openssl_is_read(tmp_path: Path) -> None:
    file = pkcs8(tmp_path, ec.generate_private_key(ec.SECP256R1()), PASSWORD)
    assert SigningKey.load(file, PASSWORD).public.fingerprint.startswith("SHA256:")
    assert refusal(file, b"wrong") == "bad-password"


@pytest.mark.parametrize("kind", ["plain", "rsa", "ed25519", "p384", "text", "long", "absent"])
def test_what_is_no_key_of_ours_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "plain":
        file = pkcs8(tmp_path, ec.generate_private_key(ec.SECP256R1()), None)
    elif kind == "rsa":
        file = pkcs8(tmp_path, rsa.generate_private_key(65537, 2048), PASSWORD)
    elif kind == "ed25519":
        file = pkcs8(tmp_path, ed25519.Ed25519PrivateKey.generate(), PASSWORD)
    elif kind == "p384":
        file = pkcs8(tmp_path, ec.generate_private_key(ec.SECP384R1()), PASSWORD)
    else:
        file = tmp_path / "k.key"
        if kind != "absent":
            file.write_text("hello\n" * (1 if kind == "text" else 10_000))
            file.chmod(0o600)
    assert refusal(file, PASSWORD) == ("no-key" if kind == "absent" else "unfit-key")


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    write_pair(SigningKey.generate(), tmp_path / "a.key", PASSWORD)
    (tmp_path / "a.key").chmod(0o644)
    assert refusal(tmp_path / "a.key", PASSWORD) == "open-key"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text["kdf"]["params"].update(N=1 << 30),  # a terabyte of memory
        lambda text: text["kdf"]["params"].update(r=1 << 20),
        lambda text: text["kdf"].update(name="pbkdf2"),
        lambda text: text["cipher"].update(name="aes"),
        lambda text: text["cipher"].update(nonce="AA=="),
        lambda text: text.update(ciphertext="?"),
        lambda text: text.pop("kdf"),
    ],
)
def test_a_damaged_file_of_cosigns_is_refused(tmp_path: Path, change: Any) -> None:
    write_pair(SigningKey.generate(), tmp_path / "a.key", PASSWORD)
    lines = (tmp_path / "a.key").read_text().splitlines()
    text = json.loads(base64.b64decode("".join(lines[1:-1])))
    change(text)
    body = base64.b64encode(json.dumps(text).encode()).decode()
    (tmp_path / "a.key").write_text("\n".join([lines[0], body, lines[-1]]))
    assert refusal(tmp_path / "a.key", PASSWORD) == "unfit-key"


def test_a_private_key_is_not_taken_for_a_public_one(tmp_path: Path) -> None:
    write_pair(SigningKey.generate(), tmp_path / "a.key", PASSWORD)
    with pytest.raises(BadInput, match="a private key") as caught:
        PublicKey.load(tmp_path / "a.key")
    assert caught.value.code == "unfit-key"


def test_a_password_never_shows() -> None:
    assert "EllipticCurve" not in repr(SigningKey.generate("a"))


def refusal(file: Path, password: bytes) -> str:
    with pytest.raises(BadInput) as caught:
        SigningKey.load(file, password)
    return caught.value.code


def pkcs8(folder: Path, key: Any, password: bytes | None) -> Path:
    how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    file = folder / "p.key"
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
    file.chmod(0o600)
    return file
