"""Lines of a log: which hold a text, what of them is shown, and which node and rank they come from. Pure."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_SHOWN = 200  # characters of a line
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
_AROUND = 500  # bytes before and after a known text: what a job's user writes has lines of any length
_KEPT = 400  # characters that are looked at
_BEFORE = 120  # characters before a known text that may say that nothing happened
_HINT = re.compile(
    r"(?:\b[Ii]f (?:[\w'`]{1,30} ){0,2}[`'\"]?"
    r"|\b(?:[Tt]o (?:fix|avoid|prevent|solve)|[Ii]n case of|[Ff]ix(?:es)?) [`'\"]?(?:\w{1,40}: )?"
    r"|\b(?:can|could|may|might) (?:cause|lead to|result in)\b[^.;]{0,100}"
    r"|\.py::\w{1,80}\[(?:[^\[\]]|\[[^\[\]]{0,40}\]){0,100}|^(?:ok \d{1,6} - |(?:# |--- )?PASS(?:ED)?: |XFAIL ).{0,100}"
    # What is looked for, in quotes, in Go's words for a rule or right behind; and what a test has made happen.
    r"|\b[efr]?grep (?:-\S{1,20} ){0,4}[\"'][^\"']{0,100}|\b[Pp]attern\"?[:=] ?"
    r"|\b[Pp]attern\"?[:=] ?(?:re\.compile\()?[rR]?[\"'`(]{1,2}[^\"'`{}]{0,60}"
    r"|\{[^{}]{0,60}\bPattern:(?! )[^\"'`{}]{0,60}"
    r"|\b(?:[Cc]aught expected\b|[Ee]xpected (?:error|failure|exception)(?: \([^()]{0,40}\))?:)[^.;]{0,60})$"
)
# What a program says below the level of a warning, in the forms of UCX, Slurm, HIP (AMD_LOG_LEVEL) and Go's loggers.
_LEVEL = re.compile(
    r"(?P<quiet>UCX +(?:DEBUG|DIAG|TRACE\w{0,9}|DATA|FUNC|REQ|ASYNC|POLL|INFO)\b"
    r"|(?:^|[\s:\]])debug[1-5]?: |\blevel=(?:debug|trace)\b|(?:^|\s):[3-5]:\w[\w.]{0,60} *:\d)"
    r"|UCX +(?:ERROR|FATAL|WARN)|N?CCL WARN|\b(?:error|fatal|warning): |\*ERROR\*"
    r"|\blevel=(?:error|fatal|warning)\b|\bE\d{4} "
)


def holding(piece: bytes, key: bytes) -> Iterator[tuple[int, str]]:
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
        line = piece[max(start, at - _AROUND) : min(end if shown_end < 0 else shown_end, at + _AROUND)]
        yield number, line.decode("utf-8", "replace")
        at = piece.find(key, end)


def lines_with(piece: bytes, gate: bytes) -> tuple[bytes, list[int]]:
    """The lines of `piece` that hold `gate`, as a piece, and the number of each, from 1."""
    found, numbers = [], []
    at, number, counted = piece.find(gate), 1, 0
    while at >= 0:
        start = piece.rfind(b"\n", 0, at) + 1
        number += piece.count(b"\n", counted, start)
        counted = start
        end = piece.find(b"\n", at)
        end = len(piece) if end < 0 else end
        found.append(piece[start:end])
        numbers.append(number)
        at = piece.find(gate, end)
    return b"\n".join(found), numbers


def hinted(line: str, key: str) -> bool:
    """Whether the text is a hint of what might happen, part of a test's name, or what a debug log tells of its tries.

    >>> hinted("this can cause errors like `OSError: Too many open files`", "Too many open files")
    True
    >>> hinted("[n1:88:0] ib_md.c:379 UCX DEBUG ibv_reg_mr(length=1) failed: Cannot allocate memory", "ibv_reg_mr(")
    True
    """
    at = max(0, line.find(key))
    levels = [match["quiet"] for match in _LEVEL.finditer(line[:at][-_KEPT:])]  # the last one is that of the text
    if not levels and (after := _LEVEL.search(line[at : at + _BEFORE])):  # UCX names the file first
        levels = [after["quiet"]]
    return bool(levels and levels[-1]) or bool(_HINT.search(line[max(0, at - _BEFORE) : at]))


def excerpt(line: str, key: bytes) -> str:
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
