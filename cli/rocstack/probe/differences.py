"""Where the fabrics of several nodes differ, and whether that matters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rocstack.node.fabric import Fabric

# A node's own names and rows: each node reads its own file.
OWN = {
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "UCX_IB_GID_INDEX",
    "UCX_NET_DEVICES",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
}
UNSET = "not set"


@dataclass(frozen=True)
class Disagreement:
    """`values` are what is said and by which nodes, the most frequent first. `harmless`: nodes may differ in it."""

    what: str
    values: tuple[tuple[str, tuple[str, ...]], ...]
    harmless: bool

    @property
    def says(self) -> str:
        texts = "; ".join(f"{value} on {', '.join(nodes)}" for value, nodes in self.values)
        return f"{self.what} differs: {texts}" + ("; each node uses its own" if self.harmless else "")


def disagreements(fabrics: Mapping[str, Fabric]) -> tuple[Disagreement, ...]:
    """What differs between nodes, what matters first."""
    facts = {node: _facts(fabric) for node, fabric in fabrics.items()}
    found = []
    for what in dict.fromkeys(name for own in facts.values() for name in own):
        values: dict[str, list[str]] = {}
        for node in sorted(facts):
            values.setdefault(facts[node].get(what, UNSET), []).append(node)
        if len(values) > 1:
            order = sorted(values.items(), key=lambda item: (-len(item[1]), item[1]))
            found.append(Disagreement(what, tuple((value, tuple(nodes)) for value, nodes in order), what in OWN))
    return tuple(sorted(found, key=lambda one: (one.harmless, one.what)))


def _facts(fabric: Fabric) -> dict[str, str]:
    """Everything that can differ, as text: what the ports are like, then the variables."""
    hcas = fabric.hcas
    return {
        "NIC profile": fabric.nic,
        "number of RDMA ports": str(len(hcas)),
        "link layer": _all(hca.link_layer for hca in hcas),
        "address family": _all(hca.gid.family for hca in hcas if hca.gid),
        "port speed": _all(f"{hca.speed} Mb/s" for hca in hcas if hca.speed),
        "MTU": _all(str(hca.mtu) for hca in hcas if hca.mtu),
        **fabric.env,
    }


def _all(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values))) or "none"
