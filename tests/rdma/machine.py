"""A virtual machine, emulated in full: needs neither root nor hardware support."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rootfs import Boot

BOOT_LIMIT = 120  # seconds; 9 on an idle machine of 2 cores
BOOTS = 3  # seen once: a kernel that patched its own code (a static key) at boot, under emulated SMP, panicked
UP = " is up after "


@dataclass(frozen=True)
class Outcome:
    """One ended command."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err


@dataclass(frozen=True)
class Machine:
    """A machine that is up. Commands run in it as root, in a shell."""

    name: str
    address: str
    port: int  # of ssh, here
    key: Path
    ssh: list[str]
    boot_seconds: float

    def try_run(self, command: str, seconds: int = 60) -> Outcome:
        done = subprocess.run(
            [*self.ssh, f"timeout -k 5 {seconds} bash -c {quoted(command)}"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds + 30,
        )  # fmt: skip
        return Outcome(done.returncode, done.stdout, done.stderr)

    def run(self, command: str, seconds: int = 60) -> str:
        """What a command says that must succeed."""
        done = self.try_run(command, seconds)
        assert done.code == 0, f"{self.name}: {command}: exit {done.code}\n{done.said[-4000:]}"
        return done.out

    def write(self, path: str, text: str) -> None:
        subprocess.run([*self.ssh, f"cat >{path}"], input=text, text=True, check=True, timeout=60)

    @contextmanager
    def serving(self, command: str, port: int) -> Iterator[None]:
        """A server of one client, that listens on a TCP port and ends well by itself."""
        server = subprocess.Popen(
            [*self.ssh, f"timeout -k 5 90 {command}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            self.run(f"until ss -Hltn sport = :{port} | grep -q .; do sleep 0.2; done", 30)
            yield
        finally:
            said = server.communicate(timeout=120)[0]
        assert server.returncode == 0, f"{self.name}: {command}: exit {server.returncode}\n{said[-4000:]}"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@contextmanager
def pair(boot: Boot, folder: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two machines, started at once and joined by a cable."""
    ends = (free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_DGRAM))
    with started(1, boot, folder, ends) as first, started(2, boot, folder, ends[::-1]) as second:
        yield first.wait(), second.wait()


@dataclass
class Starting:
    """A machine on its way up."""

    number: int
    command: list[str]
    console: Path
    port: int
    key: Path
    ssh: list[str]
    boots: int = 0

    def boot(self) -> None:
        self.boots += 1
        self.since = time.monotonic()
        environment = {**os.environ, "TMPDIR": str(self.console.parent)}
        self.process = subprocess.Popen(self.command, env=environment, stdin=subprocess.DEVNULL)

    def wait(self) -> Machine:
        while UP not in (said := self.console.read_text(errors="replace") if self.console.exists() else ""):
            waited = time.monotonic() - self.since
            ended = self.process.poll() is not None
            if ended or waited > BOOT_LIMIT:
                how = f"qemu ended with {self.process.returncode}" if ended else f"not up after {waited:.0f} s"
                print(f"machine {self.number}, boot {self.boots} of {BOOTS}: {how}: {said[-2000:]}")
                assert self.boots < BOOTS, f"machine {self.number}: {how}: {said[-2000:]}"
                self.stop()
                self.boot()
            time.sleep(0.1)
        seconds = time.monotonic() - self.since
        return Machine(f"n{self.number}", f"10.77.0.{self.number}", self.port, self.key, self.ssh, seconds)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)


@contextmanager
def started(number: int, boot: Boot, folder: Path, ends: tuple[int, int]) -> Iterator[Starting]:
    """The emulator's process. It dies with this one, whatever happens; the disk stays as it was."""
    port = free_port(socket.SOCK_STREAM)
    console = folder / f"console-{number}.log"
    mine, peer = ends
    command = [
        "setpriv", "--pdeathsig=KILL",
        "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max",
        "-smp", "2", "-m", "1024", "-nodefaults", "-no-reboot", "-display", "none", "-serial", f"file:{console}",
        "-kernel", str(boot.kernel), "-initrd", str(boot.ramdisk),
        "-append", f"console=ttyS0 net.ifnames=0 quiet mitigations=off panic=-1 machine={number}",
        "-drive", f"file={boot.disk},format=raw,if=none,id=disk,snapshot=on", "-device", "virtio-blk-pci,drive=disk",
        "-netdev", f"user,id=control,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22",
        "-device", f"virtio-net-pci,netdev=control,romfile=,mac=52:54:00:00:{number:02}:01",
        "-netdev", "dgram,id=cable,local.type=inet,remote.type=inet,local.host=127.0.0.1,remote.host=127.0.0.1,"
        f"local.port={mine},remote.port={peer}",
        "-device", f"virtio-net-pci,netdev=cable,romfile=,mac=52:54:00:00:{number:02}:02",
        "-device", "virtio-rng-pci",
    ]  # fmt: skip
    sockets = tempfile.mkdtemp(prefix="rocstack-")  # a socket's path must be short
    ssh = ["ssh", "-F", "none", "-i", str(boot.key), "-p", str(port)]
    for option in (
        "BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR",
        "ConnectTimeout=20", "ControlMaster=auto", "ControlPersist=300", f"ControlPath={sockets}/{number}",
    ):  # fmt: skip
        ssh += ["-o", option]
    machine = Starting(number, command, console, port, boot.key, [*ssh, "root@127.0.0.1"])
    machine.boot()
    try:
        yield machine
    finally:
        subprocess.run([*ssh, "-O", "exit", "127.0.0.1"], capture_output=True)
        machine.stop()
        shutil.rmtree(sockets)


def free_port(kind: socket.SocketKind) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
