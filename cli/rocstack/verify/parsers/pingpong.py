"""`ibv_rc_pingpong` of rdma-core (libibverbs/examples/rc_pingpong.c)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rocstack.verify.parsers.bad_output import bad

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


def parse(text: str, tool: str = "ibv_rc_pingpong") -> Pingpong:
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
