"""What a machine's kernel says of its RDMA device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from machine import Machine

DEVICE = "rxe0"
NETDEV = "eth1"
VLAN, VLAN_ADDRESS = "vlan100", "10.78.0.1"
PORT = f"/sys/class/infiniband/{DEVICE}/ports/1"


@dataclass(frozen=True)
class Gid:
    """One row of a GID table."""

    index: int
    gid: str
    kind: str  # RoCE v2, IB/RoCE v1
    netdev: str


def gids(machine: Machine) -> list[Gid]:
    """The rows in use, of 1024; the kernel gives an error for the type of an empty one."""
    said = machine.run(f"cd {PORT} && grep -s . gids/* gid_attrs/types/* gid_attrs/ndevs/* || true")
    values: dict[str, dict[int, str]] = {"gids": {}, "types": {}, "ndevs": {}}
    for line in said.splitlines():
        path, value = line.split(":", 1)
        *_, kind, index = path.split("/")
        values[kind][int(index)] = value
    kinds, netdevs = values["types"], values["ndevs"]
    return [Gid(i, values["gids"][i], kinds[i], netdevs[i]) for i in sorted(kinds)]


def mapped(address: str) -> str:
    """An IPv4 address the way that a GID holds it."""
    a, b, c, d = (int(part) for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def index_of(machine: Machine, address: str) -> int | None:
    """The row of RoCE v2 that holds an IPv4 address."""
    return next((row.index for row in gids(machine) if (row.gid, row.kind) == (mapped(address), "RoCE v2")), None)


def until(machine: Machine, wanted: Callable[[list[Gid]], bool]) -> None:
    """Waits for the kernel's table, which follows a change of addresses a moment later."""
    deadline = time.monotonic() + 30
    while not wanted(rows := gids(machine)):
        assert time.monotonic() < deadline, f"{machine.name}: {rows}"


def until_row(machine: Machine, address: str, there: bool = True) -> None:
    until(machine, lambda rows: there == any(row.gid == mapped(address) for row in rows))


def sent_packets(machine: Machine) -> int:
    return int(machine.run(f"cat {PORT}/hw_counters/sent_pkts"))
