"""What went wrong with a registry, read from its answer or the connection's error: may it pass, and what to do."""

import re
from datetime import UTC, datetime

from rocstack.base.errors import BadInput, CheckFailed, Missing, RocstackError
from rocstack.node import engine_errors

TRANSIENT = frozenset({"busy", "unreachable"})
_KINDS = {
    *TRANSIENT,
    "bad-name",
    "certificate-time",
    "denied",
    "full",
    "no-host",
    "plain-http",
    "takes-nothing",
    "untrusted",
}


def classify(message: str) -> str:
    """The kind of failure behind a message (see the tests' recorded texts)."""
    return engine_errors.kind(message, _KINDS, "unknown")


def without_query(message: str) -> str:
    """The message without the query parts of addresses: storage back ends sign uploads in them."""
    return re.sub(r"\?[^\s\"']+", "?...", message)


def registry_error(message: str, *, host: str, reference: str, attempts: int = 1) -> RocstackError:
    """The error to raise for a message that is not retried, or not any more."""
    cause = without_query(message.strip())
    tried = f" ({attempts} attempts)" if attempts > 1 else ""
    match classify(message):
        case "denied":
            return Missing.of("registry-denied", reference=reference, cause=cause, host=host)
        case "unreachable" | "no-host":
            return Missing.of("registry-unreachable", host=host, tried=tried, cause=cause)
        case "busy":
            return CheckFailed.of("registry-busy", host=host, tried=tried, cause=cause)
        case "certificate-time":
            now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
            return Missing.of("registry-certificate-time", host=host, now=now, cause=cause)
        case "untrusted":
            return Missing.of("registry-untrusted", host=host, cause=cause)
        case "plain-http":
            return Missing.of("registry-plain-http", host=host, cause=cause)
        case "full":
            return CheckFailed.of("registry-full", host=host, reference=reference, cause=cause)
        case "takes-nothing":
            return CheckFailed.of("registry-read-only", host=host, reference=reference, cause=cause)
        case "bad-name":
            return BadInput.of("registry-bad-name", reference=reference, cause=cause)
        case _:
            return CheckFailed.of("registry-failed", reference=reference, cause=cause)
