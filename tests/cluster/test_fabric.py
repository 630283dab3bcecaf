"""The network cards of each node, as its kernel shows them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_interface

import states
from states import profiles

from rocstack.base import finding_texts
from rocstack.base.text import listed
from rocstack.doctor.nodes import RULES
from rocstack.doctor.rdma_states import data_mtu, data_ports, gid_rows, slingshot
from rocstack.image.labels import OWN
from rocstack.node.profile import NodeProfile, Verbs
from rocstack.node.rdma_ports import LINK_LOCAL
from rocstack.verify import rails, thresholds
from rocstack.verify.evidence import ClusterEvidence, HostAnswer, NoAnswer
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder
from rocstack.verify.thresholds import Threshold

ACCEPTANCE = "AMD system acceptance guide"
NETWORKING = "AMD cluster networking guide"
CVS = "ROCm/cvs, host checks and preflight"
# Of net.ipv4.conf: what keeps a card from answering for another, and replies from being dropped.
ARP = {"arp_ignore": ("1", "2"), "arp_announce": ("1", "2"), "rp_filter": ("0", "2")}
LAMINI = "Lamini, multi-node training: the tests of a cluster"


def _usual(rows: Iterable[Mapping[str, int]]) -> int:
    """Of each node's largest value the commonest, of several as common the largest: what one node says of itself makes
    no other one wrong."""
    counts = Counter(max(own.values()) for own in rows if own)
    return max(counts, key=lambda value: (counts[value], value), default=0)


def data_only(profile: NodeProfile) -> NodeProfile:
    """The data network's cards: in a slot for management fewer lanes do."""
    data = {device.name for device, _ in data_ports(profile)} | {netdev.name for netdev in slingshot(profile)}
    return replace(
        profile, gpus=(), nics=tuple(nic for nic in profile.nics if nic.nic and data & {nic.verbs, *nic.netdevs})
    )


@check(
    name="rdma-devices",
    title="Every node has the same RDMA devices, each with its device file",
    cannot="a device that is missing on all nodes of a kind, unless its card is there",
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
    names = {name: frozenset(device.name for device in profile.verbs) for name, profile in seen.items()}
    image = cluster_evidence.labels.get(f"{OWN}nic", "")
    used = {nic.device for profile in seen.values() for nic in profile.nics if nic.verbs}
    for node, profile in profiles(record):
        own = names[node.name]
        alike = (some for name, some in names.items() if some and kinds[name] == kinds[node.name])
        tied = states.commonest(alike, len)
        others = [some for some in tied if some != own]
        usual = others[0] if others else own if tied else frozenset()
        beside = {link.nic for link in profile.affinity if link.via == "switch"}
        cards = tuple(n for n in profile.nics if n.nic == image or n.device in used or beside & {n.pci, *n.netdevs})
        lost = [each["cards"] for each in RULES["no-rdma-device"](replace(profile, nics=cards))]
        if not own and not lost and not (usual and kinds[node.name]):
            record.skipped(node.name, f"no RDMA device on node {node.name}, and no card that should be one")
            continue
        files = [d.name for d in profile.verbs if d.uverbs is None or d.device_node is False]
        more = [f"{listed(sorted(usual - own))} is not there"] if usual - own else []
        many = "as many" if own in tied else "most"
        more += [f"{listed(sorted(own - usual))} is not on {many} others"] if own - usual else []
        more += [f"without an RDMA device: {lost[0]}"] if lost and not own else []
        more += [f"{listed(files)} without a device file in /dev/infiniband"] if files else []
        text = listed(sorted(own))
        if more:
            record.failed(
                node.name, "; ".join(more), len(own), "devices", wanted=f"{len(usual)} devices", evidence=text
            )
        else:
            record.passed(node.name, len(own), "devices", wanted=f"{len(usual)} devices", evidence=text)


@check(
    name="nic-ports",
    title="All ports of the data network are up",
    cannot="a port that loses packets, or that flapped before",
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
    cannot=(
        "what a card can do whose PCI id and board don't say it: then it is compared with others of its model; on a "
        "single node without PCIe switches, a slow port that looks like one for management"
    ),
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
def test_nic_speed(record: Recorder, on_hosts: dict[str, NoAnswer | HostAnswer]) -> None:
    """As fast as its card can, where its PCI id or its board says how fast that is; and as fast as most nodes' cards of
    its model."""
    rates = _rates({node.name: profile for node, profile in profiles(record)})
    models = {node.name: {nic.verbs: nic.device for nic in profile.nics} for node, profile in profiles(record)}
    by_model: dict[str | None, list[dict[str, int]]] = defaultdict(list)
    for node, own in rates.items():
        for model in {models[node].get(name) for name in own}:
            by_model[model].append({name: own[name] for name in own if models[node].get(name) == model})
    fastest = {model: _usual(rows) for model, rows in by_model.items()}
    for node, profile in profiles(record):
        own = rates[node.name]
        host = on_hosts.get(node.name)
        boards = host.boards if isinstance(host, HostAnswer) and not node.virtual else {}
        short = list(_below(record, profile, own, boards))
        whys = [why for why, _ in short]
        bounds = {name: fastest[models[node.name].get(name)] for name in own}
        slow = [name for name in own if own[name] < bounds[name]]
        whys += [f"slower than others: {listed(slow)}"] if slow else []
        if not own:
            record.skipped(node.name, "no active port whose speed can be read")
            continue
        slowest = min(own, key=lambda name: own[name])
        value = own[slowest] / 1000
        more = {"wanted": f"{bounds[slowest] / 1000:g} Gb/s", "evidence": f"{len(own)} ports"}
        if short:
            more |= {"wanted": short[0][1].text("Gb/s"), "source": short[0][1].source}
        if whys:
            record.failed(node.name, "; ".join(whys), value, "Gb/s", **more)
        else:
            record.passed(node.name, value, "Gb/s", **more)


def _rates(seen: Mapping[str, NodeProfile]) -> dict[str, dict[str, int]]:
    """Node -> device -> the rate of its port that is up, of the data network's. Where no switch tells which cards these
    are, a slow one looks like a card for management: so those count, too, that at least half of the nodes use."""
    up = {
        name: {device.name: port.rate for device in profile.verbs for port in device.ports if port.state == "ACTIVE"}
        for name, profile in seen.items()
    }
    used = {name: {device.name for device, _ in data_ports(profile)} for name, profile in seen.items()}
    has, uses = (Counter(device for some in rows.values() for device in some) for rows in (up, used))
    return {
        name: {d: rate for d, rate in own.items() if rate and (d in used[name] or 2 * uses[d] >= has[d])}
        for name, own in up.items()
    }


def _below(
    record: Recorder, profile: NodeProfile, rates: dict[str, int], boards: Mapping[str, str | None]
) -> Iterator[tuple[str, Threshold]]:
    """Ports that run at less than their kind of card has to."""
    known, gpus = record.quantities["nic-speed"], thresholds.hardware(profile)[0]
    nics = {nic.verbs: nic for nic in profile.nics if nic.nic}
    slow: dict[tuple[str, int, Threshold], list[str]] = defaultdict(list)
    for device, rate in rates.items():
        board = boards.get(device) or ""
        card = thresholds.card(profile, nics[device], rate, board) if device in nics else device
        bound = known.of(gpus, [card])
        if bound and not bound.holds(rate / 1000):
            slow[card, rate, bound].append(device)
    for (card, rate, bound), devices in slow.items():
        yield f"{card} at {rate / 1000:g} Gb/s, expected {bound.text(known.unit)}: {listed(devices)}", bound


@check(
    name="nic-pcie",
    title="The NICs' PCIe links run at full speed and width",
    cannot="links between it and the processor other than the card's own",
    level=2,
    needs=("rdma",),
    cause="a badly seated card, a slot with fewer lanes, or a link that trained down",
    next_step="compare LnkSta and LnkCap in `lspci -vvv`; reseat the card, and compare its slot with a good node's",
    source=f"{ACCEPTANCE}; {CVS}, be_nic_pcie_speed_width",
)
def test_nic_pcie(record: Recorder) -> None:
    def slowest(profile: NodeProfile) -> str | None:
        links = [nic.pcie for nic in profile.nics if nic.pcie.speed and nic.pcie.width]
        link = min(links, key=lambda each: (each.width or 0) * (each.speed or 0), default=None)
        return f"{link.speed:g} GT/s x{link.width}" if link else None

    states.judge(record, ("pcie-width", "pcie-speed"), slowest, data_only, wanted="the card's own speed and width")


@check(
    name="nic-firmware",
    title="The NICs' firmware is the same on all nodes",
    cannot=(
        "whether the common release is good; firmware older than every release known to be good for "
        "GPU-initiated transfers is told, and nothing is known of newer ones"
    ),
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
        if node.virtual:
            continue
        known = finding_texts.table()["firmware-ibgda"]
        for old in RULES["firmware-ibgda"](profile):
            wanted = f"{old['good']} or newer, where GPUs start transfers themselves (IBGDA)"
            record.measured(node.name, f"{old['model']}: {old['firmware']}", wanted=wanted, source=known.source)


@check(
    name="nic-driver",
    title="The NICs' driver and its kernel ABI are the same on all nodes",
    cannot="whether the common version is good; anything on a single node",
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
    title="Each RoCE port has a RoCE v2 GID with an address that can be routed",
    cannot="whether the switch routes it: `rdma-reachability` tells",
    level=2,
    needs=("rdma",),
    cause="the interface is down or has no address; the link-local GIDs that are left can't be routed",
    next_step="give the interface an address of the data network: `rocstack doctor INVENTORY` names the device",
    source=f"{CVS}, gid_consistency; NVIDIA/nccl issues 426 and 1131",
)
def test_gids(record: Recorder) -> None:
    """Nodes may differ in the index: each has its own in its fabric.env. IPv6 does, too, where it can be routed."""
    more = {"wanted": "RoCE v2 with an address that can be routed"}
    for node, profile in profiles(record):
        best = {device.name: rows[0] if rows else None for device, rows in gid_rows(profile)}
        none = [name for name, row in best.items() if row is None]
        local = [name for name, row in best.items() if row and row.family == LINK_LOCAL]
        families = sorted({row.family for row in best.values() if row and row.family != LINK_LOCAL})
        indexes = states.listed(row.index for row in best.values() if row)
        whys = [f"no RoCE v2 entry with an address: {listed(none)}"] if none else []
        whys += [f"link-local addresses alone: {listed(local)}"] if local else []
        whys += [f"some ports have {' and others '.join(families)}"] if len(families) > 1 else []
        if not best:
            record.skipped(node.name, "no active RoCE port: InfiniBand needs no such entry", **more)
        elif whys:
            record.failed(node.name, "; ".join(whys), f"GID index {indexes}" if indexes else None, **more)
        else:
            record.passed(node.name, f"GID index {indexes}, {listed(families)}", **more)


@check(
    name="mtu",
    title="All ports of the data network have an MTU of 9000",
    cannot="the switches' MTU",
    level=2,
    needs=("rdma",),
    cause="an interface has the system's default MTU; large transfers break where the two ends differ",
    next_step="set MTU 9000 in the network configuration of all nodes, and the maximum on the switch",
    source=f"{NETWORKING}, MTU",
)
def test_mtu(record: Recorder) -> None:
    usual = _usual(data_mtu(profile) for _, profile in profiles(record))
    for node, profile in profiles(record):
        own = data_mtu(profile)
        small = [f"{name} ({mtu})" for name, mtu in own.items() if mtu < usual]
        if not own:
            record.skipped(node.name, "no RoCE port")
        elif small:
            why = f"smaller than elsewhere: {listed(small)}"
            record.failed(node.name, why, min(own.values()), "bytes", wanted=f"{usual} bytes")
        else:
            record.judge(node.name, min(own.values()), "mtu", evidence=f"{len(own)} interfaces")


@check(
    name="arp",
    title="No interface answers ARP requests for another interface's address",
    cannot="what a switch or router does; where each port has a subnet of its own nothing is asked",
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
        settings = {name: _setting(name, profile.sysctl, shared or ["all"]) for name in ARP}
        text = ", ".join(f"{name} {listed(sorted(values))}" for name, values in settings.items() if values)
        wrong = [f"{name} {listed(sorted(bad))}" for name, values in settings.items() if (bad := values - {*ARP[name]})]
        if shared is None:
            record.skipped(node.name, "no address of an active RoCE port", **more)
        elif not shared:
            record.passed(node.name, "a subnet for each port", evidence=text, **more)
        elif wrong:
            record.failed(node.name, f"{listed(shared)} share a subnet, with {', '.join(wrong)}", text, **more)
        elif not all(settings.values()):
            record.skipped(node.name, f"{listed(shared)} share a subnet, and the settings could not be read", **more)
        else:
            record.passed(node.name, text, **more)


@check(
    name="rails",
    title="NIC i of each node is on the same rail as NIC i of the others",
    cannot=(
        "cables where no lldpd runs and all NICs share a subnet, or each link has its own; a cable to another "
        "switch of the same rail"
    ),
    level=2,
    needs=("rdma", "nodes:2"),
    cause="the cables of two NICs are swapped, at the node or at the switches, or their addresses are",
    next_step="compare `lldpctl` and `ip -br address` on the node with another node's; then swap cables or addresses",
    source="IEEE 802.1AB, as lldpd hears the switches; the nodes' own addresses",
)
def test_rails(record: Recorder, on_hosts: dict[str, NoAnswer | HostAnswer]) -> None:
    """By the switches that lldpd hears, where a node has it, and by subnets. Where all NICs of a node go to one switch
    or are in one subnet, or each link has a subnet of its own, there is nothing to compare."""
    own = {node.name: profile for node, profile in profiles(record)}
    ports = rails.places(own)
    switches, subnets = {}, {}
    for name, profile in own.items():
        host = on_hosts.get(name)
        heard = (host.neighbours if isinstance(host, HostAnswer) else None) or {}
        switches[name] = {at: end for at, (device, _) in ports.get(name, {}).items() if (end := _switch(heard, device))}
        shared = _shared(profile) or ()
        nets = {a.netdev: str(ip_interface(a.address).network) for a in profile.addresses if a.netdev not in shared}
        subnets[name] = {
            at: nets[netdev]
            for at, (device, _) in ports.get(name, {}).items()
            for netdev in device.netdevs[:1]
            if netdev in nets
        }
    kinds = {"switch": rails.compare(switches, "switch"), "subnet": rails.compare(subnets, "subnet")}
    for node, _ in profiles(record):
        name = node.name
        count = max(found.alike.get(name, 0) for found in kinds.values())
        whys = [why for found in kinds.values() for why in found.wrong.get(name, ())]
        by = [kind for kind, found in kinds.items() if found.alike.get(name)]
        if whys:
            record.failed(name, "; ".join(whys[:4]), count, "NICs compared", evidence="\n".join(whys))
        elif not ports.get(name):
            record.skipped(name, "it can't be told which NIC of a node is which: no GPU beside them, and other slots")
        elif not by:
            record.skipped(name, "neither switches (LLDP) nor subnets tell rails apart that other nodes have, too")
        else:
            more = "" if "switch" in by else "; nothing was heard of switches (LLDP), so cables aren't shown"
            record.passed(name, count, "NICs compared", evidence=f"by {' and '.join(by)}{more}")


def _switch(heard: Mapping[str, tuple[tuple[str, str, str], ...]], device: Verbs) -> str:
    """That its port goes to; empty where none or several are heard there, such as a card's own firmware."""
    found = {(chassis, name) for netdev in device.netdevs for chassis, name, _ in heard.get(netdev, ())}
    chassis, name = found.pop() if len(found) == 1 else ("", "")
    return f"{name} ({chassis})" if name and chassis else chassis


def _setting(name: str, sysctl: Mapping[str, str], netdevs: Collection[str]) -> set[str]:
    """What holds for these: of what is set for `all` and for one the kernel takes the larger."""
    swapped = (netdev.replace(".", "/") for netdev in netdevs)  # as sysctl(8) writes eth1.100
    both = ([sysctl.get(f"net.ipv4.conf.{each}.{name}", "") for each in ("all", netdev)] for netdev in swapped)
    return {max(values, key=_number) for values in both} - {""}


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else -1


def _shared(profile: NodeProfile) -> list[str] | None:
    """Interfaces of the data network with another one in their subnet; None where none has an address."""
    data = set(data_mtu(profile))
    nets = {(a.netdev, ip_interface(a.address).network) for a in profile.addresses if a.netdev in data}
    times = Counter(net for _, net in nets)
    return sorted(name for name, net in nets if times[net] > 1) if nets else None
