"""Ends what a killed process of ours left: no process can act on its own SIGKILL, so another one waits for it.

It runs as a program, by its path, with the standard library only: it is there before what it has to end.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ROUNDS, _PAUSE_S = 10, 0.05  # a process that was only forked gets its environment, and so the mark, a moment later


@contextmanager
def reaped(folder: str) -> Iterator[None]:
    """If this process is killed in the block, all processes that have `folder` in their environment end, and the
    folder goes."""
    command = [sys.executable, "-I", "-S", __file__, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as reaper:  # no Ctrl-C, no hangup
        try:
            yield
        finally:
            reaper.kill()


def end_marked(mark: str) -> int:
    """Ends all processes of this user that have `mark` in their environment, but this one; gives their number."""
    count = 0
    for file in Path("/proc").glob("[0-9]*/environ"):
        pid = int(file.parent.name)
        with suppress(OSError):
            if pid != os.getpid() and mark.encode() in file.read_bytes():
                os.kill(pid, signal.SIGKILL)
                count += 1
    return count


def _main(folder: str) -> None:
    sys.stdin.buffer.read()  # ends with the process at the other end of the pipe, whatever ended that
    quiet = 0
    while quiet < _ROUNDS:
        quiet = 0 if end_marked(folder) else quiet + 1
        time.sleep(_PAUSE_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(sys.argv[1])
