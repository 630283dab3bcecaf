"""DATA on the shared file system: a folder for each person, readable by her and the service alone, by POSIX ACLs.

What jobs write is their owner's, who may put anything there, links too. So it is opened step by step, no link is
followed, and only ordinary files of the owner are read.
"""

import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from rocstack.base.errors import Missing
from rocstack.service.failures import NotThere, TooBig
from rocstack.service.identity import Caller

LISTED = 10_000  # names of a folder
NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,120}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Storage:
    root: Path

    def check(self) -> None:
        """
        Raises:
            Missing: the folder isn't there or not the service's, setfacl isn't installed, or no ACLs are kept there.
        """
        try:
            self.root.mkdir(mode=0o711, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.root, prefix=".acl-") as folder:
                _setfacl(["--modify", f"user:{os.getuid() + 1}:r-x"], Path(folder))
            self.root.chmod(0o711)
        except FileNotFoundError as error:
            if "setfacl" in str(error):
                raise Missing.of("no-setfacl") from None
            raise Missing.of("no-data-folder", path=self.root, why=error.strerror) from None
        except OSError as error:
            raise Missing.of("no-data-folder", path=self.root, why=error.strerror) from None
        except subprocess.CalledProcessError as error:
            why = (error.stderr or b"").decode(errors="replace").strip()[:200]
            raise Missing.of("no-acls", path=self.root, why=why) from None

    # places
    def files(self, caller: Caller) -> Path:
        """Her files: she can read them and change nothing."""
        return self._readable(caller, "files")

    def adapters(self, caller: Caller) -> Path:
        return self._readable(caller, "adapters")

    def parts(self, caller: Caller) -> Path:
        """Uploads that aren't whole yet: nobody reads them."""
        self._home(caller)
        return _made(self.root / caller.name / "uploads", 0o700)

    def job(self, caller: Caller, key: str) -> Path:
        """The folder in which a job runs; what it writes there is its owner's, and the service can read it."""
        self._home(caller)
        folder = self._readable(caller, "jobs") / named(key)
        if not folder.exists():
            me = os.getuid()
            _made(folder, 0o700)
            _setfacl(["--modify", f"user:{caller.uid}:rwx"], folder)
            # The mask without `w`: the trainer takes no checkpoints from a folder that others could write to.
            default = f"user::rwx,user:{me}:r-x,group::---,mask::r-x,other::---"
            _setfacl(["--default", "--modify", default], folder)
        return folder

    def _readable(self, caller: Caller, name: str) -> Path:
        self._home(caller)
        folder = self.root / caller.name / name
        if not folder.exists():
            _made(folder, 0o700)
            _setfacl(["--modify", f"user:{caller.uid}:r-x"], folder)
            default = f"user::rwx,user:{caller.uid}:r-x,group::---,mask::r-x,other::---"
            _setfacl(["--default", "--modify", default], folder)
        return folder

    def _home(self, caller: Caller) -> None:
        folder = self.root / named(caller.name)
        if not folder.exists():
            _made(folder, 0o700)
            _setfacl(["--modify", f"user:{caller.uid}:r-x"], folder)

    # what jobs wrote
    @contextmanager
    def opened(self, caller: Caller, *parts: str) -> Iterator[BinaryIO]:
        """An ordinary file below DATA/USER, hers or the service's own.

        Raises:
            FileNotFoundError: there is none, or something else stands there.
        """
        with self._folder(caller, parts[:-1]) as folder:
            file = _opened(parts[-1], _FILE, folder)
            try:
                about = os.fstat(file)
                if not stat.S_ISREG(about.st_mode) or about.st_uid not in (caller.uid, os.getuid()):
                    raise FileNotFoundError(parts[-1])
                if about.st_nlink > 1:  # a name for somebody else's file
                    raise FileNotFoundError(parts[-1])
            except BaseException:
                os.close(file)
                raise
            with os.fdopen(file, "rb") as stream:
                yield stream

    def listed(self, caller: Caller, *parts: str) -> list[tuple[str, float]]:
        """Names in a folder below DATA/USER and when they were changed, of very many only some; nothing where there is
        none."""
        try:
            with self._folder(caller, parts) as folder, os.scandir(folder) as entries:
                found = []
                for each in islice(entries, LISTED):
                    with suppress(OSError):
                        found.append((each.name, each.stat(follow_symlinks=False).st_mtime))
                return sorted(found)
        except OSError:
            return []

    @contextmanager
    def _folder(self, caller: Caller, parts: tuple[str, ...]) -> Iterator[int]:
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in (caller.name, *parts):
                deeper = _opened(part, _FOLDER, folder)
                os.close(folder)
                folder = deeper
            yield folder
        finally:
            os.close(folder)

    def copied(self, caller: Caller, source: tuple[str, ...], to: Path, most: int) -> int:
        """A file that a job wrote becomes the service's own; how many bytes it has.

        Raises:
            FileNotFoundError, TooBig
        """
        with self.opened(caller, *source) as stream, to.open("xb") as out:
            done = 0
            while piece := stream.read(1 << 20):
                done += len(piece)
                if done > most:
                    raise TooBig.of("adapter-too-big", most=most >> 20)
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        to.chmod(0o640)  # with the ACL: its owner may read it
        return done


def new_id(prefix: str) -> str:
    """A later one is greater: lists have an order within a second, too."""
    return f"{prefix}-{int(time.time() * 1000):011x}{secrets.token_hex(7)}"


def named(name: str) -> str:
    """A name that is one part of a path.

    Raises:
        NotThere: it is none.
    """
    if not NAMES.fullmatch(name):
        raise NotThere.of("no-such-thing", what="name")
    return name


def remove(path: Path) -> None:
    """A file or folder of the service's own."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _opened(name: str, flags: int, folder: int) -> int:
    try:
        if "/" in name or name in ("", ".", ".."):
            raise FileNotFoundError(name)
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:  # a link, a part that is no folder, a file that nobody may read
        raise FileNotFoundError(error.errno, error.strerror, name) from None


def _made(folder: Path, mode: int) -> Path:
    with suppress(FileExistsError):
        folder.mkdir(mode=mode)
    return folder


def _setfacl(options: list[str], path: Path) -> None:
    subprocess.run(["setfacl", *options, "--", str(path)], check=True, capture_output=True, timeout=20)
