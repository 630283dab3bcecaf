"""A node's GPUs and NICs drawn as text: NUMA nodes, root complexes, PCIe switches, links and who is near whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rocstack.node.profile import Gpu, Nic, NodeProfile, Pcie

WIDTH = 80
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
VIA = {"switch": "same switch", "root": "same root complex", "numa": "same NUMA node", "system": "across NUMA nodes"}
ASCII = str.maketrans({"├": "+", "└": "`", "│": "|", "─": "-", "×": "x", "→": ">", "…": "~", "·": "-"})
_MOST_ALIKE = 3  # functions of one card in the same state before they become one line

Device = Gpu | Nic


@dataclass
class _Bridge:
    """What hangs below one PCI address; the root of all has none."""

    address: str = ""
    bridges: dict[str, _Bridge] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)


def draw(profile: NodeProfile, width: int = WIDTH, unicode: bool = True) -> str:
    """The drawing, no line longer than `width`; without `unicode` in ASCII only. Empty for a node without GPU and NIC.

    Lines that don't fit are cut; from 60 columns on only remarks are.
    """
    if not (profile.gpus or profile.nics):
        return ""
    lines = _Drawing(profile, via=width >= 72).lines()
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
    slow, narrow = below_most(pcie)
    if slow or narrow:
        most = GENERATIONS.get(pcie.max_speed or 0)
        could = (f"gen{most}" if slow and most else "", f"x{pcie.max_width}" if narrow else "")
        text += f" (of {' '.join(filter(None, could))}!)"
    return text


def below_most(pcie: Pcie) -> tuple[bool, bool]:
    """Whether a link is slower, and narrower, than it could be."""
    pairs = ((pcie.speed, pcie.max_speed), (pcie.width, pcie.max_width))
    slow, narrow = (now is not None and most is not None and now < most for now, most in pairs)
    return slow, narrow


def nic_name(nic: Nic) -> str:
    """What people call it: the verbs device, else the network device, else its address."""
    return nic.verbs or (nic.netdevs[0] if nic.netdevs else nic.pci)


def speed(profile: NodeProfile, nic: Nic) -> int | None:
    """Mb/s of the card's port: what runs, by the verbs port or the network device."""
    rates = [p.rate for device in profile.verbs if device.name == nic.verbs for p in device.ports if p.rate]
    rates += [n.speed for n in profile.netdevs if n.name in nic.netdevs and n.speed and n.speed > 0]
    return max(rates) if rates else None


def bits(rate: int | None) -> str:
    """Mb/s as people say it: 400G."""
    if rate is None:
        return ""
    return f"{rate / 1000:g}G" if rate >= 1000 else f"{rate}M"


class _Drawing:
    """`via`: with each GPU's NIC stands how near it is."""

    def __init__(self, profile: NodeProfile, *, via: bool) -> None:
        self.profile, self.via = profile, via
        self.devices: list[Device] = [*profile.gpus, *profile.nics]
        self.domain = any(not device.pci.startswith("0000:") for device in self.devices)
        self.name_width = min(max(len(word) for word in ["GPU 00", *map(nic_name, profile.nics)]), 16)

    def lines(self) -> Iterator[str]:
        virtual = f" · virtual ({self.profile.virtual})" if self.profile.virtual else ""
        yield f"GPUs and NICs of {self.profile.name}{virtual}"
        for numa in sorted({device.numa for device in self.devices}, key=lambda n: (n is None, n or 0)):
            yield "NUMA node unknown" if numa is None else f"NUMA node {numa}"
            yield from _branches(list(self._roots([device for device in self.devices if device.numa == numa])))
        if self.profile.gpus:
            yield ""
            yield from _xgmi(self.profile.gpus)

    def _roots(self, devices: Sequence[Device]) -> Iterator[tuple[str, list[str]]]:
        """Each root complex that has devices, with the lines below it."""
        roots: dict[str, _Bridge] = {}
        for device in devices:
            path = device.path or (device.pci,)
            bridge = roots.setdefault(path[0].rpartition(":")[0], _Bridge())
            for address in path[:-1]:
                bridge = bridge.bridges.setdefault(address, _Bridge(address))
            bridge.devices.append(device)
        for name in sorted(roots):
            below = list(self._below(roots[name]))
            if len(below) == 1 and below[0][1]:
                yield f"root complex {name} ─ {below[0][0]}", below[0][1]
            else:
                yield f"root complex {name}", _branches(below)

    def _below(self, bridge: _Bridge) -> Iterator[tuple[str, list[str]]]:
        """Devices and switches; a bridge with one thing below it is no switch and gets no line."""
        for child in sorted(bridge.bridges.values(), key=lambda b: b.address):
            below = list(self._below(child))
            if len(child.bridges) + bool(child.devices) > 1:
                yield f"switch {self._address(child.address)}", _branches(below)
            else:
                yield from below
        alike: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for device in sorted(bridge.devices, key=lambda d: d.pci):
            if isinstance(device, Gpu):
                yield self._columns(self._gpu(device)), []
            else:
                cells = self._nic(device)
                alike.setdefault((device.device, *cells[2:4]), []).append(cells)
        for nics in alike.values():
            shown = nics if len(nics) <= _MOST_ALIKE else nics[:1]
            yield from ((self._columns(cells), []) for cells in shown)
            if len(nics) > len(shown):
                yield f"{len(nics) - 1} more functions like it", []

    def _gpu(self, gpu: Gpu) -> tuple[str, ...]:
        links = [link for link in self.profile.affinity if link.gpu == gpu.index]
        near = (f"→ {link.nic}" + (f", {VIA.get(link.via, link.via)}" if self.via else "") for link in links)
        return f"GPU {gpu.index}", self._address(gpu.pci), gpu.gfx or gpu.device, generation(gpu.pcie), *near

    def _nic(self, nic: Nic) -> tuple[str, ...]:
        """Its port's state is that of the verbs ports where there are any, else of the network devices."""
        ports = [port for device in self.profile.verbs if device.name == nic.verbs for port in device.ports]
        states = {"up" if port.state == "ACTIVE" else (port.state or "?").lower() for port in ports}
        states = states or {netdev.state or "?" for netdev in self.profile.netdevs if netdev.name in nic.netdevs}
        link = " ".join(filter(None, (bits(speed(self.profile, nic)), "/".join(sorted(states)))))
        beside = " ".join(name for name in nic.netdevs if name != nic_name(nic))
        return nic_name(nic), self._address(nic.pci), link or nic.device, generation(nic.pcie), beside

    def _columns(self, cells: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, (self.name_width, 7, 9, 8, 0)))  # noqa: B905

    def _address(self, pci: str) -> str:
        return pci if self.domain else pci[5:]


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
