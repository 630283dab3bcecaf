"""Why a build failed: the first line that says so, where it came from, and whether trying again can help. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rocstack.context import Context
from rocstack.progress import Progress, Step

# What may be gone a minute later. Anything else is permanent: trying again would only hide it.
TRANSIENT = (
    "temporary failure resolving",
    "temporary failure in name resolution",
    "could not resolve host",
    "connection timed out",
    "connection reset by peer",
    "connection failed",
    "connection refused",
    "network is unreachable",
    "read timed out",
    "i/o timeout",
    "tls handshake timeout",
    "hash sum mismatch",
    "mirror sync in progress",
    "file has unexpected size",
    "toomanyrequests",
    "too many requests",
    "429  ",
    "500  internal server error",
    "502  bad gateway",
    "503  service unavailable",
    "504  gateway time-out",
    "service unavailable",
    "unexpected eof",
    "max retries exceeded",
)
# The index says a package is there and the mirror no longer has it: a fresh index heals it.
STALE = ("404  not found", "unable to fetch some archives")
_ERROR_LINE = re.compile(
    r"^(E: |ERROR[: ]|error[: ]|fatal[: ]|rocstack-smoke-failed|.*: command not found|.*\bError [0-9]+$|"
    r"configure: error|Traceback|.*[a-zA-Z]Error: |.*sha256 mismatch|.*THESE PACKAGES DO NOT MATCH THE HASHES)",
    re.IGNORECASE,
)
_AT = re.compile(r"rocstack-failed-at: (\d+): (.*)")
_DOCKERFILE = re.compile(r"^Dockerfile:(\d+)$", re.MULTILINE)
_SMOKE = re.compile(r"rocstack-smoke-failed: (\S+) line (\d+): (.*)")
_GONE = re.compile(
    r"E: (?:Unable to locate package (\S+)|Version '([^']+)' for '([^']+)' was not found"
    r"|Package '([^']+)' has no installation candidate)"
)


@dataclass(frozen=True)
class Failure:
    """Everything a person needs: `kind` is transient, stale or permanent."""

    stage: str
    step: str
    digest: str
    kind: str
    first_error: str
    context: tuple[str, ...]
    template: str | None
    dockerfile_line: int | None
    cause: str | None
    next_step: str | None


def explain(progress: Progress, context: Context) -> Failure:
    """Reads the failed step (or the builder's closing words) and points to the template line."""
    step = progress.failed()
    log = step.log if step else []
    messages = progress.messages.strip()
    lines = log or messages.splitlines() or ["the builder ended without a word"]
    index, first = _first_error(lines)
    line = _dockerfile_line(messages, step, log, context)
    template = context.origin("Dockerfile", line) if line else None
    smoke = next((m for m in map(_SMOKE.search, log) if m), None)
    if smoke:
        first = f"smoke test of {smoke[1]}, line {smoke[2]}: {smoke[3]}"
        script = _smoke_script(step, smoke[1], context)
        template = (context.origin(script, int(smoke[2])) if script else None) or template
    text = "\n".join([*log[-200:], messages]).lower()
    kind = "permanent"
    if any(sign in text for sign in STALE):
        kind = "stale"
    elif any(sign in text for sign in TRANSIENT) and not smoke:
        kind = "transient"
    cause, next_step = _advice(lines, text, smoke is not None)
    return Failure(
        stage=step.stage if step else "start",
        step=step.title if step else "",
        digest=step.digest if step else "",
        kind=kind,
        first_error=first,
        context=tuple(line for line in lines[max(0, index - 6) : index + 4] if "rocstack-failed-at" not in line),
        template=template,
        dockerfile_line=line,
        cause=cause,
        next_step=next_step,
    )


def _first_error(lines: list[str]) -> tuple[int, str]:
    for index, line in enumerate(lines):
        if _ERROR_LINE.match(re.sub(r"^\[[a-z0-9.-]+\] ", "", line)):
            return index, line.strip()
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].strip() and "rocstack-failed-at" not in lines[index]:
            return index, lines[index].strip()
    return 0, lines[0]


def _dockerfile_line(messages: str, step: Step | None, log: list[str], context: Context) -> int | None:
    """The failing line: that of the instruction, moved on to the shell line inside its heredoc."""
    found = _DOCKERFILE.search(messages)
    if not found:
        return None
    line = int(found[1])
    at = next((m for m in map(_AT.search, log) if m), None)
    if at and "Dockerfile" in context.files:
        lines = context.files["Dockerfile"].data.decode().splitlines()
        opening = next((i for i in range(line - 1, len(lines)) if lines[i].rstrip().endswith("<<'EOS'")), None)
        if opening is not None:
            return opening + 1 + int(at[1])
    return line


def _smoke_script(step: Step | None, component: str, context: Context) -> str | None:
    role = step.stage.removeprefix("smoke-") if step else ""
    return next((p for p in context.files if p.startswith(f"smoke/{role}/") and p.endswith(f"-{component}.sh")), None)


def _advice(lines: list[str], text: str, smoke: bool) -> tuple[str | None, str | None]:
    gone = next((m for m in map(_GONE.search, lines) if m), None)
    if gone:
        package = gone[1] or gone[3] or gone[4]
        return (
            f"the distribution's index has no package '{package}' (any more)",
            f"look for its new name; until then `<component>_packages_remove: [{package}]` in your overlay",
        )
    if "no space left on device" in text:
        return (
            "the disk is full",
            "`docker system df` shows what takes the space; `docker builder prune` frees cache",
        )
    if "do not match the hashes" in text or "sha256 mismatch" in text:
        return (
            "a download is not the file that was locked: it was replaced, or a proxy changed it on the way",
            "compare with the publisher; if the change is meant, `rocstack lock` pins the new one",
        )
    if "certificate" in text and (
        "verify failed" in text or "self-signed" in text or "unable to get local issuer" in text
    ):
        return (
            "an inspecting proxy signs with a CA that the build doesn't know",
            "name the company's bundle: --ca-bundle FILE, or `ca_bundle:` in rocstack.yml",
        )
    if any(sign in text for sign in TRANSIENT):
        return "the network or a mirror did not answer", "run again; finished steps come from the cache"
    if smoke:
        return "what was built does not work together", "the log holds the command's whole output"
    return None, None
