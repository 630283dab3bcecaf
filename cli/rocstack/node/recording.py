"""What was read off a node, before anybody interprets it: a small file system as a value.

A collector fills it on the node, a node model makes one out of data, `probe --record` saves one; the parsers read
it and nothing else. Paths are the node's own and absolute, and files lie under their real path: `links` holds the
symbolic links on the way, as they were found (`/sys/class/net/eth0` -> `/sys/devices/...`).
"""

from __future__ import annotations

import base64
import gzip
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

SCHEMA = 1
LARGEST = 64 << 20  # bytes of all blobs; the collector takes libraries of up to 4 MiB
LONGEST = 2048  # bytes of a path
MOST_FOLDERS = 50_000  # the node models have some hundreds
# Names in a folder. Cards are compared with each other; of one there may be hundreds of virtual functions.
MOST_NAMES = {
    "/sys/class/kfd/kfd/topology/nodes": 256,
    "/sys/bus/pci/devices": 4096,
    "/sys/class/net": 4096,
    "/sys/class/infiniband": 1024,
}
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # as long as a kernel lets a node call itself
T = TypeVar("T")
MODEL_FILE = "/sys/devices/virtual/rocstack/model"  # only a virtual node has it: the node model's name


@dataclass(frozen=True)
class DeviceNode:
    """A device node under /dev. `kind` is c or b; `mode` holds the permission bits."""

    kind: str
    major: int
    minor: int
    gid: int
    mode: int


@dataclass(frozen=True)
class RecordedAnswer:
    """What a command said."""

    code: int
    out: str


@dataclass(frozen=True)
class Recording:
    host: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)  # what is not text: libraries, PCI config space
    links: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()  # empty ones, which no file speaks of
    devices: Mapping[str, DeviceNode] = field(default_factory=dict)
    commands: Mapping[str, RecordedAnswer] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)  # path or command -> why it could not be read
    _children: dict[str, dict[str, None]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for path in self.folders:
            self._children.setdefault(path, {})
        for path in (*self.files, *self.blobs, *self.links, *self.folders, *self.devices):
            if len(path) > LONGEST:  # each of its folders is kept by its whole path
                raise ValueError(f"{path!r:.80} is no path")
            while path not in ("", "/"):
                if len(self._children) > MOST_FOLDERS:
                    raise ValueError(f"more than {MOST_FOLDERS} folders")
                path, _, name = path.rpartition("/")
                known = self._children.setdefault(path or "/", {})
                if name in known:
                    break
                known[name] = None

    @property
    def virtual(self) -> str | None:
        """The node model's name, where this is no real machine."""
        return self.text(MODEL_FILE)

    def real(self, path: str) -> str:
        """The path with all links followed."""
        current = ""
        for name in path.strip("/").split("/"):
            if name == "..":
                current = current.rpartition("/")[0]
            elif name not in ("", "."):
                current += "/" + name
                current = self.links.get(current, current)
        return current or "/"

    def text(self, path: str) -> str | None:
        """A file's text without the white space around it; None where there is no such file."""
        content = self.files.get(self.real(path))
        return None if content is None else content.strip()

    def number(self, path: str, base: int = 10) -> int | None:
        """A file that holds one number; None where it doesn't."""
        try:
            return int(self.text(path) or "", base)
        except ValueError:
            return None

    def names(self, folder: str) -> list[str]:
        """What lies in a folder, in the order in which people count (uverbs2 before uverbs10)."""
        return sorted(self._children.get(self.real(folder), {}), key=natural_key)

    def exists(self, path: str) -> bool:
        real = self.real(path)
        return real in self.files or real in self.blobs or real in self.devices or real in self._children

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; what is not text is packed."""
        return {
            "schema": SCHEMA,
            "host": self.host,
            "files": dict(self.files),
            "blobs": {path: pack(data) for path, data in self.blobs.items()},
            "links": dict(self.links),
            "folders": list(self.folders),
            "devices": {path: vars(node) for path, node in self.devices.items()},
            "commands": {line: vars(answer) for line, answer in self.commands.items()},
            "unread": dict(self.unread),
        }

    @staticmethod
    def from_dict(data: Any) -> Recording:
        """
        Raises:
            ValueError: not a recording, or one of another schema version.
        """
        schema = data.get("schema") if isinstance(data, dict) else None
        if type(schema) is not int or schema != SCHEMA:
            raise ValueError(f"a recording of schema {schema!r:.40}, this rocstack reads {SCHEMA}")
        try:
            recording = Recording(
                host=_host(data["host"]),
                files=_texts(data["files"]),
                blobs=_blobs(_texts(data["blobs"])),
                links=_texts(data["links"]),
                folders=tuple(_text(path) for path in _of(list, data["folders"])),
                devices={_text(path): _node(**node) for path, node in data["devices"].items()},
                commands={_text(line): _answer(**answer) for line, answer in data["commands"].items()},
                unread=_texts(data["unread"]),
            )
            recording.check_paths()
        except (KeyError, TypeError, AttributeError, ValueError, zlib.error) as error:
            raise ValueError(f"not a recording: {error!r:.200}") from error
        return recording

    def check_paths(self) -> None:
        """A tree of them is written to disks, and none may lead out of it.

        Raises:
            ValueError: a path or a link's target is not absolute and normal, or a file stands where a folder does; a
                folder has more names than any node's.
        """
        leaves = {*self.files, *self.blobs, *self.links, *self.devices}
        for path in (*leaves, *self.folders, *self.links.values()):
            plain = path[:1] == "/" != path[1:2] and "\0" not in path and os.path.normpath(path) == path
            if not plain or len(path.encode()) > LONGEST or any(len(name.encode()) > 255 for name in path.split("/")):
                raise ValueError(f"{path!r:.80} is no path")
        for path in leaves & self._children.keys():
            raise ValueError(f"{path!r:.80} is a folder, and is not")
        for folder, most in MOST_NAMES.items():
            if len(self._children.get(self.real(folder), ())) > most:
                raise ValueError(f"{folder} has more than {most} names")

    def write_tree(self, root: Path, below: str = "/sys") -> None:
        """Makes a tree that real tools read: what lies below one folder, without that folder's name; links are
        relative, so the tree may be mounted anywhere. Device nodes are not made. Nothing is written through a link
        that is there below `root`.

        Raises:
            ValueError: as `check_paths`.
            OSError: it can't be written; a link or another kind of file is in the way.
        """
        self.check_paths()
        prefix = below.rstrip("/") + "/"
        root.mkdir(parents=True, exist_ok=True)
        for path in self.folders:
            if path.startswith(prefix):
                with _opened(root, path[len(prefix) :]):
                    pass
        for path, data in {**{path: text.encode() for path, text in self.files.items()}, **self.blobs}.items():
            if path.startswith(prefix):
                folder, _, name = path[len(prefix) :].rpartition("/")
                with _opened(root, folder) as handle:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
                    with open(os.open(name, flags, 0o666, dir_fd=handle), "wb") as file:
                        file.write(data)
        for path, to in self.links.items():
            if path.startswith(prefix) and to.startswith(prefix):
                folder, _, name = path[len(prefix) :].rpartition("/")
                with _opened(root, folder) as handle:
                    aim = os.path.relpath(to, path.rpartition("/")[0])
                    if not _is_link(name, aim, handle):
                        os.symlink(aim, name, dir_fd=handle)


@contextmanager
def _opened(root: Path, folder: str) -> Iterator[int]:
    """A folder below `root`, made where it isn't there; never through a link."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in filter(None, folder.split("/")):
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=handle)
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def _is_link(name: str, to: str, folder: int) -> bool:
    try:
        return os.readlink(name, dir_fd=folder) == to
    except OSError:
        return False


def is_index(name: str) -> bool:
    """A name that is a number, as those of ports and rows of tables are."""
    return name.isascii() and name.isdigit() and len(name) < 10


def natural_key(name: str) -> tuple[str, int, str]:
    """Sorts numbers at the end of a name by value."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :][-18:] or 0), name  # Python refuses to read thousands of digits


def pack(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def unpack(text: str, most: int = LARGEST) -> bytes:
    """
    Raises:
        ValueError, zlib.error: not packed by `pack`, broken off, or more than `most` bytes.
    """
    reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
    data = reader.decompress(base64.b64decode(text, validate=True), most + 1)  # 0 would be no limit
    if not reader.eof or len(data) > most:
        raise ValueError(f"packed bytes that break off or are more than {most}")
    return data


def _blobs(packed: Mapping[str, str]) -> dict[str, bytes]:
    """All together are no larger than one may be."""
    blobs, left = {}, LARGEST
    for path, text in packed.items():
        blobs[path] = unpack(text, left)
        left -= len(blobs[path])
    return blobs


def _of(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.80} is no {kind.__name__}")
    return value


def _text(value: Any) -> str:
    """A name on a node may be any bytes; what is no text in them becomes "?", since JSON can't hold it."""
    return _of(str, value).encode("utf-8", "replace").decode()


def _host(value: Any) -> str:
    """It names a file, too. Empty where a node doesn't say."""
    if _of(str, value) and not HOST.fullmatch(value):
        raise ValueError(f"{value!r:.80} is no host's name")
    return str(value)


def _texts(table: Any) -> dict[str, str]:
    return {_text(name): _text(text) for name, text in table.items()}


def _node(kind: Any, **numbers: Any) -> DeviceNode:
    return DeviceNode(_text(kind), **{name: _of(int, number) for name, number in numbers.items()})


def _answer(code: Any, out: Any) -> RecordedAnswer:
    return RecordedAnswer(_of(int, code), _text(out))
