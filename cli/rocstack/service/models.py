"""Models: folders that the site has put there, and the adapters that people trained, each only her own."""

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
from sqlalchemy import select
from sqlalchemy.orm import Session

from rocstack.base.errors import hinted
from rocstack.base.text import from_json, visible
from rocstack.serve.adapter_check import CONFIG, MOST_CONFIG, WEIGHTS
from rocstack.serve.safetensors_header import read_header
from rocstack.service import audit, tables
from rocstack.service.database import Database
from rocstack.service.failures import NotNow, NotThere, RequestRefused, TooBig
from rocstack.service.identity import Caller
from rocstack.service.storage import Storage, new_id, remove
from rocstack.service.tables import JobRow, ModelRow

TUNED = "ft:"
MOST = 8 << 30  # bytes of an adapter's weights
MOST_RANK = 1024
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")


@dataclass(frozen=True)
class Models:
    database: Database
    storage: Storage
    folder: Path  # that has the base models

    def bases(self) -> list[tuple[str, Path]]:
        """Name and folder of each, by name: NAME or ORGANISATION/NAME with a config.json."""
        found = []
        for first in self._folders(self.folder):
            if (first / "config.json").is_file():
                found.append((first.name, first))
            else:
                found += [
                    (f"{first.name}/{each.name}", each)
                    for each in self._folders(first)
                    if (each / "config.json").is_file()
                ]
        return sorted(found)

    @staticmethod
    def _folders(path: Path) -> list[Path]:
        try:
            return [each for each in path.iterdir() if _PART.fullmatch(each.name) and each.is_dir()]
        except OSError:
            return []

    async def all(self, caller: Caller) -> list[dict[str, Any]]:
        bases = await anyio.to_thread.run_sync(self.bases)
        own = await self.database.run(
            lambda session: list(
                session.scalars(select(ModelRow).where(ModelRow.owner == caller.name).order_by(ModelRow.created))
            )
        )
        return [self._base(name, path) for name, path in bases] + [to_dict(row) for row in own]

    async def get(self, caller: Caller, name: str) -> dict[str, Any]:
        """
        Raises:
            NotThere: no such model, or somebody else's.
        """
        base, path, row = await self.find(caller, name)
        return to_dict(row) if row else self._base(base, path)

    async def find(self, caller: Caller, name: str, param: str = "model") -> tuple[str, Path, ModelRow | None]:
        """The base model, its folder, and the adapter if the name is one's.

        Raises:
            NotThere
        """
        row = await self.database.run(lambda session: tables.named(session, ModelRow, name))
        if row is not None and row.owner != caller.name:
            row = None
        bases = dict(await anyio.to_thread.run_sync(self.bases))
        base = row.base if row else name
        if base not in bases:
            own = await self.all(caller)
            raise NotThere.of(
                "no-such-served-model", model=visible(name[:80]), hint=hinted(name, [each["id"] for each in own])
            ).about(param)
        return base, bases[base], row

    def adapter(self, caller: Caller, row: ModelRow) -> Path:
        return self.storage.adapters(caller) / row.folder

    async def folder_of(self, caller: Caller, name: str) -> Path | None:
        """Where her adapter's files are, on all nodes; None: it was deleted."""
        row = await self.database.run(lambda session: session.get(ModelRow, name))
        return self.adapter(caller, row) if row is not None and row.owner == caller.name else None

    async def file(self, caller: Caller, name: str, part: str) -> Path:
        """
        Raises:
            NotThere: she has no adapter of this name, or its file is gone. NotNow: it is a base model.
        """
        _, _, row = await self.find(caller, name)
        if row is None:
            raise NotNow.of("base-model-downloads", model=visible(name[:80])).about("model")
        path = self.adapter(caller, row) / part
        if not await anyio.to_thread.run_sync(path.is_file):
            raise NotThere.of("no-such-served-model", model=visible(name[:80]), hint="").about("model")
        return path

    async def delete(self, caller: Caller, name: str) -> None:
        """
        Raises:
            NotThere: she has no adapter of this name. NotNow: it is a base model.
        """
        _, _, row = await self.find(caller, name)
        if row is None:
            raise NotNow.of("base-model-stays", model=visible(name[:80])).about("model")

        def work(session: Session) -> None:
            there = session.get(ModelRow, name)
            if there is not None:
                session.delete(there)
                audit.note(session, caller.name, "model.delete", name)

        await self.database.run(work)
        await anyio.to_thread.run_sync(remove, self.adapter(caller, row))

    def take(self, caller: Caller, job: JobRow, base: str, suffix: str | None, quota: int, used: int) -> ModelRow:
        """The adapter that a job wrote, checked and copied to where its owner can't change it any more. It may have
        what is left of `quota`, of which she has `used` bytes; holes in its files count as well. In a thread.

        Raises:
            RequestRefused, TooBig: it isn't whole, or isn't an adapter as peft's.
        """
        source = ("jobs", job.id, "adapter")
        folder = new_id("adapter")
        to = self.storage.adapters(caller) / folder
        to.mkdir()
        size, room = 0, max(0, quota - used)
        try:
            for name in (CONFIG, WEIGHTS):
                size += self.storage.copied(caller, (*source, name), to / name, min(MOST, room - size))
            rank = check(to)
        except FileNotFoundError as error:
            remove(to)
            why = f"{error.filename or error.args[-1]}: {error.strerror or 'it is missing, or no file of its owner'}"
            raise RequestRefused.of("adapter-not-whole", why=why) from None
        except TooBig as error:
            remove(to)
            if error.code == "adapter-too-big" and room - size < MOST:
                there, mib = self.storage.root.joinpath(caller.name, *source), 1 << 20
                raise TooBig.of(
                    "adapter-over-quota", quota=quota // mib, left=room // mib, folder=there, job=job.id
                ) from None
            raise
        except BaseException:
            remove(to)
            raise
        words = [part for part in (base.replace("/", "-"), caller.name, suffix, job.id[-8:]) if part]
        return ModelRow(
            id=TUNED + ":".join(words), owner=caller.name, base=base, folder=folder, job=job.id, rank=rank, bytes=size,
            created=int(time.time()),
        )  # fmt: skip

    @staticmethod
    def _base(name: str, path: Path) -> dict[str, Any]:
        made = 0
        with suppress(OSError):
            made = int((path / "config.json").stat().st_mtime)
        return {"id": name, "object": "model", "created": made, "owned_by": "site", "base": None, "job": None}


def to_dict(row: ModelRow) -> dict[str, Any]:
    return {
        "id": row.id, "object": "model", "created": row.created, "owned_by": row.owner, "base": row.base,
        "job": row.job, "rank": row.rank, "bytes": row.bytes,
    }  # fmt: skip


def check(folder: Path) -> int:
    """The rank of an adapter in peft's format: its config and the head of its weights are read, nothing is unpickled.

    Raises:
        RequestRefused: it isn't one.
    """
    try:
        with (folder / CONFIG).open("rb") as file:
            config = from_json(file.read(MOST_CONFIG))
        with (folder / WEIGHTS).open("rb") as file:
            tensors = read_header(file.read, os.fstat(file.fileno()).st_size)
    except (OSError, ValueError, RecursionError) as error:
        raise RequestRefused.of("adapter-not-whole", why=str(error)[:200]) from None
    rank = config.get("r") if isinstance(config, Mapping) else None
    if not isinstance(rank, int) or isinstance(rank, bool) or config.get("peft_type") != "LORA":
        raise RequestRefused.of("adapter-not-whole", why=f"{CONFIG} is none of LoRA")
    if not 1 <= rank <= MOST_RANK:
        raise TooBig.of("adapter-too-wide", rank=rank, most=MOST_RANK)
    if not any("lora_" in name for name in tensors):
        raise RequestRefused.of("adapter-not-whole", why=f"{WEIGHTS} has no matrices of LoRA")
    return rank
