"""What is proved of images, as this machine knows it: a file for each worker image, to be taken to others."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput
from rocstack.base.words import Value
from rocstack.deploy.read.journal import VerifiedLevel
from rocstack.edge import files

FOLDER = "verified"  # below the runs'
SCHEMA = 1


class Claim(Value):
    """What is proved of a worker image, beside this control image, on one cluster; None: nothing any more."""

    cluster: str
    control: str  # its control node
    control_id: str
    verified: VerifiedLevel | None


def claims(out: Path, worker_id: str, control_id: str) -> tuple[VerifiedLevel, ...]:
    """What this machine knows to be proved of these images.

    Raises:
        BadInput: the file isn't one.
    """
    known = read(file_of(out, worker_id))
    return tuple(each.verified for each in known if each.verified and each.control_id == control_id)


def file_of(out: Path, worker_id: str) -> Path:
    return out / FOLDER / f"{worker_id.removeprefix('sha256:')}.json"


def write(file: Path, worker_id: str, claims: Iterable[Claim]) -> None:
    data = {"schema": SCHEMA, "image": worker_id, "claims": [each.model_dump(mode="json") for each in claims]}
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write(file, json.dumps(data, indent=1) + "\n")


def read(file: Path) -> list[Claim]:
    """
    Raises:
        BadInput: the file isn't one.
    """
    try:
        data: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA or not file.stem or data["image"] != f"sha256:{file.stem}":
            raise ValueError("another image's")
        return [Claim.model_validate_json(json.dumps(each)) for each in data["claims"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError):  # ValueError: also pydantic's
        raise BadInput.of("bad-verified", file) from None
