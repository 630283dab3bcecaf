"""`--ranks N`: N copies of one command on this machine, which live and die together."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
GRACE_S = 1.0  # after one rank failed, the time the others have to say the same


def spawn(ranks: int, command: Sequence[str]) -> int:
    """Runs the command once per rank and waits for all of them.

    A stop signal is passed on to the ranks (they save and end); a second one kills them. When a rank fails,
    the others are killed.

    Returns:
        0, the exit code of the first rank that failed, or 128 + its signal as a shell does.
    """
    # Rank 0 takes over this socket, so no other program can take the port in between.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        processes = [_start(rank, ranks, command, listening.fileno(), port) for rank in range(ranks)]
    signals = 0

    def pass_on(number: int, _frame: object) -> None:
        nonlocal signals
        signals += 1
        for process in processes:
            process.send_signal(signal.SIGTERM if signals == 1 else signal.SIGKILL)

    for number in STOP_SIGNALS:
        signal.signal(number, pass_on)
    try:
        return _wait(processes, lambda: signals > 0)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def omp_threads(local_world: int) -> int:
    """Threads per rank: the cores shared out, but one each where that leaves only a few (BLAS spins)."""
    share = len(os.sched_getaffinity(0)) // local_world
    return share if share >= 4 else 1


def die_with_parent() -> None:
    """Linux ends this process when the one that spawned it dies, even by SIGKILL."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(os.environ["ROCSTACK_TRAINER_PARENT"]):
        os.kill(os.getpid(), signal.SIGKILL)  # it died before the line above


def _start(rank: int, ranks: int, command: Sequence[str], fd: int, port: int) -> subprocess.Popen[bytes]:
    env = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ROCSTACK_TRAINER_PARENT": str(os.getpid()),
        "ROCSTACK_TRAINER_STORE_FD": str(fd),
    }
    # A session of its own: Ctrl-C on the terminal reaches the ranks once, through pass_on.
    return subprocess.Popen(command, env=env, pass_fds=(fd,) if rank == 0 else (), start_new_session=True)


def _wait(processes: list[subprocess.Popen[bytes]], stopping: Callable[[], bool]) -> int:
    while True:
        codes = [process.poll() for process in processes]
        # A rank that a signal ended comes first: the others only fail because of it.
        code = min((code for code in codes if code), default=0)
        if code:
            break
        if None not in codes:
            return 0
        time.sleep(0.02)
    if code > 0:
        _join(processes, GRACE_S)
        return code
    if stopping() and code in (-signal.SIGTERM, -signal.SIGKILL):
        print("stopped: nothing was saved", file=sys.stderr)
    else:
        cause = " (out of memory? `dmesg` tells)" if code == -signal.SIGKILL else ""
        who = f"rank {codes.index(code)} was ended by {signal.Signals(-code).name}"
        print(f"error: {who}{cause}; the others are stopped", file=sys.stderr)
    return 128 - code


def _join(processes: list[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.02)
