"""What a bundle is: a tar whose every byte follows from bundle.json and from the members' contents. Pure.

So a reader compares: what differs from the one form that there is, is refused, and no parser of tars is asked what it
makes of it.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from rocstack.base.errors import CheckFailed
from rocstack.base.text import from_json, visible
from rocstack.base.words import Line, Sha256, Tag, Value, Version

SCHEMA: Literal[1] = 1
INSTALL, RECORD = "install", "bundle.json"  # the first two members
LARGEST_INSTALL, LARGEST_RECORD = 1 << 20, 8 << 20  # bytes
MOST = 20_000  # members
BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
BLOBS = "blobs/sha256/"


def _plain(text: str) -> str:
    parts = text.split("/")
    if text in (INSTALL, RECORD) or any(part in ("", ".", "..") for part in parts) or not text.isascii():
        raise ValueError(f"{text!r:.200} is no path of a member")
    return text


class BundleMember(Value):
    """One file of a bundle. `size` is bytes."""

    path: Annotated[Line, Field(max_length=200), AfterValidator(_plain)]
    size: int = Field(ge=0, lt=1 << 50)
    sha256: Sha256

    @model_validator(mode="after")
    def _named_by_content(self) -> Self:
        if self.path.startswith("blobs/") and self.path != BLOBS + self.sha256:
            raise ValueError(f"{self.path!r} isn't named by its sha256")
        return self

    @property
    def digest(self) -> str:
        return f"sha256:{self.sha256}"


class BundleRecord(Value):
    """bundle.json: every member but itself, in the order of their paths, which is the order in the file."""

    schema_version: Literal[1] = SCHEMA
    release: Tag
    created: Line  # of the release: UTC, ISO 8601
    rocstack: Line
    architecture: Tag  # of the machines that it fits, as `uname -m` says it
    glibc: Version  # the oldest that it fits
    python: Version
    install: Sha256
    members: tuple[BundleMember, ...] = Field(max_length=MOST)
    since: Line | None = None  # the release of the earlier bundle that has `absent`
    absent: tuple[BundleMember, ...] = Field((), max_length=MOST)  # belongs to it, and is left out

    @model_validator(mode="after")
    def _sorted(self) -> Self:
        for these in (self.members, self.absent):
            paths = [each.path for each in these]
            if paths != sorted(set(paths)):
                raise ValueError("the members are not sorted, or one is there twice")
        if self.absent and self.since is None:
            raise ValueError("something is left out, and no earlier bundle is named")
        return self

    def dumps(self) -> bytes:
        return (self.model_dump_json(indent=1, exclude_none=True) + "\n").encode()

    def whole(self) -> tuple[BundleMember, ...]:
        """With what is left out."""
        return tuple(sorted((*self.members, *self.absent), key=lambda each: each.path))


def loads(data: bytes) -> BundleRecord:
    """
    Raises:
        ValueError: it is no bundle.json; in a short sentence.
    """
    parsed = from_json(data)
    if isinstance(parsed, dict) and isinstance(parsed.get("schema_version"), int) and parsed["schema_version"] > SCHEMA:
        raise ValueError("a newer rocstack made it")
    try:
        return BundleRecord.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(map(str, first["loc"]))[:80]
        raise ValueError(visible(f"{at}: {first['msg'][:120]}".removeprefix(": "))) from None


def header(path: str, size: int) -> bytes:
    """What stands before a member's content; GNU's form, whose sizes have no bound."""
    info = tarfile.TarInfo(path)
    info.size, info.mode = size, 0o755 if path == INSTALL else 0o644
    return info.tobuf(tarfile.GNU_FORMAT)


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def taken(path: str, size: int) -> int:
    """Bytes that a member takes in the file."""
    return len(header(path, size)) + size + len(padding(size))


def total(record: BundleRecord, install: int, own: int) -> int:
    """Bytes of the whole file; `install` and `own` are the sizes of the script and of bundle.json."""
    fixed = taken(INSTALL, install) + taken(RECORD, own) + len(END)
    return fixed + sum(taken(each.path, each.size) for each in record.members)


def offsets(members: Sequence[BundleMember], start: int) -> Iterator[tuple[BundleMember, int, int]]:
    """Each member, where its header begins, and where its content does."""
    at = start
    for each in members:
        content = at + len(header(each.path, each.size))
        yield each, at, content
        at = content + each.size + len(padding(each.size))


def refusal(file: object, found: bytes, at: int, expected: BundleMember | None, known: frozenset[str]) -> CheckFailed:
    """Why a header that isn't the expected one is refused. `known` are the paths that bundle.json lists; `expected` is
    None behind the last."""
    try:
        info = tarfile.TarInfo.frombuf(found[:BLOCK], "utf-8", "replace")
    except tarfile.HeaderError:
        return CheckFailed.of("bundle-damaged", file=file, why=f"at byte {at} there is no member")
    name = visible(info.name)[:200]
    parts = PurePosixPath(info.name).parts
    if info.name.startswith("/") or ".." in parts:
        return CheckFailed.of("bundle-unsafe-path", file=file, member=name)
    if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE):
        return CheckFailed.of("bundle-unlisted", file=file, member="a member with a long or extended name")
    if not info.isreg():
        kinds = {tarfile.SYMTYPE: "a link", tarfile.LNKTYPE: "a link", tarfile.DIRTYPE: "a folder"}
        return CheckFailed.of("bundle-odd-member", file=file, member=name, kind=kinds.get(info.type, "a special file"))
    if expected and info.name == expected.path:
        if info.size != expected.size:
            return CheckFailed.of(
                "bundle-other-size", file=file, member=name, size=info.size, listed=expected.size
            )  # fmt: skip
        return CheckFailed.of("bundle-damaged", file=file, why=f"the header of {name} was changed")
    if info.name not in known:
        return CheckFailed.of("bundle-unlisted", file=file, member=name)
    return CheckFailed.of("bundle-damaged", file=file, why=f"{name} is at another place, or there twice")
