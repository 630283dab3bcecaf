"""The registry's certificate, judged by a real handshake."""

from __future__ import annotations

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.deploy.plan import tls

NOW = datetime.now(UTC)
NAMES = ("10.0.0.11", "fd00::11", "head.example", "head")


@pytest.fixture(scope="module")
def keys() -> tuple[str, str, str]:
    return (*tls.make_ca(NOW), tls.make_key())


def greet(folder: Path, keys: tuple[str, str, str], certificate: str, name: str) -> None:
    """A client that trusts only the CA meets a server with this certificate."""
    (folder / "server.pem").write_text(certificate)
    (folder / "server.key").write_text(keys[2])
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    client.load_verify_locations(cadata=keys[0])
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).recv(1)
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=name).close()
    finally:
        ours.close()
        thread.join(5)


def test_hosts_have_keys_of_their_own(keys: tuple[str, str, str], tmp_path: Path) -> None:
    made = [tls.host_key(keys[2], host) for host in ("head", "n1", "head")]
    assert made[0] == made[2] != made[1]
    own = (*keys[:2], made[0])
    greet(tmp_path, own, tls.certificate(*own, NAMES, NOW), "head")


@pytest.mark.parametrize("name", [*NAMES, "127.0.0.1", "localhost"])
def test_a_client_that_trusts_the_ca_is_let_in(name: str, keys: tuple[str, str, str], tmp_path: Path) -> None:
    greet(tmp_path, keys, tls.certificate(*keys, NAMES, NOW), name)


def test_another_name_or_ca_is_refused(keys: tuple[str, str, str], tmp_path: Path) -> None:
    made = tls.certificate(*keys, NAMES, NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(tmp_path, keys, made, "10.0.0.12")
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(tmp_path, (tls.make_ca(NOW)[0], *keys[1:]), made, "head")


def test_it_changes_only_with_names_and_time(keys: tuple[str, str, str]) -> None:
    made = tls.certificate(*keys, NAMES, NOW)
    assert made == tls.certificate(*keys, [*reversed(NAMES), "head"], NOW + timedelta(days=600))
    assert made != tls.certificate(*keys, NAMES[1:], NOW)
    assert made != tls.certificate(*keys, NAMES, NOW + timedelta(days=670))


def test_at_any_time_it_is_valid_for_sixty_more_days(keys: tuple[str, str, str]) -> None:
    step, different = tls.LIFE - tls.RENEWED, set()
    ends = [NOW - timedelta(days=1) + step * n for n in range(1, 6)]
    for now in [NOW, *(end + timedelta(seconds=s) for end in ends for s in (-1, 1)), NOW + timedelta(days=3590)]:
        made = tls.certificate(*keys, NAMES, now)
        read = x509.load_pem_x509_certificate(made.encode())
        assert read.not_valid_before_utc < now <= read.not_valid_after_utc - tls.RENEWED
        different.add(made)
    assert len(different) == 6


@pytest.mark.parametrize("days", [-2, 3652])
def test_outside_the_time_of_the_ca(days: int, keys: tuple[str, str, str]) -> None:
    with pytest.raises(CheckFailed) as refused:
        tls.certificate(*keys, NAMES, NOW + timedelta(days=days))
    assert refused.value.code == "ca-time"


@pytest.mark.parametrize("name", ["", "a..b", "x" * 64, "é" * 70])
def test_no_name(name: str, keys: tuple[str, str, str]) -> None:
    with pytest.raises(BadInput) as refused:
        tls.certificate(*keys, [name], NOW)
    assert refused.value.code == "bad-host-name"
