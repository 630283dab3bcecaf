"""Rows of jobs in the database: read as their owner's, changed with what happened."""

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from rocstack.base.text import visible
from rocstack.service import audit, tables
from rocstack.service.database import Database
from rocstack.service.failures import NotThere
from rocstack.service.identity import Caller
from rocstack.service.outcome import LIVE
from rocstack.service.tables import JobEvent, JobRow


@dataclass(frozen=True)
class JobRows:
    database: Database

    async def own(self, caller: Caller, key: str) -> JobRow:
        """
        Raises:
            NotThere: she has no such job.
        """
        return await self.database.run(lambda session: own(session, caller, key))

    async def events(self, caller: Caller, key: str) -> list[JobEvent]:
        await self.own(caller, key)
        wanted = select(JobEvent).where(JobEvent.job == key).order_by(JobEvent.id)
        return await self.database.run(lambda session: list(session.scalars(wanted)))

    async def change(self, row: JobRow, audit_as: tuple[str, Caller] | None = None, **fields: Any) -> JobRow:
        def work(session: Session) -> JobRow:
            there = session.get_one(JobRow, row.id)
            for name, value in fields.items():
                setattr(there, name, value)
            if audit_as:
                audit.note(session, audit_as[1].name, audit_as[0], row.id)
            return there

        return await self.database.run(work)

    async def say(self, key: str, message: str, level: str = "info", final: bool = False) -> None:
        await self.database.run(lambda session: session.add(event(key, message, level, final)))


def forget(session: Session, key: str) -> None:
    """The audit's lines and the job's folder stay."""
    session.execute(delete(JobEvent).where(JobEvent.job == key))
    session.execute(delete(JobRow).where(JobRow.id == key))


def older_than(owner: str, kept: int) -> Select[Any]:
    """A person's jobs that are over, without so many of the newest."""
    over = select(JobRow.id).where(JobRow.owner == owner, JobRow.status.not_in(LIVE))
    return over.order_by(JobRow.created.desc(), JobRow.id.desc()).offset(kept).limit(100)


def own(session: Session, caller: Caller, key: str) -> JobRow:
    row = tables.named(session, JobRow, key)
    if row is None or row.owner != caller.name:
        raise NotThere.of("no-such-own-job", job=visible(key[:64])).about("job_id")
    return row


def event(job: str, message: str, level: str = "info", final: bool = False) -> JobEvent:
    return JobEvent(job=job, at=int(time.time()), level=level, message=visible(message)[:2000], final=final)
