"""Network cards: PCI network controllers, with the NIC profile that knows them, their network and verbs devices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import pci
from .profile import Netdev, Nic, Verbs
from .recording import Recording

IN_TREE = "in-tree"  # a module without a version: it came with the kernel


@dataclass(frozen=True)
class NicKind:
    """What a NIC profile says of its hardware: PCI ids ("14e4:1760"), kernel modules (the one for RDMA last) and
    the name of its libibverbs driver."""

    name: str
    pci: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    provider: str | None = None


def kind_of(device: str, kinds: Iterable[NicKind]) -> NicKind | None:
    return next((kind for kind in kinds if device in kind.pci), None)


def nics(
    rec: Recording, kinds: Sequence[NicKind], netdevs: Sequence[Netdev], verbs: Sequence[Verbs]
) -> tuple[Nic, ...]:
    found = []
    for card in pci.functions(rec):
        kind = kind_of(card.id, kinds)
        if not card.is_network and kind is None:
            continue
        own = tuple(netdev.name for netdev in netdevs if netdev.pci == card.address)
        device = next((device for device in verbs if device.pci == card.address), None)
        driver = driver_of(rec, card.folder)
        told = _told(rec, own)
        found.append(
            Nic(
                pci=card.address,
                device=card.id,
                nic=kind.name if kind else None,
                driver=driver,
                driver_version=_version(rec, driver, told.get("version")),
                firmware=told.get("firmware-version") or (device.firmware if device else None),
                numa=pci.numa(rec, card.folder),
                pcie=pci.pcie(rec, card.folder),
                path=pci.path(card.folder),
                netdevs=own,
                verbs=device.name if device else None,
            )
        )
    return tuple(found)


def driver_of(rec: Recording, folder: str) -> str | None:
    """The name of the kernel driver that holds a device."""
    link = f"{rec.real(folder)}/driver"
    return rec.real(link).rpartition("/")[2] if link in rec.links else None


def module_version(rec: Recording, module: str) -> str | None:
    """None: not loaded."""
    folder = f"/sys/module/{module}"
    return rec.text(folder + "/version") or IN_TREE if rec.exists(folder) else None


def _told(rec: Recording, netdevs: Iterable[str]) -> dict[str, str]:
    """What `ethtool -i` says of the first network device that answers."""
    for name in netdevs:
        answer = rec.commands.get(f"ethtool -i {name}")
        if answer and answer.code == 0:
            return dict(re.findall(r"^([a-z-]+): *(\S.*?) *$", answer.out, re.MULTILINE))
    return {}


def _version(rec: Recording, driver: str | None, told: str | None) -> str | None:
    """A driver without a version of its own gives the kernel's (net/ethtool/ioctl.c, since 5.7)."""
    release = rec.text("/proc/sys/kernel/osrelease")
    if told and told != release:
        return told
    return module_version(rec, driver) if driver and rec.exists(f"/sys/module/{driver}") else told and IN_TREE
