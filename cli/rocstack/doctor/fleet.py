"""What is wrong when nodes stand side by side: one that has less than the others, or is another than the others.

Rules as in states.py, over all nodes: each yields the values of its entry and the nodes it speaks of. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from rocstack.base.finding_texts import registering
from rocstack.doctor.rdma_states import active, by_driver, data_mtu, slingshot
from rocstack.doctor.states import Values, differing, grouped
from rocstack.node.profile import NodeProfile

Nodes = Sequence[NodeProfile]
Rule = Callable[[Nodes], Iterator[tuple[Values, tuple[str, ...]]]]
RULES: dict[str, Rule] = {}
rule = registering(RULES)
CLOCK = 60.0  # seconds; nodes are read one after another, within one run of the probe


def _below_most(nodes: Nodes, count: Callable[[NodeProfile], int]) -> Iterator[tuple[Values, tuple[str, ...]]]:
    """Nodes that have some, and fewer than the usual number; a control node with none is another kind of node."""
    counts = {node.name: count(node) for node in nodes if node.gpus}
    most = max(Counter(counts.values()).items(), key=lambda item: (item[1], item[0]), default=(0, 0))[0]
    for number in sorted({number for number in counts.values() if number < most}):
        yield {"count": number, "most": most}, tuple(name for name, own in counts.items() if own == number)


@rule
def gpus_fewer(nodes: Nodes) -> Iterator[tuple[Values, tuple[str, ...]]]:
    yield from _below_most(nodes, lambda node: len(node.gpus))


@rule
def rdma_fewer(nodes: Nodes) -> Iterator[tuple[Values, tuple[str, ...]]]:
    yield from _below_most(nodes, _rails)


def _rails(node: NodeProfile) -> int:
    return sum(1 for _ in active(node)) + sum(netdev.state == "up" for netdev in slingshot(node))


@rule
def abi_differs(nodes: Nodes) -> Iterator[tuple[Values, tuple[str, ...]]]:
    abis = (
        (driver, str(abi), node.name)
        for node in nodes
        for driver, devices in by_driver(node).items()
        for abi in {device.kernel_abi for device in devices if device.kernel_abi is not None}
    )
    for driver, groups in differing(abis):
        yield {"driver": driver, "which": grouped(groups)}, _odd(groups)


def _facts(node: NodeProfile) -> dict[str, str]:
    """What should be equal on all nodes of a kind; how many there are of it has rules of its own."""
    values_by_fact: dict[str, dict[str, None]] = defaultdict(dict)
    for fact, value in _each(node):
        values_by_fact[fact][value] = None
    return {fact: " + ".join(sorted(values)) for fact, values in values_by_fact.items()}


def _each(node: NodeProfile) -> Iterator[tuple[str, str]]:
    system = node.system
    plain = {"operating system": system.os, "kernel": system.kernel, "amdgpu driver": node.amdgpu}
    yield from ((name, value) for name, value in plain.items() if value)
    yield from ((f"module {name}", version) for name, version in node.modules.items() if name in _NIC_MODULES)
    yield from node.tools.items()
    for nic in node.nics:
        if nic.nic and nic.firmware:
            yield f"firmware of {nic.nic} {nic.device}", nic.firmware
    for gpu in node.gpus:
        yield "GPU model", gpu.name or gpu.device
        if gpu.firmware:
            yield f"VBIOS of {gpu.device}", gpu.firmware
    for mtu in {*data_mtu(node).values(), *(netdev.mtu for netdev in slingshot(node) if netdev.mtu)}:
        yield "MTU of the data network", str(mtu)


_NIC_MODULES = {"bnxt_en", "bnxt_re", "mlx5_core", "mlx5_ib", "ionic", "ionic_rdma", "cxi_ss1"}


@rule
def nodes_differ(nodes: Nodes) -> Iterator[tuple[Values, tuple[str, ...]]]:
    """Among the nodes with GPUs: a control node is another kind of machine."""
    facts = ((fact, value, node.name) for node in nodes if node.gpus for fact, value in _facts(node).items())
    for fact, groups in differing(facts):
        yield {"what": fact, "which": grouped(groups)}, _odd(groups)


@rule
def clocks_differ(nodes: Nodes) -> Iterator[tuple[Values, tuple[str, ...]]]:
    clocks = sorted((node.system.clock, node.name) for node in nodes if node.system.clock)
    if clocks and clocks[-1][0] - clocks[0][0] > CLOCK:
        which = f"{clocks[0][1]} is behind, {clocks[-1][1]} ahead"
        yield {"seconds": f"{clocks[-1][0] - clocks[0][0]:.0f}", "which": which}, (clocks[0][1], clocks[-1][1])


def _odd(groups: dict[str, list[str]]) -> tuple[str, ...]:
    """The nodes outside the largest group; all of them where no group is the largest."""
    sizes = sorted(map(len, groups.values()), reverse=True)
    most = sizes[0] if sizes[0] > sizes[1] else 0
    return tuple(dict.fromkeys(name for names in groups.values() if len(names) != most for name in names))
