"""Containers of a node: each matches its specification and is healthy, or its predecessor runs again. Standard
library only."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field

from .engine import CommandOutput, NodeError, Row, docker, inspect_existing
from .engine_facts import READS, RUNS, SERVICE, SPEC, stale
from .limits import limit_note, refused_ulimit

WORKER, CONTROLLER = "rocstack-worker", "rocstack-control"
POLL_S = 0.3  # seconds between two looks
MIN_UPTIME_S = 1.5  # seconds that it must run: one that ends again and again passes many a check for a moment
CHECK_TIMEOUT_S = 30.0  # seconds for one check
LOOK_S = 5  # seconds in which a check is repeated inside: each `docker exec` costs more than most checks
_REPEAT = """
end=$(($(date +%s) + $1)); shift
until why=$("$@" 2>&1); do
    [ "$(date +%s)" -lt $end ] || { echo "$why" >&2; exit 1; }
    sleep 0.3
done
"""
MOST_RESTARTS = 5  # after that many it won't come up


def health(row: Row) -> str:
    """healthy, unhealthy or starting as the engine saw it last; "" for a container without a check. One that
    ends again and again is unhealthy."""
    if row["State"]["Status"] == "restarting":
        return "unhealthy"
    status = str((row["State"].get("Health") or {}).get("Status") or "")
    return "" if status == "none" else status


def wait_healthy(name: str, within: float) -> str:
    """Waits; why it isn't healthy after `within` seconds, or never will be."""
    began = time.monotonic()
    start, since = "", began
    while True:
        row = next(iter(inspect_existing("container", name)), None)
        now = time.monotonic()
        if row is None:
            return "is gone"
        if row["State"]["StartedAt"] != start:  # it ended and was started again
            start, since = row["State"]["StartedAt"], now
        why = _failure(row, max(0, min(LOOK_S, began + within - now)))
        now = time.monotonic()
        if why is None and now - since >= MIN_UPTIME_S:
            return ""
        if why and _hopeless(row):
            return why
        if now - began >= within:
            return f"isn't healthy after {within:g} s ({why or 'it has just started'})"
        time.sleep(POLL_S if why else since + MIN_UPTIME_S - now)


def _failure(row: Row, within: float) -> str | None:
    """Why it isn't healthy; the check is repeated for so many seconds, if it must."""
    state = row["State"]
    if state["Status"] != "running":
        again = f" {row['RestartCount'] + 1} times" if row.get("RestartCount") else ""
        error = f": {state['Error']}" if state.get("Error") else ""
        return f"ended{again} with exit code {state.get('ExitCode')}{error}"
    check = _check(row["Config"])
    if not check:
        return None
    try:
        words = ("sh", "-c", _REPEAT, "sh", str(int(within)), *check)
        output = docker("exec", row["Id"], *words, check=False, seconds=CHECK_TIMEOUT_S + LOOK_S)
    except NodeError as failed:
        return failed.what
    return output.why if output.code else None


def _check(config: Row) -> list[str]:
    test = (config.get("Healthcheck") or {}).get("Test") or ["NONE"]
    if test[0] == "CMD-SHELL":
        return [*(config.get("Shell") or ["/bin/sh", "-c"]), *test[1:]]
    return list(test[1:]) if test[0] == "CMD" else []


def _hopeless(row: Row) -> bool:
    status, again = row["State"]["Status"], int(row.get("RestartCount") or 0)
    return status in ("exited", "dead") or (status == "restarting" and again >= MOST_RESTARTS)


BACK = "the previous container runs again"
OLD = "-old"  # what is replaced has its name with this until the new one is healthy
GRACE_S = 10  # seconds that the engine gives a container to end which doesn't say otherwise
LOG_LINES = 20
# Whoever reaches a port makes lines of log; these two drivers keep them all, or what is usual elsewhere (Docker's docs,
# "Configure logging drivers").
UNBOUND = ("json-file", "local")
BOUND = ("--log-opt=max-size=50m", "--log-opt=max-file=4")
CREATE_S = 600.0  # seconds for the engine to make and start a container: its disk may be slow
RECHECK_S = 5.0  # seconds for one to show that it is healthy after all
BACK_S = 60.0  # seconds for the previous container to become healthy again


@dataclass
class ContainerResult:
    """What became of a container. `action`: kept, started, restarted, created or replaced; for one that failed it is
    what was tried, and `log` its last lines. `health`: healthy, unhealthy, starting, or "" for one without a check."""

    name: str
    action: str = "kept"
    health: str = ""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def to_dict(self) -> Row:
        return {**asdict(self), "seconds": round(self.seconds, 2)}


class NotHealthy(NodeError):
    """A container that doesn't come up; `done` says which and what it logged. `new`: it is to go."""

    def __init__(self, done: ContainerResult, what: str, new: bool) -> None:
        super().__init__(f"{done.name} {what}", " ".join(done.notes[-1:]), "container")
        self.done, self.new = done, new


def try_container(spec: Row, image: str, heal: bool = False) -> ContainerResult:
    """
    Args:
        spec: {"name", "service", "args", "command", "spec", "reads": paths, "healthy_within": seconds}.
        image: how this engine knows the image.
        heal: restart one that is as described but unhealthy.

    Raises:
        NotHealthy: it doesn't start or become healthy, and all is as it failed, until `undo`.
        NodeError: the engine refuses something else; nothing was stopped.
    """
    began, done = time.monotonic(), ContainerResult(spec["name"])
    row, old = _settle(spec, image)
    new = row is None or not _is_current(row, spec, image)
    if new:
        done.action = "replaced" if row else "created"
    try:
        if row and new:
            _stop(row)
            docker("rename", done.name, done.name + OLD)
            old = row
        why = _run(spec, image, done.notes) if row is None or new else _keep(row, done, heal, unsure=old is not None)
        if not why and done.action != "kept":
            why = wait_healthy(done.name, float(spec["healthy_within"]))
            done.health = "" if why else "healthy"
    except NodeError as failed:  # an engine that doesn't answer
        why = failed.what
    done.seconds = time.monotonic() - began
    if why:
        raise _not_healthy(done, why, new or old is not None)
    if old:
        docker("rm", "--volumes", done.name + OLD)
    return done


def undo(failed: NotHealthy) -> None:
    """The one before, if there is one, runs again in place of the failed one; `failed.done` says whether it does."""
    if not failed.new:
        return
    done = failed.done
    try:
        why = _bring_back(done)
    except NodeError as error:
        why = error.what
    if why is not None:
        failed.cause = f"the previous container doesn't come up either: {why}" if why else BACK
        done.notes.append(failed.cause)


def remove(names: list[str]) -> list[str]:
    """Stops and removes those that are there, with what an interrupted replacement left; gives their names."""
    rows = find(*names, *(name + OLD for name in names)) if names else []
    for row in rows:
        _stop(row)
        docker("rm", "--force", "--volumes", row["Id"])
    return sorted(row["Name"] for row in rows)


def find(*names: str) -> list[Row]:
    """Those of these containers that are there, as the engine describes them, their names without a slash."""
    return [{**row, "Name": row["Name"].lstrip("/")} for row in inspect_existing("container", *names)]


def _settle(spec: Row, image: str) -> tuple[Row | None, Row | None]:
    """The container and the one that it was replacing when somebody pulled the plug: at most one is left that counts,
    or two where the newer is the wanted one and has to prove itself."""
    name = spec["name"]
    rows = {row["Name"]: row for row in find(name, name + OLD)}
    now, old = rows.get(name), rows.get(name + OLD)
    if old is None or (now and _is_current(now, spec, image)):
        return now, old
    if now and runs(now) and health(now) == "healthy":
        docker("rm", "--force", "--volumes", old["Id"])
        return now, None
    if now:
        docker("rm", "--force", "--volumes", now["Id"])
    docker("rename", name + OLD, name)
    return old, None


def _is_current(row: Row, container: Row, image: str) -> bool:
    spec = (row["Config"].get("Labels") or {}).get(SPEC)
    same = bool(spec == container["spec"] and row["Image"].endswith(image.rpartition(":")[2]))
    return same and not stale(row, container.get("reads", []))


def runs(row: Row) -> bool:
    return row["State"]["Status"] in RUNS


def _keep(now: Row, done: ContainerResult, heal: bool, unsure: bool) -> str:
    """What is to be done with a container that is as described; why it failed."""
    done.health = health(now)
    if now["State"]["Status"] == "paused":
        done.action = "started"
        docker("unpause", done.name)
    elif not runs(now):
        done.action = "started"
        output = docker("start", done.name, check=False)
        return output.why if output.code else ""
    # One that ends again and again runs now and then. The engine calls one unhealthy after three failed checks only.
    streak = int((now["State"].get("Health") or {}).get("FailingStreak") or 0)
    ill = done.health == "unhealthy" or streak or (now.get("RestartCount") and done.health != "healthy")
    if heal and ill:
        # The engine's word may be half a minute old, and with a worker its jobs would end.
        if not wait_healthy(done.name, RECHECK_S):
            done.health = "healthy"
            return ""
        done.action = "restarted"
        docker("restart", done.name, seconds=_grace(now) + 60)
    elif unsure:
        done.action = "started"
    return ""


def _run(spec: Row, image: str, notes: list[str]) -> str:
    """Creates and starts it; why it didn't start. A limit that the engine can't set is left out, which is noted."""
    args = list(spec["args"])
    # After a kill of the engine `unless-stopped` counts as stopped by a person (Docker 26).
    line = ["run", "--detach", "--pull=never", "--restart=always", "--name=" + spec["name"]]
    line += ["--label={}={}".format(SERVICE, spec["service"]), "--label={}={}".format(SPEC, spec["spec"])]
    line.append("--label={}={}".format(READS, ",".join(spec.get("reads", []))))
    if docker("info", "--format={{.LoggingDriver}}", check=False).out.strip() in UNBOUND:
        line += BOUND
    while True:
        output = docker(*line, *args, image, *spec.get("command", []), check=False, seconds=CREATE_S)
        limit = refused_ulimit(output.err) if output.code else None
        less = [arg for arg in args if not arg.startswith(f"--ulimit={limit}=")]
        if not limit or less == args:
            return output.why if output.code else ""
        docker("rm", "--force", spec["name"])
        args = less
        notes.append(limit_note(limit, None))


def _not_healthy(done: ContainerResult, why: str, new: bool) -> NotHealthy:
    try:
        output = docker("logs", "--tail", str(LOG_LINES), done.name, check=False)
    except NodeError as failed:
        output = CommandOutput(1, "", failed.what)
    text = "" if output.code else output.out + output.err
    done.log = [line.rstrip() for line in text.splitlines() if line.strip()]
    return NotHealthy(done, why + (": " + done.log[-1].strip() if done.log else ""), new)


def _bring_back(done: ContainerResult) -> str | None:
    """Why the previous container isn't healthy; None where there is none. Asks the engine: the failure may have come
    anywhere between the stop of the one and the start of the other."""
    rows = {row["Name"]: row for row in find(done.name, done.name + OLD)}
    new, old = rows.get(done.name), rows.get(done.name + OLD)
    if old or done.action == "created":
        if new:
            _stop(new)  # not killed: it may be converting its database
            docker("rm", "--force", "--volumes", new["Id"])
        if old is None:
            return None
        docker("rename", old["Id"], done.name)
    output = docker("start", done.name, check=False)
    return output.why if output.code else wait_healthy(done.name, BACK_S)


def _stop(row: Row) -> None:
    if row["State"]["Status"] == "paused":
        docker("unpause", row["Id"])
    if runs(row):
        docker("stop", row["Id"], seconds=_grace(row) + 60)


def _grace(row: Row) -> int:
    return int(row["Config"].get("StopTimeout") or GRACE_S)
