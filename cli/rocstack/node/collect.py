"""Copies from a node what the parsers read. Read-only, no root needed, standard library only: it travels to nodes
that have nothing of ours. What is read stands in collect_paths.py.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import (
    collect_paths,  # relative: Ansible ships this folder below another name
)
from .collect_commands import COMMANDS, ask_kernel, run_command
from .collect_paths import MODEL_FOLDER
from .recording import HOST, SCHEMA, is_index, pack

LARGEST_TEXT = 1 << 20
LARGEST_LIBRARY = 4 << 20
# Answers of the kernel that mean "there is no such thing here", as speed does of a port that is down.
ABSENT_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODEV, errno.ENXIO, errno.EOPNOTSUPP)
BDF = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
NO_GID = re.compile(r"[0:\s]*$")


def collect(root: str = "/", *, run: bool = True, libraries: bool = True, tree: bool = False) -> dict[str, Any]:
    """What lies below `root`, as a recording's plain dict (Recording.from_dict reads it).

    Where root is "/", the kernel is asked as well (ioctl), and with `run` programs for their versions. `libraries`
    adds the libraries' bytes, `tree` what real tools read of /sys beyond what the parsers do.
    """
    live = os.path.abspath(root) == "/"
    run = run and live
    node = _Node(root)
    with ThreadPoolExecutor(max_workers=len(COMMANDS)) as pool:
        running = {line: pool.submit(run_command, line) for line in COMMANDS} if run else {}
        node.read(libraries)
        answers = {line: job.result() for line, job in running.items()}
    if run and node.blobs:
        line = "rpm -qf --qf %{NAME}\\t%{VERSION}-%{RELEASE}\\n " + " ".join(sorted(node.blobs))
        answers[line] = run_command(line)
    for line, (answer, why) in answers.items():
        if answer is not None:
            node.commands[line] = answer
        elif why:
            node.unread[line] = why
    if live:
        node.commands.update({line: {"code": 0, "out": out} for line, out in ask_kernel(node.netdevs()).items()})
    node.read_ours()
    if tree:
        node.read_tree()
    return node.to_dict()


class _Node:
    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self.host = ""
        self.files: dict[str, str] = {}
        self.blobs: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.folders: set[str] = set()
        self.devices: dict[str, dict[str, Any]] = {}
        self.commands: dict[str, dict[str, Any]] = {}
        self.unread: dict[str, str] = {}
        self._steps: dict[str, str] = {}

    def to_dict(self) -> dict[str, Any]:
        host = self.host or self.files.get("/proc/sys/kernel/hostname", "").strip()
        full = {path.rpartition("/")[0] for path in (*self.files, *self.blobs, *self.links, *self.devices)}
        return {
            "schema": SCHEMA, "host": host if HOST.fullmatch(host) else "",  # a kernel takes any bytes
            "files": self.files, "blobs": self.blobs, "links": self.links, "folders": sorted(self.folders - full),
            "devices": self.devices, "commands": self.commands, "unread": self.unread,
        }  # fmt: skip

    def read(self, libraries: bool) -> None:
        self.host = (self._load("/proc/sys/kernel/hostname") or "").strip()
        for pattern in collect_paths.PATTERNS:
            self.take(pattern)
        for pattern, keep in collect_paths.LINES_KEPT.items():
            self.take(pattern, keep)
        for name in ("all", "default", *self.netdevs()):
            self.take("/proc/sys/net/ipv4/conf/" + name + "/" + collect_paths.ARP)
        engine = (self._load("/run/docker.pid") or "").strip()
        if engine.isdigit():
            self.take("/run/docker.pid")
            self.take("/proc/" + engine + "/limits")
        for name in self.names(collect_paths.PCI):
            self._pci(collect_paths.PCI + "/" + name)
        for port in self.find(collect_paths.IB + "/ports/*"):
            self._gids(self.real(port))
        for pattern in collect_paths.ONLY_LINKS:
            for path in self.find(pattern):
                self.real(path)  # notes the links
        for folder in collect_paths.LIBRARY_FOLDERS if libraries else ():
            for path in (*self.find(folder + "/libibverbs.so.1"), *self.find(folder + "/" + collect_paths.PROVIDERS)):
                self._library(self.real(path))
        for pattern in collect_paths.FABRIC:
            for path in self.find(pattern):
                real = self.real(path)  # notes the links, whose names tell the release
                if libraries and self._is(real) and any(self.find("/dev/cxi*")):
                    self._library(real)

    def read_ours(self) -> None:
        """What a virtual node's model says beyond /sys."""
        for source in list(self._below(MODEL_FOLDER + "/root")):
            path, text = source[len(MODEL_FOLDER + "/root") :], self._load(source)
            if text is not None:
                rows = text.partition("\n")[2]  # without the table's head
                self.files[path] = (
                    self.files[path] + rows if path in collect_paths.ADDED_TABLES and path in self.files else text
                )
                if path == "/proc/1/limits":  # the model's word, also for an engine of this machine
                    self.files.pop("/run/docker.pid", None)
        for line in self.names(MODEL_FOLDER + "/commands"):
            text = self._load(MODEL_FOLDER + "/commands/" + line)
            if text is not None:
                known = self.commands.get(line, {"out": ""})["out"] if line in collect_paths.ADDED_TABLES else ""
                self.commands[line] = {"code": 0, "out": known + text}

    def read_tree(self) -> None:
        for pattern in collect_paths.TREE:
            self.take(pattern)
        for path in [path for path in self.links if path.startswith(collect_paths.PCI + "/")]:
            bridges = list(_bridges(self.real(path)))
            for bridge in bridges:
                self.links[collect_paths.PCI + "/" + bridge.rpartition("/")[2]] = bridge  # lspci goes by them
            for function in (self.real(path), *bridges):
                for pattern in collect_paths.PCI_TREE:
                    self.take(function + "/" + pattern)
                registers = self._bytes(function + "/config", collect_paths.PCI_HEADER)
                if registers is not None:
                    self.blobs[function + "/config"] = pack(registers)

    def netdevs(self) -> list[str]:
        """Network devices with hardware below them, and bonds."""
        here = "/sys/class/net/"
        return [n for n in self.names(here) if any(self._is(here + n + "/" + x) for x in ("device", "bonding"))]

    def take(self, pattern: str, keep: str = "") -> None:
        for path in self.find(pattern):
            self._one(path if path.startswith("/proc/") else self.real(path), keep)

    def find(self, pattern: str) -> Iterator[str]:
        """Paths that may be there: {a,b} is either, * anything in one name."""
        for plain in _either(pattern):
            yield from self._match("", plain.strip("/").split("/"))

    def _match(self, base: str, names: list[str]) -> Iterator[str]:
        if not names:
            yield base
            return
        fits = fnmatch.filter(self.names(base), names[0]) if "*" in names[0] else [names[0]]
        for name in fits:
            yield from self._match(base + "/" + name, names[1:])

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root + folder))
        except OSError as error:
            self._missed(folder, error)
            return []

    def real(self, path: str) -> str:
        """The path with all links followed below the root; the links met are noted."""
        current = ""
        for name in path.split("/"):
            if name == "..":
                current = current.rpartition("/")[0]
            elif name not in ("", "."):
                current = self._step(current + "/" + name)
        return current or "/"

    def _step(self, path: str) -> str:
        if path not in self._steps:
            self._steps[path] = path  # where a loop of links ends
            try:
                target = os.readlink(self.root + path)
            except OSError:
                return path
            self._steps[path] = self.real(target if target[0] == "/" else path.rpartition("/")[0] + "/" + target)
            self.links[path] = self._steps[path]
        return self._steps[path]

    def _is(self, path: str) -> bool:
        return os.path.lexists(self.root + path)

    def _below(self, folder: str) -> Iterator[str]:
        for name in self.names(folder):
            path = folder + "/" + name
            if os.path.isdir(self.root + path):
                yield from self._below(path)
            else:
                yield path

    def _one(self, path: str, keep: str = "") -> None:
        try:
            status = os.lstat(self.root + path)
        except OSError as error:
            self._missed(path, error)
            return
        if stat.S_ISDIR(status.st_mode):
            self.folders.add(path)
        elif stat.S_ISREG(status.st_mode):
            text = self._load(path)
            if text is not None:
                lines = [line for line in text.splitlines(True) if re.match(keep, line)] if keep else [text]
                self.files[path] = "".join(lines)
        elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            self.devices[path] = {
                "kind": "c" if stat.S_ISCHR(status.st_mode) else "b",
                "major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev),
                "gid": status.st_gid, "mode": stat.S_IMODE(status.st_mode),
            }  # fmt: skip

    def _load(self, path: str) -> str | None:
        data = self._bytes(path, LARGEST_TEXT)
        return None if data is None else data.decode("utf-8", "replace")

    def _bytes(self, path: str, most: int) -> bytes | None:
        try:
            with open(self.root + path, "rb") as file:
                return file.read(most)
        except OSError as error:
            self._missed(path, error)
            return None

    def _missed(self, what: str, error: OSError) -> None:
        if error.errno in (errno.EACCES, errno.EPERM):
            self.unread[what] = "permission denied" + (": needs root" if os.geteuid() else "")
        elif error.errno not in ABSENT_ERRNOS:
            self.unread[what] = error.strerror or str(error)

    def _pci(self, path: str) -> None:
        """GPUs, network controllers and the bridges above them."""
        real = self.real(path)
        vendor, kind = ((self._load(real + "/" + name) or "").strip() for name in ("vendor", "class"))
        gpu = vendor == "0x1002" and kind.startswith(("0x0300", "0x0302", "0x0380", "0x1200"))
        if not gpu and not kind.startswith("0x02") and vendor != "0x17db":  # Cray's Cassini
            self.links.pop(path, None)
            return
        self.take(real + "/" + collect_paths.PCI_FUNCTION)
        for bridge in _bridges(real):
            self.take(bridge + "/" + collect_paths.PCI_BRIDGE)

    def _gids(self, port: str) -> None:
        """Rows in use, and the empty ones before them: tables have 256 rows or more."""
        rows = sorted((name for name in self.names(port + "/gids") if is_index(name)), key=int)
        table = [(row, self._load(port + "/gids/" + row) or "") for row in rows]
        while table and NO_GID.match(table[-1][1]):
            table.pop()
        for row, gid in table:
            self.files[port + "/gids/" + row] = gid
            for attribute in () if NO_GID.match(gid) else ("types", "ndevs"):
                self._one(f"{port}/gid_attrs/{attribute}/{row}")

    def _library(self, path: str) -> None:
        data = self._bytes(path, LARGEST_LIBRARY + 1)
        if data is not None and len(data) > LARGEST_LIBRARY:
            self.unread[path] = f"larger than {LARGEST_LIBRARY >> 20} MiB"
        elif data is not None:
            self.blobs[path] = pack(data)


def _bridges(function: str) -> Iterator[str]:
    """The folders of the bridges above a PCI function, the nearest first."""
    above = function.rpartition("/")[0]
    while BDF.search(above):
        yield above
        above = above.rpartition("/")[0]


def _either(pattern: str) -> list[str]:
    """The patterns that a{b,c} stands for: ab and ac. Groups don't nest."""
    head, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    group, _, tail = rest.partition("}")
    return [head + word + end for word in group.split(",") for end in _either(tail)]
