"""Plain ssh to a host, by the same way as Ansible's: commands on the control node, and a tunnel to its registry."""

import os
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.base.text import last_line
from rocstack.edge import ansible
from rocstack.node.engine_errors import NOT_STARTED, tries

PLAYBOOK, TASK = "connection.yml", "Connection"
TIMEOUT_S = 60.0  # until ssh is through, and for the answer to a plain command
LONGEST = 64 << 20  # bytes of an answer
FAILED = 255  # the exit status of ssh itself
_LOCAL = ("local", "ansible.builtin.local")
_SSH = ("ssh", "smart", "ansible.builtin.ssh")
_SUDO = ("sudo", "ansible.builtin.sudo")
# ssh takes the first of equal options. Each connection is one of its own, so it ends with us; nobody is asked anything.
_OPTIONS = (
    "BatchMode=yes",
    "ControlMaster=no",
    "ControlPath=none",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "Compression=no",  # layers are compressed
    "LogLevel=INFO",  # why it failed
)
KEPT = 64 << 10  # bytes of the beginning and of the end of what a program complains
_COMPLAINS_S = 2.0  # seconds for what a program said before it ended
_LOOK_S = 0.1  # between two looks at how much came
_READY = "rocstack-tunnel-ready"
_NOISE = re.compile(r"^$|^\*\* |^Warning: Permanently added|^Connection to .* closed")


@dataclass(frozen=True)
class SshHost:
    """How commands reach one host. `program` is ssh with all its options, empty where the host is this machine."""

    host: str
    program: tuple[str, ...] = ()
    address: str = ""
    become: tuple[str, ...] = ()
    python: str = "python3"
    password: bool = False  # the inventory has one, which ssh by itself can't use

    def argv(self, command: Sequence[str], *, options: Iterable[str] = ()) -> list[str]:
        """The command line that runs `command` as root there. `options` are ssh's (such as -t)."""
        words = [*self.become, *command]
        return [*self.program, *options, self.address, shlex.join(words)] if self.program else words

    def error(self, what: str, output: str) -> CheckFailed:
        """For a command that failed with this output of ssh, or of the command behind it."""
        lines = [line.strip() for line in output.splitlines() if not _NOISE.match(line.strip())]
        cause = "sudo there asks for a password" if "password is required" in output else None
        if self.password and "Permission denied" in output:
            cause = "the inventory has a password, which only Ansible can use"
        reason = lines[-1] if lines else "ssh gave no reason"
        return CheckFailed.of(
            "ssh-failed", failed=what, host=self.host, reason=reason, cause=cause, address=self.address
        )


def ssh_hosts(inventory: Path, hosts: Iterable[str] | None = None) -> dict[str, SshHost]:
    """By host of the inventory; connects to none.

    Raises:
        BadInput, Missing, CheckFailed: as `ansible.run`, and as `resolve`.
    """
    runs = ansible.run(PLAYBOOK, inventory, limit=hosts)
    for run in runs:
        if run.state != "ok":
            raise BadInput.of("bad-host-variables", host=run.host, reason=run.reason, inventory=inventory)
    return {run.host: resolve(run.host, run.results[TASK]["msg"]) for run in runs}


def resolve(host: str, variables: Mapping[str, Any]) -> SshHost:
    """From the inventory's variables, as the task "Connection" returned them.

    Raises:
        BadInput: a connection that isn't ssh, or another way to root than sudo.
    """
    become: tuple[str, ...] = ()
    if _yes(variables["become"]):
        method = str(variables["become_method"])
        if method not in _SUDO:
            raise BadInput.of("not-by-sudo", host=host, method=method)
        become = ("sudo", "-n", "-u", str(variables["become_user"] or "root"))
    python = str(variables["python"]) if str(variables["python"]).startswith("/") else "python3"
    if variables["connection"] in _LOCAL:
        return SshHost(host, become=become, python=python)
    if variables["connection"] not in _SSH:
        raise BadInput.of("not-by-ssh", host=host, connection=variables["connection"])
    return SshHost(
        host, _program(variables), str(variables["host"]), become, python, password=_yes(variables["password"])
    )


def run(
    ssh_host: SshHost, command: Sequence[str], seconds: float = TIMEOUT_S, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """As root there, without a terminal; it reads `text`. How it ended is the caller's to judge; 255 is ssh's own
    failure.

    Raises:
        CheckFailed: no answer in time, or one without an end.
    """
    line = ssh_host.argv(command, options=["-T"])
    try:
        for _ in tries():
            done = captured(line, seconds, text.encode())
            if NOT_STARTED.encode() not in done.stderr:  # of a `docker exec`
                break
    except Endless as error:
        raise ssh_host.error("no end of the answer from", str(error)) from None
    except subprocess.TimeoutExpired:
        raise ssh_host.error("no answer from", f"nothing within {seconds:.0f} s") from None
    said, complaints = (each.decode(errors="replace") for each in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, said, complaints)


class Endless(Exception):
    """A program said more than any answer has."""


def captured(line: Sequence[str], seconds: float, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """As `subprocess.run` does it, but what a node says without end doesn't fill this machine's memory.

    Raises:
        Endless: more than LONGEST bytes came.
        TimeoutExpired: it ran longer.
    """
    with ExitStack() as files:
        read, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        read.write(given)
        read.seek(0)
        process = subprocess.Popen(line, stdin=read, stdout=out, stderr=err, process_group=0)
        deadline = time.monotonic() + seconds
        try:
            while process.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_S)
                if any(os.fstat(each.fileno()).st_size > LONGEST for each in (out, err)):
                    raise Endless(f"more than {LONGEST >> 20} MB")
                if process.returncode is None and time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired(line, seconds)
        finally:
            if process.returncode is None:  # with what it has started, which would go on to fill the disk
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for each in (out, err):
            each.seek(0)
        return subprocess.CompletedProcess(line, process.returncode, out.read(), err.read())


def bounded(seconds: float) -> list[str]:
    """Before a command: killing `ssh` or `docker exec` would leave it there."""
    return ["timeout", "--kill-after=5", f"{seconds:.0f}"]


def output(ssh_host: SshHost, command: Sequence[str], most: int, seconds: float = TIMEOUT_S) -> tuple[int, str, str]:
    """The exit status of `command` as root there, the first `most` bytes of its output, and the last line of its
    complaints: whatever the host sends, no more is kept.

    Raises:
        CheckFailed: ssh doesn't get through, or there is no answer in time.
    """
    code, data, said = raw_output(ssh_host, command, most, seconds)
    return code, data.decode(errors="replace"), said


def raw_output(
    ssh_host: SshHost, command: Sequence[str], most: int, seconds: float = TIMEOUT_S
) -> tuple[int, bytes, str]:
    """As `output`, in bytes.

    Raises:
        CheckFailed: as `output`.
    """
    for _ in tries():
        program = Program(ssh_host.argv(command, options=["-T"]))
        data, left = b"", most
        try:
            with program.within(seconds):
                while left and (piece := program.stdout.read(left)):
                    data, left = data + piece, left - len(piece)
        finally:
            program.end()
        said = program.complaints()
        if NOT_STARTED not in said:
            break
    if program.returncode in (FAILED, -signal.SIGKILL):
        raise ssh_host.error("no answer from", said or f"nothing within {seconds:.0f} s")
    return program.returncode, data, last_line(said)


def _program(variables: Mapping[str, Any]) -> tuple[str, ...]:
    """In the order in which Ansible gives them to ssh, after our own."""
    key, user, port = (variables[name] for name in ("key", "user", "port"))
    options = [
        *([] if _yes(variables["host_key_checking"]) else ["StrictHostKeyChecking=no"]),
        *([f"Port={port}"] if port else []),
        *([f'IdentityFile="{Path(str(key)).expanduser()}"'] if key else []),
        *([f'User="{user}"'] if user else []),
        f"ConnectTimeout={variables['timeout']}",
    ]
    return (
        str(variables["program"] or "ssh"),
        ansible.NOTHING_LENT,
        *_dashed(_OPTIONS),
        *_words(variables["args"]),
        *_dashed(options),
        *_words(variables["common_args"]),
        *_words(variables["extra_args"]),
    )


def _dashed(options: Iterable[str]) -> Iterator[str]:
    for option in options:
        yield from ("-o", option)


def _words(text: object) -> list[str]:
    """Without -C, which Ansible has by default and no other option takes back."""
    return [word for word in shlex.split(str(text or "")) if word != "-C"]


def _yes(value: object) -> bool:
    """Ansible's own way to read a variable as yes or no."""
    return str(value).lower() in ("true", "yes", "on", "1", "y", "t", "1.0")


class Program(subprocess.Popen[bytes]):
    """With pipes at both ends, and in a session of its own: Ctrl-C ends the work first, then what it needs; and no
    terminal is asked."""

    stdin: IO[bytes]
    stdout: IO[bytes]

    stderr: IO[bytes]

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        super().__init__(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, bufsize=0)
        self._first = self._last = b""
        self._unread = bytearray()  # output that `line` has taken out of the pipe
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        """To all of its complaints, so that it isn't held up; however many they are, a part of them is kept."""
        with self.stderr as pipe:
            while piece := pipe.read(KEPT):
                more = KEPT - len(self._first)
                self._first += piece[:more]
                self._last = (self._last + piece[more:])[-KEPT:]

    def line(self, most: int) -> bytes:
        """The next of its output, of a longer one `most` bytes; empty when there is none. The pipe has no buffer, whose
        `close` would wait for another thread that reads."""
        looked = 0
        while not (end := self._unread.find(b"\n", looked) + 1) and len(self._unread) < most:
            looked = len(self._unread)
            piece = self.stdout.read(KEPT)
            if not piece:
                break
            self._unread += piece
        size = min(end or len(self._unread), most)
        line = bytes(self._unread[:size])
        del self._unread[:size]
        return line

    def lines(self) -> Iterator[bytes]:
        """Of its output; a longer one in pieces."""
        while line := self.line(KEPT):
            yield line

    def complaints(self) -> str:
        """Of a program that has ended: the first and the last of them."""
        self._reader.join(_COMPLAINS_S)  # whoever it started may have the pipe still
        return (self._first + self._last).decode(errors="replace")

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """If the block takes longer, the program is killed: so what is read of it ends."""
        timer = threading.Timer(seconds, self.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def end(self) -> None:
        """Its input ends; what doesn't go by that is killed."""
        with suppress(OSError):
            self.stdin.close()
        try:
            self.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()
        self.stdout.close()


@contextmanager
def tunnel(ssh_host: SshHost, address: str, port: int) -> Iterator[tuple[str, int]]:
    """A tunnel to `address`:`port` as the host sees it. Gives the near end's address and port; it listens when the
    block begins and is gone after it, also when this process is killed.

    Raises:
        CheckFailed: ssh doesn't get through.
    """
    if not ssh_host.program:
        yield address, port
        return
    program, near = _forward(ssh_host, address, port)
    try:
        yield "127.0.0.1", near
    finally:
        program.terminate()  # by itself ssh goes on as long as a connection through it is open
        program.end()


def _forward(ssh_host: SshHost, address: str, port: int) -> tuple[Program, int]:
    """ssh runs `cat` there, so that it ends when its input does; by then it listens."""
    far = f"[{address}]" if ":" in address else address
    for _ in range(3):  # somebody may take the port first
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            near = int(probe.getsockname()[1])
        options = ["-T", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{near}:{far}:{port}"]
        program = Program([*ssh_host.program, *options, ssh_host.address, f"echo {_READY} && exec cat"])
        with program.within(TIMEOUT_S):
            if any(line.strip() == _READY.encode() for line in program.lines()):
                return program, near
        program.end()
        output = program.complaints()
        if "cannot listen to port" not in output:
            break
    raise ssh_host.error("no tunnel to", output)
