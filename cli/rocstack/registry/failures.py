"""What went wrong with a registry, told from the engine's words: will it pass, and what can the person do?"""

from __future__ import annotations

import re
from typing import Literal

from rocstack.base.errors import BadInput, CheckFailed, Missing, RocstackError

Kind = Literal[
    "absent",
    "bad-name",
    "busy",
    "denied",
    "full",
    "no-host",
    "no-image",
    "plain-http",
    "unknown",
    "unreachable",
    "untrusted",
]
TRANSIENT: frozenset[Kind] = frozenset({"busy", "unreachable"})

# The first that matches counts, so what is sure to stay stands above what passes.
_WORDS: tuple[tuple[Kind, str], ...] = (
    ("no-image", r"does not exist locally|No such image"),
    ("bad-name", r"invalid reference format|invalid tag format|must be lowercase|invalid repository name"),
    (
        "untrusted",
        r"x509:|tls: (failed to verify|bad certificate|unknown certificate)|certificate verify failed|CertificateError",
    ),
    (
        "plain-http",
        r"first record does not look like a TLS handshake|gave HTTP response to HTTPS client|WRONG_VERSION_NUMBER",
    ),
    ("no-host", r"no such host|Name or service not known|No address associated"),
    ("full", r"no space left|Insufficient Storage|quota exceeded|Request Entity Too Large"),
    ("absent", r"manifest unknown|name unknown|repository name not known"),
    ("busy", r"too ?many ?requests|HTTP (status|response)[^0-9]{0,8}(429|500|502|503|504|52\d)\b"),
    (
        "denied",
        r"no basic auth credentials|unauthorized|authentication required|denied|insufficient_scope"
        r"|status:? 40[13]\b",
    ),
    (
        "unreachable",
        r"connection (refused|reset|aborted|broken)|broken pipe|\bEOF\b|timeout|timed out|deadline exceeded"
        r"|no route to host|network is unreachable|server misbehaving|temporary failure|closed network connection",
    ),
)


def classify(message: str) -> Kind:
    """The kind of failure behind an engine's message (Docker's wording; see the tests' recorded texts)."""
    return next((kind for kind, words in _WORDS if re.search(words, message, re.IGNORECASE)), "unknown")


def without_query(message: str) -> str:
    """The message without the query parts of addresses: storage back ends sign uploads in them."""
    return re.sub(r"\?[^\s\"']+", "?...", message)


def registry_error(message: str, *, host: str, reference: str, attempts: int = 1) -> RocstackError:
    """The error to raise for a message that is not retried, or not any more."""
    kind = classify(message)
    cause = without_query(message.strip())
    tried = f" ({attempts} attempts)" if attempts > 1 else ""
    match kind:
        case "denied":
            return Missing(
                f"the registry does not let you use {reference}",
                code="registry-denied",
                cause=cause,
                next_step=f"`docker login {host}`; if you are logged in, this account may not push there",
            )
        case "unreachable" | "no-host":
            return Missing(
                f"the registry {host} can't be reached{tried}",
                code="registry-unreachable",
                cause=cause,
                next_step=f"check the name, and that this machine gets to it: `docker login {host}`",
            )
        case "busy":
            return CheckFailed(
                f"the registry {host} can't serve now{tried}",
                code="registry-busy",
                cause=cause,
                next_step="run again later; layers that arrived are not sent twice",
            )
        case "untrusted":
            return Missing(
                f"this machine does not trust the certificate of {host}",
                code="registry-untrusted",
                cause=cause,
                next_step=f"put the certificate authority's file at /etc/docker/certs.d/{host}/ca.crt",
            )
        case "plain-http":
            return Missing(
                f"the registry {host} speaks http and the engine wants https",
                code="registry-plain-http",
                cause=cause,
                next_step=f"give it a certificate, or name '{host}' in the engine's insecure-registries",
            )
        case "full":
            return CheckFailed(
                f"the registry {host} has no room for {reference}",
                code="registry-full",
                cause=cause,
                next_step="free space there, or raise its limit on uploads",
            )
        case "no-image" | "bad-name":
            return BadInput(f"{reference} can't be pushed", code=kind, cause=cause, next_step="check the name")
        case _:
            return CheckFailed(
                f"push of {reference} failed",
                code="push-failed",
                cause=cause,
                next_step="see the registry's log; `docker push` shows the same",
            )
