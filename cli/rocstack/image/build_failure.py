"""Why a build failed: the first line that says so, where it came from, and whether trying again can help. Pure."""

import re
from dataclasses import dataclass

from rocstack.image.build_progress import BuildProgress, BuildStep
from rocstack.image.context import BuildContext

CONFUSED = "inconsistent graph state"  # BuildKit, when builds that share steps run at once: moby/buildkit issue 2303
# What may be gone a minute later. Anything else is permanent: trying again would only hide it.
TRANSIENT = (
    "temporary failure resolving",
    "temporary failure in name resolution",
    "could not resolve host",
    "connection timed out",
    "connection reset by peer",
    "connection failed",
    "connection refused",
    "unable to connect to",
    "network is unreachable",
    "read timed out",
    "i/o timeout",
    "tls handshake timeout",
    "hash sum mismatch",
    "mirror sync in progress",
    "file has unexpected size",
    "toomanyrequests",
    "too many requests",
    "  429  ",  # apt: status and reason, two spaces around
    "  500  ",
    "  502  ",
    "  503  ",
    "  504  ",
    "service unavailable",
    "unexpected eof",
    "max retries exceeded",
    CONFUSED,
)
# The index says a package is there and the mirror no longer has it: a fresh index heals it.
STALE = "  404  "
BEFORE = 6  # lines of context before the error
FULL = "no space left on device"
CHANGED = ("do not match the hashes", "sha256 mismatch")
UNTRUSTED = ("certificate verify failed", "certificate verification failed", "self-signed certificate",
             "unable to get local issuer", "x509: ")  # fmt: skip
_ERROR_LINE = re.compile(
    r"^(E: |ERROR[: ]|error[: ]|fatal[: ]|rocstack-smoke-failed|.*: command not found|.*\bError [0-9]+$|"
    r"dpkg: error |.*: (fatal )?error: |.*[a-zA-Z]Error: |.*sha256 mismatch|.*THESE PACKAGES DO NOT MATCH THE HASHES)",
    re.IGNORECASE,
)
_TRACEBACK = re.compile(r"^(\[[a-z0-9.-]+\] )?Traceback ")
# What the builder repeats of our own scripts is no output.
_QUOTED = re.compile(r'process "(?:[^"\\]|\\.)*"|^ *\d+ \| .*$', re.MULTILINE)
_AT = re.compile(r"rocstack-failed-at: (\d+): (.*)")
_DOCKERFILE = re.compile(r"^Dockerfile:(\d+)$", re.MULTILINE)
_VERTEX = re.compile(r"\[(?:(?P<stage>\S+) +)?(?P<index>\d+)/\d+\] (?P<word>[A-Z]+)")
_INSTRUCTION = re.compile(r"(RUN|COPY|ADD|WORKDIR)\b")
_SMOKE = re.compile(r"rocstack-smoke-failed: (\S+) line (\d+): (.*)")
_GONE = re.compile(
    r"E: (?:Unable to locate package (?P<unknown>\S+)|Package '(?P<empty>[^']+)' has no installation candidate"
    r"|Version '(?P<version>[^']+)' for '(?P<of>[^']+)' was not found)"
)


@dataclass(frozen=True)
class BuildFailure:
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


def explain(progress: BuildProgress, context: BuildContext) -> BuildFailure:
    """Reads the failed step (or the builder's closing words) and points to the template line."""
    step = progress.failed()
    log = step.log if step else []
    messages = progress.messages.strip()
    lines = _said(log) or messages.splitlines() or ["the builder ended without a word"]
    index, first = _first_error(lines)
    line = _dockerfile_line(progress, step, log, context)
    template = context.origin("Dockerfile", line) if line else None
    smoke = next((m for m in map(_SMOKE.search, log) if m), None)
    if smoke:
        first = f"smoke test of {smoke[1]}, line {smoke[2]}: {smoke[3]}"
        script = _smoke_script(step, smoke[1], context)
        template = (context.origin(script, int(smoke[2])) if script else None) or template
    gone = next((m for m in map(_GONE.search, log) if m), None)
    if gone:
        template = context.asked.get(gone["unknown"] or gone["empty"] or gone["of"], template)
    # From the error on: what is far above it was tried again and passed.
    text = "\n".join([*(lines[max(0, index - BEFORE) :] if log else ()), _QUOTED.sub("", messages)]).lower()
    cause, next_step = _advice(gone, text, smoke is not None)
    return BuildFailure(
        stage=step.stage if step else "start",
        step=step.title if step else "",
        digest=step.digest if step else "",
        kind="permanent" if smoke or gone else _kind(text),
        first_error=first,
        context=tuple(lines[max(0, index - BEFORE) : index + 4]),
        template=template,
        dockerfile_line=line,
        cause=cause,
        next_step=next_step,
    )


def _said(log: list[str]) -> list[str]:
    """The log up to where the shell tells which command failed, which may repeat a whole script."""
    end = next((i for i, line in enumerate(log) if line.startswith("rocstack-failed-at: ")), len(log))
    return log[:end] if any(line.strip() for line in log[:end]) else log


def _kind(text: str) -> str:
    """What is sure to stay comes first: a transient sign may stand above it and have passed."""
    if FULL in text or any(sign in text for sign in (*CHANGED, *UNTRUSTED)):
        return "permanent"
    if STALE in text:
        return "stale"
    return "transient" if any(sign in text for sign in TRANSIENT) else "permanent"


def _first_error(lines: list[str]) -> tuple[int, str]:
    for index, line in enumerate(lines):
        trace = _TRACEBACK.match(line)
        if trace:  # the exception itself is the first line after it that is not indented
            indented = ((trace[1] or "") + " ", (trace[1] or "") + "\t")
            at = next((i for i in range(index + 1, len(lines)) if not lines[i].startswith(indented)), index)
            return at, lines[at].strip()
        if _ERROR_LINE.match(re.sub(r"^\[[a-z0-9.-]+\] ", "", line)):
            return index, line.strip()
    last = next((i for i in range(len(lines) - 1, -1, -1) if lines[i].strip()), 0)
    return last, lines[last].strip()


def _dockerfile_line(
    progress: BuildProgress, step: BuildStep | None, log: list[str], context: BuildContext
) -> int | None:
    """The failing line: that of the instruction, moved on to the shell line inside its heredoc."""
    lines = context.files["Dockerfile"].data.decode().splitlines() if "Dockerfile" in context.files else []
    match = _DOCKERFILE.search(progress.messages)
    line = int(match[1]) if match else _instruction_line(progress, step, lines)
    at = next((m for m in map(_AT.search, log) if m), None)
    if line and at:
        opening = next((i for i in range(line - 1, len(lines)) if lines[i].rstrip().endswith("<<'EOS'")), None)
        if opening is not None:
            return opening + 1 + int(at[1])
    return line


def _instruction_line(progress: BuildProgress, step: BuildStep | None, lines: list[str]) -> int | None:
    """The step's instruction, counted out in its stage: of two builds that wait for one step, BuildKit tells only
    one the line where it failed."""
    vertex = _VERTEX.match(step.name) if step else None
    start = next((i for i, line in enumerate(lines) if vertex and _opens(line, vertex["stage"])), None)
    if vertex is None or start is None:
        return None
    numbers = [start + 1]
    script = False
    for number, line in enumerate(lines[start + 1 :], start + 2):
        if not script and line.startswith("FROM "):
            break
        if not script and _INSTRUCTION.match(line):
            numbers.append(number)
        script = line != "EOS" if script else line.endswith("<<'EOS'")
    others = [seen for seen in map(_VERTEX.match, (s.name for s in progress.steps.values())) if seen]
    firsts = {seen["word"] for seen in others if (seen["stage"], seen["index"]) == (vertex["stage"], "1")}
    at = 0 if vertex["word"] == "FROM" else int(vertex["index"]) - (firsts == {"FROM"})  # FROM a stage has no number
    return numbers[at] if at < len(numbers) else None


def _opens(line: str, stage: str | None) -> bool:
    """A Dockerfile's only stage is not named in its steps."""
    return line.startswith("FROM ") and (stage is None or line.endswith(f" AS {stage}"))


def _smoke_script(step: BuildStep | None, component: str, context: BuildContext) -> str | None:
    role = step.stage.removeprefix("smoke-") if step else ""
    return next((p for p in context.files if p.startswith(f"smoke/{role}/") and p.endswith(f"-{component}.sh")), None)


def _advice(gone: re.Match[str] | None, text: str, smoke: bool) -> tuple[str | None, str | None]:
    if gone:
        package = gone["unknown"] or gone["empty"] or gone["of"]
        what = f"version {gone['version']} of package '{package}'" if gone["version"] else f"package '{package}'"
        return (
            f"the distribution's index has no {what} (any more)",
            f"look for its new name; until then `<component>_<list>_remove: [{package}]` in your overlay.yml",
        )
    if FULL in text:
        return (
            "the disk is full",
            "`docker system df` shows what takes the space; `docker builder prune` frees cache",
        )
    if any(sign in text for sign in CHANGED):
        return (
            "a download is not the file that was locked: it was replaced, or a proxy changed it on the way",
            "compare with the publisher; if the change is meant, `rocstack lock` pins the new one",
        )
    if any(sign in text for sign in UNTRUSTED):
        return (
            "an inspecting proxy signs with a CA that the build doesn't know",
            "name the company's bundle: --ca-bundle FILE, or `ca_bundle:` in rocstack.yml",
        )
    if smoke:
        return "what was built does not work together", "the log holds the command's whole output"
    if STALE in text:
        return "the mirror no longer has a file that the package index names", "run again with --refresh"
    if "could not resolve '" in text or "no such host" in text:
        return "a host name is unknown: misspelt, or not known to this network's DNS", "check the name and the DNS"
    if CONFUSED in text:
        return "BuildKit lost track of steps that two builds share", "run again; finished steps come from the cache"
    if any(sign in text for sign in TRANSIENT):
        return "the network or a mirror did not answer", "run again; finished steps come from the cache"
    return None, None
