"""RDMA's own tools: perftest's bandwidth tests, `ib_write_bw` and its like (github.com/linux-rdma/perftest), and
rdma-core's `ibv_rc_pingpong` (libibverbs/examples/rc_pingpong.c)."""

import re

from rocstack.verify.parsers import bad

_HEADER = re.compile(r"#bytes\s+#iterations\s+BW peak\[(\w+)/sec\]\s+BW average\[\w+/sec\]")
_ROW = re.compile(r"^(\d+)\s+\d+\s+[\d.]+\s+([\d.]+)(?:\s+[\d.]+){0,2}$")
_NOISE = re.compile(r"conflicting cpu frequency|^warning|cpu frequency is not max", re.IGNORECASE)
_GB = {"Gb": 1.0, "MB": 1024 * 1024 * 8 / 1e9}  # perftest's MB is 2^20 bytes


def parse_perftest(text: str, tool: str = "ib_write_bw") -> list[tuple[int, float]]:
    """Bytes of a message, and the average in Gb/s (10^9 bits); of a bidirectional test, both directions together.

    Raises:
        CheckFailed: no table, a row of it that isn't understood, or no end of it.
    """
    scale, ended = 0.0, False
    rows: list[tuple[int, float]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if header := _HEADER.search(line):
            scale = _GB.get(header[1], 0)
            if not scale:
                raise bad(tool, text, "this unit isn't known", number)
        elif scale and line.startswith("----"):
            ended = True
        elif not scale or ended or not line or _NOISE.search(line):
            continue
        elif row := _ROW.match(line):
            rows.append((int(row[1]), float(row[2]) * scale))
        else:
            raise bad(tool, text, "this row isn't understood", number)
    if not rows:
        raise bad(tool, text, "no size was measured")
    if not ended:
        raise bad(tool, text, f"its table was cut off after {rows[-1][0]} bytes")
    return rows


_INVALID = re.compile(r"invalid data in page", re.IGNORECASE)


def check_pingpong(text: str, tool: str = "ibv_rc_pingpong") -> None:
    """
    Raises:
        CheckFailed: it didn't come to its end, or what arrived isn't what was sent (-c).
    """
    for number, line in enumerate(text.splitlines(), 1):
        if _INVALID.search(line):
            raise bad(tool, text, "what arrived isn't what was sent", number)
    ends = set(re.findall(r"(local|remote) address: .*GID \S+", text))
    carried = re.search(r"\d+ bytes in [\d.]+ seconds = [\d.]+ Mbit/sec", text)
    if not carried or not re.search(r"\d+ iters in [\d.]+ seconds = [\d.]+ usec/iter", text) or len(ends) < 2:
        raise bad(tool, text, "the two ends didn't come to a result" if ends else "it didn't begin")
