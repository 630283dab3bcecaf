"""Evidence that a person gives: is it any?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput, Where

FILE = "evidence.json"


def place(path: Path) -> Path:
    """The file, or that in the folder of a run."""
    return path / FILE if path.is_dir() else path


def load(path: Path) -> dict[str, Any]:
    """It says at least what cluster it is of.

    Raises:
        BadInput: it isn't there, or no evidence.
    """
    from rocstack.verify import deployed, describe

    path = place(path)
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        deployed.nodes(found["cluster"])
        describe.run(found["cluster"], started=0.0, results=(), rocstack="", who="", level=0)
    except FileNotFoundError:
        raise _bad(path, "there is no such file") from None
    except (ValueError, KeyError, TypeError, AttributeError):  # a report is JSON, too
        raise _bad(path, "it is not the evidence of a run") from None
    return found


def _bad(path: Path, what: str) -> BadInput:
    where, next_step = Where(str(path)), "give the evidence.json of a run's folder"
    return BadInput(what, code="bad-evidence", where=where, next_step=next_step)
