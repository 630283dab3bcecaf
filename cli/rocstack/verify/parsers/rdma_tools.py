"""RDMA's own tools: perftest's bandwidth tests, `ib_write_bw` and its like (github.com/linux-rdma/perftest), and
rdma-core's `ibv_rc_pingpong` (libibverbs/examples/rc_pingpong.c)."""

import re
from dataclasses import dataclass

from rocstack.verify.parsers import bad

_TITLE = re.compile(r"^\w+ (Bidirectional )?BW Test$")
_HEADER = re.compile(r"#bytes\s+#iterations\s+BW peak\[(\w+)/sec\]\s+BW average\[\w+/sec\]")
_ROW = re.compile(r"^\d+(?:\s+[\d.]+){3,5}$")
_NOISE = re.compile(r"conflicting cpu frequency|^warning|cpu frequency is not max", re.IGNORECASE)
_ABOUT = re.compile(r"\b(Device|Mtu|Link type|Number of qps|GID index)\s*:\s*(\S+)")
_MIB = 1024 * 1024 * 8 / 1e9  # perftest's MB is 2^20 bytes


@dataclass(frozen=True)
class BandwidthRow:
    """`size` in bytes, `peak` and `average` in Gb/s (10^9 bits), `mpps` in million messages a second."""

    size: int
    iterations: int
    peak: float
    average: float
    mpps: float


@dataclass(frozen=True)
class Bandwidth:
    """`link` is "Ethernet" or "IB"; `mtu` in bytes, of RDMA; in a bidirectional test both directions are summed."""

    bidirectional: bool
    device: str
    link: str
    mtu: int | None
    queue_pairs: int | None
    gid_index: int | None
    rows: tuple[BandwidthRow, ...]

    @property
    def best(self) -> BandwidthRow:
        return max(self.rows, key=lambda row: row.average)


def parse_perftest(text: str, tool: str = "ib_write_bw") -> Bandwidth:
    """
    Raises:
        CheckFailed: no table, a row of it that isn't understood, or no end of it.
    """
    scale, both, ended = 0.0, False, False
    rows: list[BandwidthRow] = []
    about: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if header := _HEADER.search(line):
            scale = {"Gb": 1.0, "MB": _MIB}.get(header[1], 0)
            if not scale:
                raise bad(tool, text, "this unit isn't known", number)
        elif title := _TITLE.search(line):
            both = bool(title[1])
        elif not scale:
            about.update(_ABOUT.findall(line))
        elif line.startswith("----"):
            ended = True
        elif ended or not line or _NOISE.search(line):
            continue
        elif _ROW.match(line):
            size, iterations, peak, average, mpps = line.split()[:5] if len(line.split()) > 4 else (*line.split(), "0")
            rows.append(
                BandwidthRow(int(size), int(iterations), float(peak) * scale, float(average) * scale, float(mpps))
            )
        else:
            raise bad(tool, text, "this row isn't understood", number)
    if not rows:
        raise bad(tool, text, "no size was measured")
    if not ended:
        raise bad(tool, text, f"its table was cut off after {rows[-1].size} bytes")
    return Bandwidth(
        bidirectional=both,
        device=about.get("Device", ""),
        link=about.get("Link type", ""),
        mtu=_number(about.get("Mtu")),
        queue_pairs=_number(about.get("Number of qps")),
        gid_index=_number(about.get("GID index")),
        rows=tuple(rows),
    )


def _number(text: str | None) -> int | None:
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None


_GID = re.compile(r"(local|remote) address: .*GID (\S+)")
_BYTES = re.compile(r"(\d+) bytes in [\d.]+ seconds = ([\d.]+) Mbit/sec")
_ITERATIONS = re.compile(r"(\d+) iters in [\d.]+ seconds = ([\d.]+) usec/iter")
_INVALID = re.compile(r"invalid data in page", re.IGNORECASE)


@dataclass(frozen=True)
class Pingpong:
    """`mbits` in Mb/s (10^6 bits), `us` of a round trip; the GIDs of both ends."""

    local: str
    remote: str
    transferred: int
    mbits: float
    iterations: int
    us: float


def parse_pingpong(text: str, tool: str = "ibv_rc_pingpong") -> Pingpong:
    """
    Raises:
        CheckFailed: it didn't come to its end, or what arrived isn't what was sent (-c).
    """
    for number, line in enumerate(text.splitlines(), 1):
        if _INVALID.search(line):
            raise bad(tool, text, "what arrived isn't what was sent", number)
    carried, rounds = _BYTES.search(text), _ITERATIONS.search(text)
    ends = dict(_GID.findall(text))
    if not carried or not rounds or len(ends) < 2:
        raise bad(tool, text, "the two ends didn't come to a result" if ends else "it didn't begin")
    return Pingpong(ends["local"], ends["remote"], int(carried[1]), float(carried[2]), int(rounds[1]), float(rounds[2]))
