"""Reads a log against the table of known texts. Pure: pieces of bytes in, findings out, memory bounded."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise

from rocstack.base.finding_texts import Table, TextEntry
from rocstack.base.findings import in_order
from rocstack.doctor import logrules
from rocstack.doctor.diagnosis import Diagnosis, Report, diagnosis
from rocstack.doctor.loglines import excerpt, hinted, holding, lines_with, origin
from rocstack.stack import component

RULES = logrules.CODES
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_ENGINE = b'{"log":"'  # how a container engine's own file has each line
_ESCAPED = {b'\\"': b'"', rb"\u003c": b"<", rb"\u003e": b">", rb"\u0026": b"&", rb"\u001b": b"\x1b"}
_NAMES = 64  # nodes and ranks that are remembered by name
# Half of the texts hold one of these words, and few lines do: only in those the texts themselves are looked for.
_GATES = tuple(b"ailed,rror,RROR, not ,n't ,nable,nvalid,annot,imeout,imed out,ibv_,memory".split(b","))


class LogReport(Report):
    """What was read, and what is known of it."""

    lines: int
    bytes: int
    transports: dict[str, int]  # "IB", "Socket" ... -> processes that use it
    files: dict[str, int] = {}  # name -> lines, where there are several
    skipped: dict[str, str] = {}  # files that hold no log -> why


def scan(pieces: Iterable[bytes], table: Table) -> LogReport:
    """Every known text of the log, each with its first line and how often it stands there."""
    return scan_files([("", pieces)], table)


def scan_files(files: Iterable[tuple[str, Iterable[bytes]]], table: Table) -> LogReport:
    """Several logs, such as those of the ranks of a job, as one: name, pieces. A finding names the file of its line."""
    reading = _Reading(table)
    for name, pieces in files:
        reading.file(name, pieces)
    return reading.report()


class _Reading:
    """Lines are counted through all files; where each begins is known."""

    def __init__(self, table: Table) -> None:
        self.table = table
        entries = table.values()
        texts = dict.fromkeys(text for entry in entries for text in entry.text)
        self.texts: dict[bytes, list[tuple[bytes, list[TextEntry]]]] = {}  # by their gate; none for some
        for text in texts:
            gate = next((gate for gate in _GATES if gate in text.encode()), b"")
            known = [entry for entry in entries if text in entry.text]
            self.texts.setdefault(gate, []).append((text.encode(), known))
        self.settling = [(*text.partition("*")[::2], entry.code) for entry in entries for text in entry.settled]
        self.settled: Counter[str] = Counter()  # entry -> lines
        self.ending = [(*text.partition("*")[::2], entry.code) for entry in entries for text in entry.over]
        self.over: dict[str, int] = {}  # entry -> the last line of this file that says so
        self.open: dict[str, _Tally] = {}  # of this file
        self.tallies: dict[str, _Tally] = {}
        self.rules = logrules.Rules()
        self.starts: list[int] = []
        self.names: list[str] = []
        self.lines = self.size = 0

    def file(self, name: str, pieces: Iterable[bytes]) -> None:
        self.starts.append(self.lines)
        self.names.append(name)
        ended = True
        for piece in pieces:
            self.size += len(piece)
            self._piece(_plain(piece))
            ended = piece.endswith(b"\n")
        self.lines += not ended
        for code, tally in self.open.items():
            if tally.last > self.over.get(code, 0):
                self.tallies.setdefault(code, _Tally(tally.entry)).join(tally)
        self.open, self.over = {}, {}
        self.rules.ended()

    def _piece(self, piece: bytes) -> None:
        seen: set[tuple[str, int]] = set()  # a line counts once for an entry, whichever of its texts it holds
        for gate, texts in self.texts.items():
            part, numbers = lines_with(piece, gate) if gate else (piece, None)
            for key, entries in texts:
                for at, line in holding(part, key):
                    if hinted(line, key.decode()):
                        continue
                    number = numbers[at - 1] if numbers else at
                    for entry in entries:
                        if (entry.code, number) in seen or (values := entry.read(line)) is None:
                            continue
                        seen.add((entry.code, number))
                        self.open.setdefault(entry.code, _Tally(entry)).add(self.lines + number, line, key, values)
        for begin, end, code in self.settling:
            self.settled[code] += sum(end in line.partition(begin)[2] for _, line in holding(piece, begin.encode()))
        for begin, end, code in self.ending:
            found = (number for number, line in holding(piece, begin.encode()) if end in line.partition(begin)[2])
            self.over[code] = max(self.over.get(code, 0), *(self.lines + number for number in found), 0)
        self.rules.look(piece, self.lines)
        self.lines += piece.count(b"\n")

    def report(self) -> LogReport:
        shown = self.rules.shown()
        tallies = [tally for code, tally in self.tallies.items() if tally.count > self.settled[code]]
        found = [tally.finding(shown) for tally in tallies] + self.rules.findings(self.table)
        return LogReport(
            lines=self.lines,
            bytes=self.size,
            transports=self.rules.transports(),
            files=dict(zip(self.names, self._counts(), strict=True)) if self.names != [""] else {},
            findings=in_order(self._placed(each) for each in _ranked(found, self.table)),
        )

    def _counts(self) -> Iterable[int]:
        return (after - before for before, after in pairwise([*self.starts, self.lines]))

    def _placed(self, finding: Diagnosis) -> Diagnosis:
        if finding.line is None:
            return finding
        at = bisect_left(self.starts, finding.line) - 1
        return replace(finding, line=finding.line - self.starts[at], file=self.names[at])


def _plain(piece: bytes) -> bytes:
    """Without colours, and as the program wrote it."""
    for escaped, plain in _ESCAPED.items() if _ENGINE in piece else ():
        piece = piece.replace(escaped, plain)
    return _ANSI.sub(b"", piece) if b"\x1b" in piece else piece


def _ranked(findings: Iterable[Diagnosis], table: Table) -> list[Diagnosis]:
    """Causes before what often follows from them, both as the log has them; what has no line of its own stands last."""
    return sorted(findings, key=lambda each: (table[each.code].symptom, each.line is None, each.line or 0))


@cache
def _nics() -> tuple[tuple[re.Pattern[str], str], ...]:
    """How the texts of libraries, drivers and devices of a NIC profile name it, and the profile's name."""
    return tuple(
        (re.compile(rf"(?<![a-z0-9])(?:lib)?(?:{'|'.join(map(re.escape, names))})(?![a-z])"), nic.name)
        for nic in component.nic_profiles()
        if (names := [*nic.modules, *([nic.provider] if nic.provider else [])])
    )


def nic_of(line: str) -> str:
    """The NIC profile of which a line speaks; NIC, as one would fill it in, where it names none."""
    return next((name for pattern, name in _nics() if pattern.search(line)), "NIC")


@dataclass
class _Tally:
    entry: TextEntry
    line: int = 0  # the first; its excerpt and its values
    excerpt: str = ""
    values: dict[str, str] = field(default_factory=dict)
    count: int = 0
    last: int = 0
    nodes: dict[str, None] = field(default_factory=dict)
    ranks: dict[int, None] = field(default_factory=dict)

    def add(self, number: int, line: str, key: bytes, values: dict[str, str]) -> None:
        place = origin(line)
        self.count += 1
        self.last = max(self.last, number)
        if not self.line or number < self.line:
            self.line, self.excerpt, self.values = number, excerpt(line, key), {"nic": nic_of(line), **values}
        if place.node and len(self.nodes) < _NAMES:
            self.nodes[place.node] = None
        if place.rank is not None and len(self.ranks) < _NAMES:
            self.ranks[place.rank] = None

    def join(self, later: _Tally) -> None:
        """Of a file that was read after those of this one."""
        if not self.line:
            self.line, self.excerpt, self.values = later.line, later.excerpt, later.values
        self.count += later.count
        self.nodes = dict.fromkeys([*self.nodes, *later.nodes][:_NAMES])
        self.ranks = dict.fromkeys([*self.ranks, *later.ranks][:_NAMES])

    def finding(self, shown: set[str]) -> Diagnosis:
        """`shown`: what the whole log shows, which makes some findings harmless."""
        seen, nodes, ranks = (self.excerpt,), tuple(self.nodes), tuple(sorted(self.ranks))
        values = {**self.values, **({"level": "note"} if shown.intersection(self.entry.harmless) else {})}
        return diagnosis(self.entry, values, count=self.count, line=self.line, seen=seen, nodes=nodes, ranks=ranks)
