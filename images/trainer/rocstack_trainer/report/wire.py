"""This machine's network interfaces: which one leads to the other ranks, and how much went out."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

SYS = Path("/sys/class")
INFINIBAND = "32"  # ARPHRD_INFINIBAND


def sent_bytes(sys: Path = SYS) -> int:
    """Bytes that this host (or this container) sent since it started: by every process, over every interface.

    An interface that rests on another one (bond, bridge, VLAN) is left out, and so is IP over InfiniBand: what
    it sent is counted below it. The ports of RDMA devices count in words of 4 bytes (port_xmit_data in
    Documentation/ABI/stable/sysfs-class-infiniband of Linux).
    """
    total = 0
    for link in sys.glob("net/*"):
        if _text(link / "type") != INFINIBAND and not any(link.glob("lower_*")):
            total += int(_text(link / "statistics/tx_bytes") or 0)
    for port in sys.glob("infiniband/*/ports/*/counters/port_xmit_data"):
        words = _text(port)
        total += 4 * int(words) if words.isdecimal() else 0  # "N/A (no PMA)" on some
    return total


def address(host: str) -> str:
    """The first IPv4 address of a host; "" if nobody knows it."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return ""


def own_address(host: str, port: int) -> str:
    """This machine's IPv4 address as seen from the way to `host`; "" if there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def interface(own: str) -> str:
    """The network interface that has this address; "" if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == own:
                return name
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # an interface may go away, and some drivers don't count
        return ""
