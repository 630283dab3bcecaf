"""What is known of AMD's GPUs and their driver: images/gpus.yml."""

from functools import cache

from packaging.version import InvalidVersion, Version
from pydantic import Field

from rocstack.base import document, paths
from rocstack.base.errors import hinted
from rocstack.base.words import Gfx, Line, PciId, Value
from rocstack.base.words import Version as VersionText


class GpuModel(Value):
    pci: tuple[PciId, ...]
    units: int = Field(gt=0)  # compute units of one GPU, as the driver counts GPUs


class GpuTarget(Value):
    wave: int  # work items in a wavefront
    gpus: dict[str, GpuModel] = {}
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


def driver_release(module: str | None) -> str | None:
    """6.4 of amdgpu's module version 6.12.12. What is older than all that we know stays as it is; None: unknown, or the
    kernel's own driver."""
    releases = known().drivers.releases
    if module in releases:
        return releases[module]
    try:
        return module if module and Version(module) < min(map(Version, releases)) else None
    except InvalidVersion:
        return None


def driver_rocm(release: str | None) -> str | None:
    """7.2 of the driver's release 30.30."""
    return known().drivers.rocm.get(release, release) if release else None
