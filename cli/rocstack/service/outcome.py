"""What a job's row becomes by what Slurm says of it. Pure."""

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from rocstack.base.errors import RocstackError
from rocstack.service.failures import sentence
from rocstack.service.slurm_answers import SlurmJob
from rocstack.service.tables import JobRow

SENDING, PAUSED = "sending", "paused"
LIVE = (SENDING, "queued", "running", PAUSED)
_WORDS = {
    "FAILED": "it failed",
    "TIMEOUT": "it reached its time limit",
    "NODE_FAIL": "a node of it failed",
    "OUT_OF_MEMORY": "it ran out of memory",
    "BOOT_FAIL": "a node of it didn't start",
    "DEADLINE": "its deadline passed",
    "PREEMPTED": "a job with a higher priority took its place",
}


@dataclass
class JobChange:
    fields: dict[str, Any] = field(default_factory=dict)
    say: list[tuple[str, str]] = field(default_factory=list)  # level and message

    def __bool__(self) -> bool:
        return bool(self.fields)


def after(row: JobRow, job: SlurmJob) -> JobChange:
    """`row` waits, runs or is paused."""
    change = JobChange()
    if row.seen != (seen := asdict(job)):
        change.fields["seen"] = seen
    status = _status(row, job)
    if status == row.status:
        return change
    change.fields["status"] = status
    if status == "running" or (job.over and not row.began and job.start):
        change.fields["began"] = job.start or int(time.time())
    if status == "running":
        change.say.append(("info", f"running on {job.where}" if job.where else "running"))
    elif status == "queued":
        change.say.append(("warn", f"back in the queue: {job.why or job.reason}"))
    if status in ("succeeded", "failed", "cancelled"):
        change.fields["ended"] = job.ended or int(time.time())
        change.say.append(("error" if status == "failed" else "info", _end(status, job)))
    if status == "failed":
        change.fields["error"] = {"code": "job-failed", "message": _end(status, job), "param": None}
    return change


def because(change: JobChange, reason: str) -> JobChange:
    """Of one that failed, with what its log says of it."""
    error = change.fields["error"] | {"message": f"{change.fields['error']['message']}: {reason}"}
    return JobChange(change.fields | {"error": error}, [*change.say[:-1], ("error", error["message"])])


def without_adapter(change: JobChange, error: Exception) -> JobChange:
    """It ended well, but what it should have made isn't there."""
    why = sentence(error) if isinstance(error, RocstackError) else f"the adapter can't be kept: {error}"
    code = error.code if isinstance(error, RocstackError) else "adapter-not-kept"
    fields = change.fields | {"status": "failed", "error": {"code": code, "message": why, "param": None}}
    return JobChange(fields, [("error", why)])


def _status(row: JobRow, job: SlurmJob) -> str:
    if row.status == PAUSED:
        # It may have been done before it heard of the pause.
        return "succeeded" if job.state == "COMPLETED" and row.kind == "fine_tuning" else PAUSED
    if job.waits:
        return "queued"
    if not job.over:
        return "running"
    return {"COMPLETED": "succeeded", "CANCELLED": "cancelled"}.get(job.state, "failed")


def _end(status: str, job: SlurmJob) -> str:
    if status == "succeeded":
        return "it ended well"
    if status == "cancelled":
        return "cancelled"
    how = f", by signal {job.signal}" if job.signal else f", exit code {job.exit_code}" if job.exit_code else ""
    # Where Slurm ended it, its code says only that.
    return _WORDS.get(job.state, f"Slurm says {job.state}") + (how if job.state == "FAILED" else "")
