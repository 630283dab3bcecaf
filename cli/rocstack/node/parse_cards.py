"""PCI functions of a recording: GPUs, network cards with the NIC profile that knows them, and which of these is
nearest to each GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from .nic_settings import NicSettings
from .profile import Affinity, Gpu, GpuLink, Netdev, Nic, Pcie, Verbs
from .recording import Recording

PCI_DEVICES = "/sys/bus/pci/devices"
ATI = 0x1002
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class PciFunction:
    """`folder` is its real place in /sys, `id` vendor and device, `kind` the three bytes of the PCI class."""

    address: str
    folder: str
    id: str
    kind: int

    @property
    def is_gpu(self) -> bool:
        """An accelerator or a display controller without a display: Instinct cards are either."""
        return self.id.startswith("1002:") and self.kind >> 8 in (0x1200, 0x0380)


def pci_functions(rec: Recording) -> list[PciFunction]:
    """In the order of their addresses."""
    rows = []
    for name in sorted(rec.names(PCI_DEVICES)):
        folder = rec.real(f"{PCI_DEVICES}/{name}")
        card, kind = pci_id(rec, folder), rec.number(f"{folder}/class", 16)
        if _ADDRESS.fullmatch(name) and card is not None and kind is not None:
            rows.append(PciFunction(name, folder, card, kind))
    return rows


def pci_id(rec: Recording, folder: str) -> str | None:
    """Vendor and device, "14e4:1760"."""
    vendor, device = (rec.number(f"{folder}/{item}", 16) for item in ("vendor", "device"))
    return None if vendor is None or device is None else f"{vendor:04x}:{device:04x}"


def pci_path(folder: str) -> tuple[str, ...]:
    """PCI addresses on the way to a folder of /sys, the root port first."""
    return tuple(name for name in folder.split("/") if _ADDRESS.fullmatch(name))


def pci_address(folder: str) -> str | None:
    """The PCI function that a folder of /sys belongs to."""
    return (pci_path(folder) or (None,))[-1]


def numa_node(rec: Recording, folder: str) -> int | None:
    node = rec.number(folder + "/numa_node")
    return node if node is not None and node >= 0 else None  # -1: the firmware doesn't say


def pcie_link(rec: Recording, folder: str) -> Pcie:
    """The link towards the root. Some AMD cards hold a switch of their own whose inner link always runs at full speed:
    what counts is the outermost bridge of the card, as amdgpu has it (amdgpu_device_gpu_bandwidth)."""
    above = folder.rpartition("/")[0]
    while rec.number(above + "/vendor", 16) == ATI:
        folder = above if rec.text(above + "/current_link_speed") else folder
        above = above.rpartition("/")[0]
    speeds, widths = [], []
    for side in ("current", "max"):
        speed = re.match(r"(\d{1,4}(?:\.\d{1,3})?) GT/s", rec.text(f"{folder}/{side}_link_speed") or "")
        speeds.append(float(speed[1]) if speed else None)  # "Unknown" where the kernel doesn't know it
        width = rec.number(f"{folder}/{side}_link_width")
        widths.append(width if width is not None and 0 < width <= 32 else None)  # 0: no link, 255: unknown
    return Pcie(speeds[0], widths[0], speeds[1], widths[1])


KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
LINK_KINDS = {2: "pcie", 11: "xgmi"}  # HSA_IOLINKTYPE_*, linux/drivers/gpu/drm/amd/amdkfd/kfd_crat.h


def gpus(rec: Recording) -> tuple[Gpu, ...]:
    """Those that the driver drives, then those that only PCI knows (`kfd_node` is None)."""
    cards = {function.address: function for function in pci_functions(rec)}
    numbers = sorted(int(name) for name in rec.names(KFD_NODES) if _is_number(name))
    nodes = {number: properties(rec, f"{KFD_NODES}/{number}") for number in numbers}
    driven = [number for number in numbers if nodes[number].get("simd_count", 0) > 0]
    rows = []
    for index, number in enumerate(driven):
        facts = nodes[number]
        location = facts.get("location_id", 0) & 0xFFFF  # bus, device, function; above them partitions are counted
        address = f"{facts.get('domain', 0):04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
        card = cards.get(address)
        code = rec.text(f"{KFD_NODES}/{number}/name")  # a code name, or says only how the driver found the GPU
        gpu = Gpu(
            index=index,
            pci=address,
            device=f"{facts.get('vendor_id', 0):04x}:{facts.get('device_id', 0):04x}",
            gfx=gfx(facts.get("gfx_target_version", 0)),
            name=(code if code != "ip discovery" else None) or None,
            render_minor=facts.get("drm_render_minor") or None,
            kfd_node=number,
            links=_gpu_links(rec, number, driven),
        )
        rows.append(_on_card(rec, gpu, card) if card else gpu)
    known = {gpu.pci for gpu in rows}
    for card in cards.values():
        if card.is_gpu and card.address not in known:
            rows.append(_on_card(rec, Gpu(len(rows), card.address, card.id), card))
    return tuple(rows)


def _on_card(rec: Recording, gpu: Gpu, card: PciFunction) -> Gpu:
    """With what PCI knows of it."""
    return replace(
        gpu,
        device=card.id,
        name=rec.text(card.folder + "/product_name") or gpu.name,
        numa=numa_node(rec, card.folder),
        memory=rec.number(card.folder + "/mem_info_vram_total"),
        firmware=rec.text(card.folder + "/vbios_version") or None,
        pcie=pcie_link(rec, card.folder),
        path=pci_path(card.folder),
    )


def properties(rec: Recording, folder: str) -> dict[str, int]:
    """`name number` lines."""
    rows = (line.split() for line in (rec.text(folder + "/properties") or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and _is_number(row[1])}


def gfx(version: int) -> str | None:
    """90402 -> gfx942, 90010 -> gfx90a: the last two numbers are hex digits."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}" if version > 0 else None


def _gpu_links(rec: Recording, node: int, driven: Sequence[int]) -> tuple[GpuLink, ...]:
    links = {}
    for kind in ("p2p_links", "io_links"):  # a direct link says more than a path through the CPU
        for number in rec.names(f"{KFD_NODES}/{node}/{kind}"):
            facts = properties(rec, f"{KFD_NODES}/{node}/{kind}/{number}")
            to, word = facts.get("node_to"), LINK_KINDS.get(facts.get("type", 0))
            if to in driven and to != node and word:
                index = driven.index(to)
                links[index] = GpuLink(index, word, facts.get("weight"))
    return tuple(links[index] for index in sorted(links))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 40


IN_TREE = "in-tree"  # a module without a version: it came with the kernel


def kind_of(device: str, kinds: Iterable[NicSettings]) -> NicSettings | None:
    return next((kind for kind in kinds if device in kind.pci), None)


def nics(
    rec: Recording, kinds: Sequence[NicSettings], netdevs: Sequence[Netdev], verbs: Sequence[Verbs]
) -> tuple[Nic, ...]:
    rows = []
    for card in pci_functions(rec):
        kind = kind_of(card.id, kinds)
        if card.kind >> 16 != 0x02 and kind is None:  # no network controller
            continue
        own = tuple(netdev.name for netdev in netdevs if netdev.pci == card.address)
        device = next((device for device in verbs if device.pci == card.address), None)
        driver = driver_of(rec, card.folder)
        ethtool = _ethtool(rec, own)
        row = Nic(
            pci=card.address,
            device=card.id,
            nic=kind.nic if kind else None,
            driver=driver,
            driver_version=_driver_version(rec, driver, ethtool.get("version")),
            firmware=ethtool.get("firmware-version") or (device.firmware if device else None),
            numa=numa_node(rec, card.folder),
            pcie=pcie_link(rec, card.folder),
            path=pci_path(card.folder),
            netdevs=own,
            verbs=device.name if device else None,
        )
        rows.append(row)
    return tuple(rows)


def driver_of(rec: Recording, folder: str) -> str | None:
    """The name of the kernel driver that holds a device."""
    link = f"{rec.real(folder)}/driver"
    return rec.real(link).rpartition("/")[2] if link in rec.links else None


def module_version(rec: Recording, module: str) -> str | None:
    """None: not loaded."""
    folder = f"/sys/module/{module}"
    return rec.text(folder + "/version") or IN_TREE if rec.exists(folder) else None


def _ethtool(rec: Recording, netdevs: Iterable[str]) -> dict[str, str]:
    """What `ethtool -i` says of the first network device that answers."""
    for name in netdevs:
        answer = rec.commands.get(f"ethtool -i {name}")
        if answer and answer.code == 0:
            rows = (line.partition(":") for line in answer.out.splitlines())
            return {key: value.strip() for key, _, value in rows if re.fullmatch("[a-z-]+", key) and value.strip()}
    return {}


def _driver_version(rec: Recording, driver: str | None, version: str | None) -> str | None:
    """A driver without a version of its own gives the kernel's (net/ethtool/ioctl.c, since 5.7)."""
    release = rec.text("/proc/sys/kernel/osrelease")
    if version and version != release:
        return version
    return module_version(rec, driver) if driver and rec.exists(f"/sys/module/{driver}") else version and IN_TREE


NEARNESS = ("switch", "root", "numa", "system")  # the nearest first


def affinity(gpus: Sequence[Gpu], nics: Sequence[Nic], netdevs: Sequence[Netdev] = ()) -> tuple[Affinity, ...]:
    """By the longest way that both share from the root; where several NICs are equally near, each is used as often
    as the others, in the order of PCI addresses."""
    choices = _candidates(nics, netdevs)
    used: Counter[str] = Counter()
    rows = []
    for gpu in gpus:
        nearest = min(choices, key=lambda nic: (*_distance(gpu, nic), used[nic.pci], nic.pci), default=None)
        if nearest is not None:
            used[nearest.pci] += 1
            name = nearest.verbs or nearest.netdevs[0]
            rows.append(Affinity(gpu.index, name, NEARNESS[_distance(gpu, nearest)[0]]))
    return tuple(rows)


def _candidates(nics: Sequence[Nic], netdevs: Sequence[Netdev]) -> list[Nic]:
    """Cards for training: of a NIC profile before others, with RDMA before those without, no bonds if there are
    others. A card in a bond carries the management network as a rule."""
    named = [nic for nic in nics if nic.verbs or (nic.nic and nic.netdevs)]
    bonded = {netdev.name for netdev in netdevs if netdev.master}
    named = [nic for nic in named if nic.nic] or named
    named = [nic for nic in named if nic.verbs] or named
    return [nic for nic in named if not bonded.intersection(nic.netdevs)] or named


def _distance(gpu: Gpu, nic: Nic) -> tuple[int, int]:
    """Rank in NEARNESS, then the shared steps, most first."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(gpu.path[:-1], nic.path[:-1]))  # noqa: B905
    shared = len(list(same))
    if shared:
        return 0, -shared
    # A root port sits on its root complex's own bus.
    if gpu.path and nic.path and gpu.path[0].rpartition(":")[0] == nic.path[0].rpartition(":")[0]:
        return 1, 0
    return (2, 0) if gpu.numa is not None and gpu.numa == nic.numa else (3, 0)
