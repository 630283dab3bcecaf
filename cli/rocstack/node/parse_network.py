"""Network devices, addresses and routes (/sys/class/net), and RDMA devices (/sys/class/infiniband)."""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from collections.abc import Sequence
from dataclasses import replace

from . import parse_cards
from .nic_settings import NicSettings
from .parse_cards import driver_of, kind_of
from .profile import Address, Gid, Netdev, Port, Route, Verbs
from .recording import Recording, is_index

NET = "/sys/class/net"
ROUTE_IS_UP, ROUTE_IS_REJECT = 0x1, 0x200  # linux/route.h


def netdevs(rec: Recording) -> tuple[Netdev, ...]:
    """All but the loopback device."""
    rows = []
    for name in rec.names(NET):
        folder = rec.real(f"{NET}/{name}")
        if name == "lo" or rec.text(folder + "/mtu") is None:
            continue
        speed = rec.number(folder + "/speed")
        master = folder + "/master"
        row = Netdev(
            name=name,
            state=rec.text(folder + "/operstate"),
            speed=speed if speed is not None and 0 < speed < 1 << 31 else None,  # -1: unknown
            mtu=rec.number(folder + "/mtu"),
            master=rec.real(master).rpartition("/")[2] if master in rec.links else None,
            kind=_kind(rec, folder),
            pci=parse_cards.pci_address(folder),
        )
        rows.append(row)
    return tuple(rows)


def _kind(rec: Recording, folder: str) -> str:
    words = (rec.text(folder + "/uevent") or "").splitlines()
    for kind in ("bond", "bridge", "vlan"):
        if f"DEVTYPE={kind}" in words:
            return kind
    if rec.names(folder + "/bonding"):
        return "bond"
    return "physical" if rec.exists(folder + "/device") or parse_cards.pci_address(folder) else "virtual"


def routes(rec: Recording) -> tuple[Route, ...]:
    """From /proc/net/route, whose numbers are in the machine's byte order."""
    rows = []
    for line in (rec.text("/proc/net/route") or "").splitlines()[1:]:
        words = line.split()
        try:
            to, gateway, flags, mask = (int(words[column], 16) for column in (1, 2, 3, 7))
            if flags & ROUTE_IS_UP and not flags & ROUTE_IS_REJECT:
                base, via = (socket.inet_ntoa(struct.pack("<I", number)) for number in (to, gateway))
                prefix = bin(mask & 0xFFFFFFFF).count("1")
                rows.append(Route(f"{base}/{prefix}", words[0], via if gateway else None, int(words[6])))
        except (ValueError, IndexError, struct.error):  # not a row
            continue
    return tuple(rows)


def addresses(rec: Recording) -> tuple[Address, ...]:
    """From `ip -o -4 addr`: "2: eth0    inet 10.0.0.1/24 ...". Not the loopback device's."""
    answer = rec.commands.get("ip -o -4 addr")
    rows = re.findall(r"^\d+: (\S+) +inet ([0-9.]+/\d{1,2})\b", answer.out if answer else "", re.MULTILINE)
    return tuple(Address(name, address) for name, address in rows if name != "lo" and _is_interface(address))


def _is_interface(text: str) -> bool:
    try:
        ipaddress.IPv4Interface(text)
    except ValueError:  # slurmctld would ask the name service for 300.0.0.1
        return False
    return True


INFINIBAND, UVERBS = "/sys/class/infiniband", "/sys/class/infiniband_verbs"
SOFT_ROCE_MODULE = "rdma_rxe"
_GID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){7}")


def verbs(rec: Recording, kinds: Sequence[NicSettings], netdevs: Sequence[Netdev]) -> tuple[Verbs, ...]:
    offered = {rec.text(f"{UVERBS}/{name}/ibdev"): name for name in reversed(rec.names(UVERBS))}
    rows = []
    for name in rec.names(INFINIBAND):
        folder, uverbs = f"{INFINIBAND}/{name}", offered.get(name)
        if not rec.names(folder):
            continue
        card = rec.real(folder + "/device")
        address = parse_cards.pci_address(card) or parse_cards.pci_address(rec.real(folder))
        ports = tuple(_port(rec, folder, port) for port in rec.names(folder + "/ports") if is_index(port))
        own = _netdevs(rec, folder, address, ports, netdevs)
        if len(ports) == 1:
            ports = (_as_fast(ports[0], [netdev.speed or 0 for netdev in netdevs if netdev.name in own]),)
        row = Verbs(
            name=name,
            uverbs=uverbs,
            device_node=_device_node(rec, uverbs) if uverbs else None,
            kernel_abi=rec.number(f"{UVERBS}/{uverbs}/abi_version") if uverbs else None,
            driver=_driver(rec, folder, card, kinds),
            firmware=rec.text(folder + "/fw_ver") or None,
            pci=address,
            numa=parse_cards.numa_node(rec, card),
            netdevs=own,
            ports=ports,
        )
        rows.append(row)
    return tuple(rows)


def _as_fast(port: Port, speeds: Sequence[int]) -> Port:
    """As its network device: for RDMA drivers that leave it to the kernel, that of before 6.7 knows no Ethernet faster
    than 100 or 200 Gb/s (ib_get_eth_speed)."""
    faster = max([port.rate or 0, *speeds])
    return replace(port, rate=faster) if port.link_layer == "Ethernet" and port.rate and faster > port.rate else port


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
    pci_id = parse_cards.pci_id(rec, card)
    if pci_id is not None:
        kind = kind_of(pci_id, kinds)
        module = kind.modules[-1] if kind and kind.modules else None
        return module if module and rec.exists(f"/sys/module/{module}") else None
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
    state, physical = ((rec.text(f"{port}/{item}") or "").partition(": ")[2] for item in ("state", "phys_state"))
    rate = re.match(r"(\d{1,7}(?:\.\d+)?) Gb/sec", rec.text(port + "/rate") or "")
    rows = []
    for row in rec.names(port + "/gids"):
        gid = rec.text(f"{port}/gids/{row}") or ""
        if is_index(row) and _GID.fullmatch(gid) and gid.strip("0:"):  # a hole stays where an address was taken away
            kind, netdev = (rec.text(f"{port}/gid_attrs/{item}/{row}") or None for item in ("types", "ndevs"))
            rows.append(Gid(int(row), gid, kind, netdev))
    return Port(
        number=int(name),
        state=state or None,  # "4: ACTIVE"
        physical=physical or None,
        link_layer=rec.text(port + "/link_layer") or None,
        rate=round(float(rate[1]) * 1000) if rate else None,
        gids=tuple(rows),
    )
