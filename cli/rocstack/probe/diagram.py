"""A node's GPUs and NICs drawn as text: NUMA nodes, root complexes, PCIe switches, links and who is near whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Union

from rocstack.node.profile import Gpu, Netdev, Nic, NodeProfile, Pcie, Verbs

WIDTH = 80
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
VIA = {"switch": "same switch", "root": "same root complex", "numa": "same NUMA node", "system": "across NUMA nodes"}
ASCII = str.maketrans({"├": "+", "└": "`", "│": "|", "─": "-", "×": "x", "→": ">", "…": "~", "·": "-"})
_MOST_ALIKE = 3  # functions of one card in the same state before they become one line

Device = Union[Gpu, Nic]  # noqa: UP007


@dataclass
class _Bridge:
    """What hangs below one PCI address; the root of all has none."""

    address: str = ""
    bridges: dict[str, _Bridge] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)


@dataclass(frozen=True)
class _Style:
    """How wide names are, whether PCI domains are shown, and how a GPU's NIC is near."""

    name: int
    domain: bool
    via: bool


def draw(profile: NodeProfile, width: int = WIDTH, unicode: bool = True) -> str:
    """The drawing, no line longer than `width`; without `unicode` in ASCII only. Empty for a node without GPU and NIC.

    Lines that don't fit are cut; from 60 columns on only remarks are.
    """
    devices: list[Device] = [*profile.gpus, *profile.nics]
    if not devices:
        return ""
    style = _Style(
        name=min(max(len(word) for word in ["GPU 00", *map(nic_name, profile.nics)]), 16),
        domain=any(not device.pci.startswith("0000:") for device in devices),
        via=width >= 72,
    )
    lines = [_title(profile)]
    for numa in sorted({device.numa for device in devices}, key=lambda n: (n is None, n or 0)):
        lines.append("NUMA node unknown" if numa is None else f"NUMA node {numa}")
        lines += _branches(list(_roots(profile, [d for d in devices if d.numa == numa], style)))
    lines += ["", *_xgmi(profile.gpus)] if profile.gpus else []
    return "\n".join(clean(line, width, unicode).rstrip() for line in lines) + "\n"


def clean(text: str, width: int, unicode: bool = True) -> str:
    """One line for the terminal: nothing that could steer it, at most `width` long."""
    text = "".join(char if char.isprintable() else "?" for char in text)
    if len(text) > width:
        text = text[: max(width - 1, 0)] + "…"
    return text if unicode else text.translate(ASCII).encode("ascii", "replace").decode()


def generation(pcie: Pcie) -> str:
    """ "gen5 x16", and what it could be where it runs below that."""
    if pcie.speed is None and pcie.width is None:
        return ""
    speed = f"gen{GENERATIONS[pcie.speed]}" if pcie.speed in GENERATIONS else f"{pcie.speed or '?'} GT/s"
    text = f"{speed} x{pcie.width or '?'}"
    slow = pcie.speed is not None and pcie.max_speed is not None and pcie.speed < pcie.max_speed
    narrow = pcie.width is not None and pcie.max_width is not None and pcie.width < pcie.max_width
    if slow or narrow:
        most = GENERATIONS.get(pcie.max_speed or 0)
        could = (f"gen{most}" if slow and most else "", f"x{pcie.max_width}" if narrow else "")
        text += f" (of {' '.join(filter(None, could))}!)"
    return text


def nic_name(nic: Nic) -> str:
    """What people call it: the verbs device, else the network device, else its address."""
    return nic.verbs or (nic.netdevs[0] if nic.netdevs else nic.pci)


def speed(nic: Nic, netdevs: Iterable[Netdev], verbs: Iterable[Verbs]) -> int | None:
    """Mb/s of the card's port: what runs, by the verbs port or the network device."""
    rates = [p.rate for device in verbs if device.name == nic.verbs for p in device.ports if p.rate]
    rates += [n.speed for n in netdevs if n.name in nic.netdevs and n.speed and n.speed > 0]
    return max(rates) if rates else None


def state(nic: Nic, netdevs: Iterable[Netdev], verbs: Iterable[Verbs]) -> str:
    """ "up", "down" ...: of the verbs ports where there are any, else of the network devices."""
    port = [p.state or "?" for device in verbs if device.name == nic.verbs for p in device.ports]
    port = [{"ACTIVE": "up"}.get(s, s.lower()) for s in port]
    port = port or [n.state or "?" for n in netdevs if n.name in nic.netdevs]
    return "/".join(sorted(set(port)))


def _title(profile: NodeProfile) -> str:
    return f"GPUs and NICs of {profile.name}" + (f" · virtual ({profile.virtual})" if profile.virtual else "")


def _roots(profile: NodeProfile, devices: Sequence[Device], style: _Style) -> Iterator[tuple[str, list[str]]]:
    """Each root complex that has devices, with the lines below it."""
    roots: dict[str, _Bridge] = {}
    for device in devices:
        path = device.path or (device.pci,)
        bridge = roots.setdefault(path[0].rpartition(":")[0], _Bridge())
        for address in path[:-1]:
            bridge = bridge.bridges.setdefault(address, _Bridge(address))
        bridge.devices.append(device)
    for name in sorted(roots):
        below = list(_below(profile, roots[name], style))
        if len(below) == 1 and below[0][1]:
            yield f"root complex {name} ─ {below[0][0]}", below[0][1]
        else:
            yield f"root complex {name}", _branches(below)


def _below(profile: NodeProfile, bridge: _Bridge, style: _Style) -> Iterator[tuple[str, list[str]]]:
    """Devices and switches; a bridge with one thing below it is no switch and gets no line."""
    for child in sorted(bridge.bridges.values(), key=lambda b: b.address):
        below = list(_below(profile, child, style))
        if len(child.bridges) + bool(child.devices) > 1:
            yield f"switch {_address(child.address, style)}", _branches(below)
        else:
            yield from below
    alike: dict[tuple[str, ...], list[Nic]] = {}
    for device in sorted(bridge.devices, key=lambda d: d.pci):
        if isinstance(device, Gpu):
            yield _gpu(profile, device, style), []
        else:
            alike.setdefault((device.device, *_nic(profile, device, style)[2:4]), []).append(device)
    for nics in alike.values():
        shown = nics if len(nics) <= _MOST_ALIKE else nics[:1]
        for nic in shown:
            yield _columns(_nic(profile, nic, style), style), []
        if len(nics) > len(shown):
            yield f"{len(nics) - 1} more functions like it", []


def _gpu(profile: NodeProfile, gpu: Gpu, style: _Style) -> str:
    near = [
        f"→ {link.nic}" + (f", {VIA.get(link.via, link.via)}" if style.via else "")
        for link in profile.affinity
        if link.gpu == gpu.index
    ]
    cells = (f"GPU {gpu.index}", _address(gpu.pci, style), gpu.gfx or gpu.device, generation(gpu.pcie), *near)
    return _columns(cells, style)


def _nic(profile: NodeProfile, nic: Nic, style: _Style) -> tuple[str, ...]:
    rate = speed(nic, profile.netdevs, profile.verbs)
    link = " ".join(filter(None, (bits(rate), state(nic, profile.netdevs, profile.verbs))))
    beside = [name for name in nic.netdevs if name != nic_name(nic)]
    return nic_name(nic), _address(nic.pci, style), link or nic.device, generation(nic.pcie), " ".join(beside)


def bits(rate: int | None) -> str:
    """Mb/s as people say it: 400G."""
    if rate is None:
        return ""
    return f"{rate / 1000:g}G" if rate >= 1000 else f"{rate}M"


def _columns(cells: Sequence[str], style: _Style) -> str:
    widths = (style.name, 7, 9, 8, 0)
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths))  # noqa: B905


def _address(pci: str, style: _Style) -> str:
    return pci if style.domain else pci[5:]


def _branches(items: Sequence[tuple[str, list[str]]]) -> list[str]:
    lines = []
    for number, (text, below) in enumerate(items, 1):
        last = number == len(items)
        lines.append(("└─ " if last else "├─ ") + text)
        lines += [("   " if last else "│  ") + line for line in below]
    return lines


def _xgmi(gpus: Sequence[Gpu]) -> list[str]:
    """How the GPUs are linked with each other: one line where all are linked alike, else a line per GPU."""
    links = {gpu.index: {link.to for link in gpu.links if link.kind == "xgmi"} for gpu in gpus}
    if not any(links.values()):
        return ["XGMI: none; the GPUs reach each other over PCIe"] if len(gpus) > 1 else []
    everybody = set(links)
    if all(others == everybody - {index} for index, others in links.items()):
        weights = {link.weight for gpu in gpus for link in gpu.links if link.kind == "xgmi"}
        weight = f" (weight {weights.pop()})" if len(weights) == 1 and None not in weights else ""
        return [f"XGMI: each of the {len(gpus)} GPUs with every other{weight}"]
    width = max(len(str(index)) for index in links)
    rows = (f"{index:>{width}} ─ {' '.join(map(str, sorted(others))) or 'nobody'}" for index, others in links.items())
    return ["XGMI:", *(f"  GPU {row}" for row in rows)]
