"""A node's GPUs and NICs, and who is near whom; nodes that are alike are drawn once. Pure."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from rocstack.base.text import count
from rocstack.probe.diagram import VIA, bits
from rocstack.verify import verdict
from rocstack.verify.report.drawings import Devices, DrawnNic, Topology

CELL, GAP, PAD = 84.0, 12.0, 16.0  # a device's width, between two, and around those of a NUMA node
GPU_Y, NIC_Y, BOX, HEIGHT = 92.0, 196.0, 44.0, 268.0
ROW = 8  # devices of a NUMA node side by side
MOST = 6  # kinds of node that are drawn
NEAR = ("switch", "root", "numa", "system")


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    title: str
    below: str
    bad: bool = False


@dataclass(frozen=True)
class DrawnWire:
    """`kind` is how near: switch, root, numa or system; or "link" between GPUs."""

    path: str
    kind: str
    title: str


@dataclass(frozen=True)
class Zone:
    x: float
    width: float
    text: str


@dataclass(frozen=True)
class Picture:
    nodes: str
    width: float
    height: float
    zones: tuple[Zone, ...]
    boxes: tuple[Box, ...]
    wires: tuple[DrawnWire, ...]
    links: str
    bus: tuple[float, float, tuple[float, ...]] | None  # every GPU with every other: from, to, and the GPUs
    near: tuple[tuple[str, str], ...]  # kinds of wires that are drawn, and what they mean


def pictures(topology: Topology) -> tuple[Picture, ...]:
    """The commonest kind of node first."""
    alike: dict[Devices, list[str]] = defaultdict(list)
    for name, devices in topology.nodes.items():
        if devices.gpus or devices.nics:
            alike[devices].append(name)
    ordered = sorted(alike.items(), key=lambda item: -len(item[1]))
    return tuple(_picture(names, devices) for devices, names in ordered[:MOST])


def _picture(names: list[str], devices: Devices) -> Picture:
    known_numas = {gpu.numa for gpu in devices.gpus} | {nic.numa for nic in devices.nics}
    numas = sorted(known_numas, key=lambda numa: (numa is None, numa or 0))
    zones, boxes = [], []
    gpus: dict[int, float] = {}
    nics: dict[str, float] = {}
    left = 0.0
    for numa in numas:
        own_gpus = [gpu for gpu in devices.gpus if gpu.numa == numa]
        own_nics = [nic for nic in devices.nics if nic.numa == numa]
        many = max(len(own_gpus), len(own_nics))
        width = many * CELL + (many - 1) * GAP + 2 * PAD
        zones.append(Zone(left, width, "NUMA node unknown" if numa is None else f"NUMA node {numa}"))
        for place, gpu in enumerate(own_gpus):
            gpus[gpu.index] = left + PAD + place * (CELL + GAP)
            title = f"GPU {gpu.index}"
            boxes.append(Box(gpus[gpu.index], GPU_Y, title, _short(gpu.pci) or gpu.name or ""))
        for place, nic in enumerate(own_nics):
            nics[nic.name] = left + PAD + place * (CELL + GAP)
            bad = nic.state is not None and nic.state.upper() not in ("ACTIVE", "UP")
            below = nic.state.lower() if bad and nic.state else _speed(nic) or _short(nic.pci)
            boxes.append(Box(nics[nic.name], NIC_Y, nic.name, below, bad))
        left += width + GAP
    wires = [
        DrawnWire(
            _down(gpus[each.gpu], nics[each.nic]),
            _kind(each.via),
            f"GPU {each.gpu}, {each.nic}: {VIA.get(_kind(each.via), '')}",
        )
        for each in devices.affinity
        if each.gpu in gpus and each.nic is not None and each.nic in nics
    ]
    kinds = {wire.kind for wire in wires}
    full, text = _links(devices, len(gpus))
    middles = tuple(place + CELL / 2 for place in gpus.values())
    if not full:
        wires += [
            DrawnWire(_arc(gpus[link.a], gpus[link.b]), "link", f"GPU {link.a}, GPU {link.b}: {link.kind}")
            for link in devices.links
            if link.a in gpus and link.b in gpus
        ]
    return Picture(
        nodes=verdict.folded(names, 120)
        if len(names) < 3
        else f"{count(len(names), 'node')} alike: {verdict.folded(names, 120)}",
        width=max(left - GAP, CELL),
        height=HEIGHT,
        zones=tuple(zones),
        boxes=tuple(boxes),
        wires=tuple(wires),
        links=text,
        bus=(min(middles), max(middles), middles) if full else None,
        near=tuple((kind, VIA[kind]) for kind in NEAR if kind in kinds),
    )


def _links(devices: Devices, gpus: int) -> tuple[bool, str]:
    """Whether every GPU is linked with every other, which words say better than lines; and the words."""
    pairs = {frozenset((link.a, link.b)) for link in devices.links if link.a != link.b}
    kinds = Counter(link.kind.upper().replace("PCIE", "PCIe") for link in devices.links)
    names = " and ".join(kinds)
    if gpus > 1 and len(pairs) == gpus * (gpus - 1) // 2:
        return True, f"{names}: every GPU is linked with every other"
    return False, f"{names}: {count(len(pairs), 'pair')} of GPUs linked" if pairs else ""


def _kind(via: str | None) -> str:
    return via if via in NEAR else "system"


def _down(one: float, two: float) -> str:
    middle = (GPU_Y + BOX + NIC_Y) / 2
    x1, x2 = one + CELL / 2, two + CELL / 2
    return f"M{x1:g} {GPU_Y + BOX:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {NIC_Y:g}"


def _arc(one: float, two: float) -> str:
    x1, x2 = one + CELL / 2, two + CELL / 2
    high = max(GPU_Y - 16 - abs(x2 - x1) / 8, 30)
    return f"M{x1:g} {GPU_Y:g}C{x1:g} {high:g} {x2:g} {high:g} {x2:g} {GPU_Y:g}"


def _speed(nic: DrawnNic) -> str:
    return bits(nic.speed) if isinstance(nic.speed, int) else nic.speed or ""


def _short(pci: str | None) -> str:
    """05:00.0 of 0000:05:00.0."""
    return (pci or "").removeprefix("0000:")
