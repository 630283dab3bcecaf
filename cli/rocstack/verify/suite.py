"""Runs tests/cluster in a pytest of its own, and tells what happens as it happens."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstack.base import paths
from rocstack.base.errors import BadInput, CheckFailed, Missing, RocstackError, Where, did_you_mean
from rocstack.base.levels import LEVELS
from rocstack.verify import evidence, result
from rocstack.verify.history import JSON as REPORT
from rocstack.verify.history import LOG
from rocstack.verify.result import Check, Run

OnEvent = Callable[[Mapping[str, Any]], None]
TIMEOUT_S = 60  # seconds for an interrupted run to cancel its jobs
_ENDED, _NO_TESTS = (0, 1, 2), 5  # what pytest ends with: nothing failed, something did, it was interrupted
_USER = re.compile("[A-Za-z_][A-Za-z0-9_.@-]{0,63}")


@dataclass(frozen=True)
class SuiteOptions:
    """What is to be run. `inventory` or `evidence` is given; `wait` is seconds; `runs` is the folder of the runs so
    far: the report compares with the last one like it."""

    folder: Path
    inventory: Path | None = None
    evidence: Path | None = None
    level: int = 3
    only: str = ""
    user: str = ""
    wait: float = 300
    runs: Path | None = None

    def arguments(self) -> list[str]:
        words = [f"--report={self.folder}", f"--level={self.level}", f"--wait={self.wait:g}"]
        words += [f"--inventory={self.inventory}"] if self.inventory else []
        words += [f"--evidence={self.evidence}"] if self.evidence else []
        words += [f"--only={self.only}"] if self.only else []
        words += [f"--runs={self.runs}"] if self.runs else []
        return [*words, *([f"--user={self.user}"] if self.user else [])]


def checks() -> Path:
    """The folder of the checks."""
    return paths.data_root() / "tests/cluster"


def run(options: SuiteOptions, on_event: OnEvent) -> Run:
    """
    Raises:
        BadInput: no check has such a name, the evidence is none, jobs of root.
        CheckFailed: the suite itself could not run.
    """
    if options.user and (options.user == "root" or not _USER.fullmatch(options.user)):
        raise BadInput(
            f"--user {options.user}: the suite's jobs must run as an ordinary user",
            code="bad-value",
            next_step="name another user, or omit --user to run as rocstack-verify, which deploy creates",
        )
    if options.evidence:
        evidence.load(options.evidence)
    _clear(options)
    stopped: list[Mapping[str, Any]] = []

    def heard(event: Mapping[str, Any]) -> None:
        on_event(event)
        if event["event"] == "stopped":
            stopped.append(event["error"])

    code = _pytest(options, heard)
    if stopped:
        raise _again(stopped[0])
    if code == _NO_TESTS and options.only:
        raise _unknown(options.only)
    if code not in _ENDED or not (options.folder / REPORT).exists():
        log = options.folder / LOG
        lines = [text for text in log.read_text(errors="replace").strip().splitlines() if text.strip()]
        raise CheckFailed(
            f"the suite ended with {code}: {lines[-1] if lines else 'it printed nothing'}",
            code="suite-failed",
            next_step=f"read its output in {log}",
        )
    return result.read(options.folder / REPORT)


def _pytest(options: SuiteOptions, on_event: OnEvent, *more: str) -> int:
    reader, writer = os.pipe()
    line = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "rocstack.verify.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
    ]
    line += [
        f"--rootdir={checks()}",
        "-q",
        "--tb=short",
        f"--events={writer}",
        *options.arguments(),
        *more,
        str(checks()),
    ]
    with (options.folder / LOG).open("wb") as output:
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[writer],
            env=_env(),
            start_new_session=True,  # Ctrl-C at the terminal comes to it once, from us
        )
        os.close(writer)
        try:
            with os.fdopen(reader, encoding="utf-8") as events:
                for text in events:
                    on_event(json.loads(text))
            return process.wait()
        except BaseException:
            with _deaf():
                on_event({"event": "stopping", "seconds": TIMEOUT_S})
                _stop(process)
            raise


def _clear(options: SuiteOptions) -> None:
    """What an older run left in the folder is never taken for this one's."""
    from rocstack.verify import artifacts

    options.folder.mkdir(parents=True, exist_ok=True)
    names = {*artifacts.NAMES, evidence.FILE, LOG}
    for path in (options.folder / name for name in names):
        if not (options.evidence and path.exists() and path.samefile(evidence.file_of(options.evidence))):
            path.unlink(missing_ok=True)


def listed() -> list[Check]:
    """All checks, as they would run.

    Raises:
        CheckFailed: as `run`.
    """
    all_checks: list[Check] = []

    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "checks":
            all_checks.extend(Check.model_validate_json(json.dumps(each)) for each in event["checks"])

    with tempfile.TemporaryDirectory() as folder:
        _pytest(SuiteOptions(Path(folder), level=max(LEVELS)), on_event, "--collect-only")
    return all_checks


def _again(error: Mapping[str, Any]) -> RocstackError:
    """The error of the other process as it was."""
    kind = {2: BadInput, 3: Missing}.get(error["exit_code"], CheckFailed)
    where = Where(error["where"]) if error["where"] else None
    return kind(error["what"], code=error["code"], where=where, cause=error["cause"], next_step=error["next"])


def _unknown(pattern: str) -> BadInput:
    return BadInput(
        f"no check is called '{pattern}'",
        code="unknown-check",
        cause=did_you_mean(pattern, [check.name for check in listed()]),
        next_step="list all checks with `rocstack verify --list`; a pattern such as 'mpi-*' selects several",
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """It cancels its jobs and writes what it has."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _deaf() -> Iterator[None]:
    """For who presses Ctrl-C again: what is being stopped would be left alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _env() -> dict[str, str]:
    """pytest's own settings of somebody's shell are not for this run."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
