"""The GPUs of each node: that all are there, alike and healthy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import states
from experiments.gpus import gres
from states import profiles, readable

from rocstack.node.profile import NodeProfile
from rocstack.verify.plugin import check
from rocstack.verify.record import Recorder

ACCEPTANCE = "AMD system acceptance guide"
CVS = "ROCm/cvs, host checks"
LAMINI = "Lamini, multi-node training: the tests of a cluster"


def gpus_only(profile: NodeProfile) -> NodeProfile:
    return replace(profile, nics=())


@check(
    name="gpu-count",
    title="Every node has all its GPUs, and the driver drives them",
    level=2,
    item=1,
    cause="a GPU fell off the bus, is badly seated, or failed when its driver started",
    next_step="`lspci -d 1002:` and `dmesg | grep amdgpu` on the node; a cold start brings back one that hangs",
    source=f"{LAMINI}; {ACCEPTANCE}",
)
def test_gpu_count(record: Recorder) -> None:
    """As many as most nodes have; those that no driver drives don't count."""
    counts = {node.name: sum(gpu.kfd_node is not None for gpu in profile.gpus) for node, profile in profiles(record)}
    if not any(counts.values()):
        for node in record.nodes:
            record.skipped(node.name, f"no GPU on node {node.name}")
        return
    usual = max(Counter(counts.values()).items(), key=lambda pair: (pair[1], pair[0]))[0]
    whole = usual if usual < 3 else -(-usual // 4) * 4  # AMD's boards hold four or eight
    for node, profile in profiles(record):
        names = states.listed(gpu.name or gpu.device for gpu in profile.gpus)
        record.equal(node.name, counts[node.name], whole, "GPUs", evidence=names)


@check(
    name="gpu-model",
    title="The GPUs are of one model on all nodes",
    level=2,
    needs=("gpu",),
    item=1,
    cause="nodes of two kinds are in one inventory, or a GPU was replaced by another",
    next_step="a partition for each kind; a job over both runs at the speed of the slower",
    source=LAMINI,
)
def test_gpu_model(record: Recorder) -> None:
    states.equal(record, "the GPU", lambda profile: states.listed(gpu.name or gpu.device for gpu in profile.gpus))


@check(
    name="gpu-driver",
    title="The GPU driver is the same on all nodes",
    level=2,
    needs=("gpu",),
    cause="a node was updated alone, or has not been started again since",
    next_step="install one release of amdgpu on all nodes; `cat /sys/module/amdgpu/version`",
    source=CVS,
)
def test_gpu_driver(record: Recorder) -> None:
    states.equal(record, "the amdgpu driver", lambda profile: profile.amdgpu)


@check(
    name="gpu-firmware",
    title="The GPUs' VBIOS is the same everywhere",
    level=2,
    needs=("gpu",),
    cause="a GPU was replaced, or left out of an update",
    next_step="`amd-smi firmware` and `amd-smi static --vbios`; the maker's update for the odd ones",
    source=CVS,
)
def test_gpu_firmware(record: Recorder) -> None:
    def firmware(profile: NodeProfile) -> str | None:
        read = [gpu.firmware for gpu in profile.gpus]
        return states.listed(read) if all(read) else None

    states.equal(record, "the VBIOS", firmware)


@check(
    name="gpu-pcie",
    title="The GPUs' PCIe links run at full speed and width",
    level=2,
    needs=("gpu",),
    cause="a badly seated card or riser, or a link that trained down",
    next_step="`lspci -vvv` (LnkSta beside LnkCap); start the node cold, reseat, compare with a node that is right",
    source=f"{ACCEPTANCE}; {CVS}",
)
def test_gpu_pcie(record: Recorder) -> None:
    def slowest(profile: NodeProfile) -> str:
        links = [gpu.pcie for gpu in profile.gpus if gpu.pcie.speed and gpu.pcie.width]
        link = min(links, key=lambda each: (each.width or 0) * (each.speed or 0), default=None)
        return f"{link.speed:g} GT/s x{link.width}" if link else "could not be read"

    states.judge(record, ("pcie-width", "pcie-speed"), slowest, gpus_only, wanted="the card's own speed and width")


@check(
    name="gpu-idle",
    title="No other program holds GPUs or their memory",
    level=2,
    needs=("gpu",),
    cause="a program of an earlier job was left over, or somebody works beside Slurm",
    next_step="`rocm-smi --showpids` on the node; end what no job owns",
    source="AMD-AGI/Primus, node smoke",
)
def test_gpu_idle(record: Recorder, on_hosts: dict[str, Any], controller: dict[str, Any]) -> None:
    used = {row["name"]: sum(gres(row.get("gres_used") or "").values()) for row in controller["nodes"]}
    own = {node.name: {gpu.pci for gpu in profile.gpus} for node, profile in profiles(record)}
    for node, vram in readable(record, on_hosts, "vram"):
        sizes = [size for pci, size in vram.items() if pci in own[node.name] and size is not None]
        running = on_hosts[node.name].get("processes") or {}
        if used.get(node.name):
            record.skipped(node.name, f"{used[node.name]} GPUs are given to jobs")
        elif running:
            names = ", ".join(f"{name} ({pid})" for pid, name in list(running.items())[:5])
            record.failed(node.name, f"programs hold its GPUs: {names}", len(running), "programs", wanted="none")
        elif not sizes:
            record.skipped(node.name, "the driver doesn't say how much GPU memory is in use")
        else:
            record.judge(node.name, max(sizes) / 1e9, "hbm-used")
