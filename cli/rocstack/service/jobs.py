"""Jobs of any recipe: written down first, then handed to Slurm as their owner's, and followed until they are over.

A job is never handed over twice: its comment in Slurm is ours alone, and where an answer got lost it is looked for
before it is sent again.
"""

import asyncio
import hashlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio.to_thread
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rocstack.base.errors import RocstackError
from rocstack.base.text import visible
from rocstack.jobs import recipe as recipes
from rocstack.jobs.pools import Pool, fitted
from rocstack.jobs.recipe import JobRequest, Recipe
from rocstack.service import audit, batch, outcome
from rocstack.service.config import ServiceLimits
from rocstack.service.database import Database
from rocstack.service.failures import Away, NotNow, NotSignedIn, NotThere, ServiceError, SlurmRefused, TooMany, body
from rocstack.service.identity import Caller
from rocstack.service.models import Models
from rocstack.service.outcome import LIVE, PAUSED, SENDING
from rocstack.service.slurm_answers import SlurmJob, first, map_of, text, whole
from rocstack.service.slurmrest import AnswerLost, SlurmRest
from rocstack.service.storage import Storage, new_id
from rocstack.service.tables import JobEvent, JobRow

RECIPE, TUNING = "recipe", "fine_tuning"
FRESH_S = 1.0  # that what Slurm said of a job is taken for new
POOLS_S = 10.0
FEW = 12  # jobs that are asked for one by one
LOOK_AFTER_S = 1.5  # after a lost answer: what was on its way has arrived
RESEND_S = 5.0
HANDED_S = 15.0  # that somebody waits for a job to be handed over
LOST_AFTER_S = 900  # after which a job that nobody knows is taken for lost
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
Plan = Callable[[str, Path], JobRequest]  # of a job's id and folder
log = logging.getLogger(__name__)


@dataclass
class Jobs:
    database: Database
    storage: Storage
    slurm: SlurmRest
    models: Models
    limits: ServiceLimits
    overlay: Path | None = None  # with the site's own recipes
    _fresh: dict[str, float] = field(default_factory=dict)
    _locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    _waiting: dict[str, Caller] = field(default_factory=dict)  # whose job couldn't be handed over yet
    _pools: tuple[float, list[Pool]] = (0.0, [])

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
        digest = hashlib.sha256(json.dumps([caller.name, kind, name, asked], sort_keys=True).encode()).hexdigest()
        if (row := await self._unsent(caller, digest)) is None:
            key = new_id("ftjob" if kind == TUNING else "job")
            # What is wrong with it is said before anything is made.
            draft = replace(plan(key, self.storage.root / caller.name / "jobs" / key), user=caller.name)
            recipes.script(recipe, draft, self.overlay)
            request = fitted(recipe, draft, await self.pools(caller))
            script = recipes.script(recipe, request, self.overlay)
            batch.description(script, {})
            folder = await anyio.to_thread.run_sync(self.storage.job, caller, key)
            assert folder == Path(request.folder)
            row = JobRow(
                id=key, owner=caller.name, kind=kind, recipe=name, name=request.name or name, asked=asked,
                script=script, digest=digest, status=SENDING, run=1, slurm_id=None, seen={}, error=None, result=None,
                created=int(time.time()), began=None, ended=None,
            )  # fmt: skip
            await self.database.run(lambda session: self._written(session, caller, row))
        return await self._handed_over(caller, row)

    def _written(self, session: Session, caller: Caller, row: JobRow) -> None:
        live = select(func.count()).select_from(JobRow).where(JobRow.owner == caller.name, JobRow.status.in_(LIVE))
        if (session.scalar(live) or 0) >= self.limits.jobs:
            raise TooMany.of("too-many-jobs", most=self.limits.jobs)
        session.add(row)
        session.add(_event(row.id, f"created: recipe {row.recipe}"))
        audit.note(session, caller.name, "job.create", row.id, row.recipe)

    async def _unsent(self, caller: Caller, digest: str) -> JobRow | None:
        """The same request, which Slurm's silence kept from being handed over: it is that job, not a second one."""
        wanted = select(JobRow).where(JobRow.owner == caller.name, JobRow.status == SENDING, JobRow.digest == digest)
        return await self.database.run(lambda session: session.scalars(wanted).first())

    async def _handed_over(self, caller: Caller, row: JobRow, wait: float | None = None) -> JobRow:
        self._waiting[row.id] = caller
        async with self._locks[row.id]:
            row = await self.own(caller, row.id)
            if row.status != SENDING:
                return row
            try:
                number = await self._number(caller, row, HANDED_S if wait is None else wait)
            except SlurmRefused as refused:
                await self._change(row, status="failed", error=_told(refused), ended=int(time.time()))
                await self._say(row.id, f"Slurm refused it: {refused.what}", "error", final=True)
                self._waiting.pop(row.id, None)
                raise
            except Away:
                raise Away.of("job-kept", job=row.id) from None
            except AnswerLost:
                raise Away.of("job-kept", job=row.id) from None
            self._waiting.pop(row.id, None)
            row = await self._change(row, status="queued", slurm_id=number, seen={})
            again = "" if row.run == 1 else f", run {row.run}"
            await self._say(row.id, f"queued: Slurm's job {number}{again}")
        return row

    async def _number(self, caller: Caller, row: JobRow, wait: float) -> int:
        """Hands it to Slurm; where that may have been done already, it looks first."""
        job, until = self._description(caller, row), time.monotonic() + wait
        look = bool(row.seen.get("unsure"))
        while True:
            if look:
                there = await self.slurm.find(
                    caller.token, caller.name, str(job["comment"]), self._folder(row), _since(row)
                )
                if there is not None:
                    return there.id
            else:  # if we end here in the middle, the next one looks
                row = await self._change(row, seen={"unsure": True, "since": int(time.time())})
            try:
                return await self.slurm.submit(caller.token, row.script, job)
            except (Away, SlurmRefused, NotSignedIn) as error:
                if not isinstance(error, SlurmRefused):  # it didn't arrive
                    await self._change(row, seen={})
                raise
            except AnswerLost as error:
                log.warning("%s: the answer to its submission got lost: %s", row.id, error)
                look = True
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(LOOK_AFTER_S)

    def _description(self, caller: Caller, row: JobRow) -> dict[str, Any]:
        folder = self._folder(row)
        home = f"/home/{caller.name}"
        own = [f"HOME={home}", f"USER={caller.name}", f"LOGNAME={caller.name}", "SHELL=/bin/bash", "LANG=C.UTF-8"]
        more: dict[str, Any] = {
            "comment": f"rocstack:{row.id}:{row.run}",
            "environment": [PATH, *own],
            "standard_output": f"{folder}/log",
            "standard_error": f"{folder}/log",
            "current_working_directory": folder,
        }
        if after := row.asked.get("_after"):
            more["dependency"] = f"afterany:{after}"
        return batch.description(row.script, more)

    def _folder(self, row: JobRow) -> str:
        return str(self.storage.root / row.owner / "jobs" / row.id)

    async def resend(self) -> None:
        """What couldn't be handed over, once more. Called again and again while the service runs."""
        for key, caller in list(self._waiting.items()):
            try:
                await self._handed_over(caller, await self.own(caller, key), wait=0)
            except Away:
                continue
            except (RocstackError, AnswerLost):  # refused, or its token is over: its owner's next request tries again
                pass
            self._waiting.pop(key, None)

    # look at them
    async def page(
        self,
        caller: Caller,
        kind: str | None = None,
        status: Sequence[str] = (),
        after: str | None = None,
        limit: int = 20,
    ) -> tuple[list[JobRow], bool]:
        """A page, the newest first, and whether there are more.

        Raises:
            NotThere: `after` is none of hers.
        """

        def work(session: Session) -> list[JobRow]:
            wanted = select(JobRow).where(JobRow.owner == caller.name)
            if kind:
                wanted = wanted.where(JobRow.kind == kind)
            if status:
                wanted = wanted.where(JobRow.status.in_(status))
            if after:
                last = _own(session, caller, after)
                same = (JobRow.created == last.created) & (JobRow.id < last.id)
                wanted = wanted.where((JobRow.created < last.created) | same)
            wanted = wanted.order_by(JobRow.created.desc(), JobRow.id.desc()).limit(limit + 1)
            return list(session.scalars(wanted))

        rows = await self.database.run(work)
        return await self.refresh(caller, rows[:limit]), len(rows) > limit

    async def get(self, caller: Caller, key: str) -> JobRow:
        """
        Raises:
            NotThere: she has no such job.
        """
        return (await self.refresh(caller, [await self.own(caller, key)]))[0]

    async def own(self, caller: Caller, key: str) -> JobRow:
        return await self.database.run(lambda session: _own(session, caller, key))

    async def events(self, caller: Caller, key: str) -> list[JobEvent]:
        await self.own(caller, key)
        wanted = select(JobEvent).where(JobEvent.job == key).order_by(JobEvent.id)
        return await self.database.run(lambda session: list(session.scalars(wanted)))

    async def refresh(self, caller: Caller, rows: list[JobRow]) -> list[JobRow]:
        """With what Slurm says of those that aren't over. Where it doesn't answer they stay as they were last seen."""
        for row in rows:
            if row.status == SENDING and row.id not in self._waiting:
                self._waiting[row.id] = caller
        now = time.monotonic()
        old = [row for row in rows if row.status in LIVE and row.slurm_id and self._fresh.get(row.id, 0) < now]
        if not old:
            return rows
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
            return await self._change(row, status="failed", error=error, ended=int(time.time()))
        if job.user != caller.name:  # numbers began again, or worse: it is somebody else's
            return row
        change = outcome.after(row, job)
        if not change:
            return row
        async with self._locks[row.id]:
            row = await self.own(caller, row.id)
            if row.status not in LIVE or row.slurm_id != job.id:  # another request was faster
                return row
            change = outcome.after(row, job)
            made = None
            if row.kind == TUNING and change.fields.get("status") == "succeeded":
                try:
                    made = await anyio.to_thread.run_sync(
                        self.models.take, caller, row, row.asked["_base"], row.asked.get("suffix")
                    )
                    change.fields["result"] = made.id
                    change.say.append(("info", f"the adapter is a model now: {made.id}"))
                except (ServiceError, OSError) as error:
                    refused = row.status == PAUSED
                    change = outcome.Change() if refused else outcome.without_adapter(change, error)

            def work(session: Session) -> JobRow:
                there = session.get_one(JobRow, row.id)
                for name, value in change.fields.items():
                    setattr(there, name, value)
                final = "ended" in change.fields
                for level, message in change.say:
                    session.add(_event(row.id, message, level, final))
                if made is not None:
                    session.add(made)
                return there

            return await self.database.run(work)

    # change them
    async def cancel(self, caller: Caller, key: str) -> JobRow:
        """Ends it. One that is over stays as it is.

        Raises:
            NotThere, SlurmRefused, Away
        """
        row = await self.get(caller, key)
        if row.status not in LIVE:
            return row
        async with self._locks[key]:
            row = await self.own(caller, key)
            if row.status not in LIVE:
                return row
            number = row.slurm_id
            if row.status == SENDING and row.seen.get("unsure"):
                comment = f"rocstack:{row.id}:{row.run}"
                there = await self.slurm.find(caller.token, caller.name, comment, self._folder(row), _since(row))
                number = there.id if there else None
            if number is not None:
                await self._told(self.slurm.cancel(caller.token, number))
            self._waiting.pop(key, None)
            row = await self._change(
                row, audit_as=("job.cancel", caller), status="cancelled", slurm_id=number, ended=int(time.time())
            )
            await self._say(key, "cancelled by its owner", final=True)
        return row

    async def pause(self, caller: Caller, key: str) -> JobRow:
        """It saves and ends; `resume` goes on from there.

        Raises:
            NotThere, SlurmRefused, Away
            NotNow: it neither waits nor runs.
        """
        row = await self.get(caller, key)
        async with self._locks[key]:
            row = await self.own(caller, key)
            if row.status not in ("queued", "running") or row.slurm_id is None:
                raise NotNow.of("job-not-live", job=key, status=row.status, what="paused")
            # A running one gets the time that it needs to save; a waiting one has nothing to save.
            running = row.status == "running"
            await self._told(self.slurm.cancel(caller.token, row.slurm_id, "TERM" if running else None))
            row = await self._change(row, audit_as=("job.pause", caller), status=PAUSED)
            await self._say(key, "paused by its owner" + (": it saves what it has" if running else ""))
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
        async with self._locks[row.id]:
            before = row
            row = await self.own(caller, row.id)
            if (row.run, row.status) != (before.run, before.status):
                return row  # another request was faster
            old = await self.slurm.job(caller.token, row.slurm_id) if row.slurm_id else None
            if old is not None and not old.over and end:
                await self._told(self.slurm.cancel(caller.token, old.id))
            asked = {name: value for name, value in row.asked.items() if name != "_after"}
            if old is not None and not old.over:
                asked["_after"] = old.id
            row = await self._change(
                row, audit_as=(what, caller), status=SENDING, run=row.run + 1, slurm_id=None, seen={}, asked=asked,
                error=None, ended=None, began=None,
            )  # fmt: skip
        return await self._handed_over(caller, row)

    @staticmethod
    async def _told(doing: Any) -> None:
        """Ending a job twice does no harm, so a lost answer is only that."""
        try:
            await doing
        except AnswerLost:
            raise Away.of("slurm-away") from None

    async def _change(self, row: JobRow, audit_as: tuple[str, Caller] | None = None, **fields: Any) -> JobRow:
        def work(session: Session) -> JobRow:
            there = session.get_one(JobRow, row.id)
            for name, value in fields.items():
                setattr(there, name, value)
            if audit_as:
                audit.note(session, audit_as[1].name, audit_as[0], row.id)
            return there

        return await self.database.run(work)

    async def _say(self, key: str, message: str, level: str = "info", final: bool = False) -> None:
        await self.database.run(lambda session: session.add(_event(key, message, level, final)))

    # the cluster
    async def pools(self, caller: Caller) -> list[Pool]:
        """The partitions, as they were some seconds ago."""
        until, pools = self._pools
        if until > time.monotonic():
            return pools
        parts, nodes = await asyncio.gather(self.slurm.partitions(caller.token), self.slurm.nodes(caller.token))
        found = []
        for row in parts:
            name = text(row.get("name"))
            own = [node for node in nodes if name in node.partitions]
            counts = {node.gpus for node in own}
            limit = whole(map_of(row.get("maximums")).get("time"))
            default = "DEFAULT" in str(row.get("flags", "")) or first(row.get("flags")) == "DEFAULT"
            same = counts.pop() if len(counts) == 1 else 0
            found.append(Pool(name, len(own), f"{limit}:00" if limit else "infinite", same, default))
        self._pools = (time.monotonic() + POOLS_S, found)
        return found


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
    return (whole(row.seen.get("start")) or None) if row.status == "queued" else None


def request_of(options: dict[str, Any], **more: Any) -> JobRequest:
    known = {name: value for name, value in options.items() if value is not None}
    return JobRequest(**known, **more)


def _own(session: Session, caller: Caller, key: str) -> JobRow:
    row = session.get(JobRow, key)
    if row is None or row.owner != caller.name:
        raise NotThere.of("no-such-own-job", job=visible(key[:64])).about("job_id")
    return row


def _event(job: str, message: str, level: str = "info", final: bool = False) -> JobEvent:
    return JobEvent(job=job, at=int(time.time()), level=level, message=visible(message)[:2000], final=final)


def _since(row: JobRow) -> int:
    """When it was handed over for the first time; a few seconds before, for clocks."""
    return int(row.seen.get("since") or row.created) - 5


def _told(error: ServiceError) -> dict[str, Any]:
    return {"code": error.code, "message": error.what, "param": error.param}
