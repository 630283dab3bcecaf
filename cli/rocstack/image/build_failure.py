"""Why a build failed: the first line that says so, where it came from, and whether trying again can help. Pure."""

import re

from pydantic import Field

from rocstack.base.words import Value
from rocstack.image.build_progress import BuildProgress, BuildStep
from rocstack.image.context import BuildContext

BEFORE = 6  # lines of context before the error
CONFUSED = "inconsistent graph state"  # BuildKit, when builds that share steps run at once: moby/buildkit issue 2303
# What may be gone a minute later. Anything else is permanent: trying again would only hide it.
TRANSIENT = (
    "temporary failure resolving", "temporary failure in name resolution", "could not resolve host",
    "connection timed out", "connection reset by peer", "connection failed", "connection refused",
    "unable to connect to", "network is unreachable", "read timed out", "i/o timeout", "tls handshake timeout",
    "hash sum mismatch", "mirror sync in progress", "file has unexpected size", "toomanyrequests", "too many requests",
    "  429  ", "  500  ", "  502  ", "  503  ", "  504  ",  # apt: status and reason, two spaces around
    "service unavailable", "unexpected eof", "max retries exceeded", CONFUSED,
)  # fmt: skip
# Signs -> kind (None: others say), cause, next step. What is sure to stay comes first: a transient sign may stand above
# it and have passed.
_Row = tuple[tuple[str, ...], str | None, str, str]
# What apt says of a suite's index: apt-secure(8).
_SUITES: tuple[_Row, ...] = (
    (("does not have a release file", "no longer has a release file"), "permanent",
     "the mirror has no such suite (any more): it was renamed, moved to an archive, or its name is misspelt",
     "compare the suite's name in the stack with the folders in `dists/` of the mirror; "
     "for a suite that was archived set `apt_mirror` to a mirror that still has it"),
    (("changed its 'suite' value", "changed its 'codename' value"), "permanent",
     "the suite's name means another release than it did when the base image was made",
     "name the release's own suite in the stack, or take a base image of the release that the name means now"),
    (("is expired (invalid since",), "permanent",
     "the mirror stands still: its index is older than the distribution allows, or an old one is replayed",
     "set `apt_mirror` to a mirror that is kept up to date; `check_valid_until: false` under `base` in the stack takes "
     "an old index all the same"),
    (("is not valid yet (invalid for",), "permanent",
     "this machine's clock is behind", "set the clock, then run again"),
    (("no_pubkey ", "' is not signed"), "permanent",
     "the mirror's index isn't signed, or by a key that the base image doesn't have",
     "use a mirror of the base image's own distribution, or another base image"),
)  # fmt: skip
_LASTING: tuple[_Row, ...] = (
    *_SUITES,
    (("no space left on device",), "permanent", "the disk is full",
     "`docker system df` shows what takes the space; `docker builder prune` frees cache"),
    (("do not match the hashes", "sha256 mismatch"), "permanent",
     "a download is not the file that was locked: it was replaced, or a proxy changed it on the way",
     "compare with the publisher; if the change is meant, `rocstack lock` pins the new one"),
    (("certificate verify failed", "certificate verification failed", "self-signed certificate",
      "unable to get local issuer", "x509: "), "permanent",
     "an inspecting proxy signs with a CA that the build doesn't know",
     "name the company's bundle: --ca-bundle FILE, or `ca_bundle:` in rocstack.yml"),
)  # fmt: skip
_PASSING: tuple[_Row, ...] = (
    # The index says a package is there and the mirror no longer has it: a fresh index heals it.
    (("  404  ",), "stale", "the mirror no longer has a file that the package index names", "run again with --refresh"),
    (("could not resolve '", "no such host"), None,
     "a host name is unknown: misspelt, or not known to this network's DNS", "check the name and the DNS"),
    ((CONFUSED,), "transient", "BuildKit lost track of steps that two builds share",
     "run again; finished steps come from the cache"),
    (TRANSIENT, "transient", "the network or a mirror did not answer",
     "run again; finished steps come from the cache"),
)  # fmt: skip
_SMOKE: _Row = (("",), "permanent", "what was built does not work together", "the log holds the command's whole output")
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
_SMOKE_LINE = re.compile(r"rocstack-smoke-failed: (\S+) line (\d+): (.*)")
_GONE = re.compile(
    r"E: (?:Unable to locate package (?P<unknown>\S+)|Package '(?P<empty>[^']+)' has no installation candidate"
    r"|Version '(?P<version>[^']+)' for '(?P<of>[^']+)' was not found)"
)


class BuildFailure(Value):
    """Everything a person needs: `kind` is transient, stale or permanent. `digest` is of the step that failed, and
    `reproduce` the builder's command."""

    digest: str = Field(default="", exclude=True)
    stage: str
    step: str = ""
    kind: str = "permanent"
    error: str
    context: tuple[str, ...] = ()
    template: str | None = None
    dockerfile_line: int | None = None
    cause: str | None = None
    next_step: str | None = None
    reproduce: str = ""


def of_index(lines: list[str]) -> tuple[str, str, str] | None:
    """The line where apt says what is wrong with a suite's index, with its cause and next step."""
    for signs, _, cause, next_step in _SUITES:
        said = next((line for line in lines if any(sign in line.lower() for sign in signs)), None)
        if said:
            return said.strip(), cause, next_step
    return None


def explain(progress: BuildProgress, context: BuildContext) -> BuildFailure:
    """Reads the failed step (or the builder's closing words) and points to the template line."""
    step = progress.failed()
    log = step.log if step else []
    messages = progress.messages.strip()
    # Where the shell tells which command failed, it may repeat a whole script.
    end = next((i for i, line in enumerate(log) if line.startswith("rocstack-failed-at: ")), len(log))
    said = log[:end] if any(line.strip() for line in log[:end]) else log
    lines = said or messages.splitlines() or ["the builder ended without a word"]
    index, first = _first_error(lines)
    line = _dockerfile_line(progress, step, log, context)
    template = context.origin("Dockerfile", line) if line else None
    smoke = next((m for m in map(_SMOKE_LINE.search, log) if m), None)
    if smoke:
        first = f"smoke test of {smoke[1]}, line {smoke[2]}: {smoke[3]}"
        folder = f"smoke/{step.stage.removeprefix('smoke-') if step else ''}"  # or one below the NIC's layer
        scripts = (p for p in context.files if p.startswith(folder) and p.endswith(f"-{smoke[1]}.sh"))
        template = next((context.origin(script, int(smoke[2])) for script in scripts), None) or template
    # From the error on: what is far above it was tried again and passed.
    text = "\n".join([*(lines[max(0, index - BEFORE) :] if log else ()), _QUOTED.sub("", messages)]).lower()
    seen = [row for row in (*_LASTING, *([_SMOKE] if smoke else []), *_PASSING) if any(s in text for s in row[0])]
    kind = next((kind for _, kind, _, _ in seen if kind), "permanent")
    cause, next_step = seen[0][2:] if seen else (None, None)
    gone = next((m for m in map(_GONE.search, log) if m), None)
    if gone:
        package = gone["unknown"] or gone["empty"] or gone["of"]
        template = context.asked.get(package, template)
        what = f"version {gone['version']} of package '{package}'" if gone["version"] else f"package '{package}'"
        cause = f"the distribution's index has no {what} (any more)"
        next_step = f"look for its new name; until then `<component>_<list>_remove: [{package}]` in your overlay.yml"
    return BuildFailure(
        stage=step.stage if step else "start",
        step=step.title if step else "",
        digest=step.digest if step else "",
        kind="permanent" if gone else kind,
        error=first,
        context=tuple(lines[max(0, index - BEFORE) : index + 4]),
        template=template,
        dockerfile_line=line,
        cause=cause,
        next_step=next_step,
    )


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
    if vertex is None:
        return None
    froms = {i: line for i, line in enumerate(lines) if line.startswith("FROM ")}
    named = f" AS {vertex['stage']}" if vertex["stage"] else ""  # a Dockerfile's only stage is not named in its steps
    start = next((i for i, line in froms.items() if line.endswith(named)), None)
    if start is None:
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
