"""Network devices, IPv4 addresses and routes."""

from __future__ import annotations

import re
import socket
import struct

from . import pci
from .profile import Address, Netdev, Route
from .recording import Recording

NET = "/sys/class/net"
ROUTE_IS_UP, ROUTE_IS_REJECT = 0x1, 0x200  # linux/route.h


def netdevs(rec: Recording) -> tuple[Netdev, ...]:
    """All but the loopback device."""
    found = (name for name in rec.names(NET) if name != "lo")
    return tuple(_netdev(rec, name, f"{NET}/{name}") for name in found if rec.text(f"{NET}/{name}/mtu") is not None)


def _netdev(rec: Recording, name: str, folder: str) -> Netdev:
    speed = rec.number(folder + "/speed")
    master = f"{rec.real(folder)}/master"
    return Netdev(
        name=name,
        state=rec.text(folder + "/operstate"),
        speed=speed if speed is not None and 0 < speed < 1 << 31 else None,  # -1: unknown
        mtu=rec.number(folder + "/mtu"),
        master=rec.real(master).rpartition("/")[2] if master in rec.links else None,
        kind=_kind(rec, folder),
        pci=pci.address(rec.real(folder)),
    )


def _kind(rec: Recording, folder: str) -> str:
    words = (rec.text(folder + "/uevent") or "").splitlines()
    for kind in ("bond", "bridge", "vlan"):
        if f"DEVTYPE={kind}" in words:
            return kind
    if rec.names(folder + "/bonding"):
        return "bond"
    return "physical" if rec.exists(folder + "/device") or pci.address(rec.real(folder)) else "virtual"


def routes(rec: Recording) -> tuple[Route, ...]:
    """From /proc/net/route, whose numbers are in the machine's byte order."""
    found = []
    for line in (rec.text("/proc/net/route") or "").splitlines()[1:]:
        words = line.split()
        try:
            to, gateway, flags, mask = (int(words[column], 16) for column in (1, 2, 3, 7))
            if flags & ROUTE_IS_UP and not flags & ROUTE_IS_REJECT:
                prefix = bin(mask & 0xFFFFFFFF).count("1")
                via = _dotted(gateway) if gateway else None
                found.append(Route(f"{_dotted(to)}/{prefix}", words[0], via, int(words[6])))
        except (ValueError, IndexError, struct.error):  # not a row
            continue
    return tuple(found)


def _dotted(number: int) -> str:
    return socket.inet_ntoa(struct.pack("<I", number))


def addresses(rec: Recording) -> tuple[Address, ...]:
    """From `ip -o -4 addr`: "2: eth0    inet 10.0.0.1/24 ...". Not the loopback device's."""
    answer = rec.commands.get("ip -o -4 addr")
    found = re.findall(r"^\d+: (\S+) +inet ([0-9.]+/\d{1,2})\b", answer.out if answer else "", re.MULTILINE)
    return tuple(Address(name, address) for name, address in found if name != "lo")
