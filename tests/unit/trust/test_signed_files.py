"""Signatures beside files: openssl takes ours, and what isn't of a trusted key over these bytes is refused."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from rocstack.trust import files
from rocstack.trust.keys import SigningKey
from rocstack.trust.verification import Untrusted

OURS, THEIRS = (SigningKey.generate(name) for name in ("ours", "theirs"))


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    file = tmp_path / "rocstack.lock"
    file.write_text("locked\n")
    assert files.sign(file, OURS) == tmp_path / "rocstack.lock.sig"
    return file


def refusal(file: Path, *keys: SigningKey) -> str:
    with pytest.raises(Untrusted) as caught:
        files.verify(file, file.read_bytes(), [key.public for key in keys])
    return caught.value.code


def test_one_of_the_keys_signed_it(signed: Path) -> None:
    assert files.verify(signed, signed.read_bytes(), [THEIRS.public, OURS.public]) == OURS.public


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_openssl_takes_it(signed: Path, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_bytes(OURS.public.pem)
    (tmp_path / "mark").write_bytes(base64.b64decode(files.beside(signed).read_text()))
    line = ["openssl", "dgst", "-sha256", "-verify", "key.pub", "-signature", "mark", signed.name]
    assert subprocess.run(line, cwd=tmp_path, capture_output=True, check=False).stdout == b"Verified OK\n"


def test_what_was_changed_is_refused(signed: Path) -> None:
    signed.write_text("locked.\n")
    assert refusal(signed, OURS) == "file-untrusted"


def test_another_signer_is_refused(signed: Path) -> None:
    assert refusal(signed, THEIRS) == "file-untrusted"


@pytest.mark.parametrize("text", ["", "?", "e30=", "\udc80", "A" * 9000])
def test_something_else_in_its_place_is_refused(signed: Path, text: str) -> None:
    files.beside(signed).write_text(text, errors="surrogateescape")
    assert refusal(signed, OURS) == "file-untrusted"


def test_a_folder_in_its_place_is_refused(signed: Path) -> None:
    files.beside(signed).unlink()
    files.beside(signed).mkdir()
    assert refusal(signed, OURS) == "file-untrusted"


def test_a_file_that_is_made_anew_is_unsigned(signed: Path) -> None:
    assert files.sign(signed, None) is None
    assert refusal(signed, OURS) == "file-unsigned"
