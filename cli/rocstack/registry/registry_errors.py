"""What went wrong with a registry, read from its answer or the connection's error: may it pass, and what to do."""

import re
from typing import Literal, cast, get_args

from rocstack.base.errors import BadInput, CheckFailed, Missing, RocstackError
from rocstack.node import engine_errors

RegistryFailure = Literal[
    "bad-name", "busy", "denied", "full", "no-host", "plain-http", "unknown", "unreachable", "untrusted"
]
TRANSIENT: frozenset[RegistryFailure] = frozenset({"busy", "unreachable"})


def classify(message: str) -> RegistryFailure:
    """The kind of failure behind a message (see the tests' recorded texts)."""
    return cast(RegistryFailure, engine_errors.kind(message, get_args(RegistryFailure), "unknown"))


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
                f"the registry denies access to {reference}",
                code="registry-denied",
                cause=cause,
                next_step=f"run `docker login {host}`; if you are logged in, this account may not push there",
            )
        case "unreachable" | "no-host":
            return Missing(
                f"the registry {host} can't be reached{tried}",
                code="registry-unreachable",
                cause=cause,
                next_step=f"check the name, and test the connection with `docker login {host}`",
            )
        case "busy":
            return CheckFailed(
                f"the registry {host} can't answer requests now{tried}",
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
                f"the registry {host} speaks http instead of https",
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
        case "bad-name":
            return BadInput(f"{reference} can't be pushed", code="bad-name", cause=cause, next_step="check the name")
        case _:
            return CheckFailed(
                f"push of {reference} failed",
                code="push-failed",
                cause=cause,
                next_step="read the registry's log; try `docker push` to see the same error",
            )
