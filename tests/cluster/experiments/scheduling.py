"""Jobs of two QoS compete for one core that is reserved for them: which one starts first, and whether one makes room.

A reservation is what two QoS can compete for that takes nothing from anybody: a core that was free. It ends by itself
after some minutes, should nobody be left to remove it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rocstack.base.errors import CheckFailed
from rocstack.verify.slurm_session import NAME, SlurmSession

MINUTES = 5
STARTED = frozenset({"RUNNING", "COMPLETING", "COMPLETED", "PREEMPTED", "CANCELLED", "FAILED", "TIMEOUT"})
UNENDED = "PENDING,RUNNING,SUSPENDED,CONFIGURING"
PROLOG = "Prolog"  # squeue's reason of a job that runs, and hasn't begun
TIMEOUT_S = 45.0  # seconds for a job that could start: the backfill scheduler looks every 30
PAUSE = 0.8
EPILOG = 90.0  # seconds that the last job of a reservation may take to end
LEFT = f"{NAME}-"  # begins the names of all that a run makes
_COLUMNS = ("job", "state", "reason", "started", "priority")
Jobs = dict[str, dict[str, str]]


def run(slurm: SlurmSession, nodes: Sequence[str]) -> dict[str, Any]:
    """{"qos": those that the user may name, "low", "high"}, and where they differ in priority: {"priorities": of the
    two jobs, "jobs": what became of each, "made_room": whether the low one was preempted by another high one}. Or
    {"problem": why it could not be tried}.

    Args:
        nodes: those on which jobs can start.
    """
    qos = ranks(slurm)
    if not qos:
        return {"qos": qos, "problem": f"the user {slurm.user} has no account"}
    low, high = (pick(qos, key=lambda each: int(each["priority"])) for pick in (min, max))
    results: dict[str, Any] = {"qos": qos, "low": low["name"], "high": high["name"]}
    if low["priority"] == high["priority"]:
        return {**results, "problem": "the user's QoS all have one priority"}
    with _slot(slurm, nodes) as problem:
        return {**results, **({"problem": problem} if problem else _compete(slurm, low["name"], high["name"]))}


def ranks(slurm: SlurmSession) -> list[dict[str, Any]]:
    """The QoS that the user may name."""
    mine = slurm.admin("sacctmgr", "-nP", "show", "assoc", f"user={slurm.user}", "format=QOS").stdout
    rows = slurm.admin("sacctmgr", "-nP", "show", "qos", "format=Name,Priority,Preempt").stdout
    names = set(mine.replace("\n", ",").split(","))
    fields = [line.split("|") for line in rows.splitlines()]
    return [
        {"name": name, "priority": int(priority or 0), "preempts": preempts.split(",")}
        for name, priority, preempts in fields
        if name in names and not name.startswith(LEFT)
    ]


def _compete(slurm: SlurmSession, low: str, high: str) -> dict[str, Any]:
    def job(qos: str, script: str) -> str:
        return slurm.submit(
            script, f"--reservation={slurm.name}", f"--qos={qos}", "--ntasks=1", "--no-requeue", "--time=5"
        )

    jobs = {"holder": job(high, "sleep 300")}
    try:
        now = watch(slurm, jobs, lambda now: started(now["holder"]))
        if not started(now["holder"]):
            return {"problem": f"no job started on the reserved core: {now['holder']['reason']}"}
        jobs |= {"low": job(low, "sleep 300"), "high": job(high, "true")}
        waiting = watch(slurm, jobs, lambda now: all(now[name]["priority"] for name in ("low", "high")))
        slurm.run("scancel", jobs["holder"])
        order = watch(slurm, jobs, lambda now: started(now["low"]))
        jobs["second"] = job(high, "true")
        room = watch(slurm, jobs, lambda now: now["low"]["state"] == "PREEMPTED")
        weighed = {name: int(waiting[name]["priority"] or 0) for name in ("low", "high")}
        return {"priorities": weighed, "jobs": order, "numbers": jobs, "made_room": room["low"]["state"] == "PREEMPTED"}
    finally:
        end(slurm, jobs)


@contextmanager
def _slot(slurm: SlurmSession, nodes: Iterable[str]) -> Iterator[str]:
    """One free core of one of `nodes`; gives why there is none."""
    problem = "no node takes jobs"
    for node in list(nodes)[:8]:
        words = [f"ReservationName={slurm.name}", f"Users={slurm.user}", "StartTime=now", f"Duration={MINUTES}"]
        words += [f"PartitionName={slurm.partition}"] if slurm.partition else []
        done = slurm.admin("scontrol", "create", "reservation", *words, f"Nodes={node}", "CoreCnt=1")
        problem = "" if done.rc == 0 else f"no core could be reserved: {(done.stderr or done.stdout).strip()}"
        if not problem:
            break
    try:
        yield problem
    finally:
        if not problem:
            _remove(slurm, slurm.name)


def _remove(slurm: SlurmSession, name: str) -> None:
    """Its jobs take a moment to end, and their epilogs."""
    deadline = time.monotonic() + EPILOG
    while slurm.admin("scontrol", "delete", f"ReservationName={name}").rc:
        if time.monotonic() > deadline:
            raise CheckFailed(
                f"the reservation {name} can't be removed",
                code="step-failed",
                next_step=f"`scontrol delete ReservationName={name}`; it ends by itself after {MINUTES} minutes",
            )
        time.sleep(0.5)


def remove_qos(slurm: SlurmSession, name: str) -> None:
    slurm.admin("sacctmgr", "--immediate", "delete", "qos", f"name={name}")


def clear(slurm: SlurmSession) -> None:
    """What runs that were killed have left. One run at a time is at work on a cluster, so nothing of this is in use."""

    def is_left(name: str) -> bool:
        return name.startswith(LEFT) and name != slurm.name

    # The suite's user alone, and the name last: any user may call a job what would read as another's number.
    own = f"--user={slurm.user}"
    listed = slurm.admin("squeue", "--all", "--noheader", own, f"--states={UNENDED}", "--format=%i|%j").stdout
    rows = (line.strip().partition("|") for line in listed.splitlines())
    if jobs := [number for number, _, name in rows if re.fullmatch(r"[0-9_]+", number) and is_left(name)]:
        slurm.admin("scancel", own, *jobs)
    shown = slurm.admin("scontrol", "show", "reservation", "--oneliner").stdout
    for name in re.findall(rf"ReservationName=({LEFT}\S+)", shown):
        _remove(slurm, name)
    for name in filter(is_left, slurm.admin("sacctmgr", "-nP", "show", "qos", "format=Name").stdout.split()):
        remove_qos(slurm, name)


def started(job: dict[str, str]) -> bool:
    return job["state"] in STARTED and job["reason"] != PROLOG


def end(slurm: SlurmSession, jobs: dict[str, str]) -> None:
    """Cancels them, but none in its prolog: Slurm may then drain the node as one that can't end a job."""
    if jobs:
        watch(slurm, jobs, lambda now: all(job["reason"] != PROLOG for job in now.values()))
        slurm.run("scancel", *jobs.values())


def watch(slurm: SlurmSession, jobs: dict[str, str], done: Callable[[Jobs], bool], seconds: float = TIMEOUT_S) -> Jobs:
    """Looks until `done`, or for so many seconds; job -> _COLUMNS of it."""
    deadline = time.monotonic() + seconds
    words = ["squeue", "--all", "--noheader", "--states=all", f"--jobs={','.join(jobs.values())}"]
    while True:
        listed = slurm.run(*words, "--format=%i|%T|%r|%S|%Q").stdout
        rows = {row[0]: row for row in (line.strip().split("|") for line in listed.splitlines())}
        now = {
            name: dict(zip(_COLUMNS, rows.get(number, (number, "", "", "", "")), strict=True))
            for name, number in jobs.items()
        }
        if done(now) or time.monotonic() > deadline:
            return now
        time.sleep(PAUSE)
