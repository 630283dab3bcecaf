"""Certificates: a CA of the cluster's own, and what registries and slurmrestd's proxy show.

The server's certificate is a pure function of keys, names and date: whoever holds the secrets computes the same bytes,
so nothing but another name or its renewal restarts the registry. That is why the CA signs with RSA: PKCS #1 v1.5
signatures have no random part, and every engine takes them, also under FIPS.
"""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rocstack.base.errors import BadInput, CheckFailed

CA_LIFE = timedelta(days=3652)
LIFE = timedelta(days=730)
RENEWED = timedelta(days=60)  # before its end
_SKEW = timedelta(days=1)  # a node's clock may be behind
_LOCAL = ("127.0.0.1", "localhost")  # the operator's end of a tunnel


def make_ca(now: datetime) -> tuple[str, str]:
    """A new CA, valid for ten years from a day before `now`: certificate and private key, as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=3072)
    name = _name("rocstack registry CA")
    start = now.replace(microsecond=0) - _SKEW
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # key_cert_sign, crl_sign
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), start, start + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return built.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode(), _key_pem(key)


def make_key() -> str:
    """A new private key, from which those of the hosts follow, as PEM."""
    return _key_pem(ec.generate_private_key(ec.SECP256R1()))


def host_key(key: str, host: str) -> str:
    """The private key (PEM) of one host, which follows from `key`: so no host can pass for another one."""
    seed = hmac.new(key.encode(), host.encode(), hashlib.sha512).digest()
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of the curve's group
    return _key_pem(ec.derive_private_key(1 + int.from_bytes(seed, "big") % (order - 1), ec.SECP256R1()))


def certificate(ca: str, ca_key: str, key: str, names: Iterable[str], now: datetime) -> str:
    """The registry's certificate (PEM) for `key`: the same bytes for the same arguments, but for `now`, which counts in
    steps of 670 days; so at least 60 days are left at any time.

    `names` are addresses and host names that nodes reach it by; those of a tunnel's end are added.

    Raises:
        BadInput: a name that no certificate can hold, or keys that don't fit.
        CheckFailed: the CA's own time is over, or hasn't come.
    """
    issuer, signer, server = load(ca, ca_key, key)
    first, last, step = issuer.not_valid_before_utc, issuer.not_valid_after_utc, LIFE - RENEWED
    if not first <= now < last - RENEWED:
        raise CheckFailed.of("ca-time", first=first, last=last)
    start = first + (now - first) // step * step
    alternatives = x509.SubjectAlternativeName([_general(name) for name in sorted({*names, *_LOCAL})])
    key_id = x509.SubjectKeyIdentifier.from_public_key(server.public_key())
    seen = hashlib.sha256(alternatives.public_bytes() + key_id.digest + start.isoformat().encode()).digest()
    serial = 1 + int.from_bytes(seen[:16], "big")
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)  # digital_signature
    name, end = _name("rocstack registry"), min(start + LIFE, last)
    built = (
        x509.CertificateBuilder(issuer.subject, name, server.public_key(), serial, start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(alternatives, critical=False)
        .add_extension(key_id, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return built.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def load(
    ca_pem: str, ca_key_pem: str, key_pem: str
) -> tuple[x509.Certificate, rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey]:
    """The CA, its key, and the registry's.

    Raises:
        BadInput: not PEM, not a CA of ours, or its key is another's.
    """
    try:
        ca = x509.load_pem_x509_certificate(ca_pem.encode())
        # Primes that aren't would harm only who keeps the key; looking takes a quarter of a second.
        ca_key = load_pem_private_key(ca_key_pem.encode(), None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError):  # TypeError: it has a passphrase
        raise BadInput.of("ca-not-pem") from None
    if not isinstance(ca_key, rsa.RSAPrivateKey):
        raise BadInput.of("ca-key-not-rsa")
    if ca.public_key() != ca_key.public_key():
        raise BadInput.of("ca-key-differs")
    try:
        key = load_pem_private_key(key_pem.encode(), None)
    except (ValueError, TypeError):
        raise BadInput.of("registry-key-not-pem") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadInput.of("registry-key-not-ours")
    return ca, ca_key, key


def _general(name: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    with suppress(ValueError):
        written = name.encode("idna").decode()
        if re.fullmatch(r"[A-Za-z0-9._-]{1,253}", written):
            return x509.DNSName(written)
    raise BadInput.of("bad-host-name", name=name)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _key_pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
