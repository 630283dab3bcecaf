"""What verify does with MUNGE's credentials, in a cluster of one machine."""

import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocstack.verify.suite import checks

sys.path.append(str(checks()))
from experiments import credentials

MUNGE = """#!/bin/sh
echo "munge $*" >>"$LOG"
echo MUNGE:AwQDAADVxa:
"""
UNMUNGE = """#!/bin/sh
echo "unmunge of $(cat)" >>"$LOG"
printf 'STATUS:  Success (0)\\nENCODE_TIME:  x (11)\\nDECODE_TIME:  x (12)\\n'
"""
SETPRIV = """#!/bin/sh
echo "as $1 $2 $3" >>"$LOG"
shift 3
exec "$@"
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("munge", MUNGE), ("unmunge", UNMUNGE), ("setpriv", SETPRIV), ("id", "#!/bin/sh\necho 64002\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def test_no_credential_in_a_command_line_is_roots_or_can_be_decoded_by_slurm(log: Path) -> None:
    """A job's user who sees root's would be root for Slurm: it asks no credential without a payload what it was for."""

    def done(command: str) -> SimpleNamespace:
        said = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        return SimpleNamespace(stdout=said.stdout, stderr=said.stderr, rc=said.returncode)

    def run(*words: str, **_: Any) -> SimpleNamespace:
        return done(shlex.join(words))

    slurm = SimpleNamespace(user="rocstack-verify", run=run)  # nothing of it as root
    absent = SimpleNamespace(stdout="absent\n", stderr="")
    cluster = SimpleNamespace(
        slurm=slurm,
        workers=["n1"],
        in_workers=lambda command, seconds: {"n1": done(command)},
        everywhere=lambda command, names: {"n1": absent},
    )
    found = credentials.run(cluster)
    good = {"status": 0, "encoded": 11, "decoded": 12}
    assert {key: found["n1"]["here"][key] for key in good} == good
    assert {key: found["n1"]["there"][key] for key in good} == good
    lines = log.read_text().splitlines()
    assert lines == [
        "munge -n --restrict-uid=rocstack-verify",
        "as --reuid=rocstack-verify --regid=64002 --clear-groups",
        "unmunge of MUNGE:AwQDAADVxa:",
        "munge -n --restrict-uid=rocstack-verify",
        "unmunge of MUNGE:AwQDAADVxa:",
    ]
