"""Files that train: streamed to the disk, counted against their owner's quota, and checked before they are there."""

import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import anyio.to_thread
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from rocstack.base.text import visible
from rocstack.service import audit, dataset
from rocstack.service.config import MIB, ServiceLimits
from rocstack.service.database import Database
from rocstack.service.failures import Away, NotNow, NotThere, RequestRefused, TooBig
from rocstack.service.identity import Caller
from rocstack.service.storage import Storage, new_id, remove
from rocstack.service.tables import JobRow, ModelRow, StoredFile, UploadPart, UploadRow

PURPOSE = "fine-tune"
UPLOAD_S = 3600  # that an upload may take
PENDING, COMPLETED, CANCELLED = "pending", "completed", "cancelled"
LIVE = ("sending", "queued", "running", "paused")  # of a job that may read its files again


@dataclass(frozen=True)
class Files:
    database: Database
    storage: Storage
    limits: ServiceLimits
    _coming: Counter[str] = field(default_factory=Counter)  # bytes of each person that are on their way

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
            _for_training(early)
        with self._arriving(caller) as path:
            await self._write(caller, path, pieces, self.limits.file_mib * MIB)
            _for_training(last := purpose() or "")
            return await self._kept(caller, path, name, last)

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

    def path(self, caller: Caller, file: StoredFile) -> Path:
        return self.storage.files(caller) / file.id

    async def delete(self, caller: Caller, key: str) -> None:
        """
        Raises:
            NotThere, NotNow: a job of hers still needs it.
        """

        def work(session: Session) -> None:
            row = _own(session, caller, key)
            live = select(JobRow).where(JobRow.owner == caller.name, JobRow.status.in_(LIVE))
            for job in session.scalars(live):
                if key in (job.asked.get("training_file"), job.asked.get("validation_file")):
                    raise NotNow.of("file-in-use", file=key, job=job.id)
            session.delete(row)
            audit.note(session, caller.name, "file.delete", key, row.name)

        await self.database.run(work)
        await anyio.to_thread.run_sync(remove, self.storage.files(caller) / key)

    # uploads: the same in parts
    async def begin(self, caller: Caller, name: str, purpose: str, size: int) -> dict[str, Any]:
        name = named(name)
        _for_training(purpose)
        if size > self.limits.file_mib * MIB:
            raise TooBig.of("file-too-big", most=self.limits.file_mib).about("bytes")
        await self._room(caller, size)
        key = new_id("upload")

        def work(session: Session) -> UploadRow:
            row = UploadRow(
                id=key,
                owner=caller.name,
                name=name,
                purpose=purpose,
                bytes=size,
                created=_now(),
                status=PENDING,
                file=None,
            )
            session.add(row)
            audit.note(session, caller.name, "upload.create", key, f"{name}, {size} bytes")
            return row

        row = await self.database.run(work)
        return upload_to_dict(row, None)

    async def upload(self, caller: Caller, key: str) -> dict[str, Any]:
        """It says which parts are there, so that somebody whose connection broke can go on."""

        def work(session: Session) -> tuple[UploadRow, StoredFile | None, list[UploadPart]]:
            row = _upload(session, caller, key, open_=False)
            parts = session.scalars(select(UploadPart).where(UploadPart.upload == key).order_by(UploadPart.created))
            return row, session.get(StoredFile, row.file) if row.file else None, list(parts)

        row, file, parts = await self.database.run(work)
        have = [{"id": part.id, "bytes": part.bytes, "created_at": part.created} for part in parts]
        return upload_to_dict(row, file) | {"parts": have}

    async def add_part(self, caller: Caller, key: str, pieces: AsyncIterator[bytes]) -> dict[str, Any]:
        row = await self.database.run(lambda session: _upload(session, caller, key))
        part = new_id("part")
        folder = self.storage.parts(caller)
        path = folder / part
        try:
            size = await self._write(caller, path, pieces, row.bytes)

            def work(session: Session) -> UploadPart:
                _upload(session, caller, key)
                there = session.scalar(select(func.sum(UploadPart.bytes)).where(UploadPart.upload == key)) or 0
                if there + size > row.bytes:
                    raise TooBig.of("parts-too-big", more=there + size, bytes=row.bytes).about("data")
                made = UploadPart(id=part, upload=key, bytes=size, created=_now())
                session.add(made)
                return made

            made = await self.database.run(work)
        except BaseException:
            remove(path)
            raise
        return {"id": made.id, "object": "upload.part", "created_at": made.created, "upload_id": key}

    async def complete(self, caller: Caller, key: str, order: list[str], md5: str | None) -> dict[str, Any]:
        """The parts in this order become a file.

        Raises:
            RequestRefused: parts are missing, or the file can't train. The upload stays open.
        """
        row, sizes = await self.database.run(lambda session: _parts(session, caller, key))
        for part in order:
            if part not in sizes:
                raise RequestRefused.of("no-such-part", part=visible(part[:64])).about("part_ids")
        total = sum(sizes[part] for part in order)
        if total != row.bytes or len(set(order)) != len(order):
            raise RequestRefused.of("upload-incomplete", there=total, bytes=row.bytes).about("part_ids")
        folder = self.storage.parts(caller)
        with self._arriving(caller) as path:
            digest = await anyio.to_thread.run_sync(_joined, [folder / part for part in order], path)
            if md5 and md5.lower() != digest:
                raise RequestRefused.of("upload-other-md5").about("md5")
            await self._kept(caller, path, row.name, row.purpose, upload=key)
        await anyio.to_thread.run_sync(_forget, [folder / part for part in sizes])
        return await self.upload(caller, key)

    async def cancel(self, caller: Caller, key: str) -> dict[str, Any]:
        def work(session: Session) -> tuple[UploadRow, list[str]]:
            row, sizes = _parts(session, caller, key)
            row.status = CANCELLED
            session.execute(delete(UploadPart).where(UploadPart.upload == key))
            audit.note(session, caller.name, "upload.cancel", key)
            return row, list(sizes)

        row, parts = await self.database.run(work)
        folder = self.storage.parts(caller)
        await anyio.to_thread.run_sync(_forget, [folder / part for part in parts])
        return upload_to_dict(row, None)

    # both
    async def used(self, caller: Caller) -> int:
        """Bytes of her files, adapters, and uploads that aren't whole."""

        def work(session: Session) -> int:
            files = session.scalar(select(func.sum(StoredFile.bytes)).where(StoredFile.owner == caller.name)) or 0
            models = session.scalar(select(func.sum(ModelRow.bytes)).where(ModelRow.owner == caller.name)) or 0
            pending = select(UploadRow.id).where(
                UploadRow.owner == caller.name, UploadRow.status == PENDING, UploadRow.created > _now() - UPLOAD_S
            )
            parts = session.scalar(select(func.sum(UploadPart.bytes)).where(UploadPart.upload.in_(pending))) or 0
            return int(files) + int(models) + int(parts)

        return await self.database.run(work)

    async def sweep(self) -> None:
        """What of uploads that took too long is left on the disk goes."""

        def work(session: Session) -> list[tuple[str, str]]:
            old = select(UploadRow).where(UploadRow.status == PENDING, UploadRow.created <= _now() - UPLOAD_S)
            gone = []
            for row in session.scalars(old):
                row.status = "expired"
                for part in session.scalars(select(UploadPart).where(UploadPart.upload == row.id)):
                    gone.append((row.owner, part.id))
                    session.delete(part)
            return gone

        for owner, part in await self.database.run(work):
            remove(self.storage.root / owner / "uploads" / part)

    async def _room(self, caller: Caller, more: int) -> None:
        left = self.limits.quota_mib * MIB - await self.used(caller) - self._coming[caller.name]
        if more > left:
            raise TooBig.of("over-quota", quota=self.limits.quota_mib, left=max(0, left) // MIB).about("file")

    @contextmanager
    def _arriving(self, caller: Caller) -> Iterator[Path]:
        """A place for a file that isn't whole; what is still there afterwards goes."""
        path = self.storage.parts(caller) / new_id("incoming")
        try:
            yield path
        finally:
            remove(path)

    async def _write(self, caller: Caller, path: Path, pieces: AsyncIterator[bytes], most: int) -> int:
        """
        Raises:
            TooBig: more than `most` bytes, or than the quota leaves; the rest isn't read.
        """
        left = self.limits.quota_mib * MIB - await self.used(caller)
        done = 0
        try:
            with path.open("xb") as file:
                async for piece in pieces:
                    done += len(piece)
                    self._coming[caller.name] += len(piece)
                    if done > most:
                        raise TooBig.of("file-too-big", most=max(1, most // MIB)).about("file")
                    if self._coming[caller.name] > left:
                        quota = self.limits.quota_mib
                        raise TooBig.of("over-quota", quota=quota, left=max(0, left) // MIB).about("file")
                    await anyio.to_thread.run_sync(file.write, piece)
                await anyio.to_thread.run_sync(_synced, file)
        except OSError as error:
            raise Away.of("no-space", why=error.strerror) from None
        finally:
            self._coming[caller.name] -= done
        return done

    async def _kept(
        self, caller: Caller, path: Path, name: str, purpose: str, upload: str | None = None
    ) -> dict[str, Any]:
        """Checks it, and makes it hers."""
        found = await anyio.to_thread.run_sync(_checked, path)
        key = new_id("file")
        to = self.storage.files(caller) / key
        row = StoredFile(
            id=key, owner=caller.name, name=name, purpose=purpose, bytes=path.stat().st_size, created=_now(),
            kind=found.kind, samples=found.samples,
        )  # fmt: skip

        def work(session: Session) -> None:
            if upload:
                _upload(session, caller, upload).status = COMPLETED
                _upload(session, caller, upload, open_=False).file = key
                session.execute(delete(UploadPart).where(UploadPart.upload == upload))
            session.add(row)
            audit.note(session, caller.name, "file.create", key, f"{name}, {row.bytes} bytes")

        await anyio.to_thread.run_sync(_into_place, path, to)
        try:
            await self.database.run(work)
        except BaseException:
            remove(to)
            raise
        return to_dict(row)


def to_dict(row: StoredFile) -> dict[str, Any]:
    return {
        "id": row.id, "object": "file", "bytes": row.bytes, "created_at": row.created, "filename": row.name,
        "purpose": row.purpose, "status": "processed", "status_details": None, "expires_at": None,
        "kind": row.kind, "samples": row.samples,
    }  # fmt: skip


def upload_to_dict(row: UploadRow, file: StoredFile | None) -> dict[str, Any]:
    over = row.status == PENDING and row.created + UPLOAD_S <= _now()
    return {
        "id": row.id, "object": "upload", "bytes": row.bytes, "created_at": row.created, "filename": row.name,
        "purpose": row.purpose, "status": "expired" if over else row.status, "expires_at": row.created + UPLOAD_S,
        "file": to_dict(file) if file else None,
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


def _for_training(purpose: str) -> None:
    if purpose != PURPOSE:
        raise RequestRefused.of("bad-purpose", purpose=visible(purpose[:40])).about("purpose")


def _own(session: Session, caller: Caller, key: str) -> StoredFile:
    row = session.get(StoredFile, key)
    if row is None or row.owner != caller.name:
        raise NotThere.of("no-such-file", file=visible(key[:64])).about("file_id")
    return row


def _upload(session: Session, caller: Caller, key: str, *, open_: bool = True) -> UploadRow:
    row = session.get(UploadRow, key)
    if row is None or row.owner != caller.name:
        raise NotThere.of("no-such-upload", upload=visible(key[:64])).about("upload_id")
    if open_ and (row.status != PENDING or row.created + UPLOAD_S <= _now()):
        status = row.status if row.status != PENDING else "expired"
        raise NotNow.of("upload-closed", upload=key, status=status).about("upload_id")
    return row


def _parts(session: Session, caller: Caller, key: str) -> tuple[UploadRow, dict[str, int]]:
    row = _upload(session, caller, key)
    return row, {part.id: part.bytes for part in session.scalars(select(UploadPart).where(UploadPart.upload == key))}


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
        _synced(out)


def _joined(parts: list[Path], to: Path) -> str:
    import hashlib

    digest = hashlib.md5(usedforsecurity=False)
    with to.open("xb") as out:
        for part in parts:
            with part.open("rb") as source:
                while piece := source.read(1 << 20):
                    digest.update(piece)
                    out.write(piece)
        _synced(out)
    return digest.hexdigest()


def _forget(paths: list[Path]) -> None:
    for path in paths:
        remove(path)


def _synced(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _now() -> int:
    return int(time.time())
