"""Jobs of any recipe: written down first, then handed to Slurm as their owner's, and followed until they are over."""

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rocstack.cluster.service import ClusterServiceLimits
from rocstack.jobs import recipe as recipes
from rocstack.jobs.pools import fitted
from rocstack.jobs.recipe import JobRequest, Recipe
from rocstack.service import audit, batch, log_reason, outcome, progress
from rocstack.service.cluster_view import ClusterView
from rocstack.service.config import MIB
from rocstack.service.failures import Away, NotNow, ServiceError, SlurmRefused, TooBig, TooMany, body
from rocstack.service.files import used_by
from rocstack.service.handover import Handover
from rocstack.service.identity import Caller
from rocstack.service.job_rows import JobRows, event, forget, older_than, own
from rocstack.service.models import Models
from rocstack.service.outcome import LIVE, PAUSED, SENDING
from rocstack.service.slurm_answers import SlurmJob, text, whole
from rocstack.service.slurmrest import AnswerLost, SlurmRest
from rocstack.service.storage import Storage, new_id
from rocstack.service.tables import JobRow, ModelRow
from rocstack.service.turns import Locks, Turns

RECIPE, TUNING = "recipe", "fine_tuning"
FRESH_S = 1.0  # that what Slurm said of a job is taken for new
KEPT = 10_000  # jobs of a person that are over
LONGEST = 64 << 10  # characters of a job's script and of what was asked for
MOST = 10_000  # jobs of which we know when we asked
FEW = 50  # jobs that are asked for one by one
RESEND_S = 5.0
FAR_S = 300 * 86400  # an expected start that is further away is none
LOG_END = 64 << 10  # bytes of a log in which its reason is looked for
LOST_AFTER_S = 900  # after which a job that nobody knows is taken for lost
Word = Annotated[str, Field(max_length=256)]  # its length is bounded, and it is whole characters
Plan = Callable[[str, Path], JobRequest]  # of a job's id and folder
log = logging.getLogger(__name__)


@dataclass
class Jobs:
    rows: JobRows
    storage: Storage
    slurm: SlurmRest
    cluster: ClusterView
    handover: Handover
    models: Models
    limits: ClusterServiceLimits
    overlay: Path | None = None  # with the site's own recipes
    _scripts: Turns = field(default_factory=Turns)
    _lists: Turns = field(default_factory=Turns)
    _counting: Locks = field(default_factory=Locks)
    _keeping: Locks = field(default_factory=Locks)
    _fresh: dict[str, float] = field(default_factory=dict)

    # recipes
    def recipes(self) -> dict[str, Recipe]:
        return recipes.recipes(self.overlay)

    # make one
    async def create(self, caller: Caller, kind: str, name: str, asked: dict[str, Any], plan: Plan) -> JobRow:
        """
        Raises:
            BadInput: no such recipe or parameter; more nodes than there are.
            TooMany, SlurmRefused, NotSignedIn
            Away: Slurm doesn't answer. The job is kept, and sent when it does; the same request again is this job.
        """
        recipe = recipes.find(name, self.overlay)
        said = json.dumps([caller.name, kind, name, asked], sort_keys=True)
        if len(said) > LONGEST:  # before anything looks through it
            raise TooBig.of("job-too-long", most=LONGEST >> 10)
        digest = hashlib.sha256(said.encode()).hexdigest()
        if (row := await self._unsent(caller, digest)) is None:
            key = new_id("ftjob" if kind == TUNING else "job")
            # What is wrong with it is said before anything is made.
            draft = replace(plan(key, self.storage.root / caller.name / "jobs" / key), user=caller.name)
            await self._script(caller, recipe, draft)
            request = fitted(recipe, draft, await self.cluster.pools(caller))
            script = await self._script(caller, recipe, request)
            batch.description(script, {})
            if len(script) + len(said) > LONGEST:
                raise TooBig.of("job-too-long", most=LONGEST >> 10)
            await self.rows.database.run(lambda session: self._one_more(session, caller))  # before it has a folder
            folder = await anyio.to_thread.run_sync(self.storage.job, caller, key)
            assert folder == Path(request.folder)
            row = JobRow(
                id=key, owner=caller.name, kind=kind, recipe=name, name=request.name or name, asked=asked,
                script=script, digest=digest, status=SENDING, run=1, slurm_id=None, seen={}, error=None, result=None,
                created=int(time.time()), began=None, ended=None,
            )  # fmt: skip
            async with self._counting[caller.name]:
                await self.rows.database.run(lambda session: self._written(session, caller, row))
        return await self.handover.hand_over(caller, row)

    async def _script(self, caller: Caller, recipe: Recipe, request: JobRequest) -> str:
        """Words that look like variables take seconds to compare with all that are known."""
        async with self._scripts.of(caller):
            return await anyio.to_thread.run_sync(recipes.script, recipe, request, self.overlay)

    def _written(self, session: Session, caller: Caller, row: JobRow) -> None:
        self._one_more(session, caller)
        for key in session.scalars(older_than(caller.name, KEPT)).all():
            forget(session, key)
        session.add(row)
        session.add(event(row.id, f"created: recipe {row.recipe}"))
        audit.note(session, caller.name, "job.create", row.id, row.recipe)

    def _one_more(self, session: Session, caller: Caller) -> None:
        live = select(func.count()).select_from(JobRow).where(JobRow.owner == caller.name, JobRow.status.in_(LIVE))
        if (session.scalar(live) or 0) >= self.limits.jobs:
            raise TooMany.of("too-many-jobs", most=self.limits.jobs)

    async def _unsent(self, caller: Caller, digest: str) -> JobRow | None:
        """The same request, which Slurm's silence kept from being handed over: it is that job, not a second one."""
        wanted = select(JobRow).where(JobRow.owner == caller.name, JobRow.status == SENDING, JobRow.digest == digest)
        return await self.rows.database.run(lambda session: session.scalars(wanted).first())

    # look at them
    async def page(
        self,
        caller: Caller,
        kind: str | None = None,
        status: Sequence[str] = (),
        after: str | None = None,
        limit: int = 20,
        metadata: Mapping[str, str] | None = None,
    ) -> tuple[list[JobRow], bool]:
        """A page, the newest first, and whether there are more. Of `metadata` a job has all pairs.

        Raises:
            NotThere: `after` is none of hers.
        """

        def work(session: Session) -> list[JobRow]:
            wanted = select(JobRow).where(JobRow.owner == caller.name)
            if kind:
                wanted = wanted.where(JobRow.kind == kind)
            if status:
                wanted = wanted.where(JobRow.status.in_(status))
            for name, value in (metadata or {}).items():
                wanted = wanted.where(JobRow.asked["metadata"][name].as_string() == value)
            if after:
                last = own(session, caller, after)
                same = (JobRow.created == last.created) & (JobRow.id < last.id)
                wanted = wanted.where((JobRow.created < last.created) | same)
            wanted = wanted.order_by(JobRow.created.desc(), JobRow.id.desc()).limit(limit + 1)
            return list(session.scalars(wanted))

        async with (
            self._lists.of(caller) if metadata else nullcontext()
        ):  # it looks through all that she ever asked for
            rows = await self.rows.database.run(work)
        return await self.refresh(caller, rows[:limit]), len(rows) > limit

    async def get(self, caller: Caller, key: str) -> JobRow:
        """
        Raises:
            NotThere: she has no such job.
        """
        return (await self.refresh(caller, [await self.rows.own(caller, key)]))[0]

    async def refresh(self, caller: Caller, rows: list[JobRow]) -> list[JobRow]:
        """With what Slurm says of those that aren't over. Where it doesn't answer they stay as they were last seen."""
        for row in rows:
            if row.status == SENDING and row.id not in self.handover.waiting:
                self.handover.waiting[row.id] = caller
        now = time.monotonic()
        old = [row for row in rows if row.status in LIVE and row.slurm_id and self._fresh.get(row.id, 0) < now]
        if not old:
            return rows
        if len(self._fresh) > MOST:
            self._fresh.clear()
        for row in old:
            self._fresh[row.id] = now + FRESH_S
        try:
            found = await self._asked(caller, [row.slurm_id or 0 for row in old])
        except (Away, SlurmRefused) as error:
            log.warning("jobs of %s: %s", caller.name, error.what)
            return rows
        new = {row.id: await self._follow(caller, row, found.get(row.slurm_id or 0)) for row in old}
        return [new.get(row.id, row) for row in rows]

    async def _asked(self, caller: Caller, numbers: list[int]) -> dict[int, SlurmJob]:
        """Of many jobs Slurm's whole list is less work than each of them."""
        found: dict[int, SlurmJob] = {}
        if len(numbers) > FEW:
            found = {job.id: job for job in await self.slurm.jobs(caller.token, caller.name)}
        left = [number for number in numbers if number not in found]
        jobs = await asyncio.gather(*(self.slurm.job(caller.token, number) for number in left))
        return found | {job.id: job for job in jobs if job is not None}

    async def _follow(self, caller: Caller, row: JobRow, job: SlurmJob | None) -> JobRow:
        if job is None:
            if row.created + LOST_AFTER_S > time.time():
                return row
            error = body("Slurm knows this job no more, and its accounting neither", "server_error", "job-lost")[
                "error"
            ]
            return await self.rows.change(row, status="failed", error=error, ended=int(time.time()))
        if job.user != caller.name:  # numbers began again, or worse: it is somebody else's
            return row
        change = outcome.after(row, job)
        if not change:
            return row
        async with self.handover.locks[row.id]:
            row = await self.rows.own(caller, row.id)
            if row.status not in LIVE or row.slurm_id != job.id:  # another request was faster
                return row
            change = outcome.after(row, job)
            if change.fields.get("status") == "failed" and job.state == "FAILED":  # not what Slurm ended
                end = await anyio.to_thread.run_sync(progress.log, self.storage, caller, row.id, -LOG_END)
                change = outcome.because(change, said) if (said := log_reason.reason(end.text)) else change
            if row.kind != TUNING or change.fields.get("status") != "succeeded":
                return await self._noted(row, change)
            async with self._keeping[caller.name]:  # each may have what the one before leaves of the quota
                used = await self.rows.database.run(lambda session: used_by(session, caller.name))
                quota, made = self.limits.quota_mib * MIB, None
                try:
                    made = await anyio.to_thread.run_sync(
                        self.models.take, caller, row, row.asked["_base"], row.asked.get("suffix"), quota, used
                    )
                    change.fields["result"] = made.id
                    change.say.append(("info", f"the adapter is a model now: {made.id}"))
                except (ServiceError, OSError) as error:
                    if row.status == PAUSED:  # it saved, and isn't done
                        change = outcome.JobChange({"seen": change.fields.get("seen", row.seen)})
                    else:
                        change = outcome.without_adapter(change, error)
                return await self._noted(row, change, made)

    async def _noted(self, row: JobRow, change: outcome.JobChange, made: ModelRow | None = None) -> JobRow:
        def work(session: Session) -> JobRow:
            there = session.get_one(JobRow, row.id)
            for name, value in change.fields.items():
                setattr(there, name, value)
            final = "ended" in change.fields
            for level, message in change.say:
                session.add(event(row.id, message, level, final))
            if made is not None:
                session.add(made)
            return there

        return await self.rows.database.run(work)

    # change them
    async def cancel(self, caller: Caller, key: str) -> JobRow:
        """Ends it. One that is over stays as it is.

        Raises:
            NotThere, SlurmRefused, Away
        """
        row = await self.get(caller, key)
        if row.status not in LIVE:
            return row
        async with self.handover.locks[key]:
            row = await self.rows.own(caller, key)
            if row.status not in LIVE:
                return row
            number = row.slurm_id
            if row.status == SENDING and row.seen.get("unsure"):
                there = await self.handover.find(caller, row)
                number = there.id if there else None
            if number is not None:
                await _told(self.slurm.cancel(caller.token, number))
            self.handover.waiting.pop(key, None)
            row = await self.rows.change(
                row, audit_as=("job.cancel", caller), status="cancelled", slurm_id=number, ended=int(time.time())
            )
            await self.rows.say(key, "cancelled by its owner", final=True)
        return row

    async def pause(self, caller: Caller, key: str) -> JobRow:
        """It saves and ends; `resume` goes on from there.

        Raises:
            NotThere, SlurmRefused, Away
            NotNow: it neither waits nor runs.
        """
        row = await self.get(caller, key)
        async with self.handover.locks[key]:
            row = await self.rows.own(caller, key)
            if row.status not in ("queued", "running") or row.slurm_id is None:
                raise NotNow.of("job-not-live", job=key, status=row.status, what="paused")
            # A running one gets the time that it needs to save; a waiting one has nothing to save.
            running = row.status == "running"
            await _told(self.slurm.cancel(caller.token, row.slurm_id, "TERM" if running else None))
            row = await self.rows.change(row, audit_as=("job.pause", caller), status=PAUSED)
            await self.rows.say(key, "paused by its owner" + (": it saves what it has" if running else ""))
        return row

    async def resume(self, caller: Caller, key: str) -> JobRow:
        """
        Raises:
            NotThere, SlurmRefused, Away
            NotNow: it isn't paused.
        """
        row = await self.get(caller, key)
        if row.status != PAUSED:
            raise NotNow.of("job-not-live", job=key, status=row.status, what="resumed")
        return await self._again(caller, row, "job.resume", end=False)

    async def requeue(self, caller: Caller, key: str) -> JobRow:
        """Ends it and hands it over once more; with checkpoints it goes on from the newest.

        Raises:
            NotThere, SlurmRefused, Away, TooMany
        """
        row = await self.get(caller, key)
        if row.status == SENDING:
            raise NotNow.of("job-not-live", job=key, status=row.status, what="requeued")
        if row.result:
            raise NotNow.of("job-has-model", job=key, model=row.result)
        return await self._again(caller, row, "job.requeue", end=row.status in LIVE)

    async def _again(self, caller: Caller, row: JobRow, what: str, *, end: bool) -> JobRow:
        async with self.handover.locks[row.id]:
            before = row
            row = await self.rows.own(caller, row.id)
            if (row.run, row.status) != (before.run, before.status):
                return row  # another request was faster
            await self.rows.database.run(lambda session: audit.room(session, caller.name))  # before it is ended
            old = await self.slurm.job(caller.token, row.slurm_id) if row.slurm_id else None
            if old is not None and not old.over and end:
                await _told(self.slurm.cancel(caller.token, old.id))
            asked = {name: value for name, value in row.asked.items() if name != "_after"}
            if old is not None and not old.over:
                asked["_after"] = old.id
            async with self._counting[caller.name]:  # who starts many again at once has one limit for all of them
                if row.status not in LIVE:
                    await self.rows.database.run(lambda session: self._one_more(session, caller))
                row = await self.rows.change(
                    row, audit_as=(what, caller), status=SENDING, run=row.run + 1, slurm_id=None, seen={}, asked=asked,
                    error=None, ended=None, began=None,
                )  # fmt: skip
        return await self.handover.hand_over(caller, row)


def to_dict(row: JobRow) -> dict[str, Any]:
    """As `/v1/jobs` answers."""
    seen = {name: value for name, value in row.seen.items() if name not in ("unsure", "since")}
    asked = {name: value for name, value in row.asked.items() if not name.startswith("_")}
    return {
        "id": row.id, "object": "job", "kind": row.kind, "recipe": row.recipe, "name": row.name, "status": row.status,
        "created_at": row.created, "began_at": row.began, "finished_at": row.ended, "run": row.run,
        "slurm_job": row.slurm_id, "why": why(row), "expected_start": expected_start(row), "slurm": seen or None,
        "error": row.error, "model": row.result, "asked": asked,
    }  # fmt: skip


def why(row: JobRow) -> str:
    """Why it waits, in words; of one that doesn't, nothing."""
    if row.status == SENDING:
        return "Slurm doesn't answer at the moment: it is handed over when it does"
    return text(row.seen.get("why")) if row.status == "queued" else ""


def expected_start(row: JobRow) -> int | None:
    """None, too, where Slurm can't tell."""
    return None if start_unknown(row) else _start(row) or None


def start_unknown(row: JobRow) -> bool:
    """Whether a job before it has no time limit: Slurm takes it for one of a year."""
    return _start(row) > time.time() + FAR_S


def _start(row: JobRow) -> int:
    return whole(row.seen.get("start")) if row.status == "queued" else 0


def request_of(options: dict[str, Any], **more: Any) -> JobRequest:
    known = {name: value for name, value in options.items() if value is not None}
    return JobRequest(**known, **more)


async def _told(doing: Awaitable[None]) -> None:
    """Ending a job twice does no harm, so a lost answer is only that."""
    try:
        await doing
    except AnswerLost:
        raise Away.of("slurm-away") from None
