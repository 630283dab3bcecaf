"""The network cards of each node, as its kernel shows them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_interface
from typing import Any

import states
from states import profiles

from rocstack.base.text import listed
from rocstack.doctor.nodes import RULES
from rocstack.doctor.rdma_states import data_mtu, data_ports, gid_rows
from rocstack.image.labels import OWN
from rocstack.node.profile import NodeProfile
from rocstack.verify import thresholds
from rocstack.verify.evidence import ClusterEvidence
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder
from rocstack.verify.thresholds import Threshold

ACCEPTANCE = "AMD system acceptance guide"
NETWORKING = "AMD cluster networking guide"
CVS = "ROCm/cvs, host checks and preflight"
# Of net.ipv4.conf.all: what keeps a card from answering for another, and replies from being dropped.
ARP = {"arp_ignore": ("1", "2"), "arp_announce": ("1", "2"), "rp_filter": ("0", "2")}
LAMINI = "Lamini, multi-node training: the tests of a cluster"


def nics_only(profile: NodeProfile) -> NodeProfile:
    return replace(profile, gpus=())


@check(
    name="rdma-devices",
    title="Every node has the same RDMA devices, each with its device file",
    level=2,
    item=4,
    cause="a card is missing, its RDMA module isn't loaded, or udev named the cards in another order",
    next_step="run `rdma link` and `lspci -d ::0200` on the node; `rocstack doctor INVENTORY` names the card",
    source=f"{LAMINI}; {CVS}, interface names",
)
def test_rdma_devices(record: Recorder, cluster_evidence: ClusterEvidence) -> None:
    """Of the nodes with GPUs, and of those without any, each as most of its kind have. A card must have one that is
    beside a GPU, of the image's kind, or of a model that has one elsewhere; others are for management."""
    seen = {node.name: profile for node, profile in profiles(record)}
    kinds = {name: bool(profile.gpus) for name, profile in seen.items()}
    names = {name: {device.name for device in profile.verbs} for name, profile in seen.items()}
    image = cluster_evidence.labels.get(f"{OWN}nic", "")
    used = {nic.device for profile in seen.values() for nic in profile.nics if nic.verbs}
    for node, profile in profiles(record):
        own = names[node.name]
        alike = {name: some for name, some in names.items() if some and kinds[name] == kinds[node.name]}
        usual = set(max(sorted({tuple(sorted(some)) for some in alike.values()}), key=_times(alike), default=()))
        beside = {link.nic for link in profile.affinity if link.via == "switch"}
        cards = tuple(n for n in profile.nics if n.nic == image or n.device in used or beside & {n.pci, *n.netdevs})
        lost = [each["cards"] for each in RULES["no-rdma-device"](replace(profile, nics=cards))]
        if not own and not lost and not (usual and kinds[node.name]):
            record.skipped(node.name, f"no RDMA device on node {node.name}, and no card that should be one")
            continue
        files = [d.name for d in profile.verbs if d.uverbs is None or d.device_node is False]
        more = [f"{listed(sorted(usual - own))} is not there"] if usual - own else []
        more += [f"{listed(sorted(own - usual))} is on no other node"] if own - usual else []
        more += [f"without an RDMA device: {lost[0]}"] if lost and not own else []
        more += [f"{listed(files)} without a device file in /dev/infiniband"] if files else []
        text = listed(sorted(own))
        if more:
            record.failed(
                node.name, "; ".join(more), len(own), "devices", wanted=f"{len(usual)} devices", evidence=text
            )
        else:
            record.passed(node.name, len(own), "devices", wanted=f"{len(usual)} devices", evidence=text)


def _times(names: dict[str, set[str]]) -> Any:
    return lambda some: sum(set(some) == own for own in names.values())


@check(
    name="nic-ports",
    title="All ports of the data network are up",
    level=2,
    needs=("rdma",),
    item=4,
    cause="a bad cable, transceiver or switch port, or the interface is set down; that rail carries no data",
    next_step="run `ip link set NAME up` and `ethtool -m NAME`; check that the switch port is up",
    source=f"{ACCEPTANCE}; {NETWORKING}, link status",
)
def test_nic_ports(record: Recorder) -> None:
    def ports(profile: NodeProfile) -> str | None:
        states_of = [port.state for _, port in data_ports(profile)]
        return None if None in states_of or not states_of else f"{states_of.count('ACTIVE')} of {len(states_of)} active"

    states.judge(record, ("port-down", "no-rdma-device"), ports, wanted="all ACTIVE, LinkUp")


@check(
    name="nic-speed",
    title="The data network's ports all run at their cards' full speed",
    level=2,
    needs=("rdma",),
    item=4,
    cause="a link came up slower: a bad cable or transceiver, a split port, or the switch port's speed",
    next_step=(
        "run `ethtool NAME` on both ends: collectives run at the speed of the slowest port. If this speed is intended, "
        "set `nic-speed` in the thresholds.yml of your overlay"
    ),
    source=f"{ACCEPTANCE}; {CVS}",
)
def test_nic_speed(record: Recorder) -> None:
    """As fast as its card can, where the PCI id says how fast that is; and as the fastest of all."""
    rates = {
        node.name: {d.name: port.rate for d, port in data_ports(profile) if port.state == "ACTIVE" and port.rate}
        for node, profile in profiles(record)
    }
    fastest = max((rate for own in rates.values() for rate in own.values()), default=0)
    for node, profile in profiles(record):
        own = rates[node.name]
        short = list(_below(record, profile, own))
        whys = [why for why, _ in short]
        whys += (
            [f"slower than others: {listed(slow)}"] if (slow := [name for name in own if own[name] < fastest]) else []
        )
        if not own:
            record.skipped(node.name, "no active port whose speed can be read")
            continue
        value, more = min(own.values()) / 1000, {"wanted": f"{fastest / 1000:g} Gb/s", "evidence": f"{len(own)} ports"}
        if short:
            more |= {"wanted": short[0][1].text("Gb/s"), "source": short[0][1].source}
        if whys:
            record.failed(node.name, "; ".join(whys), value, "Gb/s", **more)
        else:
            record.passed(node.name, value, "Gb/s", **more)


def _below(record: Recorder, profile: NodeProfile, rates: dict[str, int]) -> Iterator[tuple[str, Threshold]]:
    """Ports that run at less than their kind of card has to."""
    known, gpus = record.quantities["nic-speed"], thresholds.hardware(profile)[0]
    nics = {nic.verbs: nic for nic in profile.nics if nic.nic}
    slow: dict[tuple[str, int, Threshold], list[str]] = defaultdict(list)
    for device, rate in rates.items():
        card = thresholds.card(profile, nics[device], rate) if device in nics else device
        bound = known.of(gpus, [card])
        if bound and not bound.holds(rate / 1000):
            slow[card, rate, bound].append(device)
    for (card, rate, bound), devices in slow.items():
        yield f"{card} at {rate / 1000:g} Gb/s, expected {bound.text(known.unit)}: {listed(devices)}", bound


@check(
    name="nic-pcie",
    title="The NICs' PCIe links run at full speed and width",
    level=2,
    needs=("rdma",),
    cause="a badly seated card, a slot with fewer lanes, or a link that trained down",
    next_step="compare LnkSta and LnkCap in `lspci -vvv`; reseat the card, and compare its slot with a good node's",
    source=f"{ACCEPTANCE}; {CVS}, be_nic_pcie_speed_width",
)
def test_nic_pcie(record: Recorder) -> None:
    def slowest(profile: NodeProfile) -> str | None:
        links = [nic.pcie for nic in profile.nics if nic.nic and nic.pcie.speed and nic.pcie.width]
        link = min(links, key=lambda each: (each.width or 0) * (each.speed or 0), default=None)
        return f"{link.speed:g} GT/s x{link.width}" if link else None

    states.judge(record, ("pcie-width", "pcie-speed"), slowest, nics_only, wanted="the card's own speed and width")


@check(
    name="nic-firmware",
    title="The NICs' firmware is the same on all nodes",
    level=2,
    needs=("rdma",),
    cause="a card was replaced or missed an update",
    next_step="install the same firmware on all cards with the vendor's tool: niccli, mstflint or nicctl",
    source=f"{CVS}; Primus, consistency over nodes",
)
def test_nic_firmware(record: Recorder) -> None:
    def firmware(profile: NodeProfile) -> str | None:
        texts = {f"{nic.nic} {nic.device}: {nic.firmware}" for nic in profile.nics if nic.nic and nic.firmware}
        return states.listed(texts) or None

    states.equal(record, "the firmware", firmware)
    for node, profile in profiles(record):
        models = Counter(model for model, _ in {(nic.device, nic.firmware) for nic in profile.nics if nic.nic})
        for model in (model for model, count in models.items() if count > 1):
            record.failed(node.name, f"cards of the model {model} have different firmware", models[model])


@check(
    name="nic-driver",
    title="The NICs' driver and its kernel ABI are the same on all nodes",
    level=2,
    needs=("rdma",),
    cause="one node was updated alone, or hasn't been rebooted since an update",
    next_step="install one release on all nodes, rebuild the initramfs and reboot them",
    source=CVS,
)
def test_nic_driver(record: Recorder) -> None:
    def driver(profile: NodeProfile) -> str | None:
        cards = {f"{nic.driver} {nic.driver_version}" for nic in profile.nics if nic.nic and nic.driver}
        verbs = {
            f"{d.driver} {profile.modules.get(d.driver or '')}, kernel ABI {d.kernel_abi}"
            for d in profile.verbs
            if d.driver
        }
        return states.listed(cards | verbs) or None

    states.equal(record, "the NIC driver", driver)


@check(
    name="gids",
    title="Each RoCE port has a RoCE v2 GID with an address of the data network",
    level=2,
    needs=("rdma",),
    cause="the interface is down or has no IPv4 address; the link-local GIDs that are left can't be routed",
    next_step="give the interface an address of the data network: `rocstack doctor INVENTORY` names the device",
    source=f"{CVS}, gid_consistency; NVIDIA/nccl issues 426 and 1131",
)
def test_gids(record: Recorder) -> None:
    """Nodes may differ in the index: each has its own in its fabric.env."""

    def indexes(profile: NodeProfile) -> str | None:
        rows = [rows[0].index for _, rows in gid_rows(profile) if rows]
        return f"GID index {states.listed(rows)}" if rows else None

    unread = "no active RoCE port: InfiniBand needs no such entry"
    states.judge(record, ("gid-none", "gid-no-ipv4"), indexes, wanted="RoCE v2 with IPv4", unread=unread)


@check(
    name="mtu",
    title="All ports of the data network have an MTU of 9000",
    level=2,
    needs=("rdma",),
    cause="an interface has the system's default MTU; large transfers break where the two ends differ",
    next_step="set MTU 9000 in the network configuration of all nodes, and the maximum on the switch",
    source=f"{NETWORKING}, MTU",
)
def test_mtu(record: Recorder) -> None:
    largest = max((mtu for _, profile in profiles(record) for mtu in data_mtu(profile).values()), default=0)
    for node, profile in profiles(record):
        own = data_mtu(profile)
        small = [f"{name} ({mtu})" for name, mtu in own.items() if mtu < largest]
        if not own:
            record.skipped(node.name, "no RoCE port")
        elif small:
            why = f"smaller than elsewhere: {listed(small)}"
            record.failed(node.name, why, min(own.values()), "bytes", wanted=f"{largest} bytes")
        else:
            record.judge(node.name, largest, "mtu", evidence=f"{len(own)} interfaces")


@check(
    name="arp",
    title="No interface answers ARP requests for another interface's address",
    level=2,
    needs=("rdma",),
    cause="several interfaces share a subnet and the kernel answers on any of them, so packets reach the wrong card",
    next_step=(
        "use one subnet for each rail, or set arp_ignore 2, arp_announce 1 and rp_filter 2 (playbook host-nic.yml)"
    ),
    source=f"{NETWORKING}, ARP flux",
)
def test_arp(record: Recorder) -> None:
    """Where interfaces share no subnet the settings don't matter."""
    more = {"wanted": "a subnet for each port, or arp_ignore 2, arp_announce 1, rp_filter 2"}
    for node, profile in profiles(record):
        shared = _shared(profile)
        settings = {name: profile.sysctl.get(f"net.ipv4.conf.all.{name}") for name in ARP}
        text = ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)
        wrong = [f"{name} {settings[name]}" for name, good in ARP.items() if settings[name] not in (None, *good)]
        if shared is None:
            record.skipped(node.name, "no address of an active RoCE port", **more)
        elif not shared:
            record.passed(node.name, "a subnet for each port", evidence=text, **more)
        elif wrong:
            record.failed(node.name, f"{listed(shared)} share a subnet, with {', '.join(wrong)}", text, **more)
        elif None in settings.values():
            record.skipped(node.name, f"{listed(shared)} share a subnet, and the settings could not be read", **more)
        else:
            record.passed(node.name, text, **more)


def _shared(profile: NodeProfile) -> list[str] | None:
    """Interfaces of the data network with another one in their subnet; None where none has an address."""
    data = set(data_mtu(profile))
    nets = {(a.netdev, ip_interface(a.address).network) for a in profile.addresses if a.netdev in data}
    times = Counter(net for _, net in nets)
    return sorted(name for name, net in nets if times[net] > 1) if nets else None
