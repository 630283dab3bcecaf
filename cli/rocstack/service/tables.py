"""What the database keeps: files and uploads, jobs, models, and who changed what. Times are seconds since 1970."""

from typing import Any, TypeVar

from sqlalchemy import JSON, BigInteger, Index, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

KEY, USER, NAME = String(64), String(32), String(255)


class Table(DeclarativeBase):
    """All of them."""


class StoredFile(Table):
    """On the disk it is DATA/USER/files/ID.jsonl; `name` is only what its owner calls it."""

    __tablename__ = "files"
    id: Mapped[str] = mapped_column(KEY, primary_key=True)
    owner: Mapped[str] = mapped_column(USER, index=True)
    name: Mapped[str] = mapped_column(NAME)
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int] = mapped_column(BigInteger)
    created: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(String(16))  # conversations or text
    samples: Mapped[int] = mapped_column(BigInteger)


class UploadRow(Table):
    """A file that comes in parts."""

    __tablename__ = "uploads"
    id: Mapped[str] = mapped_column(KEY, primary_key=True)
    owner: Mapped[str] = mapped_column(USER, index=True)
    name: Mapped[str] = mapped_column(NAME)
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int] = mapped_column(BigInteger)  # that are to come
    created: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str] = mapped_column(String(16))
    file: Mapped[str | None] = mapped_column(KEY)


class UploadPart(Table):
    __tablename__ = "upload_parts"
    id: Mapped[str] = mapped_column(KEY, primary_key=True)
    upload: Mapped[str] = mapped_column(KEY, index=True)
    bytes: Mapped[int] = mapped_column(BigInteger)
    created: Mapped[int] = mapped_column(BigInteger)


class JobRow(Table):
    """A job of any recipe. `asked` is what its owner wrote, `script` and `description` what Slurm is given, `digest`
    tells two equal requests. `run` counts how often it was handed to Slurm: its comment there has the id and that."""

    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(KEY, primary_key=True)
    owner: Mapped[str] = mapped_column(USER)
    kind: Mapped[str] = mapped_column(String(16))  # fine_tuning or recipe
    recipe: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(64))
    asked: Mapped[dict[str, Any]] = mapped_column(JSON)
    script: Mapped[str] = mapped_column(Text(1 << 22))
    digest: Mapped[str] = mapped_column(KEY)
    status: Mapped[str] = mapped_column(String(16))
    run: Mapped[int]
    slurm_id: Mapped[int | None] = mapped_column(BigInteger, index=True)
    seen: Mapped[dict[str, Any]] = mapped_column(JSON)  # what Slurm said of it last
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    result: Mapped[str | None] = mapped_column(NAME)  # the model that it made
    created: Mapped[int] = mapped_column(BigInteger)
    began: Mapped[int | None] = mapped_column(BigInteger)
    ended: Mapped[int | None] = mapped_column(BigInteger)
    __table_args__ = (
        Index("jobs_of_owner", "owner", "created", "id"),
        Index("jobs_by_status", "owner", "status"),
    )


class JobEvent(Table):
    """What happened to a job, by what its owner or Slurm did."""

    __tablename__ = "job_events"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job: Mapped[str] = mapped_column(KEY, index=True)
    at: Mapped[int] = mapped_column(BigInteger)
    level: Mapped[str] = mapped_column(String(8))
    message: Mapped[str] = mapped_column(Text)
    final: Mapped[bool] = mapped_column(default=False)  # said at the job's end


class ModelRow(Table):
    """An adapter: DATA/USER/adapters/FOLDER, in peft's format, checked."""

    __tablename__ = "models"
    id: Mapped[str] = mapped_column(NAME, primary_key=True)
    owner: Mapped[str] = mapped_column(USER, index=True)
    base: Mapped[str] = mapped_column(NAME)
    folder: Mapped[str] = mapped_column(KEY)
    job: Mapped[str | None] = mapped_column(KEY)
    rank: Mapped[int]
    bytes: Mapped[int] = mapped_column(BigInteger)
    created: Mapped[int] = mapped_column(BigInteger)


class AuditLine(Table):
    """Who changed what, and when. Nothing is ever changed or removed here."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[int] = mapped_column(BigInteger, index=True)
    who: Mapped[str] = mapped_column(USER)
    what: Mapped[str] = mapped_column(String(32))
    target: Mapped[str] = mapped_column(NAME)
    detail: Mapped[str] = mapped_column(Text)


Named = TypeVar("Named", StoredFile, UploadRow, JobRow, ModelRow)


def named(session: Session, table: type[Named], key: str) -> Named | None:
    """What is called exactly so. MariaDB takes capitals for small letters, and doesn't see some characters; files and
    locks that belong to it have the one name alone."""
    row = session.get(table, key)
    return row if row is not None and row.id == key else None
