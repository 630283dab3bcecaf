"""rccl-tests and nccl-tests, `all_reduce_perf` and its like (github.com/ROCm/rccl-tests, src/common.cu), and what RCCL
prints with NCCL_DEBUG=INFO about the paths its data take (github.com/NVIDIA/nccl, src/transport)."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rocstack.verify.parsers import bad, lines

_PREFIXES = re.compile(
    r"^(?:\[(?:prterun-[^]@\s]*@)?\d+,\d+\]<std(?:out|err)>: ?"  # mpirun --tag-output
    r"|\s*\d{1,7}: "  # srun --label
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?= ?\[)"  # mpirun --timestamp-output
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S* "
    r"|[A-Za-z][\w.-]*\d: )+"  # pdsh, clush: the node
)
_FIELDS = {
    "tests": re.compile(r"(?:rccl|nccl)-tests:? +[Vv]ersion +(\S+)"),
    "library": re.compile(r"^(?:RCCL|NCCL) version *:? *(\S+)"),
    "bounds": re.compile(r"^# Out of bounds values : (\d+)"),
    "average": re.compile(r"^# Avg bus bandwidth +: (\d+(?:\.\d*)?)"),
}
# Of any rank's process, though others come to their end.
_FAILURE = re.compile(r"(?:^|: )Test (?:[A-Z]{3,4} failure |timeout \()|^\.\. \S+ pid \d+: Test failure ")
_RANK = re.compile(r"^# +Rank +(\d+)\b(?:[ \w]{0,20} Pid +(\d+) )?")
_LISTED = 1900  # characters about a process's ranks: of 2,047, with blanks and line ends, the tool cuts off the rest
_ROW = re.compile(r"^\d+\s+\d+\s+[a-z]")
_COLUMNS = (11, 12, 13)  # older ones have no root, those of 2021 and of collectives that don't reduce no redop
_TIMED = re.compile(r"(?:\d[\d.e+]* +[\d.]+ +[\d.]+ +(?:\d[\d.e+]*|N/A) *){1,2}")  # what a row goes on with
# A row that somebody else's words end, without a space: UCX says its warnings on standard output, too. What options of
# the tool's own add to a row stands behind a space.
_INTERRUPTED = re.compile(
    r"(\d+\s+\d+\s+[a-z]\w*(?:\s+[a-z]+)?\s+-?\d+"
    r"(?:\s+[\d.]+(?:e[+-]\d+)?\s+[\d.]+\s+[\d.]+\s+(?>\d+(?:\.\d+)?(?:e[+-]\d+)?|N/A)){0,2})(?=[A-Za-z[])"
)
# Bounded, since a worker may print lines of some MB. "N/A" of a row may stand right before the node's name.
_OF_RCCL = re.compile(
    r"(?:\[\d{4}-\d\d-\d\d [\d:.]{8,20}\] )?(?<!/)[A-Za-z][\w.-]{0,63}:\d{1,10}:\d{1,10} \[-?\d{1,4}\] "
    r".{0,80}?N?CCL [A-Z]{4,7} "
)


@dataclass(frozen=True)
class Timing:
    """`us` of a call, `algbw` and `busbw` in GB/s (10^9 bytes); `wrong` elements, None where they weren't checked."""

    us: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True)
class CollectiveRow:
    """`size` in bytes; `dtype` and `redop` as the tool names them ("float", "sum", "none")."""

    size: int
    dtype: str
    redop: str
    out_of_place: Timing
    in_place: Timing

    def timing(self, in_place: bool) -> Timing:
        return self.in_place if in_place else self.out_of_place


@dataclass(frozen=True)
class Collective:
    """`ranks`: 0 where they aren't all told."""

    tests: str  # version
    library: str  # version
    ranks: int
    rows: tuple[CollectiveRow, ...]
    out_of_bounds: int

    @property
    def wrong(self) -> int:
        """Elements that were wrong."""
        timings = [timing for row in self.rows for timing in (row.out_of_place, row.in_place)]
        return max(self.out_of_bounds, sum(timing.wrong or 0 for timing in timings))

    def busbw(self, size: int, in_place: bool = True) -> float | None:
        """Of the largest row of at most `size` bytes that is at least half of it, GB/s; of equal ones the fastest."""
        fit = [(row.size, row.timing(in_place).busbw) for row in self.rows if size / 2 <= row.size <= size]
        return max(fit)[1] if fit else None

    def points(self, in_place: bool = True) -> list[list[float]]:
        """[bytes, busbw, algbw] of each row, GB/s."""
        timings = [(row.size, row.timing(in_place)) for row in self.rows]
        return [[size, timing.busbw, timing.algbw] for size, timing in timings]


def parse(text: str, tool: str = "all_reduce_perf") -> Collective:
    """
    Raises:
        CheckFailed: no row, a row that isn't understood, no end, or a rank that failed.
    """
    fields: dict[str, str] = {}
    ranks: set[str] = set()
    out_of_bounds = end = failed = 0
    listed = Counter[str]()
    started: list[tuple[int, list[str]]] = []
    for number, raw in enumerate(lines(text), 1):
        line = _PREFIXES.sub("", raw).strip()
        for key, pattern in _FIELDS.items():
            if match := pattern.search(line):
                fields[key] = match[1]
                out_of_bounds = max(out_of_bounds, int(match[1])) if key == "bounds" else out_of_bounds
                end = number if key == "average" else end
        if _FAILURE.search(line):
            failed = failed or number
        if match := _RANK.match(line):
            ranks.add(match[1])
            listed[match[2] or ""] += len(line) if match[2] else 0
        own = without_rccl(line).strip()
        if _ROW.match(own):
            part = _INTERRUPTED.match(own)
            started.append((number, (part[1] if part else own).split()))
        elif started and len(started[-1][1]) < min(_COLUMNS) and _TIMED.fullmatch(own):
            started[-1][1].extend(own.split())
    rows = []
    for number, words in started:
        try:
            rows.append(_row(words))
        except (ValueError, IndexError):
            raise bad(tool, text, "this row isn't understood", number) from None
    if not rows:
        raise bad(tool, text, "no size was measured")
    if "average" not in fields:
        raise bad(tool, text, f"it ended after {len(rows)} sizes, before its average")
    if failed:
        raise bad(tool, text, "a rank failed", failed)
    if started[-1][0] > end:
        raise bad(tool, text, "a table after its average was cut off", started[-1][0])
    took_part = 0 if max(listed.values(), default=0) > _LISTED else len(ranks)
    return Collective(fields.get("tests", ""), fields.get("library", ""), took_part, tuple(rows), out_of_bounds)


def without_rccl(line: str) -> str:
    """What the tool printed before RCCL's own words: the tool begins a row, and RCCL, which first connects then, goes
    on in the same line."""
    match = _OF_RCCL.search(line)
    return line[: match.start()] if match else line


def _row(words: list[str]) -> CollectiveRow:
    if len(words) not in _COLUMNS:
        raise ValueError
    redop = words[3] if words[3].isalpha() else "none"
    return CollectiveRow(int(words[0]), words[2], redop, _timing(words[-8:-4]), _timing(words[-4:]))


def _timing(words: list[str]) -> Timing:
    us, algbw, busbw = (float(word) for word in words[:3])
    wrong = None if words[3] == "N/A" else float(words[3])
    # A division by nothing is no speed, and would meet any threshold.
    if not all(math.isfinite(value) and value >= 0 for value in (us, algbw, busbw)):
        raise ValueError
    if wrong is not None and not (math.isfinite(wrong) and wrong >= 0):
        raise ValueError
    if re.match(r"0\d", words[3]):  # a node's name that begins with a digit was behind it
        raise ValueError
    return Timing(us, algbw, busbw, None if wrong is None else int(wrong))


_INFO = re.compile(r"N?CCL INFO (.*)")
_WAY = re.compile(r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\] (?:\[(?:send|receive)\] )?via ([\w/() -]+)")
_NUMBERS = re.compile(r"/\d+(?:\(\d+\))?")  # of a NIC, and of the rank whose NIC it is
_NETWORK = re.compile(r"Using network ([\w-]+(?: Libfabric)?)")
_VERSION = re.compile(r"(?:RCCL|NCCL) version[ :]+([\w.+:-]+)")


@dataclass(frozen=True)
class Transport:
    """`ways`: how many channels go which way ("NET/IB", "NET/RCCL-ANP", "NET/Socket", "P2P", "SHM"); `direct` of those
    over the network go between GPU and NIC without host memory (GPUDirect RDMA). `networks` are those that ranks chose
    ("IB")."""

    version: str
    networks: tuple[str, ...]
    ways: Mapping[str, int]
    direct: int

    @property
    def net(self) -> tuple[str, ...]:
        """The ways between nodes."""
        return tuple(sorted(way for way in self.ways if way.startswith("NET/")))


def brief(text: str) -> list[str]:
    """One line of NCCL_DEBUG=INFO for each way that `parse_transport` reads: thousands of ranks print the same."""
    kept_lines: dict[str, str] = {}
    for raw in lines(text):
        line = raw[len(without_rccl(raw)) :] or raw
        info = _INFO.search(line)
        way = _WAY.search(info[1]) if info else None
        network = _NETWORK.search(info[1]) if info else None
        if info and (way or network):
            kept_lines.setdefault(
                re.sub(r"/\d+(?:\(\d+\))?", "", way[1]) if way else network[0] if network else "", line
            )
        elif _VERSION.search(line):
            kept_lines.setdefault("version", line)
    return list(kept_lines.values())


def parse_transport(text: str, tool: str = "RCCL") -> Transport:
    """
    Raises:
        CheckFailed: no line of NCCL_DEBUG=INFO says a network or a way.
    """
    version, networks, direct = "", set(), 0
    ways: Counter[str] = Counter()
    for line in lines(text):
        if match := _VERSION.search(line):
            version = match[1]
        info = _INFO.search(line)
        if not info:
            continue
        if match := _NETWORK.search(info[1]):
            networks.add(match[1])
        if match := _WAY.search(info[1]):
            kind, _, more = match[1].strip().partition("/")
            net = kind == "NET"
            ways[f"NET/{more.partition('/')[0]}" if net else kind] += 1
            direct += net and "GDRDMA" in match[1]
    if not networks and not ways:
        raise bad(tool, text, "no line of NCCL_DEBUG=INFO says which network is used")
    return Transport(version, tuple(sorted(networks)), dict(ways), direct)
