"""Files of an order: written at once or not at all, and only where they differ. Standard library only."""

from __future__ import annotations

import base64
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from .engine import NodeError, Row

PREFIX = ".rocstack-"  # of a file that is being written
Entry = Row  # {"path", "content": base64, "mode": "0600", "uid", "gid"}


def entry(path: str, content: bytes, mode: int) -> Entry:
    """A file of whoever runs this."""
    text = base64.b64encode(content).decode()
    return {"path": path, "content": text, "mode": f"{mode:o}", "uid": os.geteuid(), "gid": os.getegid()}


def ensure(entries: list[Entry]) -> list[str]:
    """Makes the files so; gives the paths of those that were not. What a killed run left half-written beside them goes.

    Raises:
        NodeError: one can't be written; says which and why, never what is in it.
    """
    for folder in {os.path.dirname(str(file["path"])) for file in entries}:
        sweep(folder, PREFIX, {os.geteuid(), *(int(file["uid"]) for file in entries)})
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


def remove(paths: list[str]) -> list[str]:
    """Gives those that were there.

    Raises:
        NodeError: one can't be removed.
    """
    gone = []
    for path in paths:
        with explained(path, "removed"), suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
            gone.append(path)
    return gone


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


def hold(handle: int) -> bool:
    """Takes the lock by which `sweep` sees that somebody still works with it. False: it was swept a moment before."""
    fcntl.flock(handle, fcntl.LOCK_EX)
    return os.fstat(handle).st_nlink > 0


def sweep(folder: str, prefix: str, owners: Collection[int]) -> None:
    """Removes the temporary files and folders with `prefix` that killed processes left: those of `owners` that nobody
    holds. Links are not followed."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        for name in os.listdir(folder):
            if re.fullmatch(re.escape(prefix) + "[a-z0-9_]{8}", name):  # as tempfile names them
                with suppress(OSError):
                    _remove_if_left(os.path.join(folder, name), owners)


def _remove_if_left(path: str, owners: Collection[int]) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(handle)
        if status.st_uid in owners:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stat.S_ISDIR(status.st_mode):
                shutil.rmtree(path)
            elif stat.S_ISREG(status.st_mode):
                os.unlink(path)
    finally:
        os.close(handle)


def write(path: str, content: bytes, mode: int, uid: int, gid: int) -> None:
    """Nobody sees half a file, or one with other rights, not even after a power cut."""
    descriptor, new = tempfile.mkstemp(prefix=PREFIX, dir=os.path.dirname(path))
    while not hold(descriptor):
        os.close(descriptor)
        descriptor, new = tempfile.mkstemp(prefix=PREFIX, dir=os.path.dirname(path))
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
