"""Files of an order: written at once or not at all, and only where they differ. Standard library only."""

from __future__ import annotations

import base64
import errno
import os
import stat
import tempfile

from .engine import Failed, Row

Entry = Row  # {"path", "content": base64, "mode": "0600", "uid", "gid"}


def entry(path: str, content: bytes, mode: int) -> Entry:
    """A file of whoever runs this."""
    text = base64.b64encode(content).decode()
    return {"path": path, "content": text, "mode": f"{mode:o}", "uid": os.geteuid(), "gid": os.getegid()}


def ensure(wanted: list[Entry]) -> list[str]:
    """Makes the files so; gives the paths of those that were not.

    Raises:
        Failed: one can't be written; says which and why, never what is in it.
    """
    return [file["path"] for file in wanted if _ensure(file)]


def differing(wanted: list[Entry]) -> list[str]:
    """The paths of those that are not as they should be."""
    return [file["path"] for file in wanted if not _same(file)]


def _ensure(file: Entry) -> bool:
    path = str(file["path"])
    try:
        if _same(file):
            return False
        _folder(os.path.dirname(path))
        write(path, base64.b64decode(file["content"]), int(file["mode"], 8), int(file["uid"]), int(file["gid"]))
    except OSError as error:
        raise Failed(f"{path} can't be written: {error.strerror or error}", kind="file") from None
    return True


def _same(file: Entry) -> bool:
    try:
        # Nothing of ours is a link; one that somebody put there could lead to any file.
        descriptor = os.open(file["path"], os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise
    with open(descriptor, "rb") as opened:
        found = os.fstat(descriptor)
        has = stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid
        wants = int(file["mode"], 8), int(file["uid"]), int(file["gid"])
        return stat.S_ISREG(found.st_mode) and has == wants and opened.read() == base64.b64decode(file["content"])


def _folder(path: str) -> None:
    """Makes a folder for files; one for keys is closed to others, also where somebody opened it."""
    mode = 0o700 if os.path.basename(path) == "keys" else 0o755
    if not os.path.isdir(path):
        _folder(os.path.dirname(path))
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
