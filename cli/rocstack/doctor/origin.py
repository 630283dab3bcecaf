"""Which node and rank a log line comes from, as far as what stands before it says so."""

import re
from typing import NamedTuple


class LogOrigin(NamedTuple):
    node: str | None = None
    rank: int | None = None


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


def origin(line: str) -> LogOrigin:
    """
    >>> origin("[1,3]<stderr>:n2:812:830 [3] NCCL INFO Using network IB")
    Origin(node='n2', rank=3)
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
