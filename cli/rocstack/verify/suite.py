"""Runs tests/cluster in a pytest of its own, and tells what happens as it happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstack import paths
from rocstack.errors import BadInput, CheckFailed, did_you_mean
from rocstack.verify import result
from rocstack.verify.result import Run

OnEvent = Callable[[Mapping[str, Any]], None]
LOG, REPORT = "pytest.log", "report.json"
PATIENCE = 60  # seconds for an interrupted run to cancel its jobs
_NO_TESTS, _USAGE = 5, 4


@dataclass(frozen=True)
class Wish:
    """What is to be run. `inventory` or `evidence` is given; `wait` is seconds."""

    folder: Path
    inventory: Path | None = None
    evidence: Path | None = None
    level: int = 3
    only: str = ""
    user: str = ""
    wait: float = 300

    def arguments(self) -> list[str]:
        words = [f"--report={self.folder}", f"--level={self.level}", f"--wait={self.wait:g}"]
        words += [f"--inventory={self.inventory}"] if self.inventory else []
        words += [f"--evidence={self.evidence}"] if self.evidence else []
        words += [f"--only={self.only}"] if self.only else []
        return [*words, *([f"--user={self.user}"] if self.user else [])]


def checks() -> Path:
    """The folder of the checks."""
    return paths.data_root() / "tests/cluster"


def run(wish: Wish, on_event: OnEvent) -> Run:
    """
    Raises:
        BadInput: no check has such a name.
        CheckFailed: the suite itself could not run.
    """
    wish.folder.mkdir(parents=True, exist_ok=True)
    reader, writer = os.pipe()
    line = [sys.executable, "-m", "pytest", "-p", "rocstack.verify.plugin", "-p", "no:cacheprovider", "-c", os.devnull]
    line += [f"--rootdir={checks()}", "-q", "--tb=short", f"--events={writer}", *wish.arguments(), str(checks())]
    log = wish.folder / LOG
    with log.open("wb") as output:
        process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=[writer], env=_env()
        )
        os.close(writer)
        try:
            with os.fdopen(reader, encoding="utf-8") as events:
                for text in events:
                    on_event(json.loads(text))
            code = process.wait()
        except BaseException:
            _stop(process)
            raise
    if code == _NO_TESTS and wish.only:
        raise _unknown(wish.only)
    if not (wish.folder / REPORT).exists():
        lines = [text for text in log.read_text(errors="replace").strip().splitlines() if text.strip()]
        raise CheckFailed(
            f"the suite ended with {code}: {lines[-1] if lines else 'it said nothing'}",
            code="suite-failed",
            next_step=f"{log} has all that it said",
        )
    return result.read(wish.folder / REPORT)


def names() -> list[str]:
    """Of all checks, as tests/cluster has them."""
    import re

    found = (re.findall(r'^    name="([^"]+)"', file.read_text(), re.MULTILINE) for file in checks().glob("test_*.py"))
    return sorted({name for names in found for name in names})


def _unknown(pattern: str) -> BadInput:
    return BadInput(
        f"no check is called '{pattern}'",
        code="unknown-check",
        cause=did_you_mean(pattern, names()),
        next_step="`rocstack verify --list` names them all; a pattern such as 'mpi-*' fits several",
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """It cancels its jobs and writes what it has."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()


def _env() -> dict[str, str]:
    """pytest's own settings of somebody's shell are not for this run."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
