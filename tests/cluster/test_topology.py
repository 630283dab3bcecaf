"""How GPUs and network cards of a node are connected: PCIe without errors and detours, xGMI, and a card beside each
GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import states
from states import MESHED, profiles, readable

from rocstack.base.errors import CheckFailed
from rocstack.base.text import listed
from rocstack.node.profile import NodeProfile
from rocstack.verify.evidence import HostAnswer, NoAnswer
from rocstack.verify.parsers import amd_smi
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder

ACCEPTANCE = "AMD system acceptance guide"
NETWORKING = "AMD cluster networking guide"
LAMINI = "Lamini, multi-node training: the tests of a cluster"
REDIRECTING = (
    0b0010_1100  # bits of ACSCtl: ReqRedir, CmpltRedir, EgressCtrl; SrcValid and UpstreamFwd turn nothing away
)


def cards(profile: NodeProfile) -> dict[str, str]:
    """PCI address -> name, of GPUs and of the NICs that a NIC profile knows."""
    gpus = {gpu.pci: f"GPU {gpu.index}" for gpu in profile.gpus}
    return gpus | {nic.pci: nic.verbs or next(iter(nic.netdevs), nic.pci) for nic in profile.nics if nic.nic}


def above(profile: NodeProfile) -> set[str]:
    """PCI addresses of the bridges over GPUs and NICs."""
    return {pci for each in (*profile.gpus, *(nic for nic in profile.nics if nic.nic)) for pci in each.path[:-1]}


@check(
    name="pci-errors",
    title="GPUs and NICs report no fatal PCIe error, nor floods of corrected ones",
    cannot="a flood that began a short while ago on a node that runs for months",
    level=2,
    cause="a card, a riser or a slot fails",
    next_step="check DevSta in `lspci -vvv`, and `dmesg | grep AER`; reseat the card; power-cycle the node",
    source=f"{ACCEPTANCE}, DevSta",
)
def test_pci_errors(record: Recorder, on_hosts: dict[str, NoAnswer | HostAnswer]) -> None:
    names = {node.name: cards(profile) for node, profile in profiles(record)}
    for node, pci in readable(record, on_hosts, "pci"):
        seen = {names[node.name][at]: each.fatal for at, each in pci.items() if at in names.get(node.name, {})}
        read = {name: fatal for name, fatal in seen.items() if fatal is not None}
        if not read:
            record.skipped(node.name, "no GPU and no NIC whose PCIe status can be read")
            continue
        counts = {names[node.name][at]: each.errors or {} for at, each in pci.items() if at in names[node.name]}
        bad = [name for name, fatal in read.items() if fatal or counts[name].get("fatal")]
        record.equal(node.name, len(bad), 0, "cards", why=f"FatalErr+ of {listed(bad)}", evidence=f"{len(read)} cards")
        hours = max((on_hosts[node.name].uptime or 0) / 3600, 1)
        worst = max(counts, key=lambda name: counts[name].get("correctable", 0), default="")
        if counts.get(worst, {}).get("correctable") is not None and on_hosts[node.name].uptime:
            rate = counts[worst]["correctable"] / hours
            record.judge(node.name, rate, "pcie-corrected-errors", evidence=f"{worst}, since the node started")


@check(
    name="acs",
    title="PCIe access control (ACS) is off, so that GPUs and NICs reach each other directly",
    cannot="a switch's own routing faults, and registers that a guest doesn't see",
    level=2,
    needs=("gpu",),
    cause="the BIOS leaves it on; peer-to-peer traffic then goes through the root complex",
    next_step=(
        "turn it off in the BIOS, or run `setpci -s BRIDGE ECAP_ACS+0x6.w=0000` for each bridge after every boot"
    ),
    source=f"{NETWORKING}; ROCm/cvs, pci_acs",
)
def test_acs(record: Recorder, on_hosts: dict[str, NoAnswer | HostAnswer]) -> None:
    bridges = {node.name: above(profile) for node, profile in profiles(record)}
    for node, pci in readable(record, on_hosts, "pci"):
        own = {at: each for at, each in pci.items() if at in bridges.get(node.name, set())}
        read = {at: each.acs for at, each in own.items() if each.acs is not None}
        if not any(each.bytes > 256 for each in own.values()):
            record.skipped(node.name, "PCIe's extended registers can't be read there")
        else:
            on = [at for at, control in sorted(read.items()) if control & REDIRECTING]
            record.equal(
                node.name, len(on), 0, "bridges", why=f"ACS is on at {listed(on)}", evidence=f"{len(own)} bridges"
            )


@check(
    name="gpu-links",
    title="Every GPU reaches its node's others over xGMI where the model has it, and rocm-smi agrees",
    cannot="a link's speed and errors: `transferbench` and `rvs` tell",
    level=2,
    needs=("gpu",),
    item=5,
    cause="a link failed when the GPUs started; their traffic takes PCIe, at a tenth of the bandwidth",
    next_step="run `rocm-smi --showtopo`; power-cycle the node; look for a loose bridge between OAMs of one board",
    source=f"{ACCEPTANCE}, rocm-smi --showtopo; {LAMINI}",
)
def test_gpu_links(record: Recorder, request: Any) -> None:
    """As many as most nodes have, between all of a board where the model is made so, and no fewer than the tool
    counts."""
    jobs = request.getfixturevalue("gpu_jobs") if any(not node.no_jobs for node in record.nodes) else {}
    counts = {node.name: _xgmi(profile) for node, profile in profiles(record)}
    most = max(Counter(map(len, counts.values())).items(), key=lambda pair: (pair[1], pair[0]), default=(0, 0))[0]
    for node, profile in profiles(record):
        links = counts[node.name]
        meshed = all(gpu.gfx in MESHED for gpu in profile.gpus) and any(gpu.links for gpu in profile.gpus)
        usual = len(_pairs(profile)) if meshed else most
        missing = [f"{a}-{b}" for a, b in _pairs(profile) if (a, b) not in links]
        smi = (jobs.get(node.name, {}).get("all") or {}).get("smi")
        # Of divided GPUs the tool counts the parts, and numbers them as it likes.
        same = smi and len(smi["cards"]) == len(profile.gpus)
        smi_links = {pair for pair, kind in smi["links"].items() if kind == "XGMI"} if same else None
        off, unread = ([], "") if node.virtual else _disabled(jobs.get(node.name, {}))
        if not usual and not links:
            record.skipped(node.name, "its GPUs have no xGMI")
        elif len(links) < usual:
            why = f"{len(links)} of {usual} xGMI links; without one: {listed(missing)}"
            record.failed(node.name, why, len(links), "links", wanted=f"{usual} links")
        elif smi_links is not None and (odd := smi_links ^ {f"{a}-{b}" for a, b in links}):
            why = f"rocm-smi and the kernel differ in the links of {listed(sorted(odd))}"
            record.failed(node.name, why, len(smi_links), "links", wanted=f"{len(links)} links")
        elif off:
            why = f"amd-smi calls the links of {listed(off)} disabled"
            record.failed(node.name, why, len(links) - len(off), "links", wanted=f"{len(links)} links")
        else:
            text = "\n".join([*(["as rocm-smi says"] if smi_links is not None else []), unread])
            record.passed(node.name, len(links), "links", evidence=text)


def _disabled(jobs: Mapping[str, Any]) -> tuple[list[str], str]:
    """The xGMI links that amd-smi says are off; or why that isn't known: older ones answer in another form."""
    text = ((jobs.get("all") or {}).get("amd_smi") or {}).get("topology")
    if text is None:
        return [], ""
    try:
        links = amd_smi.links(text)
    except CheckFailed as error:
        return [], error.what
    off = [link for link in links if (link.kind, link.status) == ("XGMI", "DISABLED")]
    pairs = {(min(link.source, link.target), max(link.source, link.target)) for link in off}
    return [f"{a}-{b}" for a, b in sorted(pairs)], ""


def _pairs(profile: NodeProfile) -> list[tuple[int, int]]:
    """Of those that the driver drives."""
    indexes = sorted(gpu.index for gpu in profile.gpus if gpu.kfd_node is not None)
    return [(a, b) for a in indexes for b in indexes if a < b]


def _xgmi(profile: NodeProfile) -> set[tuple[int, int]]:
    """Both ends must know of it."""
    ends = {(gpu.index, link.to) for gpu in profile.gpus for link in gpu.links if link.kind == "xgmi"}
    return {(a, b) for a, b in ends if a < b and (b, a) in ends}


@check(
    name="topology",
    title="Each GPU shares a PCIe switch with its NIC, in the same way on all nodes",
    cannot=(
        "bridges that the kernel doesn't show, as in guests; where no GPU shares a switch with a NIC it is told only"
    ),
    level=2,
    needs=("gpu",),
    item=5,
    cause="a card is in another slot than on the other nodes; that GPU's traffic crosses the CPUs",
    next_step="run `rocstack probe`: it draws the node; compare the slots with a good node's",
    source=f"{LAMINI}; AMD system acceptance guide, network topology mapping",
)
def test_topology(record: Recorder) -> None:
    """Slots are compared, not names: those are the check rdma-devices'."""
    ways = {node.name: _ways(profile) for node, profile in profiles(record)}
    usual = states.commonest(ways.values(), lambda own: sum(via == "switch" for *_, via in own))
    for node, profile in profiles(record):
        text = ", ".join(f"GPU {link.gpu}: {link.nic} ({link.via})" for link in profile.affinity)
        vias = Counter(link.via for link in profile.affinity)
        far = [f"GPU {link.gpu} ({link.via})" for link in profile.affinity if link.via != "switch"]
        value = f"{vias['switch']} of {len(profile.gpus)} on a switch with their NIC"
        if not profile.affinity:
            record.skipped(node.name, "no NIC belongs to its GPUs")
        elif vias["switch"] and far:
            record.failed(node.name, f"without a NIC on its switch: {listed(far)}", value, evidence=text)
        elif (ways[node.name],) != usual:
            other = next(each for each in usual if each != ways[node.name])
            odd = listed(f"GPU {gpu}" for gpu in sorted({gpu for gpu, *_ in {*ways[node.name]} ^ {*other}}))
            others = "as many others" if ways[node.name] in usual else "most nodes"
            record.failed(node.name, f"{odd}: connected differently from {others}", value, evidence=text)
        elif not vias["switch"]:
            record.measured(node.name, value, evidence=text)  # there is no switch, or none was seen
        else:
            record.passed(node.name, value, evidence=text)
    record.draw("topology", {"nodes": {node.name: _drawn(profile) for node, profile in profiles(record)}})


def _ways(profile: NodeProfile) -> tuple[tuple[int, str, str], ...]:
    """Each GPU with the PCI address of its NIC, and how near that is."""
    slots = {name: nic.pci for nic in profile.nics for name in (*nic.netdevs, nic.verbs or "")}
    return tuple(sorted((link.gpu, slots.get(link.nic, link.nic), link.via) for link in profile.affinity))


def _drawn(profile: NodeProfile) -> dict[str, Any]:
    speeds = {netdev.name: netdev.speed for netdev in profile.netdevs}
    up = {device.name: [port.state for port in device.ports] for device in profile.verbs}
    return {
        "gpus": [{"index": g.index, "pci": g.pci, "numa": g.numa, "name": g.name or g.device} for g in profile.gpus],
        "nics": [
            {
                "name": nic.verbs or next(iter(nic.netdevs), nic.pci),
                "pci": nic.pci,
                "numa": nic.numa,
                "speed": next((speeds[name] for name in nic.netdevs if speeds.get(name)), None),
                "state": next(iter(up.get(nic.verbs or "", ())), None),
            }
            for nic in profile.nics
            if nic.nic
        ],
        "affinity": [{"gpu": link.gpu, "nic": link.nic, "via": link.via} for link in profile.affinity],
        "links": [
            {"a": gpu.index, "b": link.to, "kind": link.kind}
            for gpu in profile.gpus
            for link in gpu.links
            if link.to > gpu.index
        ],
    }
