"""The logs that the doctor fetches itself: of a folder, of a job as Slurm knows it, of a node's kernel and worker."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import nsmallest
from pathlib import Path

from rocstack.base.errors import BadInput, CheckFailed, did_you_mean
from rocstack.base.text import from_json, last_line
from rocstack.deploy.plan.services import CONTROL, WORKER
from rocstack.deploy.read import inventory as inventories
from rocstack.doctor import logfile
from rocstack.doctor.logfile import FileUser
from rocstack.edge import ssh
from rocstack.edge.ssh import SshHost, bounded

MOST = 32 << 20  # bytes of a log that comes from a node: its end
SECONDS = 120.0  # that it may take
_MORE = 15.0  # that ssh waits longer: the end of it is to be heard
FILES = 10_000  # of a folder
LONGEST = 4 << 30  # bytes of a file, unpacked: one with holes, or a packed one, has any number of them
_TOO_LONG = 124  # the exit status of timeout
_LONGEST_PATH = 4096  # of Linux
_LAST_ID = 2**32 - 2
_NOBODY = FileUser(65534, 65534)
_JOB = re.compile(r"\d{1,10}(?:_\d{1,10})?(?:\+\d{1,6})?")
_KERNEL = "dmesg --time-format=iso 2>/dev/null || dmesg"
_WORKER = 'docker container inspect "$0" > /dev/null && docker logs --timestamps --tail=100000 "$0" 2>&1'


@dataclass
class Logs:
    """Logs in the order in which they are read: name, pieces. `skipped` fills while they are: name -> why."""

    files: Iterable[tuple[str, Iterable[bytes]]]
    skipped: dict[str, str] = field(default_factory=dict)


def of_folder(folder: Path) -> Logs:
    """All files below it that hold text.

    Raises:
        BadInput: there is none.
    """
    logs = Logs(())
    found = (path for path in folder.rglob("*") if not path.name.startswith("."))
    paths = nsmallest(FILES, (path for path in found if _is_file(path, folder, logs.skipped)))
    if not paths and not logs.skipped:
        raise BadInput.of("no-log-in-folder", name=folder)
    logs.files = _files(folder, paths, logs.skipped)
    return logs


def _is_file(path: Path, folder: Path, skipped: dict[str, str]) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # in a folder whose names may be read, but no more
        name = str(path.relative_to(folder))
        if len(skipped) < FILES:
            skipped[name] = f"can't read {name}: {error.strerror}"
        return False


def _files(folder: Path, paths: Sequence[Path], skipped: dict[str, str]) -> Iterator[tuple[str, Iterable[bytes]]]:
    for path in paths:
        name = str(path.relative_to(folder))
        try:
            # Root reads where a link leads as whoever made the link.
            with logfile.opened_file(str(path), _owner(str(path)) if path.is_symlink() else None) as read:
                yield name, _to_its_end(name, read, skipped)
        except BadInput as error:
            skipped[name] = error.what


def _to_its_end(name: str, read: logfile.Read, skipped: dict[str, str]) -> Iterator[bytes]:
    """What can be read of it; the rest of the folder is read, too."""
    try:
        yield from _some(name, read, skipped)
    except (*logfile.DAMAGED, OSError) as error:
        skipped[name] = f"{name} is damaged: {error}"


def _some(name: str, read: logfile.Read, skipped: dict[str, str]) -> Iterator[bytes]:
    size = 0
    for piece in logfile.pieces(read):
        if size >= LONGEST:
            skipped[name] = f"of {name} the first {LONGEST >> 30} GB were read"
            return
        size += len(piece)
        yield piece


@dataclass(frozen=True)
class _Job:
    """Of a job: its files, the node where they lie, and its user."""

    paths: tuple[str, ...]
    node: str = ""
    user: FileUser = _NOBODY


def of_job(job: str, inventory: Path | None) -> Logs:
    """What a job wrote: with an inventory as its Slurm says, read on the job's first node as the job's user; else as
    the Slurm of this machine says, or slurm-JOB.out in this folder.

    Raises:
        BadInput: no number of a job; Slurm doesn't know it; nothing of it can be read.
        CheckFailed: ssh doesn't get through.
    """
    if not _JOB.fullmatch(job):
        raise BadInput.of("bad-job", job=job)
    if inventory is None:
        logs = Logs(())
        logs.files = [(name, _local(name, user, logs.skipped)) for name, user in _own(job)]
        return logs
    known = inventories.load(inventory)
    control = known.control.name
    here = ssh.ssh_hosts(inventory, [control])[control]
    in_control = ["docker", "exec", CONTROL, *bounded(ssh.TIMEOUT_S)]
    found = _asked(job, lambda words: ssh.run(here, [*in_control, *words]))
    if found.node not in {host.name for host in known.nodes}:
        raise BadInput.of("job-node-unknown", job=job, node=found.node, path=inventory)
    hosts = ssh.ssh_hosts(inventory, [found.node])
    as_user = ["docker", "exec", f"--user={found.user.uid}:{found.user.gid}", WORKER, *bounded(SECONDS)]
    tail = [*as_user, "tail", "-c", str(MOST), "--"]  # its name is a user's word, and may lead to a pipe
    return Logs([(f"{found.node}:{path}", _read(hosts[found.node], [*tail, path])) for path in found.paths])


def _own(job: str) -> list[tuple[str, FileUser | None]]:
    """With the user as whom root reads each: the job's, or else who has put it there."""
    names = sorted({str(path) for path in Path().glob(f"slurm-{job}.*") if path.suffix in (".out", ".err")})
    if shutil.which("scontrol"):
        try:
            found = _asked(job, _here)
            return [(name, found.user) for name in found.paths]
        except BadInput:
            if not names:
                raise
    if not names:
        raise BadInput.of("no-job-here", job=job)
    return [(name, _owner(name)) for name in names]


def _owner(name: str) -> FileUser | None:
    with suppress(OSError):  # which is said as it is opened
        known = os.lstat(name)
        return FileUser(known.st_uid, known.st_gid)
    return None


def _here(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return ssh.run(SshHost("this machine"), words)


def _local(name: str, user: FileUser | None, skipped: dict[str, str]) -> Iterator[bytes]:
    with logfile.opened_file(name, user) as read:
        yield from _some(name, read, skipped)


def _asked(job: str, run: Callable[[Sequence[str]], subprocess.CompletedProcess[str]]) -> _Job:
    """From scontrol, which forgets a job some minutes after its end; then from the accounting. What users name
    themselves (the job, its files) can't pass for another field: it is JSON, or stands last."""
    done = run(["scontrol", "show", "job", job, "--json"])
    complaints = done.stderr
    try:
        found = _of_json(done.stdout)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError):
        fields = "UID,GID,NodeList,StdOut,StdErr"
        done = run(["sacct", "--expand-patterns", "-j", job, "-X", "-n", "-P", "-o", fields])
        found = _of_accounting(done.stdout)
        complaints = complaints.strip() or done.stderr
    if not found.paths:
        raise BadInput.of(
            "job-without-log", job=job, why=last_line(complaints) if complaints.strip() else "it has no output file"
        )
    return found


def _of_json(text: str) -> _Job:
    job = from_json(text)["jobs"][0]
    user = _user(int(job["user_id"]), int(job["group_id"]))
    paths = _paths(str(job["standard_output"]), str(job.get("standard_error") or ""))
    return _Job(paths, str(job.get("batch_host") or _first(str(job.get("nodes") or ""))), user)


def _of_accounting(text: str) -> _Job:
    row = text.partition("\n")[0].split("|", 4)
    try:
        return _Job(_paths(*row[3:]), _first(row[2]), _user(int(row[0]), int(row[1])))
    except (ValueError, IndexError):
        return _Job(())


def _user(uid: int, gid: int) -> FileUser:
    if not (0 <= uid <= _LAST_ID and 0 <= gid <= _LAST_ID):
        raise ValueError("no user has such a number")
    return FileUser(uid, gid)


def _paths(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name.startswith("/") and _can_be(name)))


def _can_be(name: str) -> bool:
    """Whether a file can be called so, and is no device: what isn't text comes from nobody's file system."""
    try:
        data = name.encode()
    except UnicodeEncodeError:
        return False
    return b"\0" not in data and len(data) < _LONGEST_PATH and not name.startswith("/dev/")


def _first(nodes: str) -> str:
    """
    >>> _first("n[3-5,9],m1")
    'n3'
    """
    match = re.match(r"([A-Za-z0-9.-]{0,252}[A-Za-z0-9])(?:\[(\d{1,9}))?", nodes)
    return match[1] + (match[2] or "") if match else ""


def of_node(inventory: Path, node: str) -> Logs:
    """What the kernel of a node and its worker say.

    Raises:
        BadInput, CheckFailed: no such node; its connection is no ssh.
    """
    known = inventories.load(inventory)
    roles = known.roles(node)
    if not roles:
        hint = did_you_mean(node, [host.name for host in known.nodes]) or "no such control node or worker"
        raise BadInput.of("node-not-in-inventory", node=node, path=inventory, hint=hint)
    host = ssh.ssh_hosts(inventory, [node])[node]
    logs = Logs(())
    asked = {"the kernel's log": [*bounded(SECONDS), "sh", "-c", _KERNEL]}
    asked |= {"the worker's log": [*bounded(SECONDS), "sh", "-c", _WORKER, WORKER]} if "worker" in roles else {}
    asked |= {"the controller's log": [*bounded(SECONDS), "sh", "-c", _WORKER, CONTROL]} if "control" in roles else {}
    logs.files = _each(host, asked, logs.skipped)
    return logs


def _each(host: SshHost, asked: dict[str, list[str]], skipped: dict[str, str]) -> Iterator[tuple[str, Iterable[bytes]]]:
    for name, words in asked.items():
        try:
            yield name, _read(host, words)
        except (BadInput, CheckFailed) as error:
            skipped[name] = error.what


def _read(host: SshHost, words: Sequence[str]) -> list[bytes]:
    """
    Raises:
        BadInput: the command failed.
        CheckFailed: ssh doesn't get through.
    """
    code, text, said = ssh.output(host, words, MOST, SECONDS + _MORE)
    if code and not text:
        why = f"nothing within {SECONDS:.0f} s" if code == _TOO_LONG else said
        raise BadInput.of("log-of-node", node=host.host, why=why)
    return list(logfile.pieces(_reader(text.encode())))


def _reader(data: bytes) -> logfile.Read:
    view = memoryview(data)
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        piece = bytes(view[at : at + size])
        at += len(piece)
        return piece

    return read
