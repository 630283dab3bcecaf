"""PCI functions of a recording: where they sit, how their link runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .profile import Pcie
from .recording import Recording

DEVICES = "/sys/bus/pci/devices"
ATI = 0x1002
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class Function:
    """`folder` is its real place in /sys, `kind` the three bytes of the PCI class."""

    address: str
    folder: str
    vendor: int
    device: int
    kind: int

    @property
    def id(self) -> str:
        return f"{self.vendor:04x}:{self.device:04x}"

    @property
    def is_network(self) -> bool:
        return self.kind >> 16 == 0x02

    @property
    def is_gpu(self) -> bool:
        """An accelerator or a display controller without a display: Instinct cards are either."""
        return self.vendor == ATI and self.kind >> 8 in (0x1200, 0x0380)


def functions(rec: Recording) -> list[Function]:
    """In the order of their addresses."""
    found = []
    for name in sorted(rec.names(DEVICES)):
        folder = rec.real(f"{DEVICES}/{name}")
        vendor, device, kind = (rec.number(f"{folder}/{item}", 16) for item in ("vendor", "device", "class"))
        if _ADDRESS.fullmatch(name) and vendor is not None and device is not None and kind is not None:
            found.append(Function(name, folder, vendor, device, kind))
    return found


def path(folder: str) -> tuple[str, ...]:
    """PCI addresses on the way to a folder of /sys, the root port first."""
    return tuple(name for name in folder.split("/") if _ADDRESS.fullmatch(name))


def address(folder: str) -> str | None:
    """The PCI function that a folder of /sys belongs to."""
    return (path(folder) or (None,))[-1]


def numa(rec: Recording, folder: str) -> int | None:
    node = rec.number(folder + "/numa_node")
    return node if node is not None and node >= 0 else None  # -1: the firmware doesn't say


def pcie(rec: Recording, folder: str) -> Pcie:
    """The link towards the root. Some AMD cards hold a switch of their own whose inner link always runs at full speed:
    what counts is the outermost bridge of the card, as amdgpu has it (amdgpu_device_gpu_bandwidth)."""
    above = folder.rpartition("/")[0]
    while rec.number(above + "/vendor", 16) == ATI:
        folder = above if rec.text(above + "/current_link_speed") else folder
        above = above.rpartition("/")[0]
    return Pcie(
        _speed(rec.text(folder + "/current_link_speed")),
        _width(rec.number(folder + "/current_link_width")),
        _speed(rec.text(folder + "/max_link_speed")),
        _width(rec.number(folder + "/max_link_width")),
    )


def _speed(text: str | None) -> float | None:
    """ "32.0 GT/s PCIe"; "Unknown" where the kernel doesn't know the speed."""
    found = re.match(r"(\d{1,4}(?:\.\d{1,3})?) GT/s", text or "")
    return float(found[1]) if found else None


def _width(lanes: int | None) -> int | None:
    return lanes if lanes is not None and 0 < lanes <= 32 else None  # 0: no link, 255: unknown
