"""A file's signature beside it, as `cosign sign-blob` and `openssl dgst -sign` make it: FILE.sig, in base64."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from rocstack.edge import files
from rocstack.trust.keys import PublicKey, SigningKey
from rocstack.trust.verification import Untrusted

LARGEST = 4 << 10  # bytes of a signature's file


def beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.sig")


def sign(path: Path, key: SigningKey | None, sha256: bytes | None = None) -> Path | None:
    """Writes the signature of a file that was just written; without a key removes what is another file's. `sha256` is
    the file's where it is known already."""
    signature = beside(path)
    if key is None:
        signature.unlink(missing_ok=True)
        return None
    mark = key.sign_digest(sha256) if sha256 else key.sign(path.read_bytes())
    files.write(signature, base64.b64encode(mark).decode() + "\n")
    return signature


def verify(path: Path, data: bytes, keys: Sequence[PublicKey]) -> PublicKey:
    """The key that signed `data`, the content of `path`.

    Raises:
        Untrusted: file-unsigned, or file-untrusted.
    """
    names = ", ".join(map(str, keys))
    try:
        with beside(path).open("rb") as file:
            text = file.read(LARGEST)
    except FileNotFoundError:
        raise Untrusted.of("file-unsigned", path, keys=names) from None
    except OSError as error:
        raise Untrusted.of("file-untrusted", path, why=error.strerror or error, keys=names) from None
    try:
        mark = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        raise Untrusted.of("file-untrusted", path, why=f"{beside(path).name} is no signature", keys=names) from None
    for key in keys:
        if key.signed(data, mark):
            return key
    raise Untrusted.of("file-untrusted", path, why="none of the trusted keys signed it as it is", keys=names)
