"""The reports that `rocstack verify` brought to the control node: the last whole one of each level. Root alone writes
there; what nodes said stands in them, so it is data."""

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from markupsafe import Markup

from rocstack.base.errors import BadInput
from rocstack.base.levels import LEVELS
from rocstack.base.text import visible
from rocstack.cluster.service import REPORT_MIB, report_name
from rocstack.service.failures import NotThere
from rocstack.verify import result, verdict
from rocstack.verify.report import failures
from rocstack.verify.report import page as report_page
from rocstack.verify.report.failures import ReportedFailure
from rocstack.verify.result import Run
from rocstack.verify.verdict import NodeVerdict, RunVerdict


@dataclass(frozen=True)
class ShownReport:
    """A run of verify and what the page shows of it."""

    run: Run

    @cached_property
    def verdict(self) -> RunVerdict:
        return verdict.judge(self.run)

    @cached_property
    def mood(self) -> str:
        """good, bad, or odd: not every node was judged."""
        return report_page.mood(self.run, self.verdict)

    @cached_property
    def nodes(self) -> dict[str, NodeVerdict]:
        return {each.node.name: each for each in self.verdict.nodes}

    @cached_property
    def failed(self) -> list[ReportedFailure]:
        return list(failures.failures(self.run))

    @cached_property
    def topology(self) -> Markup:
        """Drawings of the nodes; empty where the run has none."""
        return report_page.topology_part(self.run)

    @cached_property
    def whole(self) -> str:
        return report_page.html(self.run)

    @property
    def when(self) -> int | None:
        """Seconds since 1970."""
        try:
            return int(datetime.fromisoformat(self.run.when).timestamp())
        except (ValueError, OverflowError, OSError):
            return None

    def to_dict(self) -> dict[str, Any]:
        """As `/v1/verify/reports` lists it."""
        run = self.run
        return {
            "id": run.id, "object": "verify_report", "cluster": run.cluster, "created_at": self.when,
            "level": run.level, "proved": run.proved, "passed": run.passed, "verdict": self.verdict.sentence,
            "virtual": run.virtual, "failed": [each.result.check.name for each in self.failed],
            "nodes": [
                {"name": name, "state": each.state, "why": each.why, "failed": [why.check for why in each.reasons]}
                for name, each in self.nodes.items()
            ],
        }  # fmt: skip


@dataclass
class VerifyReports:
    """Reading one is work, so it stays until its file changes."""

    folder: Path
    _known: dict[str, tuple[tuple[int, int, int], ShownReport]] = field(default_factory=dict)
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> tuple[list[ShownReport], list[str]]:
        """From the newest; and why others can't be read, a sentence each."""
        found, problems = [], []
        for level in LEVELS:
            try:
                with self._reading:
                    found.append(self._read(report_name(level)))
            except FileNotFoundError:
                pass
            except (BadInput, OSError, RecursionError) as error:
                why = error.what if isinstance(error, BadInput) else str(error)
                problems.append(f"the report of level {level} can't be read: {why}")
        return sorted(found, key=lambda each: each.run.when, reverse=True), problems

    def rows(self) -> list[dict[str, Any]]:
        return [each.to_dict() for each in self.read()[0]]

    def get(self, key: str) -> ShownReport:
        """
        Raises:
            NotThere: no report has this id.
        """
        for each in self.read()[0]:
            if each.run.id == key:
                return each
        raise NotThere.of("no-such-report", report=visible(key[:64])).about("report")

    def opened(self, key: str) -> BinaryIO:
        """Its file, as `verify` wrote it. Of a large cluster it is too much to be made anew for each who asks.

        Raises:
            NotThere: no report has this id.
        """
        for name in map(report_name, LEVELS):
            with suppress(BadInput, OSError, RecursionError), self._reading:  # `read` says why it can't be read
                if self._read(name).run.id != key:
                    continue
                file = (self.folder / name).open("rb")
                if self._known[name][0] == _stamp(os.fstat(file.fileno())):
                    return file
                file.close()  # a newer one has just come in its place
        raise NotThere.of("no-such-report", report=visible(key[:64])).about("report")

    def _read(self, name: str) -> ShownReport:
        path = self.folder / name
        about = path.stat()
        if about.st_size > REPORT_MIB << 20:
            raise OSError(f"it has more than {REPORT_MIB} MB")
        stamp = _stamp(about)
        known = self._known.get(name)
        if known is None or known[0] != stamp:
            known = self._known[name] = stamp, ShownReport(result.read(path))
            known[1].to_dict()  # what the page shows of it is made here, and not where requests wait
        return known[1]


def _stamp(about: os.stat_result) -> tuple[int, int, int]:
    return about.st_ino, about.st_size, about.st_mtime_ns
