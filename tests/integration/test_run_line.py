"""The line for this very machine, handed to its engine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rocstack.container.environment import parse_env
from rocstack.container.host import read_host
from rocstack.container.mount import check_mounts, parse_mount
from rocstack.container.run_line import RunLine, RunProfile, run_line
from rocstack.node.limits import refused_ulimit

pytestmark = pytest.mark.engine


def start(line: RunLine, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *line.args], capture_output=True, text=True, env={**os.environ, **env})


def test_line_for_this_machine_starts(base: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/here").touch()
    env = parse_env(["SECRET=s3cret", "HOME=/nowhere"], {})
    line = run_line(
        read_host(),
        base,
        [
            "sh",
            "-c",
            'pwd; echo "$SECRET $HOME"; ls /d; touch /d/x 2>/dev/null || echo read-only; touch made',
        ],
        mounts=check_mounts([parse_mount("data:/d:ro", base=tmp_path)]),
        workspace=tmp_path,
        env=env,
    )
    done = start(line, **dict(env.values))
    assert done.stdout.splitlines() == ["/workspace", "s3cret /nowhere", "here", "read-only"], done.stderr
    assert (tmp_path / "made").exists()


def test_refused_limit_is_recognised_and_left_out(base: str) -> None:
    host = read_host()
    if host.raises_limits or host.limits["memlock"] == -1:
        pytest.skip("this engine may lift memlock")
    line = run_line(host, base, ["sh", "-c", "ulimit -l"], profile=RunProfile(ulimits={"memlock": "-1:-1"}))
    refused = start(line)
    assert refused.returncode == 125
    assert refused_ulimit(refused.stderr) == "memlock"
    again = start(line.without_ulimit("memlock"))
    assert again.stdout.strip() == str(host.limits["memlock"] // 1024), "the shell counts in KiB"
