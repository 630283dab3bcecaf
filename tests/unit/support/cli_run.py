"""The command line run in this process: its result, why it was refused, and the files that it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput


@dataclass(frozen=True)
class Ran:
    """What a command did: exit code, standard output and error."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Ran]


def listing(folder: Path) -> dict[str, bytes | None]:
    """Every path under `folder` with its content, to see that nothing was left or changed."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def refusal(call: Callable[[], object]) -> BadInput | None:
    """Why `call` was refused; None where it was not."""
    try:
        call()
    except BadInput as error:
        return error
    return None
