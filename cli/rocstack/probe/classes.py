"""Which nodes are alike, and what sets the others apart."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rocstack.node.fabric import Fabric
from rocstack.node.profile import Library, NodeProfile, Pcie
from rocstack.node.recording import natural_key

# A node's own names and rows: each node reads its own file.
OWN = {
    "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME",
    "UCX_IB_GID_INDEX", "UCX_NET_DEVICES", "GLOO_SOCKET_IFNAME",
}  # fmt: skip
UNSET = "not set"


@dataclass(frozen=True)
class Difference:
    """`values` are what is said of `what`, and by which nodes. `harmless`: nodes may differ in it."""

    what: str
    values: tuple[tuple[str, tuple[str, ...]], ...]
    harmless: bool = False

    @property
    def sentence(self) -> str:
        texts = "; ".join(f"{value} on {', '.join(nodes)}" for value, nodes in self.values)
        return f"{self.what} differs: {texts}" + ("; each node uses its own" if self.harmless else "")


def _differing(
    facts: Sequence[tuple[str, Mapping[str, str]]], unset: str
) -> Iterator[tuple[str, Iterable[tuple[str, list[str]]]]]:
    """Each fact of which the nodes don't say the same, with its values and the nodes of each."""
    for what in dict.fromkeys(name for _, own in facts for name in own):
        values: dict[str, list[str]] = {}
        for node, own in facts:
            values.setdefault(own.get(what, unset), []).append(node)
        if len(values) > 1:
            yield what, values.items()


def fabric_differences(fabrics: Mapping[str, Fabric]) -> tuple[Difference, ...]:
    """What differs between nodes, what matters first; of its values the most frequent first."""
    rows = []
    for what, values in _differing([(node, _fabric_facts(fabrics[node])) for node in sorted(fabrics)], UNSET):
        sides = ((value, tuple(nodes)) for value, nodes in values)
        rows.append(Difference(what, tuple(sorted(sides, key=lambda side: (-len(side[1]), side[1]))), what in OWN))
    return tuple(sorted(rows, key=lambda one: (one.harmless, one.what)))


def _fabric_facts(fabric: Fabric) -> dict[str, str]:
    """Everything that can differ, as text: what the ports are like, then the variables."""
    hcas = fabric.hcas
    return {
        "NIC profile": fabric.nic,
        "number of RDMA ports": str(len(hcas)),
        "link layer": _distinct(hca.link_layer for hca in hcas),
        "address family": _distinct(hca.gid.family for hca in hcas if hca.gid),
        "port speed": _distinct(f"{hca.speed} Mb/s" for hca in hcas if hca.speed),
        "MTU": _distinct(str(hca.mtu) for hca in hcas if hca.mtu),
        **fabric.env,
    }


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values))) or "none"


UNREAD = "not read"
NONE = "none"
# What a kernel command line says of the machine's own disk, name and console.
_OWN_WORDS = re.compile(
    r"(BOOT_IMAGE|root|rootfstype|resume|initrd|ip|console|hostname|systemd\.hostname|rd\.\S+?)(=|$)"
)


@dataclass(frozen=True)
class NodeClass:
    """Nodes that no trait tells apart."""

    nodes: tuple[str, ...]
    traits: Mapping[str, str]


def classes(profiles: Iterable[NodeProfile]) -> tuple[NodeClass, ...]:
    """The largest first."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for profile in profiles:
        groups.setdefault(tuple(traits(profile).items()), []).append(profile.name)
    alike = [NodeClass(tuple(sorted(nodes, key=natural_key)), dict(own)) for own, nodes in groups.items()]
    return tuple(sorted(alike, key=lambda group: (-len(group.nodes), natural_key(group.nodes[0]))))


def differences(groups: Sequence[NodeClass]) -> tuple[Difference, ...]:
    """What the classes don't have in common; the trait with the loneliest outlier first, as its rarest value."""
    rows = []
    for what, values in _differing([(node, group.traits) for group in groups for node in group.nodes], NONE):
        sides = ((value, tuple(sorted(nodes, key=natural_key))) for value, nodes in values)
        rows.append(Difference(what, tuple(sorted(sides, key=lambda side: (len(side[1]), side[0])))))
    return tuple(sorted(rows, key=lambda difference: len(difference.values[0][1])))


def traits(node: NodeProfile) -> dict[str, str]:
    """Everything that matters for what fits and how fast it runs, in words; no names, addresses or serial numbers."""
    system = node.system
    values = {
        "hardware": f"virtual ({node.virtual})" if node.virtual else "real",
        "OS": _word(system.os),
        "kernel": _word(system.kernel),
        "kernel command line": _arguments(system.cmdline),
        "glibc": _word(system.glibc),
        "architecture": _word(system.arch),
        "CPUs": _word(system.cpus),
        "NUMA nodes": _word(system.numa_nodes),
        "memory": UNREAD if system.memory is None else f"{round(system.memory / 2**30)} GiB",
        "NUMA balancing": _word(system.numa_balancing),
        "cgroup": _word(system.cgroup),
        "amdgpu": node.amdgpu or NONE,
        **dict(_hardware(node)),
        **{f"module {name}": version for name, version in node.modules.items() if name != "amdgpu"},
        **dict(_libraries(node.libraries)),
        **({} if node.driver_files is None else {"libibverbs drivers": " ".join(sorted(node.driver_files)) or NONE}),
        **{f"group {name}": str(gid) for name, gid in node.groups.items()},
        **{f"limit {name}": "unlimited" if limit < 0 else str(limit) for name, limit in node.limits.items()},
        **{name: value for name, value in node.sysctl.items() if not re.search(r"\.conf\.(?!all|default)", name)},
        **{f"tool {name}": version for name, version in node.tools.items()},
    }
    return dict(sorted(values.items(), key=lambda item: item[0].lower()))


def _hardware(node: NodeProfile) -> Iterator[tuple[str, str]]:
    yield "GPUs", _counted(f"{gpu.name or UNREAD} ({gpu.device}, {gpu.gfx or UNREAD})" for gpu in node.gpus)
    yield "GPU firmware", _counted(_word(gpu.firmware) for gpu in node.gpus)
    yield "GPU memory", _counted(_word(gpu.memory) for gpu in node.gpus)
    yield "GPU PCIe", _counted(_link(gpu.pcie) for gpu in node.gpus)
    yield "GPU links", _counted(link.kind for gpu in node.gpus for link in gpu.links)
    yield "GPU to NIC", _counted(link.via for link in node.affinity)
    yield "NICs", _counted(f"{nic.nic or 'other'} ({nic.device})" for nic in node.nics)
    known = [nic for nic in node.nics if nic.nic]
    yield "NIC driver", _counted(f"{_word(nic.driver)} {_word(nic.driver_version)}" for nic in known)
    yield "NIC firmware", _counted(_word(nic.firmware) for nic in known)
    yield "NIC PCIe", _counted(_link(nic.pcie) for nic in known)
    own = {name for nic in known for name in nic.netdevs} | {name for device in node.verbs for name in device.netdevs}
    used = [netdev for netdev in node.netdevs if netdev.name in own]
    yield "NIC speed", _counted(_unit(netdev.speed, "Mb/s") for netdev in used if netdev.state != "down")
    yield "NIC MTU", _counted(_word(netdev.mtu) for netdev in used)
    yield "NIC state", _counted(_word(netdev.state) for netdev in used)
    ports = [port for device in node.verbs for port in device.ports]
    yield "RDMA devices", _counted(_word(device.driver) for device in node.verbs)
    yield "RDMA firmware", _counted(_word(device.firmware) for device in node.verbs)
    yield "RDMA ports", _counted(f"{_word(port.state)} {_unit(port.rate, 'Mb/s')}" for port in ports)
    yield "kernel ABI", ", ".join(sorted({_word(device.kernel_abi) for device in node.verbs})) or NONE
    yield "Slingshot devices", str(len(node.cxi))


def _libraries(libraries: Iterable[Library]) -> Iterator[tuple[str, str]]:
    for library in libraries:
        low, high = library.kernel_abi or (None, None)
        kernel = UNREAD if low is None else f"{low}-{high}"
        facts = f"{_word(library.version)}, private ABI {_word(library.private_abi)}"
        facts += f", kernel ABI {kernel}" if library.driver else ""
        yield f"library {library.path}", f"{facts}, sha256 {(library.sha256 or UNREAD)[:12]}"


def _word(value: object) -> str:
    return UNREAD if value is None else str(value)


def _unit(value: float | None, unit: str) -> str:
    return UNREAD if value is None else f"{value:g} {unit}" if isinstance(value, float) else f"{value} {unit}"


def _link(pcie: Pcie) -> str:
    return f"{_unit(pcie.speed, 'GT/s')} x{_word(pcie.width)}"


def _counted(words: Iterable[str]) -> str:
    """ "8 x a, 1 x b"."""
    return ", ".join(f"{count} x {word}" for word, count in sorted(Counter(words).items())) or NONE


def _arguments(cmdline: str | None) -> str:
    if cmdline is None:
        return UNREAD
    return " ".join(sorted(word for word in cmdline.split() if not _OWN_WORDS.match(word))) or NONE
