"""`--ranks N`: N copies of one command on this machine. Those of one group live and die together."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rocstack_trainer.errors import PeerLostError
from rocstack_trainer.ranks.connect import LISTENING
from rocstack_trainer.ranks.rendezvous import STORE

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
GRACE_S = 1.0  # after one rank failed, the time the others have to say the same


def spawn(ranks: int, command: Sequence[str], groups: int = 1, restarts: int = 0) -> int:
    """Runs the command once per rank and waits for all of them.

    A stop signal is passed on to the ranks (they save and end); a second one kills them. When a rank fails, the
    others of its group are killed. If a signal ended it, or it lost another rank, the group is started again, at most
    `restarts` times. The other groups go on: all groups meet in a store that is a process of its own.

    Returns:
        0 if every group finished; or some, while others were lost, unless it was stopped before the end. Else the
        exit code of the first rank that failed, or 128 + its signal as a shell does.
    """
    size, signals = ranks // groups, 0
    parts = [Group(number, range(number * size, (number + 1) * size), ranks, command) for number in range(groups)]

    def pass_on(number: int, _frame: object) -> None:
        nonlocal signals
        signals += 1
        for part in parts:
            # Python dies of SIGINT with a traceback until its handlers are set; SIGUSR1 means more than "end".
            first = signal.SIGUSR1 if number == signal.SIGUSR1 else signal.SIGTERM
            part.send(first if signals == 1 else signal.SIGKILL)

    with ExitStack() as stack:
        if groups > 1 and STORE not in os.environ:
            os.environ[STORE] = stack.enter_context(_store(command[:3]))
        stack.callback(lambda: [part.end() for part in parts])
        for part in parts:
            part.start()
        for number in STOP_SIGNALS:
            signal.signal(number, pass_on)
        while running := [part for part in parts if part.code is None]:
            for part in running:
                if not part.look():
                    continue
                then = "the other groups go on" if groups > 1 else "the others are stopped"
                again = part.lost and not signals and part.starts <= restarts
                part.tell(f"its ranks start again ({part.starts} of {restarts})" if again else then, signals > 0)
                if again:
                    part.start()
            time.sleep(0.02)
    failed = [part.code for part in parts if part.code and not part.lost]
    if not failed and (signals or all(part.code for part in parts)):
        failed = [part.code for part in parts if part.code]
    return (failed or [0])[0] or 0


class Group:
    """Those of the `world` ranks that have the numbers in `ranks`."""

    def __init__(self, number: int, ranks: range, world: int, command: Sequence[str]) -> None:
        self.name = f"group {number}: " if len(ranks) < world else ""
        self.ranks, self.world, self.command = ranks, world, command
        self.processes: list[subprocess.Popen[bytes]] = []
        self.code: int | None = None  # as a shell has it; None while it runs
        self.starts, self.cause = 0, ""
        self.lost = False  # did it end through no fault of its own, as far as one can tell?

    def start(self) -> None:
        self.starts, self.code = self.starts + 1, None
        # Rank 0 takes over this socket, so no other program can take the port in between.
        with socket.create_server(("127.0.0.1", 0)) as listening:
            fd = listening.fileno()
            env = os.environ | {
                "WORLD_SIZE": str(self.world),
                "LOCAL_WORLD_SIZE": str(self.world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(listening.getsockname()[1]),
                "ROCSTACK_TRAINER_PARENT": str(os.getpid()),
                LISTENING: str(fd),
            }
            if self.starts > 1:
                env["ROCSTACK_TRAINER_STARTED"] = str(time.time())
            # A session of its own: Ctrl-C on the terminal reaches the ranks once, through pass_on.
            self.processes = [
                subprocess.Popen(
                    self.command,
                    env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    pass_fds=(fd,) if rank == self.ranks[0] else (),
                    start_new_session=True,
                )
                for rank in self.ranks
            ]

    def look(self) -> bool:
        """Did all ranks end, or one badly? Then none is left, and `code` says how it ended."""
        codes = [process.poll() for process in self.processes]
        # A rank that a signal ended comes first: the others only fail because of it.
        code = min((code for code in codes if code), default=0)
        if not code and None in codes:
            return False
        deadline = time.monotonic() + (GRACE_S if code > 0 else 0)
        while time.monotonic() < deadline and any(process.poll() is None for process in self.processes):
            time.sleep(0.02)
        self.end()
        self.cause = ""
        if code < 0:
            cause = " (out of memory? `dmesg` tells)" if code == -signal.SIGKILL else ""
            self.cause = f"rank {codes.index(code)} was ended by {signal.Signals(-code).name}{cause}"
        self.lost = code < 0 or code == PeerLostError.exit_code
        self.code = 128 - code if code < 0 else code
        return True

    def tell(self, then: str, stopping: bool) -> None:
        if stopping and self.code - 128 in (signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1):
            print(f"{self.name}stopped: nothing was saved", file=sys.stderr)
        elif self.code and (self.cause or self.name or self.lost):  # else the ranks have said it all
            print(f"error: {self.name}{self.cause or f'it ended with code {self.code}'}; {then}", file=sys.stderr)

    def send(self, number: signal.Signals) -> None:
        for process in self.processes:
            process.send_signal(number)

    def end(self) -> None:
        self.send(signal.SIGKILL)
        for process in self.processes:
            process.wait()


@contextmanager
def _store(python: Sequence[str]) -> Iterator[str]:
    """HOST:PORT of a store in a process of its own; ranks may come before it listens."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        env = os.environ | {"ROCSTACK_TRAINER_PARENT": str(os.getpid()), LISTENING: str(listening.fileno())}
        port = listening.getsockname()[1]
        process = subprocess.Popen(
            [*python, "--store", str(port)],
            env=env,
            pass_fds=(listening.fileno(),),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def python() -> list[str]:
    """Two words, before a module: without those of the working folder if this process is without them."""
    own = not {"", os.getcwd()} & {*sys.path}  # a program that pip installed is without them, too
    return [sys.executable, "-Pm" if own or sys.flags.safe_path else "-m"]


def omp_threads(local_world: int) -> int:
    """Threads per rank: the cores shared out, but one each where that leaves only a few (BLAS spins)."""
    share = len(os.sched_getaffinity(0)) // local_world
    return share if share >= 4 else 1


def die_with_parent() -> None:
    """Linux ends this process when the one that spawned it dies, even by SIGKILL."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(os.environ["ROCSTACK_TRAINER_PARENT"]):
        os.kill(os.getpid(), signal.SIGKILL)  # it died before the line above
