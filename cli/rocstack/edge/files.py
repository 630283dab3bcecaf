"""Files that appear as a whole or not at all, also after a power cut. (Nodes have their own: `node.files`.)"""

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from rocstack.base.text import values_of
from rocstack.node import files as node_files

PRIVATE = 0o600
MOST_SENT, MOST_VALUES = 512 << 20, 50_000_000  # bytes and values of what is sent: of many nodes there are fewer


def write(path: Path, text: str, *, private: bool = False) -> None:
    """Replaces the content of `path` with `text`. Only this user can read a `private` file."""
    with writing(path, private=private) as file:
        file.write(text.encode())


@contextmanager
def writing(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """A new file beside `path`. It takes the place of `path` when the block ends, and goes if the block fails. What
    killed processes left of the same file goes as well; one that somebody else is writing stays."""
    sweep(path)
    with _beside(path) as file:
        try:
            yield file
            file.flush()
            os.fchmod(file.fileno(), PRIVATE if private else 0o666 & ~_umask())
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(file.name)
            raise
    _sync_folder(path)


def sweep(path: Path) -> None:
    """Removes what killed processes left of `path` beside it, half-written."""
    node_files.sweep(str(path.absolute().parent), prefix(path), {os.geteuid()})


def prefix(path: Path) -> str:
    """Of a temporary file or folder beside `path`, as `sweep` knows it."""
    return f".{path.name}.rocstack-"


def _beside(path: Path) -> IO[bytes]:
    """A new file, held so that nobody sweeps it."""
    while True:
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115
            dir=path.absolute().parent, prefix=prefix(path), delete=False
        )
        if node_files.hold(file.fileno()):
            return file
        file.close()


def leads_out(folder: Path) -> Path | None:
    """A link somewhere in the folder to what isn't in it, if there is one.

    Raises:
        OSError: a folder in it may be entered, but doesn't show what is there.
    """
    own, rest = Path(os.path.realpath(folder)), [str(folder)]
    while rest:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(rest.pop()) as entries:
            for each in entries:
                if each.is_symlink() and not Path(os.path.realpath(each.path)).is_relative_to(own):
                    return Path(each.path)
                if each.is_dir(follow_symlinks=False):
                    rest.append(each.path)
    return None


def read_sent(path: Path) -> bytes:
    """JSON that somebody sent. In its folder a link may stand for it that leads to a device, or a pipe.

    Raises:
        OSError: it can't be read. ValueError: it is no file, or larger than any.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no file")
        data = file.read(MOST_SENT + 1)
    if len(data) > MOST_SENT or values_of(data) > MOST_VALUES:
        raise ValueError("it is larger than any")
    return data


def create_private(path: Path, text: str) -> None:
    """Makes a file that only this user can read.

    Raises:
        FileExistsError: there is one already.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    try:
        with open(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(handle)
    except BaseException:
        path.unlink()
        raise
    _sync_folder(path)


@contextmanager
def in_memory(text: str) -> Iterator[str]:
    """The path of a file that only this user can read, and that is in memory alone: it goes with this process, also
    where that is killed. Elsewhere than on Linux it is a temporary file, which a kill leaves there."""
    if sys.platform != "linux":
        with tempfile.NamedTemporaryFile("w", prefix="rocstack-") as file:
            file.write(text)
            file.flush()
            yield file.name
        return
    with open(os.memfd_create("rocstack"), "w") as memory:
        os.fchmod(memory.fileno(), PRIVATE)
        memory.write(text)
        memory.flush()
        yield f"/proc/{os.getpid()}/fd/{memory.fileno()}"


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_folder(path: Path) -> None:
    """So that the new name is on the disk, too."""
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
