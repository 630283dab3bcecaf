"""What a value must reach, by the model of GPU and NIC: images/thresholds.yml."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from rocstack.base import document, paths
from rocstack.base.errors import BadInput, did_you_mean
from rocstack.base.words import Value
from rocstack.doctor.rdma_states import active, slingshot
from rocstack.node.profile import Gpu, Nic, NodeProfile
from rocstack.node.rdma_ports import OWN_GPU
from rocstack.stack.gpus import model_of


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from None
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
Bound = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # no value is as good as none (.nan), or bad enough for -5


FILE = "thresholds.yml"


class Threshold(Value):
    """A bound. `gpu` and `nic` are patterns, searched for in the node's GPUs ("8 × AMD Instinct MI300X OAM gfx942") and
    the NIC profile with the speed that the card can do ("8 × broadcom 400G"); an empty one holds for all. `nodes`: of
    how many, at least and at most, that took part. `tolerance`: the share by which a value may be worse."""

    least: Bound | None = None
    most: Bound | None = None
    gpu: Pattern = ""
    nic: Pattern = ""
    nodes: tuple[int, int] | None = None
    tolerance: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    source: str

    @model_validator(mode="after")
    def _one(self) -> Threshold:
        if (self.least is None) == (self.most is None):
            raise ValueError("a threshold has either `least` or `most`")
        return self

    def holds(self, value: float) -> bool:
        if self.least is not None:
            return value >= self.least * (1 - self.tolerance)
        return value <= (self.most or 0) * (1 + self.tolerance)

    def text(self, unit: str) -> str:
        bound, number = ("at least", self.least) if self.least is not None else ("at most", self.most)
        tolerance = (
            f"{'less' if self.least is not None else 'and'} {self.tolerance * 100:g} %" if self.tolerance else ""
        )
        return " ".join(filter(None, (bound, f"{number:g}", unit, tolerance)))


class Quantity(Value):
    """What is measured: its unit, and the thresholds, if any, of which the first that fits the hardware holds."""

    unit: str
    thresholds: tuple[Threshold, ...]

    def of(self, gpus: Iterable[str], nics: Sequence[str], nodes: int = 1) -> Threshold | None:
        """Of what is about NICs, by the first kind, the data network's; where none fits that, by all."""
        gpu = " ".join(gpus)
        fit = [each for each in self.thresholds if re.search(each.gpu, gpu)]
        fit = [each for each in fit if not each.nodes or each.nodes[0] <= nodes <= each.nodes[1]]
        texts = dict.fromkeys((*nics[:1], " ".join(nics)))
        return next((each for nic in texts for each in fit if re.search(each.nic, nic)), None)


@cache
def load(overlay: Path | None = None) -> dict[str, Quantity]:
    """By name, such as "all-reduce-busbw". A site's own, `thresholds.yml` in its overlay folder, go before ours.

    Raises:
        BadInput: a file is wrong, with its line; the site's names a quantity that isn't measured, or in another unit.
    """
    doc = document.read(paths.images() / FILE, code="no-thresholds")
    ours = {name: doc.part(name).validate(Quantity) for name in doc.data}
    if overlay is None or not (overlay / FILE).exists():
        return ours
    site = document.read(overlay / FILE, code="no-thresholds")
    for name in site.data:
        own, known = site.part(name).validate(Quantity), ours.get(name)
        if known is None or known.unit != own.unit:
            hint = f"it is measured in {known.unit or 'no unit'}" if known else did_you_mean(name, ours)
            raise BadInput.of("bad-threshold", site.where((name,)), name=name, hint=hint or "none is like it")
        ours[name] = known.model_copy(update={"thresholds": (*own.thresholds, *known.thresholds)})
    return ours


def hardware(profile: NodeProfile) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The models of a node's GPUs and NICs with their number, as a threshold's patterns see them; the data network's
    cards first: where each GPU has one on its PCIe switch, those."""
    gpus = Counter(f"{_gpu(gpu)} {gpu.gfx or ''}".strip() for gpu in profile.gpus)
    speeds = {netdev.name: netdev.speed for netdev in profile.netdevs}
    # InfiniBand has no network device where IPoIB is off.
    rates = {device.name: [port.rate for port in device.ports] for device in profile.verbs}
    data = {device.name for device, _ in active(profile)} | {netdev.name for netdev in slingshot(profile)}
    beside = {link.nic for link in profile.affinity if link.via == OWN_GPU}
    if all(link.via == OWN_GPU for link in profile.affinity):
        data = data & beside or data  # others, as for storage, may be as fast
    nics: Counter[tuple[bool, str]] = Counter()
    for nic in profile.nics:
        if nic.nic:
            known = [*(speeds.get(name) for name in nic.netdevs), *rates.get(nic.verbs or "", ())]
            speed = max((each or 0 for each in known), default=0)
            # A card for management or a spare one may well be slower than it can.
            used = bool(data & {nic.verbs, *nic.netdevs})
            nics[not used, card(profile, nic, speed) if used else _named(nic, speed)] += 1
    cards = tuple(f"{count} × {name}" for (_, name), count in sorted(nics.items()))
    return tuple(sorted(f"{count} × {name}" for name, count in gpus.items())), cards


def _gpu(gpu: Gpu) -> str:
    """With the model that its PCI id says, whatever the name is."""
    model = model_of(gpu.device, gpu.name)
    name = gpu.name or ""
    return name if re.search(rf"\b{model}\b", name) else f"AMD Instinct {model}"


def card(profile: NodeProfile, nic: Nic, rate: int, board: str = "") -> str:
    """A card of the data network as a threshold's pattern sees it, "broadcom 400G": by what its port can do
    (images/cards.yml), by the `rate` in Mb/s at which it runs where that isn't known."""
    known, slot = _cards().get(f"{nic.device} {board}") or _cards().get(nic.device), nic.pci.rpartition(".")[0]
    link = (nic.pcie.max_speed or 0) * (nic.pcie.max_width or 0) * 1000
    if known is None or link < known.speed:  # its PCIe link is too slow for that, so it is another card
        return _named(nic, rate)
    ports = [each for each in profile.nics if each.device == nic.device and each.pci.rpartition(".")[0] == slot]
    return _named(nic, max(rate, known.speed // max(len(ports), 1)))


def _named(nic: Nic, speed: int) -> str:
    return f"{nic.nic} {speed // 1000}G" if speed > 0 else nic.nic or ""


class Card(Value):
    """`speed` in Mb/s, of all its ports together."""

    speed: int
    source: str


@cache
def _cards() -> dict[str, Card]:
    doc = document.read(paths.images() / "cards.yml", code="no-thresholds")
    return {device: Card.model_validate(each) for device, each in doc.data.items()}
