"""Runs tests/cluster in a pytest of its own, and tells what happens as it happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstack import paths
from rocstack.errors import BadInput, CheckFailed, Missing, RocstackError, did_you_mean
from rocstack.verify import result
from rocstack.verify.check import LEVELS, Check
from rocstack.verify.result import Run

OnEvent = Callable[[Mapping[str, Any]], None]
LOG, REPORT = "pytest.log", "report.json"
PATIENCE = 60  # seconds for an interrupted run to cancel its jobs
_NO_TESTS, _USAGE = 5, 4


@dataclass(frozen=True)
class Wish:
    """What is to be run. `inventory` or `evidence` is given; `wait` is seconds; the report compares with `previous`."""

    folder: Path
    inventory: Path | None = None
    evidence: Path | None = None
    level: int = 3
    only: str = ""
    user: str = ""
    wait: float = 300
    previous: Path | None = None

    def arguments(self) -> list[str]:
        words = [f"--report={self.folder}", f"--level={self.level}", f"--wait={self.wait:g}"]
        words += [f"--inventory={self.inventory}"] if self.inventory else []
        words += [f"--evidence={self.evidence}"] if self.evidence else []
        words += [f"--only={self.only}"] if self.only else []
        words += [f"--previous={self.previous}"] if self.previous else []
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
    stopped: list[Mapping[str, Any]] = []

    def heard(event: Mapping[str, Any]) -> None:
        on_event(event)
        if event["event"] == "stopped":
            stopped.append(event["error"])

    code = _pytest(wish, heard)
    if stopped:
        raise _again(stopped[0])
    if code == _NO_TESTS and wish.only:
        raise _unknown(wish.only)
    if not (wish.folder / REPORT).exists():
        log = wish.folder / LOG
        lines = [text for text in log.read_text(errors="replace").strip().splitlines() if text.strip()]
        raise CheckFailed(
            f"the suite ended with {code}: {lines[-1] if lines else 'it said nothing'}",
            code="suite-failed",
            next_step=f"{log} has all that it said",
        )
    return result.read(wish.folder / REPORT)


def _pytest(wish: Wish, on_event: OnEvent, *more: str) -> int:
    reader, writer = os.pipe()
    line = [sys.executable, "-m", "pytest", "-p", "rocstack.verify.plugin", "-p", "no:cacheprovider", "-c", os.devnull]
    line += [f"--rootdir={checks()}", "-q", "--tb=short", f"--events={writer}", *wish.arguments(), *more, str(checks())]
    with (wish.folder / LOG).open("wb") as output:
        process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=[writer], env=_env()
        )
        os.close(writer)
        try:
            with os.fdopen(reader, encoding="utf-8") as events:
                for text in events:
                    on_event(json.loads(text))
            return process.wait()
        except BaseException:
            _stop(process)
            raise


def newest(folder: Path, wish: Wish) -> Path | None:
    """The last report below `folder` of a run of the same checks, as folders are named by their time."""
    for path in sorted(folder.glob(f"*/{REPORT}"), reverse=True):
        try:
            found = result.read(path)
        except BadInput:
            continue  # of another version
        if (found.level, found.only, found.complete) == (wish.level, wish.only, True):
            return path
    return None


def listed() -> list[Check]:
    """All checks, as they would run.

    Raises:
        CheckFailed: as `run`.
    """
    found: list[Check] = []

    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "checks":
            found.extend(Check.model_validate_json(json.dumps(each)) for each in event["checks"])

    with tempfile.TemporaryDirectory() as folder:
        _pytest(Wish(Path(folder), level=max(LEVELS)), on_event, "--collect-only")
    return found


def _again(said: Mapping[str, Any]) -> RocstackError:
    """The error of the other process as it was."""
    kind = {2: BadInput, 3: Missing}.get(said["exit_code"], CheckFailed)
    return kind(said["what"], code=said["code"], cause=said["cause"], next_step=said["next"])


def _unknown(pattern: str) -> BadInput:
    return BadInput(
        f"no check is called '{pattern}'",
        code="unknown-check",
        cause=did_you_mean(pattern, [check.name for check in listed()]),
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
