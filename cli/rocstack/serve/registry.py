"""The adapters that may be asked for, by user. A look into the folders reads names alone, so ten thousand cost
milliseconds; an adapter's files are opened when it is used, and nothing outside its folder can be reached by a name."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rocstack.base.errors import BadInput, did_you_mean
from rocstack.serve.adapter_check import CONFIG, PICKLED, WEIGHTS
from rocstack.serve.settings import AdapterSource

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
MOST = 1_000_000  # adapters
MOST_OWN = 10_000  # of one user that are listed; further ones are found by their names
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO in a file's place would wait for ever


@dataclass(frozen=True)
class Registered:
    name: str
    owner: str | None  # None: shared by all users
    root: str  # folder of the source, as the operator named it
    parts: tuple[str, ...]  # folders below it, none of them a link

    @property
    def key(self) -> tuple[str, str]:
        return self.owner or "", self.name


@dataclass(frozen=True)
class OpenAdapter:
    """Its two files, open, and what changes when they do."""

    config: int
    weights: int
    size: int  # bytes of the weights
    stamp: str


class FolderRegistry:
    def __init__(self, sources: Iterable[AdapterSource]) -> None:
        self._sources = tuple(sources)
        self._owned: dict[str | None, dict[str, Registered]] = {}
        self._listed: dict[str, list[Registered]] = {}  # what `visible` gave since the last look

    def rescan(self) -> int:
        """Looks into all folders; gives the number of adapters. A source that isn't there has none at the moment.

        Raises:
            BadInput: there are more than a million.
        """
        found: dict[str | None, dict[str, Registered]] = {}
        number = 0
        for source in self._sources:
            for each in _look(source):
                found.setdefault(each.owner, {}).setdefault(each.name, each)
                number += 1
                if number > MOST:
                    raise BadInput.of("too-many-adapters", Path(source.folder), most=f"{MOST:,}")
        self._owned, self._listed = found, {}
        return number

    def find(self, user: str, name: str) -> Registered | None:
        """The user's own, else the shared one; also one that was written since the last look."""
        if not NAME.fullmatch(name):
            return None
        for owner in (user, None):
            if known := self._owned.get(owner, {}).get(name):
                return known
        for each in self._candidates(user, name):
            with suppress(OSError), folder(each):
                self._owned.setdefault(each.owner, {})[name] = each
                self._listed = {}
                return each
        return None

    def has(self, adapter: Registered) -> bool:
        return self._owned.get(adapter.owner, {}).get(adapter.name) == adapter

    def visible(self, user: str) -> list[Registered]:
        """By name. The user's own hides a shared one of the same name."""
        listed = self._listed
        if user not in listed:
            found = self._owned.get(None, {}) | self._owned.get(user, {})
            listed[user] = [found[name] for name in sorted(found)]
        return listed[user]

    def _candidates(self, user: str, name: str) -> Iterator[Registered]:
        for source in sorted(self._sources, key=lambda each: each.layout == "shared"):
            if source.layout == "shared":
                yield Registered(name, None, source.folder, (name,))
            elif NAME.fullmatch(user):
                yield Registered(name, user, source.folder, (user, "adapters", name))


def _look(source: AdapterSource) -> Iterator[Registered]:
    if source.layout == "shared":
        for name in _folders(source.folder):
            yield Registered(name, None, source.folder, (name,))
        return
    for user in _folders(source.folder):
        for name in islice(_folders(f"{source.folder}/{user}/adapters", os.O_NOFOLLOW), MOST_OWN):
            yield Registered(name, user, source.folder, (user, "adapters", name))


def _folders(path: str, flags: int = 0) -> Iterator[str]:
    """Folders below it that have a name as adapters have; links are none."""
    with suppress(OSError):
        here = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags)
        try:
            with os.scandir(here) as entries:
                yield from (
                    each.name for each in entries if NAME.fullmatch(each.name) and each.is_dir(follow_symlinks=False)
                )
        finally:
            os.close(here)


@contextmanager
def folder(adapter: Registered) -> Iterator[int]:
    """The adapter's folder, opened step by step: a link on the way is refused.

    Raises:
        OSError: it isn't there, or there is a link.
    """
    here = os.open(adapter.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in adapter.parts:
            below = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


@contextmanager
def opened(adapter: Registered) -> Iterator[OpenAdapter]:
    """
    Raises:
        BadInput: a file is missing, a link, or none; or the weights are pickled.
    """
    files: list[int] = []
    try:
        with folder(adapter) as here:
            for name in (CONFIG, WEIGHTS):
                files.append(_file(here, name))
        states = [os.fstat(each) for each in files]
        stamp = ".".join(f"{each.st_ino:x}-{each.st_size:x}-{each.st_mtime_ns:x}" for each in states)
        yield OpenAdapter(files[0], files[1], states[1].st_size, stamp)
    except FileNotFoundError:
        raise BadInput.of("adapter-gone", name=adapter.name) from None
    except NotADirectoryError:
        raise BadInput.of("adapter-unread", file=adapter.name, why="its folder is a link, or no folder") from None
    except OSError as error:
        raise BadInput.of("adapter-unread", file=adapter.name, why=error.strerror) from None
    finally:
        for each in files:
            os.close(each)


def _file(here: int, name: str) -> int:
    try:
        file = os.open(name, _FILE, dir_fd=here)
    except FileNotFoundError:
        if name == WEIGHTS and any(_exists(each, here) for each in PICKLED):
            raise BadInput.of("adapter-pickled") from None
        raise BadInput.of("adapter-unread", file=name, why="it isn't there") from None
    except OSError as error:
        raise BadInput.of("adapter-unread", file=name, why=f"it is a link, or {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise BadInput.of("adapter-unread", file=name, why="it is no file")
    return file


def _exists(name: str, here: int) -> bool:
    with suppress(OSError):
        os.stat(name, dir_fd=here, follow_symlinks=False)
        return True
    return False


def hint(name: str, known: Iterable[str]) -> str:
    """ ": did you mean 'x'?" among many names: only those that begin and end most like it are compared closely."""
    near = sorted(known, key=lambda each: -_alike(name, each))[:64]
    words = did_you_mean(name[:96], near)
    return f": {words}" if words and words.startswith("did") else ""


def _alike(one: str, other: str) -> int:
    """Letters that both have at the start, and at the end."""
    return _start(one, other) + _start(one[::-1], other[::-1])


def _start(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
