"""rccl-tests and nccl-tests: `all_reduce_perf` and its like (github.com/ROCm/rccl-tests, src/common.cu)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rocstack.verify.parsers.bad_output import bad

_PREFIX = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>:\s?")  # mpirun --tag-output
_TESTS = re.compile(r"(?:rccl|nccl)-tests:? +[Vv]ersion +(\S+)")
_LIBRARY = re.compile(r"^(?:RCCL|NCCL) version *:? *(\S+)")
_RANK = re.compile(r"^# +Rank +(\d+)\b")
_NAME = re.compile(r"^# Collective test (?:starting|concluded): (\w+)")
_BOUNDS = re.compile(r"^# Out of bounds values : (\d+)")
_AVERAGE = re.compile(r"^# Avg bus bandwidth +: ([\d.]+)")
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
class Row:
    """`size` in bytes; `dtype` and `redop` as the tool names them ("float", "sum", "none"). `inside` is in-place."""

    size: int
    count: int
    dtype: str
    redop: str
    outside: Timing
    inside: Timing


@dataclass(frozen=True)
class Collective:
    """`average` is the tool's own: busbw in GB/s over all rows. `name` is "" where the tool doesn't say it."""

    name: str
    tests: str  # version
    library: str  # version
    ranks: int
    rows: tuple[Row, ...]
    out_of_bounds: int
    average: float

    @property
    def wrong(self) -> int:
        """Elements that were wrong."""
        timings = [timing for row in self.rows for timing in (row.outside, row.inside)]
        return max(self.out_of_bounds, sum(timing.wrong or 0 for timing in timings))

    def busbw(self, size: int) -> float | None:
        """Of the best row of at most `size` bytes that is at least half of it, GB/s, out of place."""
        fit = [row.outside.busbw for row in self.rows if size / 2 <= row.size <= size]
        return max(fit, default=None)

    @property
    def points(self) -> list[list[float]]:
        """[bytes, busbw, algbw] of each row, GB/s, out of place."""
        return [[row.size, row.outside.busbw, row.outside.algbw] for row in self.rows]


def parse(text: str, tool: str = "all_reduce_perf") -> Collective:
    """
    Raises:
        CheckFailed: no row, a row that isn't understood, or no end.
    """
    found: dict[str, str] = {}
    rows, ranks = [], set()
    for number, raw in enumerate(text.splitlines(), 1):
        line = _PREFIX.sub("", raw).strip()
        for key, pattern in {"name": _NAME, "bounds": _BOUNDS, "average": _AVERAGE, "library": _LIBRARY}.items():
            if match := pattern.match(line):
                found[key] = match[1]
        if match := _TESTS.search(line):
            found["tests"] = match[1]
        if match := _RANK.match(line):
            ranks.add(match[1])
        if _ROW.match(line):
            try:
                rows.append(_row(line.split()))
            except (ValueError, IndexError):
                raise bad(tool, text, "this row isn't understood", number) from None
    if not rows:
        raise bad(tool, text, "no size was measured")
    if "average" not in found:
        raise bad(tool, text, f"it ended after {len(rows)} sizes, before its average")
    return Collective(
        name=found.get("name", ""),
        tests=found.get("tests", ""),
        library=found.get("library", ""),
        ranks=len(ranks),
        rows=tuple(rows),
        out_of_bounds=int(found.get("bounds", 0)),
        average=float(found["average"]),
    )


def _row(words: list[str]) -> Row:
    if len(words) not in _COLUMNS:
        raise ValueError
    return Row(int(words[0]), int(words[1]), words[2], words[3], _timing(words[-8:-4]), _timing(words[-4:]))


def _timing(words: list[str]) -> Timing:
    us, algbw, busbw = (float(word) for word in words[:3])
    return Timing(us, algbw, busbw, None if words[3] == "N/A" else int(float(words[3])))
