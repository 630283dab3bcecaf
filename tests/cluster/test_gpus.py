"""The GPUs of each node: that all are there, alike and healthy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import states
from experiments.gpus import gres
from states import profiles, readable

from rocstack.base.errors import CheckFailed, RocstackError
from rocstack.node.profile import Gpu, NodeProfile
from rocstack.stack.gpus import board_of
from rocstack.verify.evidence import CheckSkipped, ControllerAnswer, HostAnswer, NoAnswer
from rocstack.verify.parsers import amd_smi
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder

ACCEPTANCE = "AMD system acceptance guide"
CVS = "ROCm/cvs, host checks"
LAMINI = "Lamini, multi-node training: the tests of a cluster"
Firmware = Mapping[int, Mapping[str, str]]  # GPU -> block -> version


def gpus_only(profile: NodeProfile) -> NodeProfile:
    return replace(profile, nics=())


@check(
    name="gpu-count",
    title="Every node has all its GPUs, and the driver uses them",
    cannot=(
        "that a GPU taken out on purpose is no fault; cards of models that are on no board (MI210) are only "
        "compared with other nodes"
    ),
    level=2,
    core=True,
    item=1,
    cause="a GPU fell off the bus, is badly seated, or failed when its driver started",
    next_step="run `lspci -d 1002:` and `dmesg | grep amdgpu` on the node; a power cycle brings a hung GPU back",
    source=f"{LAMINI}; {ACCEPTANCE}",
)
def test_gpu_count(record: Recorder, request: Any, on_hosts: dict[str, NoAnswer | HostAnswer]) -> None:
    """As many as are on most nodes' PCI buses, as its model has on a board, and all that are on its own; those that no
    driver drives don't count. A guest may be given some of a board's: a half, a quarter or one. A node without any is a
    worker without GPUs, unless Slurm was told of some."""
    sizes = [len(profile.gpus) for _, profile in profiles(record) if profile.gpus]
    usual = max(Counter(sizes).items(), key=lambda pair: (pair[1], pair[0]), default=(0, 0))[0]
    for node in record.nodes:
        gpus = node.profile.gpus if node.profile else ()
        host = on_hosts.get(node.name)
        cards = {gpu.pci: gpu.device for gpu in gpus}
        whole = _whole([*cards.values()], guest=isinstance(host, HostAnswer) and bool(host.guest))
        parts = max(Counter(gpu.pci for gpu in gpus).values(), default=1)  # that a GPU is divided into
        lost = max(whole - len(cards), 0) * parts
        wanted = max(usual, len(gpus) + lost) if gpus else _known(request, node.name)
        if node.profile is None:
            record.failed(node.name, "could not be inspected: its profile was not read")
        elif not wanted:
            record.skipped(node.name, f"no GPU on node {node.name}")
        else:
            driven = sum(gpu.kfd_node is not None for gpu in gpus)
            text = states.listed(gpu.name or gpu.device for gpu in gpus)
            why = f"{driven} of {wanted} GPUs: {len(gpus)} on the PCI bus, {driven} with a driver"
            record.equal(node.name, driven, wanted, "GPUs", why=why, evidence=text)


def _whole(devices: list[str], *, guest: bool) -> int:
    """How many GPUs there must be at least, so that no board of theirs lacks one; 0 of models that have no board."""
    board = max((board_of(device) for device in devices), default=0)
    if not board or (guest and board % len(devices) == 0):
        return 0
    return -(-len(devices) // board) * board


def _known(request: Any, name: str) -> int:
    """GPUs that Slurm counts on at this node; 0 where it can't be asked: the check slurm-services says that."""
    try:
        rows = request.getfixturevalue("controller").nodes
    except RocstackError:
        return 0
    return sum(sum(gres(row.gres or "").values()) for row in rows if row.name == name)


@check(
    name="gpu-model",
    title="All nodes have the same GPU model",
    cannot="which model is right; anything on a single node",
    level=2,
    needs=("gpu",),
    item=1,
    cause="the inventory mixes two kinds of nodes, or a GPU was replaced by another model",
    next_step="give each kind its own partition; a job on both runs at the speed of the slower",
    source=LAMINI,
)
def test_gpu_model(record: Recorder) -> None:
    named = _named(record)
    states.equal(record, "the GPU", lambda profile: states.listed(named(gpu) for gpu in profile.gpus))


def _named(record: Recorder) -> Callable[[Gpu], str]:
    """What a GPU is called; where its name can't be read, as others of its PCI id."""
    names = {gpu.device: gpu.name for _, profile in profiles(record) for gpu in profile.gpus if gpu.name}
    return lambda gpu: gpu.name or names.get(gpu.device) or gpu.device


@check(
    name="gpu-driver",
    title="The GPU driver is the same on all nodes",
    cannot="whether the common version is good, which `driver-rocm` asks AMD's table; anything on a single node",
    level=2,
    needs=("gpu",),
    cause="one node was updated alone, or hasn't been rebooted since an update",
    next_step="install one amdgpu release on all nodes; check with `cat /sys/module/amdgpu/version`",
    source=CVS,
)
def test_gpu_driver(record: Recorder) -> None:
    states.equal(record, "the amdgpu driver", lambda profile: profile.amdgpu)


@check(
    name="gpu-firmware",
    title="The GPUs' VBIOS and firmware are the same on all nodes",
    cannot="whether the common version is good: no public list of bad ones was found; anything on a single node",
    level=2,
    needs=("gpu",),
    cause="a GPU was replaced or missed an update",
    next_step=(
        "compare `amd-smi firmware` and `amd-smi static --vbios`; install the vendor's update on the GPUs that differ"
    ),
    source=CVS,
)
def test_gpu_firmware(record: Recorder, request: Any) -> None:
    def vbios(profile: NodeProfile) -> str | None:
        read = [gpu.firmware for gpu in profile.gpus]
        return states.listed(read) if all(read) else None

    if any(gpu.firmware for _, profile in profiles(record) for gpu in profile.gpus):
        states.equal(record, "the VBIOS", vbios)
    else:
        for node in record.nodes:
            record.skipped(node.name, "the driver reports no VBIOS of any GPU")
    for nodes in _firmware(record, _jobs(record, request)).values():
        for name, wrong in odd(nodes).items():
            blocks = {block: version for named in nodes[name].values() for block, version in named.items()}
            if wrong:
                why = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
                record.failed(name, why, len(blocks), "firmware blocks", evidence="\n".join(wrong))
            else:
                text = ", ".join(f"{block} {version}" for block, version in sorted(blocks.items()))
                record.passed(name, len(blocks), "firmware blocks", evidence=text)


def _jobs(record: Recorder, request: Any) -> dict[str, Any]:
    """Empty where no job can run: other checks say that, and the VBIOS is known without one."""
    try:
        real = any(not node.no_jobs and not node.virtual for node in record.nodes)
        return dict(request.getfixturevalue("gpu_jobs")) if real else {}
    except (RocstackError, CheckSkipped):
        return {}


def _firmware(record: Recorder, jobs: dict[str, Any]) -> dict[str, dict[str, Firmware]]:
    """Model -> node -> what amd-smi says there. Of a virtual node it knows nothing."""
    versions: dict[str, dict[str, Firmware]] = defaultdict(dict)
    named = _named(record)
    for node, profile in profiles(record):
        text = ((jobs.get(node.name, {}).get("all") or {}).get("amd_smi") or {}).get("firmware")
        if node.virtual or text is None:
            continue
        try:
            listed = amd_smi.firmware(text)
        except CheckFailed as error:
            record.failed(node.name, error.what)
            continue
        models = {named(gpu) for gpu in profile.gpus}
        if len(models) > 1:
            record.skipped(node.name, "its GPUs are of several models, each with firmware of its own")
        elif not any(listed.values()):
            record.skipped(node.name, "amd-smi reports no firmware of any GPU")
        else:
            versions[models.pop()][node.name] = listed
    return versions


def odd(nodes: Mapping[str, Firmware]) -> dict[str, list[str]]:
    """Node -> the blocks of its GPUs that have another version than those of most, or than as many others; all are of
    one model."""
    blocks: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for node, gpus in nodes.items():
        for gpu, named in gpus.items():
            for block, version in named.items():
                blocks[block].append((node, gpu, version))
    differing: dict[str, list[str]] = {node: [] for node in nodes}
    for block, rows in sorted(blocks.items()):
        usual = states.commonest(version for *_, version in rows)
        others: dict[tuple[str, str], list[int]] = defaultdict(list)
        for node, gpu, version in rows:
            if (version,) != usual:
                others[node, version].append(gpu)
        for (node, version), own in others.items():
            which = f"GPU {own[0]}" if len(own) == 1 else f"{len(own)} GPUs"
            have = "as many have" if version in usual else "most have"
            known = " or ".join(sorted({*usual} - {version}))
            differing[node].append(f"{which}: {block} {version}, {have} {known}")
    return differing


@check(
    name="gpu-pcie",
    title="The GPUs' PCIe links run at full speed and width",
    cannot="links between it and the processor other than the card's own; errors on the link: `pci-errors`",
    level=2,
    needs=("gpu",),
    cause="a badly seated card or riser, or a link that trained down",
    next_step=(
        "compare LnkSta and LnkCap in `lspci -vvv`; power-cycle the node, reseat the card, compare with a good node"
    ),
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
    title="No other program uses the GPUs or their memory",
    cannot="programs that end before it looks, or start after",
    level=2,
    needs=("gpu",),
    cause="an earlier job left a program behind, or somebody works on the node outside Slurm",
    next_step="run `rocm-smi --showpids` on the node; stop the programs that belong to no job",
    source="AMD-AGI/Primus, node smoke",
)
def test_gpu_idle(record: Recorder, on_hosts: dict[str, NoAnswer | HostAnswer], controller: ControllerAnswer) -> None:
    """The suite's own jobs have their nodes for themselves, and none of their steps runs meanwhile."""
    rows = [row for row in controller.nodes if row.name not in controller.own]
    used = {row.name: sum(gres(row.gres_used or "").values()) for row in rows}
    own = {node.name: {gpu.pci for gpu in profile.gpus} for node, profile in profiles(record)}
    for node, vram in readable(record, on_hosts, "vram"):
        sizes = [size for pci, size in vram.items() if pci in own[node.name] and size is not None]
        host = on_hosts[node.name]
        named = host.processes or {}
        # Who only asks the driver, as an exporter of metrics does, has no queue and no memory.
        running = {pid: name for pid, name in named.items() if not (host.queues.get(pid) == 0 == host.held.get(pid))}
        if used.get(node.name):
            record.skipped(node.name, f"{used[node.name]} GPUs are in use by jobs")
        elif running:
            names = ", ".join(f"{name} ({pid})" for pid, name in list(running.items())[:5])
            record.failed(node.name, f"programs use its GPUs: {names}", len(running), "programs", wanted="none")
        elif not sizes:
            record.skipped(node.name, "the driver doesn't report how much GPU memory is in use")
        else:
            record.judge(node.name, max(sizes) / 1e9, "hbm-used")
