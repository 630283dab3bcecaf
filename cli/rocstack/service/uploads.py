"""Files that come in parts: after a broken connection, only what is missing is sent again."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from rocstack.base.text import visible
from rocstack.service import audit, tables
from rocstack.service.config import MIB
from rocstack.service.failures import NotNow, NotThere, RequestRefused, TooBig
from rocstack.service.files import PENDING, UPLOAD_S, StoredFiles, for_training, named, now, synced, to_dict
from rocstack.service.identity import Caller
from rocstack.service.storage import new_id, remove
from rocstack.service.tables import StoredFile, UploadPart, UploadRow
from rocstack.service.turns import Locks, Turns

COMPLETED, CANCELLED = "completed", "cancelled"
KEPT_S = 7 * 86_400  # that it is told how an upload ended


@dataclass(frozen=True)
class Uploads:
    files: StoredFiles
    _joining: Turns = field(default_factory=Turns)  # a second copy of all is on the disk meanwhile
    # No part comes to an upload that is being dropped or made a file: nobody would count it, or remove it.
    _noting: Locks = field(default_factory=Locks)

    async def begin(self, caller: Caller, name: str, purpose: str, size: int) -> dict[str, Any]:
        name = named(name)
        for_training(purpose)
        if size > self.files.limits.file_mib * MIB:
            raise TooBig.of("file-too-big", most=self.files.limits.file_mib).about("bytes")
        await self.files.room(caller, size)
        key = new_id("upload")

        def work(session: Session) -> UploadRow:
            row = UploadRow(
                id=key,
                owner=caller.name,
                name=name,
                purpose=purpose,
                bytes=size,
                created=now(),
                status=PENDING,
                file=None,
            )
            session.add(row)
            audit.note(session, caller.name, "upload.create", key, f"{name}, {size} bytes")
            return row

        row = await self.files.database.run(work)
        return upload_to_dict(row, None)

    async def get(self, caller: Caller, key: str) -> dict[str, Any]:
        """It says which parts are there, so that somebody whose connection broke can go on."""

        def work(session: Session) -> tuple[UploadRow, StoredFile | None, list[UploadPart]]:
            row = _upload(session, caller, key, open_=False)
            parts = session.scalars(select(UploadPart).where(UploadPart.upload == key).order_by(UploadPart.created))
            return row, session.get(StoredFile, row.file) if row.file else None, list(parts)

        row, file, parts = await self.files.database.run(work)
        have = [{"id": part.id, "bytes": part.bytes, "created_at": part.created} for part in parts]
        return upload_to_dict(row, file) | {"parts": have}

    async def add_part(self, caller: Caller, key: str, pieces: AsyncIterator[bytes]) -> dict[str, Any]:
        row = await self.files.database.run(lambda session: _upload(session, caller, key))
        part = new_id("part")
        folder = self.files.storage.parts(caller)
        path = folder / part
        try:
            async with self.files.written(caller, path, pieces, row.bytes) as size:

                def work(session: Session) -> UploadPart:
                    _upload(session, caller, key)
                    there = session.scalar(select(func.sum(UploadPart.bytes)).where(UploadPart.upload == key)) or 0
                    if there + size > row.bytes:
                        raise TooBig.of("parts-too-big", more=there + size, bytes=row.bytes).about("data")
                    made = UploadPart(id=part, upload=key, bytes=size, created=now())
                    session.add(made)
                    return made

                async with self._noting[caller.name]:
                    made = await self.files.database.run(work)
        except BaseException:
            remove(path)
            raise
        return {"id": made.id, "object": "upload.part", "created_at": made.created, "upload_id": key}

    async def complete(self, caller: Caller, key: str, order: list[str], md5: str | None) -> dict[str, Any]:
        """The parts in this order become a file.

        Raises:
            RequestRefused: parts are missing, or the file can't train. The upload stays open.
        """
        async with self._joining.of(caller):
            await self._complete(caller, key, order, md5)
        return await self.get(caller, key)

    async def _complete(self, caller: Caller, key: str, order: list[str], md5: str | None) -> None:
        row, sizes = await self.files.database.run(lambda session: _parts(session, caller, key))
        for part in order:
            if part not in sizes:
                raise RequestRefused.of("no-such-part", part=visible(part[:64])).about("part_ids")
        total = sum(sizes[part] for part in order)
        if total != row.bytes or len(set(order)) != len(order):
            raise RequestRefused.of("upload-incomplete", there=total, bytes=row.bytes).about("part_ids")
        folder = self.files.storage.parts(caller)
        with self.files.arriving(caller) as path:
            digest = await anyio.to_thread.run_sync(_joined, [folder / part for part in order], path)
            if md5 and md5.lower() != digest:
                raise RequestRefused.of("upload-other-md5").about("md5")
            async with self._noting[caller.name]:
                _, sizes = await self.files.database.run(lambda session: _parts(session, caller, key))
                await self.files.kept(
                    caller, path, row.name, row.purpose, lambda session, file: _completed(session, caller, key, file)
                )
        await anyio.to_thread.run_sync(_forget, [folder / part for part in sizes])

    async def cancel(self, caller: Caller, key: str) -> dict[str, Any]:
        def work(session: Session) -> tuple[UploadRow, list[str]]:
            row, sizes = _parts(session, caller, key)
            row.status = CANCELLED
            session.execute(delete(UploadPart).where(UploadPart.upload == key))
            audit.note(session, caller.name, "upload.cancel", key)
            return row, list(sizes)

        async with self._noting[caller.name]:
            row, parts = await self.files.database.run(work)
        folder = self.files.storage.parts(caller)
        await anyio.to_thread.run_sync(_forget, [folder / part for part in parts])
        return upload_to_dict(row, None)

    async def sweep(self) -> None:
        """What of uploads that took too long is left on the disk goes, and in the end what is known of them."""

        def work(session: Session) -> list[tuple[str, str]]:
            session.execute(delete(UploadRow).where(UploadRow.status != PENDING, UploadRow.created <= now() - KEPT_S))
            old = select(UploadRow).where(UploadRow.status == PENDING, UploadRow.created <= now() - UPLOAD_S)
            gone = []
            for row in session.scalars(old):
                row.status = "expired"
                for part in session.scalars(select(UploadPart).where(UploadPart.upload == row.id)):
                    gone.append((row.owner, part.id))
                    session.delete(part)
            return gone

        for owner, part in await self.files.database.run(work):
            remove(self.files.storage.root / owner / "uploads" / part)


def upload_to_dict(row: UploadRow, file: StoredFile | None) -> dict[str, Any]:
    over = row.status == PENDING and row.created + UPLOAD_S <= now()
    return {
        "id": row.id, "object": "upload", "bytes": row.bytes, "created_at": row.created, "filename": row.name,
        "purpose": row.purpose, "status": "expired" if over else row.status, "expires_at": row.created + UPLOAD_S,
        "file": to_dict(file) if file else None,
    }  # fmt: skip


def _completed(session: Session, caller: Caller, key: str, file: str) -> None:
    row = _upload(session, caller, key)
    row.status, row.file = COMPLETED, file
    session.execute(delete(UploadPart).where(UploadPart.upload == key))


def _upload(session: Session, caller: Caller, key: str, *, open_: bool = True) -> UploadRow:
    row = tables.named(session, UploadRow, key)
    if row is None or row.owner != caller.name:
        raise NotThere.of("no-such-upload", upload=visible(key[:64])).about("upload_id")
    if open_ and (row.status != PENDING or row.created + UPLOAD_S <= now()):
        status = row.status if row.status != PENDING else "expired"
        raise NotNow.of("upload-closed", upload=key, status=status).about("upload_id")
    return row


def _parts(session: Session, caller: Caller, key: str) -> tuple[UploadRow, dict[str, int]]:
    row = _upload(session, caller, key)
    return row, {part.id: part.bytes for part in session.scalars(select(UploadPart).where(UploadPart.upload == key))}


def _joined(parts: list[Path], to: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with to.open("xb") as out:
        for part in parts:
            with part.open("rb") as source:
                while piece := source.read(1 << 20):
                    digest.update(piece)
                    out.write(piece)
        synced(out)
    return digest.hexdigest()


def _forget(paths: list[Path]) -> None:
    for path in paths:
        remove(path)
