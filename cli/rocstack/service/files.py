"""Files that train: streamed to the disk, counted against their owner's quota, and checked before they are there."""

import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import anyio.to_thread
from sqlalchemy import Case, case, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from rocstack.base.text import visible
from rocstack.cluster.service import ClusterServiceLimits
from rocstack.service import audit, dataset, tables
from rocstack.service.config import MIB
from rocstack.service.database import Database
from rocstack.service.failures import Away, NotNow, NotThere, RequestRefused, TooBig
from rocstack.service.identity import Caller
from rocstack.service.outcome import LIVE
from rocstack.service.storage import Storage, new_id, remove
from rocstack.service.tables import JobRow, ModelRow, StoredFile, UploadPart, UploadRow
from rocstack.service.turns import Turns

PURPOSE = "fine-tune"
UPLOAD_S = 3600  # that an upload may take
LEAST = 64 << 10  # bytes that each counts at least: a disk has so many names, too, and no end of empty ones is free
PENDING = "pending"


@dataclass(frozen=True)
class StoredFiles:
    database: Database
    storage: Storage
    limits: ClusterServiceLimits
    _coming: Counter[str] = field(default_factory=Counter)  # bytes of each person that are on their way
    _landed: Counter[str] = field(default_factory=Counter)  # and that came since the service started
    checking: Turns = field(default_factory=Turns)  # a line of some MB takes hundreds of them when it is read

    # files
    async def create(
        self, caller: Caller, name: str, pieces: AsyncIterator[bytes], purpose: Callable[[], str | None]
    ) -> dict[str, Any]:
        """`purpose` may be known only when all has come.

        Raises:
            RequestRefused, TooBig, Away
        """
        name = named(name)
        if (early := purpose()) is not None:
            for_training(early)
        most = self.limits.file_mib * MIB
        with self.arriving(caller) as path:
            async with self.written(caller, path, pieces, most):
                for_training(last := purpose() or "")
                return await self.kept(caller, path, name, last)

    async def page(
        self,
        caller: Caller,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 100,
        order: str = "desc",
    ) -> tuple[list[dict[str, Any]], bool]:
        """A page, and whether there are more."""

        def work(session: Session) -> list[StoredFile]:
            wanted = select(StoredFile).where(StoredFile.owner == caller.name)
            if purpose:
                wanted = wanted.where(StoredFile.purpose == purpose)
            place = (StoredFile.created, StoredFile.id)
            if after:
                last = _own(session, caller, after)
                wanted = wanted.where(_beyond(place, (last.created, last.id), order))
            down = order == "desc"
            wanted = wanted.order_by(*(each.desc() if down else each.asc() for each in place))
            return list(session.scalars(wanted.limit(limit + 1)))

        rows = await self.database.run(work)
        return [to_dict(row) for row in rows[:limit]], len(rows) > limit

    async def get(self, caller: Caller, key: str) -> StoredFile:
        """
        Raises:
            NotThere: she has none of this id.
        """
        return await self.database.run(lambda session: _own(session, caller, key))

    def path(self, caller: Caller, key: str) -> Path:
        """The trainer knows what is in a file by its suffix."""
        return self.storage.files(caller) / f"{key}.jsonl"

    async def delete(self, caller: Caller, key: str) -> None:
        """
        Raises:
            NotThere, NotNow: a job of hers still needs it.
        """

        def work(session: Session) -> None:
            row = _own(session, caller, key)
            # They may read their files again.
            live = select(JobRow).where(JobRow.owner == caller.name, JobRow.status.in_(LIVE))
            for job in session.scalars(live):
                if key in (job.asked.get("training_file"), job.asked.get("validation_file")):
                    raise NotNow.of("file-in-use", file=key, job=job.id)
            session.delete(row)
            audit.note(session, caller.name, "file.delete", key, row.name)

        await self.database.run(work)
        await anyio.to_thread.run_sync(remove, self.path(caller, key))

    # what uploads need, too
    async def used(self, caller: Caller) -> int:
        """Bytes of her files, adapters, and uploads that aren't whole."""

        return await self.database.run(lambda session: used_by(session, caller.name))

    async def room(self, caller: Caller, more: int) -> None:
        left = self.limits.quota_mib * MIB - await self.used(caller) - self._coming[caller.name]
        self._within(left, max(more, LEAST))

    def _within(self, left: int, more: int) -> None:
        if more > left:
            raise TooBig.of("over-quota", quota=self.limits.quota_mib, left=max(0, left) // MIB).about("file")

    @contextmanager
    def arriving(self, caller: Caller) -> Iterator[Path]:
        """A place for a file that isn't whole; what is still there afterwards goes."""
        path = self.storage.parts(caller) / new_id("incoming")
        try:
            yield path
        finally:
            remove(path)

    @asynccontextmanager
    async def written(self, caller: Caller, path: Path, pieces: AsyncIterator[bytes], most: int) -> AsyncIterator[int]:
        """How many bytes came. They count as on their way until the block has noted them, and for those that are on
        their way meanwhile afterwards, too: who begins many at once has one quota for all of them.

        Raises:
            TooBig: more than `most` bytes, or than the quota leaves; the rest isn't read.
        """
        landed = self._landed[caller.name]
        left = self.limits.quota_mib * MIB - await self.used(caller)
        done = 0
        try:
            try:
                self._within(left, LEAST)
                with path.open("xb") as file:
                    async for piece in pieces:
                        done += len(piece)
                        self._coming[caller.name] += len(piece)
                        if done > most:
                            raise TooBig.of("file-too-big", most=max(1, most // MIB)).about("file")
                        self._within(left, self._coming[caller.name] + self._landed[caller.name] - landed)
                        await anyio.to_thread.run_sync(file.write, piece)
                    await anyio.to_thread.run_sync(synced, file)
            except OSError as error:
                raise Away.of("no-space", why=error.strerror) from None
            yield done
            self._landed[caller.name] += done
        finally:
            self._coming[caller.name] -= done

    async def kept(
        self, caller: Caller, path: Path, name: str, purpose: str, also: Callable[[Session, str], None] | None = None
    ) -> dict[str, Any]:
        """Checks it, and makes it hers; `also` is done in the same transaction."""
        async with self.checking.of(caller):
            found = await anyio.to_thread.run_sync(_checked, path)
        key = new_id("file")
        to = self.path(caller, key)
        row = StoredFile(
            id=key, owner=caller.name, name=name, purpose=purpose, bytes=path.stat().st_size, created=now(),
            kind=found.kind, samples=found.samples,
        )  # fmt: skip

        def work(session: Session) -> None:
            if also:
                also(session, key)
            session.add(row)
            audit.note(session, caller.name, "file.create", key, f"{name}, {row.bytes} bytes")

        await anyio.to_thread.run_sync(_into_place, path, to)
        try:
            await self.database.run(work)
        except BaseException:
            remove(to)
            raise
        return to_dict(row)


def used_by(session: Session, owner: str) -> int:
    """Bytes of what counts for a person's quota."""
    pending = select(UploadRow.id).where(
        UploadRow.owner == owner, UploadRow.status == PENDING, UploadRow.created > now() - UPLOAD_S
    )
    counted = [
        select(func.sum(_counts(row.bytes))).where(wanted)
        for row, wanted in (
            (StoredFile, StoredFile.owner == owner),
            (ModelRow, ModelRow.owner == owner),
            (UploadPart, UploadPart.upload.in_(pending)),
        )
    ]
    begun = session.scalar(select(func.count()).select_from(pending.subquery())) or 0
    return sum(int(session.scalar(each) or 0) for each in counted) + begun * LEAST


def _counts(size: InstrumentedAttribute[int]) -> Case[int]:
    return case((size < LEAST, LEAST), else_=size)


def to_dict(row: StoredFile) -> dict[str, Any]:
    return {
        "id": row.id, "object": "file", "bytes": row.bytes, "created_at": row.created, "filename": row.name,
        "purpose": row.purpose, "status": "processed", "status_details": None, "expires_at": None,
        "kind": row.kind, "samples": row.samples,
    }  # fmt: skip


def named(name: str) -> str:
    """A file's name is what its owner calls it, and never a path.

    Raises:
        RequestRefused: nothing is left of it, or it is too long.
    """
    shown = visible(name.replace("\\", "/").rpartition("/")[2]).strip()
    if not shown or len(shown) > 255 or shown in (".", ".."):
        raise RequestRefused.of("bad-file-name").about("file")
    return shown


def for_training(purpose: str) -> None:
    if purpose != PURPOSE:
        raise RequestRefused.of("bad-purpose", purpose=visible(purpose[:40])).about("purpose")


def _own(session: Session, caller: Caller, key: str) -> StoredFile:
    row = tables.named(session, StoredFile, key)
    if row is None or row.owner != caller.name:
        raise NotThere.of("no-such-file", file=visible(key[:64])).about("file_id")
    return row


def _beyond(place: tuple[Any, Any], last: tuple[int, str], order: str) -> Any:
    """Rows after this one, in the order of the list."""
    (when, key), (then, last_key) = place, last
    if order == "desc":
        return (when < then) | ((when == then) & (key < last_key))
    return (when > then) | ((when == then) & (key > last_key))


def _checked(path: Path) -> dataset.Trainable:
    with path.open("rb") as file:
        return dataset.check(_lines(file))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Of a line that is too long, only the beginning."""
    while line := file.readline(dataset.LONGEST + 1):
        yield line
        while len(line) > dataset.LONGEST and not line.endswith(b"\n"):
            line = file.readline(dataset.LONGEST + 1)
            if not line:
                return


def _into_place(path: Path, to: Path) -> None:
    """Copied, not moved: only what is made in its folder has that folder's ACL."""
    with path.open("rb") as source, to.open("xb") as out:
        while piece := source.read(1 << 20):
            out.write(piece)
        synced(out)


def synced(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def now() -> int:
    return int(time.time())
