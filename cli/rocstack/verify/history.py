"""The runs so far, a line of JSON each: what of the cluster comes and goes."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError

from rocstack.base.errors import BadInput
from rocstack.base.words import Value
from rocstack.edge import files
from rocstack.verify import result, verdict
from rocstack.verify.result import LOG, REPORT, Run

FILE = "history.jsonl"
MOST = 8 << 20  # bytes, of which the older half goes then
REPORTS, FAILURES = 100, 30  # of --watch, that stay: of runs that passed, and of others


class HistoryEntry(Value):
    """One run. `failing` is node -> why, with "" for the cluster as a whole; `absent` node -> why."""

    id: str
    when: str  # UTC, ISO 8601
    seconds: float
    cluster: str
    control: str
    level: int  # that was asked for
    only: str = ""
    passed: bool
    complete: bool = True
    proved: int | None = None
    virtual: bool = False
    nodes: tuple[str, ...] = ()
    failing: Mapping[str, str] = Field(default_factory=dict)
    absent: Mapping[str, str] = Field(default_factory=dict)
    image: str = ""
    digest: str = ""
    folder: str = ""  # of the report, if it is one below that of the runs

    def like(self, other: Self) -> bool:
        """Whether both asked the same of one cluster."""
        return all(getattr(self, key) == getattr(other, key) for key in ("cluster", "control", "level", "only"))

    def mark(self, node: str) -> str:
        """x: it fails; -: it took no part; . else."""
        if node in self.failing:
            return "x"
        return "-" if node in self.absent or (node and node not in self.nodes) else "."


def entry(run: Run) -> HistoryEntry:
    judged = verdict.judge(run)
    reasons_of = {each.node.name: each.reasons for each in judged.nodes} | {"": judged.cluster}
    same = HistoryEntry.model_fields.keys() - {"nodes", "failing", "absent", "folder"}
    return HistoryEntry(
        **{field: getattr(run, field) for field in same},
        nodes=tuple(node.name for node in run.nodes),
        failing={name: f"{reasons[0].check}: {reasons[0].why}" for name, reasons in reasons_of.items() if reasons},
        absent={node.name: node.absent for node in run.nodes if node.absent},
    )


def note(run: Run, out: Path, folder: Path | None = None) -> HistoryEntry:
    """Adds the run; several may at once. `out` is the folder of the runs, `folder` that of the report."""
    below = folder.name if folder and folder.resolve().parent == out.resolve() else ""
    made, file = entry(run).model_copy(update={"folder": below}), out / FILE
    out.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.stat().st_size > MOST:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        files.write(file, "".join(lines[len(lines) // 2 :]))
    with file.open("ab", buffering=0) as lines_of_runs:
        lines_of_runs.write((made.model_dump_json() + "\n").encode())  # in one piece
    return made


def read(out: Path) -> tuple[HistoryEntry, ...]:
    """From the oldest; a line that can't be read is left out.

    Raises:
        BadInput: there is none.
    """
    if not (out / FILE).exists():
        raise BadInput.of("no-history", folder=out)
    return tuple(_newest_first(out))[::-1]


def _newest_first(out: Path) -> Iterator[HistoryEntry]:
    with suppress(FileNotFoundError):
        for line in reversed((out / FILE).read_text(encoding="utf-8", errors="replace").splitlines()):
            with suppress(ValidationError):
                yield HistoryEntry.model_validate_json(line)


def before(out: Path, now: HistoryEntry) -> HistoryEntry | None:
    """The run before `now` that asked the same."""
    return next((each for each in _newest_first(out) if each.id != now.id and each.like(now)), None)


def report(out: Path, now: HistoryEntry) -> Path | None:
    """The folder of the last whole run before `now` that asked the same, if its report is still there. Runs that only
    judged recorded evidence are not in the history."""
    older = (each for each in _newest_first(out) if each.id != now.id and each.when <= now.when and each.like(now))
    folders = (out / each.folder for each in older if each.folder and each.complete)
    return next((folder for folder in folders if (folder / REPORT).exists()), None)


def previous(out: Path, run: Run) -> Run | None:
    """The run that `report` finds; None also where another version wrote it."""
    folder = report(out, entry(run))
    with suppress(BadInput):
        return result.read(folder) if folder else None
    return None


def changes(before: HistoryEntry | None, now: HistoryEntry) -> list[str]:
    """What is otherwise than in the run before, in words."""
    before = before or now.model_copy(update={"failing": {}, "absent": {}})
    here = {"", *now.nodes} - now.absent.keys()
    worse = {name: why for name, why in now.failing.items() if before.failing.get(name) != why}
    better = [name for name in before.failing if name in here and name not in now.failing]
    lines = [f"{name or 'the cluster as a whole'} fails: {why}" for name, why in worse.items()]
    lines += [f"{name} is absent: {why}" for name, why in now.absent.items() if name not in before.absent]
    lines += [f"{name or 'the cluster as a whole'} passes again" for name in better]
    lines += [f"{name} is back" for name in before.absent if name in here]
    if before.image != now.image:
        new, old = (each.image.removeprefix("sha256:")[:12] or "none" for each in (now, before))
        lines.append(f"the image is {new} now, was {old}")
    return lines


def flapping(entries: Sequence[HistoryEntry]) -> dict[str, str]:
    """Node ("": the cluster as a whole) -> a mark a run, of those that ever failed or were away; the busiest first."""
    names = dict.fromkeys(name for each in entries for name in (*each.failing, *each.absent))
    rows = {name: "".join(each.mark(name) for each in entries) for name in names}
    return dict(sorted(rows.items(), key=lambda row: (-turns(row[1]), row[0])))


def turns(marks: str) -> int:
    """How often it changed."""
    return sum(one != other for one, other in pairwise(marks))


def prune(out: Path, keep: int = REPORTS, failures: int = FAILURES) -> None:
    """Reports go, but for those of the last `keep` runs that passed and the last `failures` that didn't."""
    passed = {each.folder for each in _newest_first(out) if each.passed}
    folders = sorted(folder for folder in out.glob("20*") if (folder / LOG).is_file())
    for good, stay in ((True, keep), (False, failures)):
        for folder in [folder for folder in folders if (folder.name in passed) is good][:-stay]:
            shutil.rmtree(folder, ignore_errors=True)
