"""Reads a log against the table of known texts. Pure: pieces of bytes in, findings out, memory bounded."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rocstack.base.finding_texts import Table, TextEntry
from rocstack.base.findings import in_order
from rocstack.base.text import listed
from rocstack.doctor.diagnosis import Diagnosis, Report, diagnosis

RULES = ("tcp-fallback", "tcp-mixed", "tcp-one-node", "transport-unknown")  # found by what all lines say together
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_SHOWN = 200  # characters of a line
_NAMES = 64  # nodes, ranks and processes that are remembered by name
_USING = re.compile(r"NCCL INFO Using network (?P<net>\S.*)")
_VIA = re.compile(r"via NET/(?P<net>[A-Za-z]\w*)")
_NET_KEYS = (b"Using network ", b"via NET/")
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_NODE = r"(?P<node>[A-Za-z0-9][A-Za-z0-9.-]{0,62})"
_PREFIXES = [
    re.compile(text)
    for text in (
        r"\s+",
        rf"\[?{_TIME}\]?",
        r"\[\s*\d+\.\d+\]",  # dmesg
        r"\[?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3}\s+\d+ [\d:]{8}(?: \d{4})?\]?",
        rf"\w{{3}}\s+\d{{1,2}} \d\d:\d\d:\d\d {_NODE} (?=\S+:)",  # syslog
        r"\[(?:prterun-[^]@\s]*@)?\d+,(?P<rank>\d+)\]<std(?:out|err)>:",  # mpirun
        r"\[rank ?(?P<rank>\d+)\]:?|\[[a-z]\w*?\d+\]:",  # torch, torchrun's role and local rank
        r"(?P<rank>\d+): ",  # srun --label
        rf"{_NODE}:\d+:\d+ \[\d+\] ",  # RCCL: host, process, thread, device
        rf"{_NODE}\s+\| ",  # compose
        rf"slurm(?:d|stepd)-{_NODE}: ",
        # pdsh, clush: a name with a number at its end, and not a device's
        r"(?!(?:eth|en[ops]|ib|hsn|lo|card|renderD|nvme|sd|gpu)[a-z]*\d)(?P<node>[A-Za-z][A-Za-z0-9.-]{0,61}\d): ",
    )
]
_KEPT = 400  # characters that are looked at


class LogReport(Report):
    """What was read, and what is known of it."""

    lines: int
    bytes: int
    transports: dict[str, int]  # "IB", "Socket" ... -> processes that use it


def scan(pieces: Iterable[bytes], table: Table) -> LogReport:
    """Every known text of the log, each with its first line and how often it stands there."""
    texts = [
        (text.encode(), [entry for entry in table.values() if text in entry.text])
        for text in dict.fromkeys(text for entry in table.values() for text in entry.text)
    ]
    tallies: dict[str, _Tally] = {}
    net = _Network()
    lines = size = 0
    ended = True
    for piece in pieces:
        size += len(piece)
        if b"\x1b" in piece:
            piece = _ANSI.sub(b"", piece)
        seen: set[tuple[str, int]] = set()  # a line counts once for an entry, whichever of its texts it holds
        for key, entries in texts:
            for number, line in _holding(piece, key):
                for entry in entries:
                    if (entry.code, number) in seen or (values := entry.read(line)) is None:
                        continue
                    seen.add((entry.code, number))
                    tallies.setdefault(entry.code, _Tally(entry)).add(lines + number, line, key, values)
        net.look(piece)
        lines += piece.count(b"\n")
        ended = piece.endswith(b"\n")
    lines += not ended
    findings = [tally.finding() for tally in sorted(tallies.values(), key=lambda tally: tally.line)]
    findings += net.findings(table)
    return LogReport(lines=lines, bytes=size, transports=net.used(), findings=in_order(findings))


def _holding(piece: bytes, key: bytes) -> Iterator[tuple[int, str]]:
    """The lines of `piece` that hold `key`, with their number from 1. A carriage return ends what a person sees."""
    at, number, counted = piece.find(key), 1, 0
    while at >= 0:
        number += piece.count(b"\n", counted, at)
        counted = at
        end = piece.find(b"\n", at)
        end = len(piece) if end < 0 else end
        start = piece.rfind(b"\n", 0, at) + 1
        start = max(start, piece.rfind(b"\r", start, at) + 1)
        shown_end = piece.find(b"\r", at, end)
        line = piece[max(start, at - 4096) : min(end if shown_end < 0 else shown_end, at + 4096)]
        yield number, line.decode("utf-8", "replace")
        at = piece.find(key, end)


def _excerpt(line: str, key: bytes) -> str:
    """What fits on a line of a terminal, around what was found, without control characters."""
    line = "".join(char if char.isprintable() else " " for char in line).strip()
    at = max(line.find(key.decode()), 0)
    start = 0 if len(line) <= _SHOWN else max(0, min(at - _SHOWN // 4, len(line) - _SHOWN))
    end = start + _SHOWN
    return ("… " if start else "") + line[start:end] + (" …" if end < len(line) else "")


class LogOrigin(NamedTuple):
    """Which node and rank a line comes from, as far as what stands before it says so."""

    node: str | None = None
    rank: int | None = None


def origin(line: str) -> LogOrigin:
    """
    >>> origin("[1,3]<stderr>:n2:812:830 [3] NCCL INFO Using network IB")
    LogOrigin(node='n2', rank=3)
    """
    node: str | None = None
    rank: int | None = None
    at, line = 0, line[:_KEPT]
    while match := next((m for m in (p.match(line, at) for p in _PREFIXES) if m and m.end() > at), None):
        groups = match.groupdict()
        node = groups.get("node") or node
        rank = int(groups["rank"][:9]) if groups.get("rank") else rank
        at = match.end()
    return LogOrigin(node, rank)


@dataclass
class _Tally:
    entry: TextEntry
    line: int = 0  # the first; its excerpt and its values
    excerpt: str = ""
    values: dict[str, str] = field(default_factory=dict)
    count: int = 0
    nodes: dict[str, None] = field(default_factory=dict)
    ranks: dict[int, None] = field(default_factory=dict)

    def add(self, number: int, line: str, key: bytes, values: dict[str, str]) -> None:
        place = origin(line)
        self.count += 1
        if not self.line or number < self.line:
            self.line, self.excerpt, self.values = number, _excerpt(line, key), values
        if place.node and len(self.nodes) < _NAMES:
            self.nodes[place.node] = None
        if place.rank is not None and len(self.ranks) < _NAMES:
            self.ranks[place.rank] = None

    def finding(self) -> Diagnosis:
        seen, nodes, ranks = (self.excerpt,), tuple(self.nodes), tuple(sorted(self.ranks))
        return diagnosis(self.entry, self.values, count=self.count, line=self.line, seen=seen, nodes=nodes, ranks=ranks)


class _Network:
    """Which transport each process says that it uses."""

    def __init__(self) -> None:
        self.info = False
        self.processes: dict[str, str] = {}  # "n1:812" -> "IB"; a later word replaces an earlier one
        self.via: set[str] = set()
        self.hosts: dict[str, None] = {}

    def look(self, piece: bytes) -> None:
        self.info = self.info or b"NCCL INFO" in piece
        for _, line in (match for key in _NET_KEYS for match in _holding(piece, key)):
            if match := _VIA.search(line):
                self.via.add(_family(match["net"]))
            elif match := _USING.search(line):
                process = re.search(r"([A-Za-z0-9][\w.-]*):(\d+):\d+ \[", line)
                place = origin(line)
                name = f"{process[1]}:{process[2]}" if process else f"{place.node or '?'}:{place.rank}"
                if name in self.processes or len(self.processes) < 65536:
                    self.processes[name] = _family(match["net"].strip())
                    self.hosts[name.partition(":")[0]] = None

    def used(self) -> dict[str, int]:
        kinds = list(self.processes.values())
        return {kind: kinds.count(kind) for kind in sorted({*kinds, *self.via})}

    def findings(self, table: Table) -> list[Diagnosis]:
        sockets = [name for name, kind in self.processes.items() if kind == "Socket"]
        others = {*self.processes.values(), *self.via} - {"Socket"}
        if not sockets and "Socket" not in self.via:
            if others:
                return []
            why = "RCCL's start isn't in it" if self.info else "it has no NCCL INFO line"
            return [diagnosis(table["transport-unknown"], {"why": why})]
        hosts = tuple(dict.fromkeys(name.partition(":")[0] for name in sockets)) or ("some ranks",)
        if others:
            name = "tcp-mixed"
        else:
            name = "tcp-fallback" if "Socket" in self.via or len(self.hosts) != 1 else "tcp-one-node"
        count = f"{len(sockets)} processes on " if len(sockets) > 1 else ""
        who = count + listed(hosts)
        return [diagnosis(table[name], {"who": who}, count=max(len(sockets), 1), nodes=hosts[:_NAMES])]


def _family(net: str) -> str:
    """IB for all of RCCL's own verbs transports and their plugins (IBext_v8), else the name itself."""
    return "IB" if net.startswith("IB") else net[:40]
