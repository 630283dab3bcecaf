"""Containers of an order: each is as it is described, or the node is as it was. Standard library only."""

from __future__ import annotations

import calendar
import json
import os
import time
from dataclasses import asdict, dataclass, field

from .engine import Failed, Row, docker, there
from .engine_facts import SERVICE, SPEC
from .health import health, until_healthy
from .refused import left_out, refused_ulimit

OLD = "-old"  # what is replaced has its name with this until the new one is healthy
GRACE = 10  # seconds that the engine gives a container to end which doesn't say otherwise
LOG_LINES = 20


@dataclass
class Done:
    """What became of a container. `action`: kept, started, restarted, created or replaced; for one that failed it is
    what was tried, and `log` its last lines. `health`: healthy, unhealthy, starting, or "" for one without a check."""

    name: str
    action: str = "kept"
    health: str = ""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def as_dict(self) -> Row:
        return {**asdict(self), "seconds": round(self.seconds, 2)}


class NotHealthy(Failed):
    """A container that doesn't come up; `done` says which and what it logged."""

    def __init__(self, done: Done, what: str) -> None:
        said = " ".join(done.notes[-1:])
        super().__init__(f"{done.name} {what}", said, "container")
        self.done = done


def ensure(wanted: Row, image: str, heal: bool = False) -> Done:
    """
    Args:
        wanted: {"name", "service", "args", "command", "spec", "reads": paths, "healthy_within": seconds}.
        image: how this engine knows the image.
        heal: restart one that is as described but unhealthy.

    Raises:
        NotHealthy: it doesn't start or become healthy. One that it was to replace runs again.
        Failed: the engine refuses something else.
    """
    began, done = time.monotonic(), Done(wanted["name"])
    now, old = _settle(wanted, image)
    if now is None or not _is(now, wanted, image):
        done.action = "replaced" if now else "created"
        if now:
            _stop(now)
            docker("rename", wanted["name"], wanted["name"] + OLD)
            old = now
        why = _run(wanted, image, done.notes)
    else:
        why = _keep(now, done, heal, unsure=old is not None)
    if not why and done.action != "kept":
        why = until_healthy(wanted["name"], float(wanted["healthy_within"]))
        done.health = "" if why else "healthy"
    if why:
        done.seconds = time.monotonic() - began
        raise _undo(wanted["name"], old, done, why)
    if old:
        docker("rm", "--volumes", wanted["name"] + OLD)
    done.seconds = time.monotonic() - began
    return done


def remove(names: list[str]) -> list[str]:
    """Stops and removes those that are there, with what an interrupted replacement left; gives their names."""
    rows = find(*names, *(name + OLD for name in names)) if names else []
    for row in rows:
        _stop(row)
        docker("rm", "--force", "--volumes", row["Id"])
    return sorted(row["Name"] for row in rows)


def find(*names: str) -> list[Row]:
    """Those of these containers that are there, as the engine describes them, their names without a slash."""
    rows: list[Row] = json.loads(there("container", *names))
    return [{**row, "Name": row["Name"].lstrip("/")} for row in rows]


def _settle(wanted: Row, image: str) -> tuple[Row | None, Row | None]:
    """The container and the one that it was replacing when somebody pulled the plug: at most one is left that counts,
    or two where the newer is the wanted one and has to prove itself."""
    name = wanted["name"]
    found = {row["Name"]: row for row in find(name, name + OLD)}
    now, old = found.get(name), found.get(name + OLD)
    if old is None or (now and _is(now, wanted, image)):
        return now, old
    if now and _runs(now) and health(now) == "healthy":
        docker("rm", "--force", "--volumes", old["Id"])
        return now, None
    if now:
        docker("rm", "--force", "--volumes", now["Id"])
    docker("rename", name + OLD, name)
    return old, None


def _is(row: Row, wanted: Row, image: str) -> bool:
    spec = (row["Config"].get("Labels") or {}).get(SPEC)
    same = bool(spec == wanted["spec"] and row["Image"].endswith(image.rpartition(":")[2]))
    return same and not _stale(row, wanted.get("reads", []))


def _stale(row: Row, paths: list[str]) -> bool:
    """A file that it reads was written after its start: it still has the one before."""
    if not _runs(row):
        return False
    whole, _, part = row["State"]["StartedAt"].rstrip("Z").partition(".")
    started = calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{part or 0}")
    return any(os.path.exists(path) and os.stat(path).st_mtime > started for path in paths)


def _runs(row: Row) -> bool:
    return row["State"]["Status"] in ("running", "restarting", "paused")


def _keep(now: Row, done: Done, heal: bool, unsure: bool) -> str:
    """What is to be done with a container that is as described; why it failed."""
    done.health = health(now)
    if now["State"]["Status"] == "paused":
        done.action = "started"
        docker("unpause", done.name)
    elif not _runs(now):
        done.action = "started"
        said = docker("start", done.name, check=False)
        return said.why if said.code else ""
    if heal and done.health == "unhealthy":
        done.action = "restarted"
        docker("restart", done.name, seconds=_grace(now) + 60)
    elif unsure:
        done.action = "started"
    return ""


def _run(wanted: Row, image: str, notes: list[str]) -> str:
    """Creates and starts it; why it didn't start. A limit that the engine can't set is left out, which is noted."""
    args = list(wanted["args"])
    # After a kill of the engine `unless-stopped` counts as stopped by a person (Docker 26).
    line = ["run", "--detach", "--pull=never", "--restart=always", "--name=" + wanted["name"]]
    line += ["--label={}={}".format(SERVICE, wanted["service"]), "--label={}={}".format(SPEC, wanted["spec"])]
    while True:
        said = docker(*line, *args, image, *wanted.get("command", []), check=False, seconds=120)
        limit = refused_ulimit(said.err) if said.code else None
        less = [arg for arg in args if not arg.startswith(f"--ulimit={limit}=")]
        if not limit or less == args:
            return said.why if said.code else ""
        docker("rm", "--force", wanted["name"])
        args = less
        notes.append(left_out(limit, None))


def _undo(name: str, old: Row | None, done: Done, why: str) -> NotHealthy:
    said = docker("logs", "--tail", str(LOG_LINES), name, check=False)
    done.log = [line.rstrip() for line in (said.out + said.err).splitlines() if line.strip()] if not said.code else []
    last = ": " + done.log[-1].strip() if done.log else ""
    if old or done.action == "created":
        docker("rm", "--force", "--volumes", name, check=False)
    if old:
        docker("rename", name + OLD, name)
        back = docker("start", name, check=False)
        done.notes.append("the one before runs again" if not back.code else "the one before doesn't start either")
    return NotHealthy(done, why + last)


def _stop(row: Row) -> None:
    if row["State"]["Status"] == "paused":
        docker("unpause", row["Id"])
    if _runs(row):
        docker("stop", row["Id"], seconds=_grace(row) + 60)


def _grace(row: Row) -> int:
    return int(row["Config"].get("StopTimeout") or GRACE)
