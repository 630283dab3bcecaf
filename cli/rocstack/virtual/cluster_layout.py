"""What a virtual cluster is to be, before anything is made: names, addresses, machines. Pure."""

import hashlib
import json
import re
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from rocstack.base.errors import CheckFailed
from rocstack.virtual import faults, tree
from rocstack.virtual.faults import Fault
from rocstack.virtual.machine import Machine, expand
from rocstack.virtual.model import NodeModel

LABEL = "io.rocstack.local"  # the cluster's id, on all that belongs to it
POOL = IPv4Network("10.213.0.0/16")  # clusters take a /24 of it
FIRST = 10  # node 1 is host 11 of its network


@dataclass(frozen=True)
class ClusterRequest:
    """What was asked for."""

    model: NodeModel
    nodes: int
    faults: tuple[Fault, ...] = ()

    def refuse(self) -> None:
        """
        Raises:
            BadInput: a fault that some node can't have.
        """
        for fault in self.faults:
            if fault.node is not None and not 1 <= fault.node <= self.nodes:
                known = f"there is no node n{fault.node}: nodes are n1 to n{self.nodes}"
                raise faults.bad(f"n{fault.node}:{fault}", known)
        for node in range(1, self.nodes + 1):
            faults.apply(expand(self.model, node), self.faults)

    def machines(self, network: IPv4Network) -> list[Machine]:
        first = network.network_address
        own = {n: f"{first + FIRST + n}/{network.prefixlen}" for n in range(1, self.nodes + 1)}
        return [faults.apply(expand(self.model, n, a, str(first + 1)), self.faults) for n, a in own.items()]


def cluster_id(folder: Path) -> str:
    """Of the cluster that belongs to a folder; the same after a restart, and another in another folder."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]


def name(prefix: str, cluster: str) -> str:
    """Of its network, and the beginning of its nodes' names; the engine takes fewer letters than a registry does."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '-', prefix)}-local-{cluster}"


def free_networks(taken: list[IPv4Network], cluster: str) -> list[IPv4Network]:
    """The /24 networks of the pool that overlap with none in use; which comes first depends on the cluster, so that
    two that start at once don't meet.

    Raises:
        CheckFailed: none is left.
    """
    pool = list(POOL.subnets(new_prefix=24))
    start = int(cluster, 16) % len(pool)
    free = [n for n in pool[start:] + pool[:start] if not any(n.overlaps(other) for other in taken)]
    if not free:
        raise CheckFailed.of("no-free-subnet", pool=POOL)
    return free


def routes(proc_net_route: str) -> list[IPv4Network]:
    """The networks of /proc/net/route, without the default route."""
    networks = []
    for line in proc_net_route.splitlines()[1:]:
        words = line.split()
        to, mask = (int.from_bytes(bytes.fromhex(words[at]), "little") for at in (1, 7))
        if mask:
            networks.append(IPv4Network((to, bin(mask).count("1"))))
    return networks


def digest(machine: Machine, image: str, keys: str) -> str:
    """Of all that a node's container is made from: another digest means another container."""
    recording = json.dumps(tree.record(machine, live=True).to_dict(), sort_keys=True)
    return hashlib.sha256(f"{image}\0{keys}\0{recording}".encode()).hexdigest()[:16]
