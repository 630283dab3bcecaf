"""playbooks/verify-timer.yml on this machine, into a folder: what it writes, that a second run changes nothing, what it
refuses, and that it takes away what it made. Where systemd runs it would start the timer, so it is skipped there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rocstack.edge import ansible

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(sys.executable).with_name("rocstack")
Play = Callable[..., tuple[int, str]]

pytestmark = pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd runs here: it would be enabled")


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Runs it; how many tasks changed something (-1: it failed), and what it said."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    (folder / "inventory.yml").write_text("")
    (tmp_path / "units").mkdir()

    def run(**variables: object) -> tuple[int, str]:
        known = {
            "verify_timer_folder": str(folder),
            "verify_timer_units": str(tmp_path / "units"),
            "verify_timer_program": str(PROGRAM),
            "verify_timer_become": False,
            "ansible_python_interpreter": sys.executable,
            **variables,
        }
        line = ["ansible-playbook", str(ROOT / "playbooks/verify-timer.yml"), "-e", json.dumps(known)]
        env = ansible.environment({"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
        program = shutil.which(line[0], path=env["PATH"])
        assert program
        done = subprocess.run([program, *line[1:]], capture_output=True, text=True, check=False, env=env)
        changed = re.search(r"changed=(\d+)", done.stdout)
        said = done.stdout + done.stderr
        assert changed, said
        return (int(changed[1]) if done.returncode == 0 else -1), said

    return run


def units(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in (folder / "units").iterdir()}


def test_written_once_and_taken_away(play: Play, tmp_path: Path) -> None:
    wanted = {"verify_timer_drain": True, "verify_timer_user": "root"}
    assert play(**wanted)[0] == 1
    before = units(tmp_path)
    service = before["rocstack-verify.service"]
    assert f"WorkingDirectory={tmp_path}/cluster" in service
    assert f"ExecStart={PROGRAM} verify inventory.yml --level 1 --drain-failing\n" in service
    assert "User=root\n" in service
    assert "OnUnitInactiveSec=10m\n" in before["rocstack-verify.timer"]
    systemd_takes(*sorted(map(str, (tmp_path / "units").iterdir())))
    assert play(**wanted)[0] == 0
    assert units(tmp_path) == before
    assert play(verify_timer_state="absent")[0] == 1
    assert units(tmp_path) == {}


def systemd_takes(*files: str) -> None:
    program = shutil.which("systemd-analyze")
    if program:
        line = [program, "verify", "--man=no", *files]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert ([each for each in done.stderr.splitlines() if "rocstack-verify" in each], done.returncode) == ([], 0)


@pytest.mark.parametrize(
    "wrong",
    [{"verify_timer_folder": ""}, {"verify_timer_every": "soon"}, {"verify_timer_program": "/nonexistent/rocstack"}],
)
def test_what_could_never_run_is_refused(wrong: dict[str, object], play: Play, tmp_path: Path) -> None:
    changed, said = play(**wrong)
    assert changed == -1
    assert "verify_timer_folder has to be" in said
    assert units(tmp_path) == {}
