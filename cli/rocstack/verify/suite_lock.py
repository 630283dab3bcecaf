"""One run of the suite at a time on a cluster: two would be in each other's way."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rocstack.base.errors import CheckFailed
from rocstack.edge.ssh import SshHost

PATH = "/run/rocstack-verify.lock"  # on the control node
_TAKEN = 99
_WAITS, _HELD = "waits", "held"
_TAKE = f"""set -e; exec 9>>{PATH}
flock --nonblock 9 || {{ echo {_WAITS}; flock --timeout=$1 --conflict-exit-code={_TAKEN} 9; }}
echo {_HELD}; exec cat >/dev/null"""


@contextmanager
def turn(ssh_host: SshHost, wait: float, on_wait: Callable[[], None]) -> Iterator[None]:
    """Held until the block ends, or our process, or the connection. `on_wait` is called when another run has it.

    Raises:
        CheckFailed: another run had it for longer than `wait` seconds; the node isn't reached.
    """
    line = ["sh", "-c", _TAKE, "sh", f"{max(1, round(wait))}"]  # ends with what it reads
    words = ssh_host.argv(line, options=["-T"] if ssh_host.program else [])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # Of a group of its own: Ctrl-C at the terminal is for us, and the lock is still needed while jobs are cancelled.
    with subprocess.Popen(words, text=True, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            for said in map(str.strip, process.stdout):
                if said == _WAITS:
                    on_wait()
                if said == _HELD:
                    break
            else:
                raise _refused(ssh_host, process.wait(), process.stderr.read())
            yield
        finally:
            process.stdin.close()
            process.terminate()


def _refused(ssh_host: SshHost, code: int, said: str) -> CheckFailed:
    if code != _TAKEN:
        return ssh_host.error("no way to", said)
    return CheckFailed(
        f"another `rocstack verify` is at work on this cluster (it holds {PATH} on {ssh_host.host})",
        code="verify-running",
        next_step="wait longer for it: --wait 1h",
    )
