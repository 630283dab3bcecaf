"""What the nodes need of an image's provider library: which kernel ABI their driver speaks, of which release it is."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rocstack.node.profile import NodeProfile
from rocstack.stack.component import NicProfile

VERSION = re.compile(r"[0-9][0-9A-Za-z.+~:-]{0,63}")  # of a vendor's release; the kernel's own driver has none


@dataclass(frozen=True)
class Need:
    """Nodes that are alike in this. `release` is the vendor driver's version, None for the kernel's own driver."""

    kernel_abi: int
    release: str | None
    nodes: tuple[str, ...]


def is_worker(profile: NodeProfile, modules: Collection[str], pci: Collection[str]) -> bool:
    """Must a worker image fit this node? If it has GPUs, or cards or RDMA devices of the image's NIC profile; drivers
    need not be loaded. A control node with some other NIC is none."""
    cards = any(nic.device in pci for nic in profile.nics)
    return bool(profile.gpus or profile.cxi or cards or any(device.driver in modules for device in profile.verbs))


def needs(nic: NicProfile, profiles: Iterable[NodeProfile]) -> tuple[Need, ...]:
    """By kernel ABI and release, the most nodes first. What could not be read is left to the gate."""
    nodes_by_driver: dict[tuple[int, str | None], list[str]] = {}
    for profile in profiles:
        devices = [device for device in profile.verbs if device.driver in nic.modules]
        abis = {device.kernel_abi for device in devices if device.kernel_abi is not None}
        version = profile.modules.get(nic.modules[-1]) if nic.modules else None
        release = version if version and VERSION.fullmatch(version) else None
        for abi in sorted(abis):
            nodes_by_driver.setdefault((abi, release), []).append(profile.name)
    rows = (Need(abi, release, tuple(nodes)) for (abi, release), nodes in nodes_by_driver.items())
    return tuple(sorted(rows, key=lambda need: (-len(need.nodes), need.kernel_abi, need.release or "")))
