"""GPUs: how busy this machine's are, as amdgpu says it, and the most that one can compute.

That is the denominator of MFU, model FLOPs utilization (arXiv 2204.02311, appendix B). AMD's data sheets give compute
units x clock x FLOPs per clock and unit, for dense bf16 matrices. The same product is right for a partition of a device
(CPX mode, a GCD of an MI250X) too, since PyTorch says how many units that has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SYS, DEV = Path("/sys/class/drm"), Path("/dev/dri")

# LLVM target: (FLOPs per clock and compute unit in bf16, peak clock in GHz). From the white papers of CDNA 1 to 4;
# the units are in rocm.docs.amd.com, "AMD GPU specifications". What it gives, in the data sheets' words:
# MI100 92.3, MI210 181.0, MI250 362.1 and MI250X 383.0 (two devices each), MI300A 980.6, MI300X and MI325X 1307.4,
# MI355X 2516.6 TFLOPS. torchtitan's get_peak_flops (tools/utils.py) has 191.5 for a GCD of the MI250X too, and rounds
# the MI300X to 1300.
CDNA = {"gfx908": (512, 1.502), "gfx90a": (1024, 1.7), "gfx942": (2048, 2.1), "gfx950": (4096, 2.4)}
SLOWER = {"MI350X": 2.2}  # GHz: its target is the MI355X's, its data sheet says 2306.9 TFLOPS

# TFLOPS without sparsity, from NVIDIA's data sheets (which print twice that, with sparsity).
NVIDIA = {"A100": 312.0, "H100 PCIe": 756.0, "H100 NVL": 835.0, "H100": 989.4, "H200": 989.4}


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


def peak(name: str, arch: str, units: int) -> float | None:
    """Dense bf16 FLOP/s of a device with this name, LLVM target and number of compute units; None if unknown."""
    if known := CDNA.get(arch.partition(":")[0]):
        per_clock, ghz = known
        ghz = next((slower for model, slower in SLOWER.items() if model in name), ghz)
        return units * per_clock * ghz * 1e9
    return next((tflops * 1e12 for model, tflops in NVIDIA.items() if model in name and "MIG" not in name), None)


def peak_of(device: Any) -> float | None:
    """The same for a torch.device; None for a CPU."""
    if device.type == "cpu":
        return None
    import torch

    about = torch.cuda.get_device_properties(device)
    arch = about.gcnArchName if torch.version.hip else ""
    return peak(about.name, arch, about.multi_processor_count)
