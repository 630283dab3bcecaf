"""Runs tests/cluster in a pytest of its own, and tells what happens as it happens."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rocstack.base import paths
from rocstack.base.errors import BadInput, CheckFailed, Missing, RocstackError, Where, did_you_mean
from rocstack.base.levels import LEVELS
from rocstack.verify import evidence, result
from rocstack.verify.result import LOG, REPORT, Check, Run

OnEvent = Callable[[Mapping[str, Any]], None]
TIMEOUT_S = 60  # seconds for an interrupted run to cancel its jobs
_ENDED, _NO_TESTS = (0, 1, 2), 5  # what pytest ends with: nothing failed, something did, it was interrupted
_USER = re.compile("[A-Za-z_][A-Za-z0-9_.@-]{0,63}")
_PYTEST = ["-m", "pytest", "-p", "rocstack.verify.pytest_plugin", "-p", "no:cacheprovider", "-q", "--tb=short", "-c"]


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
        named = {"report" if name == "folder" else name: value for name, value in vars(self).items()}
        return [f"--{name}={value}" for name, value in named.items() if value not in (None, "")]


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
        raise BadInput.of("no-ordinary-user", user=options.user)
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
        least = min(check.level for check in fitting(options.only))
        raise BadInput.of("check-above-level", pattern=options.only, level=least, asked=options.level)
    if code not in _ENDED or not (options.folder / REPORT).exists():
        log = options.folder / LOG
        lines = [text for text in log.read_text(errors="replace").strip().splitlines() if text.strip()]
        raise CheckFailed.of("suite-failed", code=code, why=lines[-1] if lines else "it printed nothing", log=log)
    return result.read(options.folder / REPORT)


def _pytest(options: SuiteOptions, on_event: OnEvent, *more: str) -> int:
    reader, writer = os.pipe()
    # -P: no module of the folder that somebody works in takes the place of a real one.
    python = [sys.executable, "-P"]
    # Nor does a conftest.py above the checks count: rocstack's environment may lie in a folder that was copied.
    own = [f"--rootdir={checks()}", f"--confcutdir={checks()}"]
    line = [*python, *_PYTEST, os.devnull, *own, f"--events={writer}", *options.arguments()]
    with (options.folder / LOG).open("wb") as output:
        process = subprocess.Popen(
            [*line, *more, str(checks())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[writer],
            # pytest's own settings of somebody's shell are not for this run.
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            start_new_session=True,  # Ctrl-C at the terminal comes to it once, from us
        )
        os.close(writer)
        try:
            with os.fdopen(reader, encoding="utf-8") as events:
                for text in events:
                    on_event(json.loads(text))
            return process.wait()
        except BaseException:
            _stop(process, on_event)
            raise


def _stop(process: subprocess.Popen[bytes], on_event: OnEvent) -> None:
    """It cancels its jobs and writes what it has. Ctrl-C pressed again is not heard, as it would be left alone."""
    main = threading.current_thread() is threading.main_thread()
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        on_event({"event": "stopping", "seconds": TIMEOUT_S})
        process.send_signal(signal.SIGINT)
        process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _clear(options: SuiteOptions) -> None:
    """What an older run left in the folder is never taken for this one's."""
    from rocstack.verify import artifacts

    options.folder.mkdir(parents=True, exist_ok=True)
    for name in (*artifacts.NAMES, LOG):  # a link, too: it may have been sent, and the log is written through one
        (options.folder / name).unlink(missing_ok=True)
    path = options.folder / evidence.FILE
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


def fitting(pattern: str) -> list[Check]:
    """Those whose name matches; without a pattern, all.

    Raises:
        BadInput: none does.
        CheckFailed: as `run`.
    """
    known = listed()
    found = [check for check in known if fnmatchcase(check.name, pattern or "*")]
    if not found:
        names = [check.name for check in known]
        hint = f"{did_you_mean(pattern, names) or ''}{'; one pattern can be given' if ',' in pattern else ''}"
        raise BadInput.of("unknown-check", pattern=pattern, hint=hint.removeprefix("; "))
    return found


def _again(error: Mapping[str, Any]) -> RocstackError:
    """The error of the other process as it was."""
    kind = {2: BadInput, 3: Missing}.get(error["exit_code"], CheckFailed)
    where = Where(error["where"]) if error["where"] else None
    return kind(error["what"], code=error["code"], where=where, cause=error["cause"], next_step=error["next"])
