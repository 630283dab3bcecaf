"""How busy this machine's GPUs are, as amdgpu says it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

SYS, DEV = Path("/sys/class/drm"), Path("/dev/dri")


def usable(sys: Path = SYS, dev: Path = DEV) -> list[Path]:
    """The file `gpu_busy_percent` of each GPU that this process may open. Slurm keeps others' GPUs from a job by its
    cgroup, which opening tells and rights don't."""
    found = []
    for node in sorted(sys.glob("renderD*")):
        file = node / "device/gpu_busy_percent"  # amdgpu's alone (gpu/amdgpu/thermal in Linux's documentation)
        try:
            os.close(os.open(dev / node.name, os.O_RDWR | os.O_CLOEXEC))
            file.read_text()
        except OSError:
            continue
        found.append(file)
    return found


def busy(files: Sequence[Path]) -> float | None:
    """Their mean, in percent, of the moment; None where there is no such GPU."""
    try:
        shares = [float(file.read_text()) for file in files]
    except (OSError, ValueError):  # one is being reset
        return None
    return sum(shares) / len(shares) if shares else None
