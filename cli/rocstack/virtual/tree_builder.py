"""A recording in the making, with the few things that every part of /sys needs."""

import struct
from dataclasses import dataclass, field
from itertools import pairwise

from rocstack.node.recording import DeviceNode, RecordedAnswer, Recording
from rocstack.virtual.machine import MachineFunction

PCI = "/sys/bus/pci/devices"
_BRIDGES = {0: "1022:14ab", 1: "1000:c030"}  # pci.ids: AMD's root port (Genoa), Broadcom's PEX890xx switch
_CARD_BRIDGE = "1002:1479"  # pci.ids: the port of the switch on an AMD card


@dataclass
class TreeBuilder:
    files: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    devices: dict[str, DeviceNode] = field(default_factory=dict)
    commands: dict[str, RecordedAnswer] = field(default_factory=dict)

    def put(self, folder: str, values: dict[str, object]) -> None:
        """Files of one value each, as the kernel writes them: with a newline."""
        for name, value in values.items():
            self.files[f"{folder}/{name}"] = f"{value}\n"

    def char(self, path: str, major: int, minor: int, gid: int = 0, mode: int = 0o660) -> None:
        self.devices[path] = DeviceNode("c", major, minor, gid, mode)

    def module(self, name: str, version: str | None, uses: str = "0") -> None:
        """A loaded kernel module. The kernel's own have no version."""
        self.put(f"/sys/module/{name}", {"initstate": "live", "refcnt": uses})
        if version:
            self.put(f"/sys/module/{name}", {"version": version})

    def driver(self, bus: str, name: str, module: str, device: str) -> None:
        """Binds a device to a driver of a bus."""
        home = f"/sys/bus/{bus}/drivers/{name}"
        self.links[f"{device}/driver"] = home
        self.links[f"{home}/module"] = f"/sys/module/{module}"
        self.links[f"{home}/{device.rpartition('/')[2]}"] = device

    def function(self, device: MachineFunction, klass: int, driver: str) -> str:
        """A PCI function below its bridges; gives its folder."""
        home = f"/sys/devices/pci{device.path[0][:7]}"
        for depth, (address, after) in enumerate(pairwise((*device.path, device.address))):
            home += f"/{address}"
            old = self.blobs.get(f"{home}/config")
            last = max(_bus(device.address), old[0x1A] if old else 0)
            id = _BRIDGES.get(min(depth, 1), "") if depth < 3 else _CARD_BRIDGE
            self._pci(home, id, 0x060400, device.numa, (_bus(address), _bus(after), last))
        home += f"/{device.address}"
        self._pci(home, device.id, klass, device.numa)
        vendor, number = device.id.split(":")
        self.put(home, {
            "current_link_speed": f"{device.pcie.speed:.1f} GT/s PCIe", "current_link_width": device.width,
            "max_link_speed": f"{device.pcie.speed:.1f} GT/s PCIe", "max_link_width": device.pcie.width,
            "modalias": f"pci:v0000{vendor.upper()}d0000{number.upper()}sv0000{vendor.upper()}sd0000{number.upper()}"
                        f"bc{klass >> 16:02X}sc{klass >> 8 & 255:02X}i{klass & 255:02X}",
            "uevent": f"DRIVER={driver}\nPCI_CLASS={klass:X}\nPCI_ID={device.id.upper()}\n"
                      f"PCI_SUBSYS_ID={device.id.upper()}\nPCI_SLOT_NAME={device.address}",
        })  # fmt: skip
        self.driver("pci", driver, driver, home)
        return home

    def _pci(self, home: str, id: str, klass: int, numa: int, buses: tuple[int, int, int] | None = None) -> None:
        vendor, number = id.split(":")
        self.put(home, {
            "vendor": f"0x{vendor}", "device": f"0x{number}", "subsystem_vendor": f"0x{vendor}",
            "subsystem_device": f"0x{number}", "class": f"0x{klass:06x}", "revision": "0x00", "irq": "0",
            "numa_node": numa, "enable": "1",
        })  # fmt: skip
        self.files[f"{home}/resource"] = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 13
        self.blobs[f"{home}/config"] = pci_config(id, klass, buses)
        self.links[f"{home}/subsystem"] = "/sys/bus/pci"
        self.links[f"{PCI}/{home.rpartition('/')[2]}"] = home

    def recording(self, host: str) -> Recording:
        folders = tuple(self.folders)
        return Recording(host, self.files, self.blobs, self.links, folders, self.devices, self.commands)


def _bus(address: str) -> int:
    return int(address[5:7], 16)


def pci_config(id: str, klass: int, buses: tuple[int, int, int] | None = None) -> bytes:
    """The 256 bytes of PCI configuration space; a bridge has its primary, secondary and last bus."""
    vendor, number = (int(part, 16) for part in id.split(":"))
    space = bytearray(256)
    struct.pack_into("<HHHH", space, 0, vendor, number, 0x0006, 0)
    space[9:12] = klass.to_bytes(3, "little")
    if buses:
        space[0x0E] = 1
        space[0x18:0x1B] = bytes(buses)
    else:
        struct.pack_into("<HH", space, 0x2C, vendor, number)
    return bytes(space)
