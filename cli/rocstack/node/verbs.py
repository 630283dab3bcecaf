"""RDMA devices: /sys/class/infiniband and /sys/class/infiniband_verbs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from . import pci
from .nics import NicKind, driver_of, kind_of
from .profile import Gid, Netdev, Port, Verbs
from .recording import Recording

INFINIBAND, UVERBS = "/sys/class/infiniband", "/sys/class/infiniband_verbs"
SOFT_ROCE = "rdma_rxe"
_GID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){7}")


def verbs(rec: Recording, kinds: Sequence[NicKind], netdevs: Sequence[Netdev]) -> tuple[Verbs, ...]:
    offered = {rec.text(f"{UVERBS}/{name}/ibdev"): name for name in reversed(rec.names(UVERBS))}
    return tuple(
        _device(rec, name, offered.get(name), kinds, netdevs)
        for name in rec.names(INFINIBAND)
        if rec.names(f"{INFINIBAND}/{name}")
    )


def _device(
    rec: Recording, name: str, uverbs: str | None, kinds: Sequence[NicKind], netdevs: Sequence[Netdev]
) -> Verbs:
    folder = f"{INFINIBAND}/{name}"
    card = rec.real(folder + "/device")
    address = pci.address(card) or pci.address(rec.real(folder))
    ports = tuple(_port(rec, folder, port) for port in rec.names(folder + "/ports") if _is_index(port))
    return Verbs(
        name=name,
        uverbs=uverbs,
        device_node=_device_node(rec, uverbs) if uverbs else None,
        kernel_abi=rec.number(f"{UVERBS}/{uverbs}/abi_version") if uverbs else None,
        driver=_driver(rec, folder, card, kinds),
        firmware=rec.text(folder + "/fw_ver") or None,
        pci=address,
        numa=pci.numa(rec, card),
        netdevs=_netdevs(rec, folder, address, ports, netdevs),
        ports=ports,
    )


def _device_node(rec: Recording, uverbs: str) -> bool | None:
    if f"/dev/infiniband/{uverbs}" in rec.devices:
        return True
    unread = {"/dev", "/dev/infiniband", f"/dev/infiniband/{uverbs}"} & set(rec.unread)
    return None if unread or not rec.exists("/dev") else False


def _driver(rec: Recording, folder: str, card: str, kinds: Sequence[NicKind]) -> str | None:
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
    soft = rec.text(folder + "/parent") is not None and rec.exists(f"/sys/module/{SOFT_ROCE}")
    return SOFT_ROCE if soft else None


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
