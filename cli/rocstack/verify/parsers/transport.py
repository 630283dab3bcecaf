"""What RCCL says with NCCL_DEBUG=INFO of the ways its data take (github.com/NVIDIA/nccl, src/transport)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rocstack.verify.parsers.bad_output import bad

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
    """Of all that is said with NCCL_DEBUG=INFO the lines that `parse` reads, but one for each way: thousands of ranks
    say the same."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        info = _INFO.search(line)
        way = _WAY.search(info[1]) if info else None
        network = _NETWORK.search(info[1]) if info else None
        if info and (way or network):
            found.setdefault(re.sub(r"/\d+", "", way[1]) if way else network[0] if network else "", line)
        elif _VERSION.search(line):
            found.setdefault("version", line)
    return list(found.values())


def parse(text: str, tool: str = "RCCL") -> Transport:
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
