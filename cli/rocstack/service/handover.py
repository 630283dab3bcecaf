"""Handing jobs to Slurm: each once.

A job is never handed over twice: its comment in Slurm is ours alone, and where an answer got lost it is looked for
before it is sent again.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from rocstack.base.errors import RocstackError
from rocstack.service import batch
from rocstack.service.failures import Away, NotSignedIn, ServiceError, SlurmRefused
from rocstack.service.identity import Caller
from rocstack.service.job_rows import JobRows
from rocstack.service.outcome import SENDING
from rocstack.service.slurm_answers import SlurmJob
from rocstack.service.slurmrest import AnswerLost, SlurmRest
from rocstack.service.storage import Storage
from rocstack.service.tables import JobRow
from rocstack.service.turns import Locks

LOOK_AFTER_S = 1.5  # after a lost answer: what was on its way has arrived
HANDED_S = 15.0  # that somebody waits for a job to be handed over
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
log = logging.getLogger(__name__)


@dataclass
class Handover:
    rows: JobRows
    storage: Storage
    slurm: SlurmRest
    waiting: dict[str, Caller] = field(default_factory=dict)  # whose job couldn't be handed over yet
    locks: Locks = field(default_factory=Locks)

    async def hand_over(self, caller: Caller, row: JobRow, wait: float | None = None) -> JobRow:
        self.waiting[row.id] = caller
        async with self.locks[row.id]:
            row = await self.rows.own(caller, row.id)
            if row.status != SENDING:
                return row
            try:
                number = await self._number(caller, row, HANDED_S if wait is None else wait)
            except SlurmRefused as refused:
                await self.rows.change(row, status="failed", error=told(refused), ended=int(time.time()))
                await self.rows.say(row.id, f"Slurm refused it: {refused.what}", "error", final=True)
                self.waiting.pop(row.id, None)
                raise
            except Away:
                raise Away.of("job-kept", job=row.id) from None
            except AnswerLost:
                raise Away.of("job-kept", job=row.id) from None
            self.waiting.pop(row.id, None)
            row = await self.rows.change(row, status="queued", slurm_id=number, seen={})
            again = "" if row.run == 1 else f", run {row.run}"
            await self.rows.say(row.id, f"queued: Slurm's job {number}{again}")
        return row

    async def _number(self, caller: Caller, row: JobRow, wait: float) -> int:
        """Hands it to Slurm; where that may have been done already, it looks first."""
        job, until = self._description(caller, row), time.monotonic() + wait
        look = bool(row.seen.get("unsure"))
        while True:
            if look:
                there = await self.find(caller, row)
                if there is not None:
                    return there.id
            else:  # if we end here in the middle, the next one looks
                row = await self.rows.change(row, seen={"unsure": True, "since": int(time.time())})
            try:
                return await self.slurm.submit(caller.token, row.script, job)
            except (Away, SlurmRefused, NotSignedIn) as error:
                if not look and not isinstance(error, SlurmRefused):  # it didn't arrive, nor did one before it
                    await self.rows.change(row, seen={})
                raise
            except AnswerLost as error:
                log.warning("%s: the answer to its submission got lost: %s", row.id, error)
                look = True
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(LOOK_AFTER_S)

    def _description(self, caller: Caller, row: JobRow) -> dict[str, Any]:
        folder = self.folder(row)
        home = f"/home/{caller.name}"
        own = [f"HOME={home}", f"USER={caller.name}", f"LOGNAME={caller.name}", "SHELL=/bin/bash", "LANG=C.UTF-8"]
        more: dict[str, Any] = {
            "comment": comment_of(row),
            "environment": [PATH, *own, f"ROCSTACK_RUN={row.run}"],
            "standard_output": f"{folder}/log",
            "standard_error": f"{folder}/log",
            "current_working_directory": folder,
        }
        if after := row.asked.get("_after"):
            more["dependency"] = f"afterany:{after}"
        return batch.description(row.script, more)

    def folder(self, row: JobRow) -> str:
        return str(self.storage.root / row.owner / "jobs" / row.id)

    async def resend(self) -> None:
        """What couldn't be handed over, once more. Called again and again while the service runs."""
        for key, caller in list(self.waiting.items()):
            try:
                await self.hand_over(caller, await self.rows.own(caller, key), wait=0)
            except Away:
                continue
            except (RocstackError, AnswerLost):  # refused, or its token is over: its owner's next request tries again
                pass
            self.waiting.pop(key, None)

    async def find(self, caller: Caller, row: JobRow) -> SlurmJob | None:
        """The job, where Slurm has taken it."""
        comment, since = comment_of(row), int(row.seen.get("since") or row.created) - 5  # for clocks
        return await self.slurm.find(caller.token, caller.name, comment, self.folder(row), since)


def comment_of(row: JobRow) -> str:
    return f"rocstack:{row.id}:{row.run}"


def told(error: ServiceError) -> dict[str, Any]:
    return {"code": error.code, "message": error.what, "param": error.param}
