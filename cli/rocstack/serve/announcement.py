"""A gateway that chooses its own port, key and token, and says in a file how it is reached: whoever can read the file
may ask it, and knows its certificate. A service on another node reads it; no secret is handed to a job."""

import hmac
import json
import os
import re
import secrets
import ssl
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from rocstack.base.errors import BadInput, CheckFailed

MOST = 16 << 10  # bytes of an announcement
LIFE = timedelta(days=366)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{20,200}")


@dataclass(frozen=True)
class Announcement:
    """`certificate` is the server's own, in PEM, and the only one to trust."""

    port: int
    token: str
    certificate: str

    def trust(self) -> ssl.SSLContext:
        """Of a client that takes this certificate alone, whatever the node is called.

        Raises:
            ValueError: it is none.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        try:
            context.load_verify_locations(cadata=self.certificate)
        except ssl.SSLError as error:
            raise ValueError(str(error)) from None
        return context

    def write(self, path: Path) -> None:
        """
        Raises:
            CheckFailed: others could read it, or it can't be written.
        """
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            if path.parent.stat().st_mode & 0o007:
                raise CheckFailed.of("not-announced", file=path, why="everybody can enter its folder")
            partial.unlink(missing_ok=True)
            # The group's bit is the mask of ACLs: those that the folder gives by default may read it.
            file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
            with os.fdopen(file, "w", encoding="utf-8") as out:
                json.dump(asdict(self), out)
            partial.replace(path)
        except OSError as error:
            raise CheckFailed.of("not-announced", file=path, why=error.strerror) from None


def parse(raw: bytes) -> Announcement:
    """What a job wrote: data.

    Raises:
        ValueError: it is no announcement.
    """
    try:
        found: Any = json.loads(raw[:MOST])
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("it is no mapping")
    port, token, certificate = (found.get(name) for name in ("port", "token", "certificate"))
    if isinstance(port, bool) or not isinstance(port, int) or not 1024 <= port <= 65535:
        raise ValueError("it names no port")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token) or not isinstance(certificate, str):
        raise ValueError("it has no token or no certificate")
    return Announcement(port, token, certificate)


class Holder:
    """Whoever has the announced token: one user."""

    def __init__(self, token: str, name: str = "local") -> None:
        self._token, self._name = token.encode(), name

    async def user(self, token: str | None) -> str | None:
        return self._name if hmac.compare_digest((token or "").encode(), self._token) else None


def new_token() -> str:
    return secrets.token_urlsafe(32)


def new_certificate(folder: Path) -> tuple[Path, Path]:
    """Files of a certificate that signs itself, and its key, in a folder that only this user can enter.

    Raises:
        BadInput: the folder can't be written.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rocstack serve")]), datetime.now(UTC)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # a node's clock may be behind
        .not_valid_after(now + LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    files = folder / "server.pem", folder / "server.key"
    try:
        for file, data in zip(files, (built.public_bytes(Encoding.PEM), private), strict=True):
            file.unlink(missing_ok=True)
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as out:
                out.write(data)
    except OSError as error:
        raise BadInput.of("serve-unwritable", folder, why=error.strerror) from None
    return files
