"""Files of the operator's machine that the service needs of the site's issuer (`cluster.service.oidc`)."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from rocstack.base.errors import BadInput
from rocstack.cluster.oidc import ClusterOidc

MOST = 1 << 20  # bytes


@dataclass(frozen=True)
class IssuerFiles:
    """The client's secret, and the CA of the issuer's certificate in PEM; empty where there is none."""

    secret: bytes = field(default=b"", repr=False)
    ca: bytes = b""


def read(oidc: ClusterOidc | None) -> IssuerFiles:
    """
    Raises:
        BadInput: one can't be read or isn't what it should be; others can read the secret.
    """
    if oidc is None:
        return IssuerFiles()
    secret, ca = b"", b""
    if oidc.client_secret_file:
        path = Path(oidc.client_secret_file).expanduser()
        secret = _content(path).strip()
        if path.stat().st_mode & 0o077:
            raise BadInput.of("open-client-secret", path, file=path)
        if not secret or len(secret) > 4096 or not secret.isascii() or len(secret.split()) != 1:
            raise BadInput.of("bad-client-secret", path)
    if oidc.ca_file:
        path = Path(oidc.ca_file).expanduser()
        ca = _content(path)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=ca.decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise BadInput.of("bad-issuer-ca", path) from None
    return IssuerFiles(secret, ca)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MOST)
    except OSError as error:
        raise BadInput.of("unread-issuer-file", path, why=error.strerror) from None
