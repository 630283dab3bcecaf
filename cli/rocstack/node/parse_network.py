"""Network devices, addresses and routes (/sys/class/net), and RDMA devices (/sys/class/infiniband)."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Sequence

from . import parse_cards
from .nic_settings import NicSettings
from .parse_cards import driver_of, kind_of
from .profile import Address, Gid, Netdev, Port, Route, Verbs
from .recording import Recording

NET = "/sys/class/net"
ROUTE_IS_UP, ROUTE_IS_REJECT = 0x1, 0x200  # linux/route.h


def netdevs(rec: Recording) -> tuple[Netdev, ...]:
    """All but the loopback device."""
    names = (name for name in rec.names(NET) if name != "lo")
    return tuple(_netdev(rec, name, f"{NET}/{name}") for name in names if rec.text(f"{NET}/{name}/mtu") is not None)


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
        pci=parse_cards.pci_address(rec.real(folder)),
    )


def _kind(rec: Recording, folder: str) -> str:
    words = (rec.text(folder + "/uevent") or "").splitlines()
    for kind in ("bond", "bridge", "vlan"):
        if f"DEVTYPE={kind}" in words:
            return kind
    if rec.names(folder + "/bonding"):
        return "bond"
    return "physical" if rec.exists(folder + "/device") or parse_cards.pci_address(rec.real(folder)) else "virtual"


def routes(rec: Recording) -> tuple[Route, ...]:
    """From /proc/net/route, whose numbers are in the machine's byte order."""
    rows = []
    for line in (rec.text("/proc/net/route") or "").splitlines()[1:]:
        words = line.split()
        try:
            to, gateway, flags, mask = (int(words[column], 16) for column in (1, 2, 3, 7))
            if flags & ROUTE_IS_UP and not flags & ROUTE_IS_REJECT:
                prefix = bin(mask & 0xFFFFFFFF).count("1")
                via = _dotted(gateway) if gateway else None
                rows.append(Route(f"{_dotted(to)}/{prefix}", words[0], via, int(words[6])))
        except (ValueError, IndexError, struct.error):  # not a row
            continue
    return tuple(rows)


def _dotted(number: int) -> str:
    return socket.inet_ntoa(struct.pack("<I", number))


def addresses(rec: Recording) -> tuple[Address, ...]:
    """From `ip -o -4 addr`: "2: eth0    inet 10.0.0.1/24 ...". Not the loopback device's."""
    answer = rec.commands.get("ip -o -4 addr")
    rows = re.findall(r"^\d+: (\S+) +inet ([0-9.]+/\d{1,2})\b", answer.out if answer else "", re.MULTILINE)
    return tuple(Address(name, address) for name, address in rows if name != "lo")


INFINIBAND, UVERBS = "/sys/class/infiniband", "/sys/class/infiniband_verbs"
SOFT_ROCE_MODULE = "rdma_rxe"
_GID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){7}")


def verbs(rec: Recording, kinds: Sequence[NicSettings], netdevs: Sequence[Netdev]) -> tuple[Verbs, ...]:
    offered = {rec.text(f"{UVERBS}/{name}/ibdev"): name for name in reversed(rec.names(UVERBS))}
    return tuple(
        _device(rec, name, offered.get(name), kinds, netdevs)
        for name in rec.names(INFINIBAND)
        if rec.names(f"{INFINIBAND}/{name}")
    )


def _device(
    rec: Recording, name: str, uverbs: str | None, kinds: Sequence[NicSettings], netdevs: Sequence[Netdev]
) -> Verbs:
    folder = f"{INFINIBAND}/{name}"
    card = rec.real(folder + "/device")
    address = parse_cards.pci_address(card) or parse_cards.pci_address(rec.real(folder))
    ports = tuple(_port(rec, folder, port) for port in rec.names(folder + "/ports") if _is_index(port))
    return Verbs(
        name=name,
        uverbs=uverbs,
        device_node=_device_node(rec, uverbs) if uverbs else None,
        kernel_abi=rec.number(f"{UVERBS}/{uverbs}/abi_version") if uverbs else None,
        driver=_driver(rec, folder, card, kinds),
        firmware=rec.text(folder + "/fw_ver") or None,
        pci=address,
        numa=parse_cards.numa_node(rec, card),
        netdevs=_netdevs(rec, folder, address, ports, netdevs),
        ports=ports,
    )


def _device_node(rec: Recording, uverbs: str) -> bool | None:
    if f"/dev/infiniband/{uverbs}" in rec.devices:
        return True
    unread = {"/dev", "/dev/infiniband", f"/dev/infiniband/{uverbs}"} & set(rec.unread)
    return None if unread or not rec.exists("/dev") else False


def _driver(rec: Recording, folder: str, card: str, kinds: Sequence[NicSettings]) -> str | None:
    """The kernel module. It hangs on the card's auxiliary device ("bnxt_en.rdma.0"); the PCI function itself belongs
    to the network driver. A driver from outside the kernel may know no auxiliary devices: then the NIC profile says."""
    for name in rec.names(card):
        if ".rdma." in name:
            module = driver_of(rec, f"{card}/{name}")
            if module:
                return module.partition(".")[0]
    vendor, device = (rec.number(f"{card}/{item}", 16) for item in ("vendor", "device"))
    if vendor is not None and device is not None:
        kind = kind_of(f"{vendor:04x}:{device:04x}", kinds)
        loaded = [module for module in kind.modules if rec.exists(f"/sys/module/{module}")] if kind else []
        return loaded[-1] if kind and loaded and loaded[-1] == kind.modules[-1] else None
    soft = rec.text(folder + "/parent") is not None and rec.exists(f"/sys/module/{SOFT_ROCE_MODULE}")
    return SOFT_ROCE_MODULE if soft else None


def _netdevs(
    rec: Recording, folder: str, address: str | None, ports: Sequence[Port], netdevs: Sequence[Netdev]
) -> tuple[str, ...]:
    """By the card they share; soft-RoCE names its own; else those that the GID table names."""
    parent = rec.text(folder + "/parent")
    own = [netdev.name for netdev in netdevs if address and netdev.pci == address] or ([parent] if parent else [])
    named = [gid.netdev for port in ports for gid in port.gids if gid.netdev]
    return tuple(own or dict.fromkeys(named))


def _port(rec: Recording, folder: str, name: str) -> Port:
    port = f"{folder}/ports/{name}"
    rate = re.match(r"(\d{1,7}(?:\.\d+)?) Gb/sec", rec.text(port + "/rate") or "")
    gids = (_gid(rec, port, row) for row in rec.names(port + "/gids") if _is_index(row))
    return Port(
        number=int(name),
        state=_word(rec.text(port + "/state")),
        physical=_word(rec.text(port + "/phys_state")),
        link_layer=rec.text(port + "/link_layer") or None,
        rate=round(float(rate[1]) * 1000) if rate else None,
        gids=tuple(gid for gid in gids if gid),
    )


def _gid(rec: Recording, port: str, row: str) -> Gid | None:
    """None for an empty row: a hole stays where an address was taken away."""
    gid = rec.text(f"{port}/gids/{row}") or ""
    if not _GID.fullmatch(gid) or not gid.strip("0:"):
        return None
    kind, netdev = (rec.text(f"{port}/gid_attrs/{item}/{row}") or None for item in ("types", "ndevs"))
    return Gid(int(row), gid, kind, netdev)


def _word(text: str | None) -> str | None:
    """ "4: ACTIVE" -> ACTIVE."""
    return (text or "").partition(": ")[2] or None


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 10
