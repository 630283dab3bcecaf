"""The worker image's service, in a shell without slurmd."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

SERVICES = Path(__file__).parents[3] / "images/rootfs"
WORKER = "service=worker\nset -euo pipefail\n" + "\n".join(
    (SERVICES / role / "usr/local/lib/rocstack/service" / role).read_text() for role in ("common", "worker")
)
DIES = """
echo run >>{place}/runs
[ "$(wc -l <{place}/runs)" -gt 2 ] || kill -SEGV $$
exit 5
"""
# Its parent hears signals by then.
LATE = """
until [ $((0x$(awk '/^SigCgt/ {print $2}' /proc/$PPID/status) >> 14 & 1)) = 1 ]; do sleep 0.05; done
"""
LIVES = """
trap 'echo told; exit 0' TERM
trap 'echo again' HUP
echo ready
while :; do sleep 0.05; done
"""


def test_slurmd_that_a_signal_ended_starts_again_beside_its_jobs(tmp_path: Path) -> None:
    """Where it ends by itself, the container does, too, and says why."""
    (tmp_path / "slurmd").write_text(DIES.format(place=tmp_path))
    text = f"{WORKER}\nsleep() {{ :; }}\nserve bash {tmp_path}/slurmd\n"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True)
    assert done.returncode == 5
    assert done.stderr.count("slurmd ended by signal 11 and starts again; jobs go on") == 2
    assert (tmp_path / "runs").read_text() == 3 * "run\n"


@pytest.mark.parametrize(("sent", "runs", "code"), [("TERM", 1, 139), ("HUP", 3, 5)])
def test_a_signal_that_comes_while_slurmd_is_away(tmp_path: Path, sent: str, runs: int, code: int) -> None:
    """A stop of the container starts it no more, and nothing else ends the container, with its jobs."""
    (tmp_path / "slurmd").write_text(DIES.format(place=tmp_path))
    text = f"{WORKER}\nsleep() {{ kill -{sent} $$; }}\nserve bash {tmp_path}/slurmd\n"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True)
    assert ((tmp_path / "runs").read_text(), done.returncode) == (runs * "run\n", code), done.stderr


@pytest.mark.parametrize("early", [False, True])
def test_signals_go_to_slurmd_and_the_stop_of_the_container_is_its_end(tmp_path: Path, early: bool) -> None:
    """One that has no handler yet ends by the signal, and doesn't start again."""
    (tmp_path / "slurmd").write_text(LATE + ("echo ready; exec sleep 60" if early else LIVES))
    text = f"{WORKER}\nserve bash {tmp_path}/slurmd\n"
    with subprocess.Popen(["bash", "-c", text], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        assert program.stdout.readline() == "ready\n"
        if not early:
            program.send_signal(signal.SIGHUP)
            assert program.stdout.readline() == "again\n"
        program.terminate()
        assert program.stdout.read() == ("" if early else "told\n")
    assert program.returncode == (143 if early else 0)
