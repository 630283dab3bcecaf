"""Which row of a GID table a RoCE port should use, and which one RCCL or UCX would take by itself.

The rows' order depends on the driver and on the order in which addresses came and went: a ConnectX lists every
address as v1 and v2 (IPv4 v2 is 3), a card with v2 only has it at 1, and a deleted address leaves a hole. So no
index is right everywhere.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Union

from .profile import Gid, Port

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]  # noqa: UP007 (evaluated on Python 3.8)
Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]  # noqa: UP007

V2 = "RoCE v2"
IPV4, IPV6, LINK_LOCAL = "IPv4", "IPv6", "IPv6 link-local"
FAMILIES = (IPV4, IPV6, LINK_LOCAL)  # in order of preference


@dataclass(frozen=True)
class Choice:
    """A row that may be used."""

    index: int
    address: str
    family: str
    netdev: str | None = None


def address(gid: str) -> Address | None:
    """The IP address in a GID; None where the row is empty or unreadable."""
    try:
        found = ipaddress.IPv6Address(int(gid.replace(":", ""), 16))
    except ValueError:
        return None
    if int(found) == 0 or found == ipaddress.IPv6Address("fe80::"):  # a prefix without an interface
        return None
    return found.ipv4_mapped or found


def family(found: Address) -> str:
    if isinstance(found, ipaddress.IPv4Address):
        return IPV4
    return LINK_LOCAL if found.is_link_local else IPV6


def usable(port: Port, netdevs: Collection[str], vlans: Collection[str], subnets: Sequence[Network]) -> list[Choice]:
    """The rows that may carry data, best first: RoCE v2, an address, the device's own network device and not one on
    top of it. A VLAN counts where a data subnet asks for its address.

    Args:
        netdevs: the RDMA device's network devices; where they could not be read, any.
        vlans: the node's VLAN devices.
        subnets: of the data network; without any, every address will do.
    """
    rows = []
    for row in port.gids:
        found = address(row.gid)
        if row.type != V2 or found is None or (subnets and not _within(found, subnets)):
            continue
        vlan = row.netdev in vlans
        own = row.netdev is None or row.netdev in netdevs or not (netdevs or vlan)
        if own or (vlan and subnets):
            rank = (FAMILIES.index(family(found)), vlan, row.index)
            rows.append((rank, Choice(row.index, str(found), family(found), row.netdev)))
    return [choice for _, choice in sorted(rows, key=lambda row: row[0])]


def of_rccl(port: Port, wanted: str, subnet: Network | None = None) -> int:
    """The row that RCCL from 2.21 on takes while NCCL_IB_GID_INDEX is unset: ncclIbGetGidIndex of net_ib.cc, with
    NCCL_IB_ROCE_VERSION_NUM=2, NCCL_IB_ADDR_FAMILY by `wanted` and NCCL_IB_ADDR_RANGE by `subnet`."""
    table = {row.index: row for row in port.gids}
    current = 0
    for index in range(1, max(table, default=0) + 1):
        have, candidate = table.get(current), table.get(index)
        fits = subnet is None or (candidate is not None and _within(address(candidate.gid), [subnet]))
        if _is_ipv4(candidate) != (wanted == IPV4) or not fits:
            continue
        improves = have is None or have.type != V2 or not _valid(have)
        v2 = candidate is not None and candidate.type == V2 and _valid(candidate)
        if _is_ipv4(candidate) != _is_ipv4(have) or (v2 and improves):
            current = index
    return current


def of_ucx(port: Port) -> int:
    """The row that UCX takes while UCX_IB_GID_INDEX is auto: uct_ib_device_select_gid of ib_device.c."""
    rows = usable(port, (), (), ())
    return rows[0].index if rows else 0


def _within(found: Address | None, subnets: Sequence[Network]) -> bool:
    return found is not None and any(found.version == subnet.version and found in subnet for subnet in subnets)


def _is_ipv4(row: Gid | None) -> bool:
    return row is not None and isinstance(address(row.gid), ipaddress.IPv4Address)


def _valid(row: Gid | None) -> bool:
    found = address(row.gid) if row else None
    return found is not None and family(found) != LINK_LOCAL
