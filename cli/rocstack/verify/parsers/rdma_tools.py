"""RDMA's own tools: perftest's bandwidth tests, `ib_write_bw` and its like (github.com/linux-rdma/perftest), and
rdma-core's `ibv_rc_pingpong` (libibverbs/examples/rc_pingpong.c)."""

import re

from rocstack.verify.parsers import bad, lines

_HEADER = re.compile(r"#bytes.*BW average\[(\w+)/sec\]")
_COLUMN = re.compile(r"#\w+|BW (?:peak|average|Port\d)|MsgRate(?: Port\d)?|CPU_Util|(?<![^\s\[])[^\s\[]+\[[^\s\[\]]+\]")
_NUMBER = re.compile(r"\d+(?:\.\d*)?|-?nan|inf|-")  # a peak of two messages that ended at once is infinite
_NOISE = re.compile(r"conflicting cpu frequency|^(?:libibverbs: )?warning|cpu frequency is not max", re.IGNORECASE)
_FAILED = re.compile(r"^(?:Failed status|Completion with error)\b")  # also behind a table, of a run that followed
_MIB = 1024 * 1024 * 8 / 1e9
_GB = {"Gb": 1.0, "MB": _MIB, "MiB": _MIB}  # perftest's MB is 2^20 bytes, which it calls MiB since July 2026


def parse_perftest(text: str, tool: str = "ib_write_bw") -> list[tuple[int, float]]:
    """Bytes of a message, and the average in Gb/s (10^9 bits); of a bidirectional test, both directions together. Of
    several tables, such as those of two runs, the rows of all.

    Raises:
        CheckFailed: no table, a row of it that isn't understood, or no end of it.
    """
    scale, ended = 0.0, False
    columns: list[str] = []
    rows: list[tuple[int, float]] = []
    for number, raw in enumerate(lines(text), 1):
        line = raw.strip()
        if header := _HEADER.search(line):
            scale, ended = _GB.get(header[1], 0), False
            columns = _COLUMN.findall(line)
            if not scale:
                raise bad(tool, text, "this unit isn't known", number)
        elif ended and _FAILED.match(line):
            raise bad(tool, text, "a transfer failed after its table", number)
        elif scale and line.startswith("----"):
            ended = True
        elif not scale or ended or not line or _NOISE.search(line):
            continue
        else:
            try:
                rows.append(_row(line.split(), columns, scale))
            except ValueError:
                raise bad(tool, text, "this row isn't understood", number) from None
    if not rows:
        raise bad(tool, text, "no size was measured")
    if not ended:
        raise bad(tool, text, f"its table was cut off after {rows[-1][0]} bytes")
    return rows


def _row(words: list[str], columns: list[str], scale: float) -> tuple[int, float]:
    """Bytes, and the average, which stands where the heads have it: --qos and both ports make more columns. The heads
    of older ones lack CPU_Util; a rate that is not measured isn't there either."""
    at = columns.index("BW average")
    if not at < len(words) <= len(columns) + 1 or not all(_NUMBER.fullmatch(word) for word in words):
        raise ValueError
    if not all(word.isdecimal() for word, column in zip(words, columns, strict=False) if column.startswith("#")):
        raise ValueError
    if not words[at][0].isdecimal():
        raise ValueError
    return int(words[0]), float(words[at]) * scale


_END = re.compile(r"(local|remote) address: .*GID \S")
_CARRIED = re.compile(r"\b\d+ bytes in [\d.]+ seconds = [\d.]+ Mbit/sec")
_REPEATED = re.compile(r"\b\d+ iters in [\d.]+ seconds = [\d.]+ usec/iter")
_INVALID = re.compile(r"invalid data in page", re.IGNORECASE)


def check_pingpong(text: str, tool: str = "ibv_rc_pingpong") -> None:
    """
    Raises:
        CheckFailed: it didn't come to its end, or what arrived isn't what was sent (-c).
    """
    ends, carried, repeated, failed = set[str](), False, False, False
    for number, line in enumerate(lines(text), 1):
        if _INVALID.search(line):
            raise bad(tool, text, "what arrived isn't what was sent", number)
        failed = failed or line.startswith("Failed status")
        if end := _END.search(line):
            ends.add(end[1])
        carried, repeated = carried or bool(_CARRIED.search(line)), repeated or bool(_REPEATED.search(line))
    if failed or not (carried and repeated) or len(ends) < 2:
        raise bad(tool, text, "the two ends didn't come to a result" if ends else "it didn't begin")
