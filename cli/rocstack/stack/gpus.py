"""What is known of AMD's GPUs and their driver: images/gpus.yml."""

import re
from collections.abc import Iterable
from functools import cache

from packaging.version import Version
from pydantic import Field

from rocstack.base import document, paths
from rocstack.base.errors import hinted
from rocstack.base.words import Gfx, Line, PciId, Value
from rocstack.base.words import Version as VersionText

_MODEL = re.compile(r"MI[0-9]{2,4}[A-Z]{0,2}")  # it goes into commands, and a node says it


class GpuModel(Value):
    pci: tuple[PciId, ...]
    units: int = Field(gt=0)  # compute units of one GPU, as the driver counts GPUs
    board: int = 0  # GPUs, as the driver counts them, that servers have it in; 0: any number
    memory: int = Field(gt=0)  # GiB
    bf16: float | None = None  # peak of dense matrices in TFLOPS; None: not published


class GpuTarget(Value):
    wave: int  # work items in a wavefront
    gpus: dict[str, GpuModel] = {}
    miopen: tuple[int, ...] = ()  # compute units of the GPUs that MIOpen has databases for
    source: Line

    @property
    def sentence(self) -> str:
        """The GPUs of a target, for a person."""
        models = ", ".join(f"{name} ({model.units} compute units)" for name, model in self.gpus.items())
        return f"{models or 'no Instinct GPU'}; wavefronts of {self.wave}"


class OtherTargets(Value):
    wave64: tuple[Gfx, ...]
    wave32: tuple[Gfx, ...]
    source: Line


class DriverReleases(Value):
    releases: dict[VersionText, VersionText]  # of the kernel module -> of the driver
    rocm: dict[VersionText, VersionText]  # release -> the ROCm that it came with, where that has another number
    source: Line


class KnownGpus(Value):
    targets: dict[Gfx, GpuTarget]
    others: OtherTargets
    drivers: DriverReleases


@cache
def known() -> KnownGpus:
    return document.read(paths.images() / "gpus.yml").validate(KnownGpus)


@cache
def targets() -> dict[str, GpuTarget]:
    """Every target that a stack can be built for."""
    all_known = known()
    others = {64: all_known.others.wave64, 32: all_known.others.wave32}
    plain = {
        gfx: GpuTarget(wave=wave, source=all_known.others.source) for wave, names in others.items() for gfx in names
    }
    return {**plain, **all_known.targets}


def complaint(gfx: str) -> str:
    """Why `gfx` is no target that a stack can be built for; empty where it is one."""
    return "" if gfx in targets() else f"'{gfx}' is no known GPU target{hinted(gfx, targets())}"


def target_of(pci: str) -> str | None:
    """By the card's id, where no driver says it."""
    found = (gfx for gfx, target in targets().items() for model in target.gpus.values() if pci in model.pci)
    return next(found, None)


def model_of(pci: str, name: str | None) -> str:
    """MI300X of "1002:74b5": by the card's id, as the name may be missing (of virtual functions, or where it can't be
    read), or say less ("MI250" of an id that MI250X have, too); of an id that nobody knows, by the name."""
    named = next((word for word in (name or "").split() if _MODEL.fullmatch(word)), "")
    found = (model for target in targets().values() for model, each in target.gpus.items() if pci in each.pci)
    model = next(found, "")
    return named if named and model.startswith(named) else model or named


def unused_databases(cards: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Target -> compute units of the databases of MIOpen that none of these cards (PCI ids) uses. Each uses that of
    its own number, or the nearest. Empty where a card isn't known."""
    models = {pci: (gfx, each.units) for gfx, t in targets().items() for each in t.gpus.values() for pci in each.pci}
    used: dict[str, set[int]] = {}
    for card in cards:
        if card not in models:
            return {}
        gfx, units = models[card]
        used.setdefault(gfx, set()).update(sorted(targets()[gfx].miopen, key=lambda has: abs(has - units))[:1])
    return {gfx: tuple(has for has in targets()[gfx].miopen if has not in kept) for gfx, kept in used.items()}


def board_of(pci: str) -> int:
    """How many of a GPU a board has; 0 where servers may have any number."""
    found = (each.board for target in targets().values() for each in target.gpus.values() if pci in each.pci)
    return next(found, 0)


def driver_release(module: str | None) -> str | None:
    """6.4 of amdgpu's module version 6.12.12, 31.50 of 7.1.3.31500000. What is older than all that we know stays as it
    is; None: unknown, or the kernel's own driver."""
    releases = known().drivers.releases
    module = ".".join(module.split(".")[:3]) if module else module
    if module in releases:
        return releases[module]
    try:
        return module if module and Version(module) < min(map(Version, releases)) else None
    except ValueError:  # also of a number with thousands of digits
        return None


def driver_rocm(release: str | None) -> str | None:
    """7.2 of the driver's release 30.30."""
    return known().drivers.rocm.get(release, release) if release else None
