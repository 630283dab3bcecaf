"""The manifest that a build reads out of its image. It was written in a container of a base that may be a stranger's:
its file, its size and its shape are checked before anything is made of it."""

import os
import stat
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rocstack.base.text import from_json

FILE = "manifest.json"
LARGEST = 16 << 20  # bytes


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Size(_Part):
    bytes: int = Field(ge=0)
    components: dict[str, int]
    largest_packages: dict[str, int]


class _Seen(_Part):
    ok: list[str]
    skipped: list[str]


class _Manifest(_Part):
    versions: dict[str, str]
    facts: dict[str, str]
    size: _Size
    smoke: dict[str, _Seen]
    packages: dict[str, str]
    sources: dict[str, str] = {}  # package -> its source package, name or name@version, where that is another
    wheels: dict[str, str]


def read(folder: Path) -> dict[str, Any]:
    """
    Raises:
        ValueError: it is no manifest; says why.
    """
    try:
        handle = os.open(folder / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is no regular file")
        with open(handle, "rb", closefd=False) as file:
            data = file.read(LARGEST + 1)
    finally:
        os.close(handle)
    if len(data) > LARGEST:
        raise ValueError(f"it has more than {LARGEST >> 20} MB")
    manifest = from_json(data)
    try:
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg'][:120]}".removeprefix(": ")) from None
    return dict(manifest)
