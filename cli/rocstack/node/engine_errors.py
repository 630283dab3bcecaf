"""What the error texts of docker, podman and registries mean: the one table for nodes and for this machine. Standard
library only."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator

# runc's process died before it had started anything (seen about once in a run of the integration tests, and once twice
# in a row, runc 1.1.15; the cause is unknown): whatever was to run in the container may be tried again.
NOT_STARTED = "unable to start container process: waiting for init preliminary setup"
TRIES, PAUSE_S = 4, 0.2
NOISE = ("docker: ", "Error response from daemon: ", "Run 'docker run --help' for more information")
# In order: what is sure to stay stands above what passes.
PATTERNS = {
    "no-permission": r"permission denied|must be root|access denied",
    "silent": r"cannot connect to the docker daemon|is the docker daemon running|connection refused"
    r"|no such file or directory|error during connect",
    "full": r"no space left|quota exceeded|Insufficient Storage|Entity Too Large|status: (413|507)",
    "certificate-time": r"certificate (has expired|is not yet valid)",
    "untrusted": r"x509:|certificate signed by unknown|tls: failed to verify|certificate verify failed"
    r"|CertificateError",
    "plain-http": r"server gave HTTP response to HTTPS client|WRONG_VERSION_NUMBER|record layer failure",
    "no-host": r"Name or service not known|No address associated|no such host",
    "bad-name": r"invalid (reference|repository|tag)|(NAME|TAG)_INVALID",
    "busy": r"too ?many ?requests|status: (429|5\d\d)\b",
    "engine-denied": r"permission denied.*docker (daemon|API)|docker.sock: .*permission denied",
    "denied": r"unauthorized|no basic auth|authentication required|insufficient_scope|denied|\b40[13]\b",
    "not-found": r"manifest unknown|not found: manifest|name unknown|repository .* not found|\b404\b",
    "engine-old": r"zstd|unsupported media type|mediatype",
    "read-only": r"read-only file system",
    "takes-nothing": r"status: 405\b",
    "unreachable": r"connection (refused|reset|aborted|broken)|broken pipe|\bEOF\b|timeout|timed out"
    r"|no route to host|network is unreachable|temporary failure",
}


def tries() -> Iterator[None]:
    """For what ends with NOT_STARTED; each but the first comes after a pause."""
    for number in range(TRIES):
        time.sleep(number * PAUSE_S)
        yield


def kind(text: str, among: Iterable[str], otherwise: str = "") -> str:
    """The first kind that `text` fits, of those in `among`."""
    known = set(among)
    matches = (name for name, words in PATTERNS.items() if name in known and re.search(words, text, re.IGNORECASE))
    return next(matches, otherwise)


def without_noise(text: str) -> str:
    """The complaint itself, in one line."""
    text = " ".join(text.partition("\nSee 'docker")[0].split())
    for noise in NOISE:
        text = text.replace(noise, "")
    return text.strip()
