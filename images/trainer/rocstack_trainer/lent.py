"""Files of ours that somebody else's link leads to: what is made of them may be for them to read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocstack_trainer.errors import ConfigError

MOST = 40  # links on the way to a file, as Linux has it


def not_lent(path: Path) -> Path:
    """The path, unless a link of somebody else's is on the way to a file of ours.

    Raises:
        ConfigError: one is.
        OSError: it isn't there.
    """
    if path.stat().st_uid == os.geteuid():
        _place(path)
    return path


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """By what name the file can be read that was looked at, whatever its path leads to meanwhile.

    Raises:
        ConfigError: as `not_lent`.
        OSError: it can't be opened.
    """
    with path.open("rb") as file:
        name = f"/proc/self/fd/{file.fileno()}"
        if os.fstat(file.fileno()).st_uid == os.geteuid() and str(_place(path)) != os.readlink(name):
            raise ConfigError(f"{path} became another file while it was opened: it is not read")
        yield Path(name)


def _place(path: Path) -> Path:
    """Where a path leads, by links of root's and ours alone. Each step is looked at once: who swaps a link for a file
    meanwhile has the path lead elsewhere."""
    place, rest, links = Path("/"), [*reversed(path.absolute().parts[1:])], 0
    while rest:
        name = rest.pop()
        about = (place / name).lstat()
        if not stat.S_ISLNK(about.st_mode):
            place = place.parent if name == ".." else place / name
            continue
        if about.st_uid not in (0, os.geteuid()):
            raise ConfigError(
                f"{path}: user {about.st_uid} made the link {place / name} to a file of yours: it is not read"
            )
        if (links := links + 1) > MOST:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = Path(os.readlink(place / name))
        place = Path("/") if target.is_absolute() else place
        rest += [part for part in reversed(target.parts) if part != target.anchor]
    return place
