"""Verify: the acceptance suite on a deployed cluster, what it proved, and what follows from it."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput, Missing, RocstackError
from rocstack.steps.options import VerifyOptions, duration, inventory_path, settings
from rocstack.verify import drain as draining
from rocstack.verify import history, proved, service_report, suite, thresholds
from rocstack.verify.drain import Drained
from rocstack.verify.result import Run

OnEvent = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class VerifyResult:
    """A run, the folder of its report, and the sentence about what is stored as proved. `news`: whether that changed;
    `problem`: why it could not be stored; `shown`: what the service shows of it, or why it doesn't."""

    run: Run
    folder: Path
    inventory: Path | None = None
    stored: str = ""
    news: bool = False
    problem: str = ""
    shown: str = ""

    @property
    def ok(self) -> bool:
        return self.run.passed

    def to_dict(self) -> dict[str, Any]:
        return self.run.model_dump(mode="json", by_alias=True)


@dataclass(frozen=True)
class VerifyRound:
    """One of several runs: what changed since the last, and what was drained; or why there was no run."""

    result: VerifyResult | None = None
    changes: tuple[str, ...] = ()
    drained: Drained | None = None
    problem: str = ""


def runs_folder() -> Path:
    """Where the runs of this folder are noted, and their reports by default."""
    return Path(settings().out) / "verify"


def report_folder(options: VerifyOptions) -> Path:
    """The folder of the report: the one that was asked for, or a new one."""
    if options.report:
        return options.report
    name = ("replay-" if options.evidence else "") + time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folders = (runs_folder() / (f"{name}-{number}" if number else name) for number in range(100))
    return next(folder for folder in folders if not folder.exists())


def verify(options: VerifyOptions = VerifyOptions(), on_event: OnEvent = lambda event: None) -> VerifyResult:
    """Tests the cluster as an ordinary Slurm user, writes the report, and stores what the run proved.

    Raises:
        BadInput: an option is wrong; no check has such a name; the evidence can't be read.
        CheckFailed: the suite itself could not run. A check that fails is no error but in the result.
    """
    run, folder, inventory = _run(options, on_event)
    if inventory is None:
        return VerifyResult(run, folder)
    history.note(run, runs_folder(), folder)
    return _stored(run, folder, inventory, runs_folder())


def drain_failing(result: VerifyResult, *, force: bool = False) -> Drained:
    """Drains the nodes that fail, with the reason. `force`: also more than half of the workers.

    Raises:
        CheckFailed: that many would be drained; Slurm refused it.
    """
    assert result.inventory
    return draining.drain(result.run, result.inventory, force)


def watch(
    options: VerifyOptions, *, every: str = "10m", drain: bool = False, force: bool = False, on_event: OnEvent
) -> Iterator[VerifyRound]:
    """Runs again and again, each in a folder of its own.

    Raises:
        BadInput, Missing: what time doesn't mend.
    """
    pause = duration("--every", every, "such as 10m or 1h")
    inventory = inventory_path(settings(), options.inventory)

    def once() -> tuple[Run, Path]:
        level = 1 if options.level is None else options.level
        run, folder, _ = _run(replace(options, level=level, report=None), on_event)
        return run, folder

    yield from rounds(once, inventory, runs_folder(), pause=pause, drain=drain, force=force)


def rounds(
    once: Callable[[], tuple[Run, Path]],
    inventory: Path,
    runs: Path,
    *,
    pause: float = 0,
    drain: bool = False,
    force: bool = False,
) -> Iterator[VerifyRound]:
    """What `watch` yields; `once` makes a run."""
    while True:
        began = time.monotonic()
        try:
            run, folder = once()
            now = history.note(run, runs, folder)
            changes = tuple(history.changes(history.before(runs, now), now))
            result, drained, problem = _stored(run, folder, inventory, runs), None, ""
            if drain and not result.problem:
                try:
                    drained = drain_failing(result, force=force)
                except RocstackError as error:
                    problem = error.what
            yield VerifyRound(result, changes, drained, result.problem or problem)
            history.prune(runs)
        except (BadInput, Missing):
            raise
        except RocstackError as error:
            yield VerifyRound(problem=error.what)
        time.sleep(max(0.0, pause - (time.monotonic() - began)))


def _run(options: VerifyOptions, on_event: OnEvent) -> tuple[Run, Path, Path | None]:
    if options.evidence and (options.inventory or options.user):
        raise BadInput.of(
            "no-combination", why="--evidence judges without the cluster: leave out the inventory and --user"
        )
    if options.only == "":  # an empty variable of a script, which is not to run everything
        raise BadInput.of("empty-pattern")
    chosen = settings()
    thresholds.load(chosen.overlay_folder())  # what is wrong there is no node's fault
    inventory = None if options.evidence else inventory_path(chosen, options.inventory)
    folder = report_folder(options)
    wait = duration("--wait", options.wait)
    level = 3 if options.level is None else options.level
    runs = runs_folder() if inventory else None
    only = options.only or ""
    asked = suite.SuiteOptions(folder, inventory, options.evidence, level, only, options.user, wait, runs)
    return suite.run(asked, on_event), folder, inventory


def _stored(run: Run, folder: Path, inventory: Path, runs: Path) -> VerifyResult:
    shown = service_report.give(run, inventory) if settings().cluster.service else ""
    try:
        kept = proved.keep(run, inventory, runs)
    except RocstackError as error:
        return VerifyResult(run, folder, inventory, problem=error.what, shown=shown)
    return VerifyResult(run, folder, inventory, kept.sentence, kept.news, shown=shown)
