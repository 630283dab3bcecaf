"""A vendor's archive at an address of the site: fetched once, and compared with the sha256 that release.yml says."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import requests

from rocstack.base.errors import CheckFailed, Missing
from rocstack.edge import files
from rocstack.edge.http import HttpSession

LARGEST = 4 << 30  # bytes
PIECE = 1 << 20
TIMEOUT = (10.0, 60.0)  # seconds to connect, and of silence


def fetched(url: str, sha256: str, folder: Path, say: Callable[[str], None], ca: str = "") -> Path:
    """The archive, in a folder of its own below `folder`.

    Raises:
        Missing: the address can't be reached, or doesn't have it.
        CheckFailed: it is another archive, or too large.
    """
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", urlsplit(url).path.rpartition("/")[2]).lstrip(".") or "archive"
    target = folder / sha256[:16] / name
    if target.is_file() and _sha256(target) == sha256:
        return target
    say(f"fetching {_shown(url)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    summed, size = hashlib.sha256(), 0
    try:
        with HttpSession() as session:
            answer = session.get(url, stream=True, timeout=TIMEOUT, verify=ca or True)
            answer.raise_for_status()
            with files.writing(target) as file:
                for piece in answer.iter_content(PIECE):
                    size += len(piece)
                    if size > LARGEST:
                        raise CheckFailed.of("other-download", url=_shown(url), found="larger than 4 GB", sha256=sha256)
                    summed.update(piece)
                    file.write(piece)
                if summed.hexdigest() != sha256:
                    found = f"sha256 {summed.hexdigest()}"
                    raise CheckFailed.of("other-download", url=_shown(url), found=found, sha256=sha256)
    except (requests.exceptions.RequestException, ValueError) as error:  # ValueError: where a redirect leads is none
        raise Missing.of(
            "download-failed", url=_shown(url), why=re.sub(r"://[^/@\s]*@", "://***@", str(error))
        ) from None
    return target


def _shown(url: str) -> str:
    """Without a name, a password and a query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
