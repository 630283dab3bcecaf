"""Files of an order: written at once or not at all, and only where they differ. Standard library only."""

from __future__ import annotations

import base64
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .engine import NodeError, Row

Entry = Row  # {"path", "content": base64, "mode": "0600", "uid", "gid"}


def entry(path: str, content: bytes, mode: int) -> Entry:
    """A file of whoever runs this."""
    text = base64.b64encode(content).decode()
    return {"path": path, "content": text, "mode": f"{mode:o}", "uid": os.geteuid(), "gid": os.getegid()}


def ensure(entries: list[Entry]) -> list[str]:
    """Makes the files so; gives the paths of those that were not.

    Raises:
        NodeError: one can't be written; says which and why, never what is in it.
    """
    return [file["path"] for file in entries if _ensure(file)]


def read_before(entries: list[Entry]) -> list[Entry]:
    """What is there instead of those that are not as they should be; without "content" where nothing is.

    Raises:
        NodeError: one can't be read.
    """
    there: list[Entry] = []
    for file in entries:
        with explained(file["path"], "read"):
            present = _read_entry(file["path"])
        if not _same(present, file):
            there.append(present or {"path": file["path"]})
    return there


def put_back(there: list[Entry]) -> None:
    """Makes it so again.

    Raises:
        NodeError: one can't be written or removed.
    """
    for file in there:
        if "content" in file:
            _ensure(file)
            continue
        with explained(file["path"], "removed"), suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(file["path"])


def _ensure(file: Entry) -> bool:
    path = str(file["path"])
    with explained(path, "written"):
        if _same(_read_entry(path), file):
            return False
        make_folder(os.path.dirname(path))
        write(path, base64.b64decode(file["content"]), int(file["mode"], 8), int(file["uid"]), int(file["gid"]))
    return True


@contextmanager
def explained(path: str, done: str) -> Iterator[None]:
    """
    Raises:
        NodeError: an OSError of the block, as "PATH can't be `done`".
    """
    try:
        yield
    except OSError as error:
        raise NodeError(f"{path} can't be {done}: {error.strerror or error}", kind="file") from None


def _same(present: Entry | None, file: Entry) -> bool:
    return present is not None and _values(present) == _values(file)


def _values(file: Entry) -> tuple[int, int, int, bytes]:
    return int(file["mode"], 8), int(file["uid"]), int(file["gid"]), base64.b64decode(file["content"])


def _read_entry(path: str) -> Entry | None:
    try:
        # Nothing of ours is a link; one that somebody put there could lead to any file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    with open(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        text, mode = base64.b64encode(opened.read()).decode(), stat.S_IMODE(status.st_mode)
    return {"path": path, "content": text, "mode": f"{mode:o}", "uid": status.st_uid, "gid": status.st_gid}


def make_folder(path: str) -> None:
    """Makes a folder for files; one for keys is closed to others, also where somebody opened it."""
    mode = 0o700 if os.path.basename(path) == "keys" else 0o755
    if not os.path.isdir(path):
        make_folder(os.path.dirname(path))
        os.mkdir(path, mode)
        os.chmod(path, mode)  # whatever the umask
    elif mode == 0o700 and stat.S_IMODE(os.stat(path).st_mode) != mode:
        os.chmod(path, mode)


def write(path: str, content: bytes, mode: int, uid: int, gid: int) -> None:
    """Nobody sees half a file, or one with other rights, not even after a power cut."""
    descriptor, new = tempfile.mkstemp(prefix=".rocstack-", dir=os.path.dirname(path))
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchown(descriptor, uid, gid)
            os.fchmod(descriptor, mode)
            file.flush()
            os.fsync(descriptor)
        os.rename(new, path)
    except BaseException:
        os.unlink(new)
        raise
