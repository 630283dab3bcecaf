"""What can be wrong with one node, found on its profile. Pure.

A rule has the name of its entry in images/findings/node.yml and yields, each time the state is there, the values that
the entry's sentence shows. What could not be read (None) is never a finding. Those about RDMA are in rdma_states.py.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from rocstack.base.finding_texts import registering
from rocstack.base.text import listed
from rocstack.node.profile import NodeProfile, Pcie
from rocstack.stack import gpus, rules

Values = dict[str, object]
Rule = Callable[[NodeProfile], Iterator[Values]]
RULES: dict[str, Rule] = {}
rule = registering(RULES)
MEMLOCK = 32 << 30  # bytes; AMD-AGI/Primus node_smoke
NOFILE = 1048576  # gpu-cluster-networking, Resource limit restrictions


def grouped(groups: dict[str, list[str]]) -> str:
    """ "9000 (eth1, eth2), 1500 (eth3)": the largest group first."""
    order = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return ", ".join(f"{value} ({listed(names)})" for value, names in order)


def some(place: str, names: Iterable[str]) -> Iterator[Values]:
    """The names in their place of the sentence, where there are any."""
    if known := list(names):
        yield {place: listed(known)}


def differing(rows: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Of (what, value, who): what has several values, and who has which."""
    groups: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for what, value, who in rows:
        groups[what][value].append(who)
    return ((what, values) for what, values in groups.items() if len(values) > 1)


def _links(node: NodeProfile) -> Iterator[tuple[str, Pcie]]:
    yield from ((f"GPU {gpu.index} ({gpu.pci})", gpu.pcie) for gpu in node.gpus)
    yield from ((f"{nic.verbs or nic.pci}", nic.pcie) for nic in node.nics if nic.nic)


@rule
def pcie_width(node: NodeProfile) -> Iterator[Values]:
    low = ((name, link) for name, link in _links(node) if link.width and link.max_width and link.width < link.max_width)
    yield from some("which", (f"{name} x{link.width} of x{link.max_width}" for name, link in low))


@rule
def pcie_speed(node: NodeProfile) -> Iterator[Values]:
    low = ((name, link) for name, link in _links(node) if link.speed and link.max_speed and link.speed < link.max_speed)
    yield from some("which", (f"{name} {link.speed:g} of {link.max_speed:g} GT/s" for name, link in low))


def _works(node: NodeProfile) -> bool:
    """A worker, not a control node."""
    return bool(node.gpus or node.verbs or node.cxi)


@rule
def memlock_low(node: NodeProfile) -> Iterator[Values]:
    limit = node.limits.get("memlock", -1)
    if 0 <= limit < MEMLOCK and _works(node):
        yield {"limit": f"{limit / (1 << 20):g} MiB"}


@rule
def nofile_low(node: NodeProfile) -> Iterator[Values]:
    limit = node.limits.get("nofile", -1)
    if 0 <= limit < NOFILE and _works(node):
        yield {"limit": limit}


@rule
def iommu_pt(node: NodeProfile) -> Iterator[Values]:
    if node.gpus and node.system.cmdline is not None and "iommu=pt" not in node.system.cmdline.split():
        yield {}


@rule
def numa_balancing(node: NodeProfile) -> Iterator[Values]:
    if node.gpus and node.system.numa_balancing:
        yield {"value": node.system.numa_balancing}


@rule
def bnxt_releases(node: NodeProfile) -> Iterator[Values]:
    en, re_ = node.modules.get("bnxt_en"), node.modules.get("bnxt_re")
    if en and re_ and _release(en) != _release(re_):
        yield {"en": en, "re": re_}


def _release(version: str) -> str:
    """bnxt_en says 1.10.3-235.2.86.0 where bnxt_re says 235.2.86.0."""
    match = re.search(r"(?<!\d)\d+(?:\.\d+){3}$", version)
    return match[0] if match else version


@rule
def kfd_root(node: NodeProfile) -> Iterator[Values]:
    if node.groups.get("/dev/kfd") == 0:
        yield {}


@rule
def gpu_count(node: NodeProfile) -> Iterator[Values]:
    if len(node.gpus) > 2 and len(node.gpus) % 4:
        yield {"count": len(node.gpus), "device": node.gpus[0].name or node.gpus[0].device}


@cache
def _matrix() -> tuple[rules.Rule, ...]:
    return rules.load()


@rule
def driver_rocm(node: NodeProfile) -> Iterator[Values]:
    release = gpus.driver_release(node.amdgpu)
    facts: dict[str, Any] = {"rocm": node.tools.get("rocm"), "rocm.method": "amd", "driver": release}
    if not facts["rocm"] or not release:
        return
    for verdict in rules.judge(_matrix(), facts):
        if verdict.state == "broken" and "driver" in verdict.rule.need:
            yield {"driver": node.amdgpu, "rocm": facts["rocm"], "reason": verdict.rule.cause, "level": "warning"}


@rule
def no_gpu(node: NodeProfile) -> Iterator[Values]:
    if not node.gpus:
        yield {}
