"""A node's GPUs and NICs, and who is near whom; nodes that are alike are drawn once. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from rocstack.base.text import count
from rocstack.probe.diagram import VIA, bits
from rocstack.verify.report.drawings import Devices, Topology
from rocstack.verify.report.matrix import alike, label

CELL, GAP, PAD = 84.0, 12.0, 16.0  # a device's width, between two, and around those of a NUMA node
GPU_Y, NIC_Y, BOX, HEIGHT = 92.0, 196.0, 44.0, 268.0
MOST = 6  # kinds of node that are drawn


class Box(NamedTuple):
    x: float
    y: float
    title: str
    below: str
    bad: bool


class DrawnWire(NamedTuple):
    """`kind` is how near: switch, root, numa or system; or "link" between GPUs."""

    path: str
    kind: str
    title: str


class Zone(NamedTuple):
    x: float
    width: float
    text: str


@dataclass(frozen=True)
class Picture:
    height = HEIGHT

    nodes: str
    width: float
    zones: list[Zone]
    boxes: list[Box]
    wires: list[DrawnWire]
    links: str
    bus: tuple[float, float, tuple[float, ...]] | None  # every GPU with every other: from, to, and the GPUs
    near: tuple[tuple[str, str], ...]  # kinds of wires that are drawn, and what they mean


def pictures(topology: Topology) -> list[Picture]:
    """The commonest kind of node first."""
    drawn = ((name, devices) for name, devices in topology.nodes.items() if devices.gpus or devices.nics)
    return [_picture(names, devices) for devices, names in alike(drawn)[:MOST]]


def _picture(names: list[str], devices: Devices) -> Picture:
    known_numas = {gpu.numa for gpu in devices.gpus} | {nic.numa for nic in devices.nics}
    zones, boxes, wires = [], [], []
    at: dict[int | str, float] = {}  # a GPU's index, or a NIC's name -> its left edge
    left = 0.0
    for numa in sorted(known_numas, key=lambda numa: (numa is None, numa or 0)):
        gpus = [gpu for gpu in devices.gpus if gpu.numa == numa]
        nics = [nic for nic in devices.nics if nic.numa == numa]
        many = max(len(gpus), len(nics))
        width = many * CELL + (many - 1) * GAP + 2 * PAD
        zones.append(Zone(left, width, "NUMA node unknown" if numa is None else f"NUMA node {numa}"))
        places = [left + PAD + place * (CELL + GAP) for place in range(many)]
        for x, gpu in zip(places, gpus, strict=False):
            at[gpu.index] = x
            boxes.append(Box(x, GPU_Y, f"GPU {gpu.index}", _short(gpu.pci) or gpu.name or "", bad=False))
        for x, nic in zip(places, nics, strict=False):
            at[nic.name] = x
            bad = nic.state is not None and nic.state.upper() not in ("ACTIVE", "UP")
            speed = bits(nic.speed) if isinstance(nic.speed, int) else nic.speed
            below = nic.state.lower() if bad and nic.state else speed or _short(nic.pci)
            boxes.append(Box(x, NIC_Y, nic.name, below, bad))
        left += width + GAP
    for each in devices.affinity:
        if each.gpu in at and each.nic in at:
            kind = each.via if each.via in VIA else "system"
            path = _wire(at[each.gpu], GPU_Y + BOX, (GPU_Y + BOX + NIC_Y) / 2, at[each.nic], NIC_Y)
            wires.append(DrawnWire(path, kind, f"GPU {each.gpu}, {each.nic}: {VIA[kind]}"))
    kinds = {wire.kind for wire in wires}
    middles = tuple(place + CELL / 2 for key, place in at.items() if isinstance(key, int))
    full, text = _links(devices, len(middles))
    for link in devices.links:
        if not full and link.a in at and link.b in at:
            high = max(GPU_Y - 16 - abs(at[link.b] - at[link.a]) / 8, 30)
            path = _wire(at[link.a], GPU_Y, high, at[link.b], GPU_Y)
            wires.append(DrawnWire(path, "link", f"GPU {link.a}, GPU {link.b}: {link.kind}"))
    return Picture(
        nodes=label(names, " alike"),
        width=max(left - GAP, CELL),
        zones=zones,
        boxes=boxes,
        wires=wires,
        links=text,
        bus=(min(middles), max(middles), middles) if full else None,
        near=tuple((kind, text) for kind, text in VIA.items() if kind in kinds),
    )


def _links(devices: Devices, gpus: int) -> tuple[bool, str]:
    """Whether every GPU is linked with every other, which words say better than lines; and the words."""
    pairs = {frozenset((link.a, link.b)) for link in devices.links if link.a != link.b}
    names = " and ".join(dict.fromkeys(link.kind.upper().replace("PCIE", "PCIe") for link in devices.links))
    if gpus > 1 and len(pairs) == gpus * (gpus - 1) // 2:
        return True, f"{names}: every GPU is linked with every other"
    return False, f"{names}: {count(len(pairs), 'pair')} of GPUs linked" if pairs else ""


def _wire(one: float, start: float, middle: float, two: float, end: float) -> str:
    """From the middle of one device to that of another; `start`, `middle` and `end` are heights."""
    x1, x2 = one + CELL / 2, two + CELL / 2
    return f"M{x1:g} {start:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {end:g}"


def _short(pci: str | None) -> str:
    """05:00.0 of 0000:05:00.0."""
    return (pci or "").removeprefix("0000:")
