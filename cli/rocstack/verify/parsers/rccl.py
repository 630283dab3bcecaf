"""rccl-tests and nccl-tests, `all_reduce_perf` and its like (github.com/ROCm/rccl-tests, src/common.cu), and what RCCL
prints with NCCL_DEBUG=INFO about the paths its data take (github.com/NVIDIA/nccl, src/transport)."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rocstack.verify.parsers import bad

_PREFIX = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>:\s?")  # mpirun --tag-output
_FIELDS = {
    "tests": re.compile(r"(?:rccl|nccl)-tests:? +[Vv]ersion +(\S+)"),
    "library": re.compile(r"^(?:RCCL|NCCL) version *:? *(\S+)"),
    "bounds": re.compile(r"^# Out of bounds values : (\d+)"),
    "average": re.compile(r"^# Avg bus bandwidth +: ([\d.]+)"),
}
_RANK = re.compile(r"^# +Rank +(\d+)\b")
_ROW = re.compile(r"^\d+ +\d+ +[a-z]")
_COLUMNS = (12, 13)  # older ones have no root


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


@dataclass(frozen=True)
class Collective:
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

    def busbw(self, size: int) -> float | None:
        """Of the best row of at most `size` bytes that is at least half of it, GB/s, out of place."""
        fit = [row.out_of_place.busbw for row in self.rows if size / 2 <= row.size <= size]
        return max(fit, default=None)

    @property
    def points(self) -> list[list[float]]:
        """[bytes, busbw, algbw] of each row, GB/s, out of place."""
        return [[row.size, row.out_of_place.busbw, row.out_of_place.algbw] for row in self.rows]


def parse(text: str, tool: str = "all_reduce_perf") -> Collective:
    """
    Raises:
        CheckFailed: no row, a row that isn't understood, or no end.
    """
    fields: dict[str, str] = {}
    rows, ranks = [], set()
    for number, raw in enumerate(text.splitlines(), 1):
        line = _PREFIX.sub("", raw).strip()
        for key, pattern in _FIELDS.items():
            if match := pattern.search(line):
                fields[key] = match[1]
        if match := _RANK.match(line):
            ranks.add(match[1])
        if _ROW.match(line):
            try:
                rows.append(_row(line.split()))
            except (ValueError, IndexError):
                raise bad(tool, text, "this row isn't understood", number) from None
    if not rows:
        raise bad(tool, text, "no size was measured")
    if "average" not in fields:
        raise bad(tool, text, f"it ended after {len(rows)} sizes, before its average")
    tests, library, out_of_bounds = fields.get("tests", ""), fields.get("library", ""), int(fields.get("bounds", 0))
    return Collective(tests, library, len(ranks), tuple(rows), out_of_bounds)


def _row(words: list[str]) -> CollectiveRow:
    if len(words) not in _COLUMNS:
        raise ValueError
    return CollectiveRow(int(words[0]), words[2], words[3], _timing(words[-8:-4]), _timing(words[-4:]))


def _timing(words: list[str]) -> Timing:
    us, algbw, busbw = (float(word) for word in words[:3])
    return Timing(us, algbw, busbw, None if words[3] == "N/A" else int(float(words[3])))


_INFO = re.compile(r"N?CCL INFO (.*)")
_WAY = re.compile(r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\] (?:\[(?:send|receive)\] )?via ([\w/ -]+)")
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
    for line in text.splitlines():
        info = _INFO.search(line)
        way = _WAY.search(info[1]) if info else None
        network = _NETWORK.search(info[1]) if info else None
        if info and (way or network):
            kept_lines.setdefault(re.sub(r"/\d+", "", way[1]) if way else network[0] if network else "", line)
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
    for line in text.splitlines():
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
