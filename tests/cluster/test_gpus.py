"""The GPUs of each node: that all are there, alike and healthy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import states
from experiments.gpus import gres
from states import profiles, readable

from rocstack.errors import RocstackError
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
def test_gpu_count(record: Recorder, request: Any) -> None:
    """As many as are on most nodes' PCI buses, and all that are on its own; those that no driver drives don't count.
    A node without any is a worker without GPUs, unless Slurm was told of some."""
    sizes = [len(profile.gpus) for _, profile in profiles(record) if profile.gpus]
    usual = max(Counter(sizes).items(), key=lambda pair: (pair[1], pair[0]), default=(0, 0))[0]
    for node in record.nodes:
        found = node.profile.gpus if node.profile else ()
        wanted = max(usual, len(found)) if found else _known(request, node.name)
        if node.profile is None:
            record.failed(node.name, "could not be looked at: its profile was not read")
        elif not wanted:
            record.skipped(node.name, f"no GPU on node {node.name}")
        else:
            driven = sum(gpu.kfd_node is not None for gpu in found)
            text = states.listed(gpu.name or gpu.device for gpu in found)
            why = f"{driven} of {wanted} GPUs: {len(found)} on the PCI bus, {driven} with a driver"
            record.equal(node.name, driven, wanted, "GPUs", why=why, evidence=text)


def _known(request: Any, name: str) -> int:
    """GPUs that Slurm counts on at this node; 0 where it can't be asked: the check slurm-services says that."""
    try:
        rows = request.getfixturevalue("controller")["nodes"]
    except RocstackError:
        return 0
    return sum(sum(gres(row["gres"] or "").values()) for row in rows if row["name"] == name)


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

    if not any(gpu.firmware for _, profile in profiles(record) for gpu in profile.gpus):
        for node in record.nodes:
            record.skipped(node.name, "the driver says no VBIOS of any GPU")
        return
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
    def slowest(profile: NodeProfile) -> str | None:
        links = [gpu.pcie for gpu in profile.gpus if gpu.pcie.speed and gpu.pcie.width]
        link = min(links, key=lambda each: (each.width or 0) * (each.speed or 0), default=None)
        return f"{link.speed:g} GT/s x{link.width}" if link else None

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
    """The suite's own jobs have their nodes for themselves, and none of their steps runs meanwhile."""
    rows = [row for row in controller["nodes"] if row["name"] not in controller.get("own", ())]
    used = {row["name"]: sum(gres(row.get("gres_used") or "").values()) for row in rows}
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
