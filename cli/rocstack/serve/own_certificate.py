"""The certificate that an announcing gateway makes for itself. Apart from announcement.py, which the service imports
where no cryptography is installed."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from rocstack.base.errors import BadInput

LIFE = timedelta(days=366)


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
